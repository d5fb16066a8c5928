"""Zero-copy codec for the Open Inference Protocol: demo, inspector, small server and client."""

from __future__ import annotations

import argparse
import io
import sys

import tensorwire as tw

from . import infer, serve


def main(arguments: list[str] | None = None, program: str = "tensorwire") -> int:
    """Run a command, and return its exit status. Invalid arguments raise SystemExit.

    ``program`` is what the user has written before the arguments.
    """
    # The names of tensors and files may have characters that the encoding of the output does not.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
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
    chosen = parser.parse_args(arguments)
    if chosen.command == "demo":
        from . import demo  # noqa: PLC0415 - each command loads what it needs

        demo.run()
        return 0
    if chosen.command in ("infer", "serve"):
        try:
            return infer.run(chosen) if chosen.command == "infer" else serve.run(chosen)
        except infer.UsageError as error:
            commands.choices[chosen.command].error(str(error))
    from .inspect import run  # noqa: PLC0415

    try:
        return run(chosen.file, chosen.header_length)
    except OSError as error:
        parser.error(str(error))
