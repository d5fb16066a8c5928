"""Zero-copy codec for the Open Inference Protocol: demo, inspector, small server and client."""

from __future__ import annotations

import io
import signal
import sys
from importlib import import_module

import tensorwire as tw

from . import infer, serve
from .output import (
    CommandError,
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
            # Each command loads what it needs.
            status: int = import_module(f".{chosen.command}", __name__).run(chosen)
            return status
        except UsageError as error:
            parser.error(str(error))
        finally:
            flush_output()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OutputError as error:
        return discard_output(error, parser.prog)
    except (CommandError, OSError) as error:  # of the working directory or a file, for example
        print_error(f"{parser.prog}: {error}")
        return 1
