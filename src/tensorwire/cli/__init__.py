"""Zero-copy codec for the Open Inference Protocol: demo, inspector, small server and client."""

from __future__ import annotations

import argparse
import io
import signal
import sys

import tensorwire as tw

from . import infer, serve
from .output import (
    OutputError,
    Parser,
    UsageError,
    discard_output,
    flush_output,
    print_error,
)


def main(arguments: list[str] | None = None, program: str = "tensorwire") -> int:
    """Run a command, and return its exit status. Invalid arguments raise SystemExit.

    ``program`` is what the user has written before the arguments.
    """
    # The names of tensors and files may have characters that the encoding of the output does not.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = Parser(prog=program, description=__doc__)
    parser.add_argument("--version", action="version", version=f"tensorwire {tw.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="encode and decode 64 MiB of images and 200,000 strings")
    inspect = commands.add_parser("inspect", help="print the tensors of a captured body")
    inspect.add_argument("file", help="file with the HTTP body of a request or response")
    inspect.add_argument(
        "--header-length",
        metavar="N",
        help="value of Inference-Header-Content-Length (default: the whole body is JSON)",
    )
    infer.add_parser(commands)
    serve.add_parser(commands)
    try:
        try:
            chosen = parser.parse_args(arguments)
            parser = commands.choices[chosen.command]
            return run(chosen)
        except UsageError as error:
            parser.error(str(error))
        finally:
            flush_output()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OutputError as error:
        return discard_output(error, parser.prog)
    except OSError as error:  # of the working directory or a temporary file, for example
        print_error(f"{parser.prog}: {error}")
        return 1


def run(chosen: argparse.Namespace) -> int:
    """Run the chosen command, and return its exit status. Raises UsageError and OutputError."""
    if chosen.command == "infer":
        return infer.run(chosen)
    if chosen.command == "serve":
        return serve.run(chosen)
    if chosen.command == "inspect":
        from . import inspect  # noqa: PLC0415 - each command loads what it needs

        return inspect.run(chosen.file, chosen.header_length)
    from . import demo  # noqa: PLC0415

    demo.run()
    return 0
