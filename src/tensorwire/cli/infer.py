"""``tensorwire infer URL MODEL``: call a model, and print or save its outputs."""

from __future__ import annotations

import argparse
import contextlib
import os
import ssl
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from ..client import DEFAULT_TIMEOUT, RESPONSE_LIMITS, Client, InferenceServerError, Progress
from ..client.addresses import Server, parse_url
from .inputs import assignment, declared_inputs, make_inputs, unique
from .output import CommandError, ProgressBar, UsageError, print_line

MAX_TEXT = 10_000  # maximum number of characters or bytes that are printed of a single element
MAX_ELEMENT = 60  # the same of each of several elements
MAX_PADDING = 4  # an S array may be this many times as large as its elements
BOUNDS = ("max_header_nbytes", "max_tensors", "max_name_nbytes", "max_parameters")
# Those of the client, but BF16 needs no ml_dtypes.
LIMITS = tw.Limits(bf16_as_uint16=True, **{name: getattr(RESPONSE_LIMITS, name) for name in BOUNDS})
CALL_ERRORS = (InferenceServerError, tw.DecodeError, ConnectionError, TimeoutError)

DESCRIPTION = """\
Call a model with arrays from files or JSON, and print its outputs.

An input is NAME=VALUE or NAME:DATATYPE=VALUE. VALUE is one of these:

  FILE.npy   an array; DATATYPE converts it
  @FILE      the content of a file, as one BYTES element
  JSON       a number, a string (BYTES) or nested lists of them; the default of DATATYPE is the
             datatype in the metadata of the model
  null       leaves out an optional input

A single number, string or file becomes a tensor with one element and as many dimensions as the
model declares.
"""

EPILOG = """\
examples:
  %(prog)s localhost:8000 resnet --input image=cat.npy --save outputs
  %(prog)s localhost:8000 add --input 'x=[[1, 2], [3, 4]]' --input y=0.5
  %(prog)s localhost:8000 bert --input 'text=["a cat", "a dog"]' --output scores
  %(prog)s localhost:8000 jpeg --input image=@cat.jpg

exit status:
  0    success
  1    the server responded with an error or not at all, or its response is invalid, or the output
       cannot be written
  2    the arguments are invalid
  130  interrupted with Ctrl-C
  141  the program that reads the output has closed it
"""

SAVE_HELP = """\
write each output to FOLDER/NAME.npy instead of printing it. BYTES become an array of dtype S. If
that array would not be exact (an element ends with NUL) or would be very large, NAME.npy is an
array of uint8 with the length-prefixed elements, which tensorwire.decode_bytes reads. BF16 becomes
uint16 with the same bits
"""


# --- arguments -----------------------------------------------------------------------------------


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of the main parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "infer",
        usage="%(prog)s URL MODEL [--input NAME=VALUE ...] [options]",
        help="call a model on a server",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="http://host:8000, https://host, host:8000 or grpc://host:8001")
    add("model", metavar="MODEL", type=valid_utf8, help="name of the model")
    add("--input", metavar="NAME=VALUE", type=assignment, action="append", default=[],
        dest="inputs", help="an input, see above; can be repeated")  # fmt: skip
    add("--output", metavar="NAME", action="append", dest="outputs",
        help="an output to return (default: all); can be repeated")  # fmt: skip
    add("--save", metavar="FOLDER", type=Path, help=SAVE_HELP)
    add("--json", action="store_true", help="send and receive the tensors as JSON; not over gRPC")
    add("--timeout", metavar="SECONDS", type=float, default=DEFAULT_TIMEOUT,
        help="timeout for connecting and for each send or receive operation (default: "
        "%(default)g)")  # fmt: skip
    add("--header", metavar="'NAME: VALUE'", type=header, action="append", default=[],
        dest="headers", help="an additional header, or gRPC metadata; can be repeated")  # fmt: skip
    add("--ca-file", metavar="FILE", help="certificates to verify an https or grpcs server with")
    add("--insecure", action="store_true", help="do not verify the certificate of an https server")
    return parser


def valid_utf8(text: str) -> str:
    """Return the argument. Raises ArgumentTypeError if it was not valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid UTF-8") from None
    return text


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not 'NAME: VALUE'")
    return name, value.strip()


def make_client(options: argparse.Namespace) -> Client:
    """Return a client with the options. Raises UsageError, ImportError and ValueError."""
    server = parse_url(options.url)
    if options.json and server.is_grpc:
        raise UsageError("--json requires HTTP: gRPC has no JSON")
    return Client(
        options.url,
        timeout=options.timeout,
        headers=unique("--header", options.headers),
        ssl_context=make_ssl_context(options, server),
        limits=LIMITS,
    )


def make_ssl_context(options: argparse.Namespace, server: Server) -> ssl.SSLContext | None:
    """Return the context for an https URL, and set the variable that grpcio reads for grpcs."""
    if not options.insecure and options.ca_file is None:
        return None
    if options.insecure and options.ca_file is not None:
        raise UsageError("--insecure and --ca-file cannot be combined")
    if not server.is_tls:
        raise UsageError("--insecure and --ca-file require an https:// or grpcs:// URL")
    if server.is_grpc and options.insecure:
        raise UsageError("--insecure requires an https:// URL: grpcio always verifies the server")
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
    except OSError as error:
        raise UsageError(f"--ca-file {options.ca_file}: {error}") from None
    if server.is_grpc:
        os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = options.ca_file
        return None
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# --- outputs -------------------------------------------------------------------------------------


def print_outputs(outputs: Iterable[tw.Tensor]) -> None:
    for tensor in outputs:
        print_line(f"{tensor.name}  {tensor.datatype}  {list(tensor.shape)}")
        for line in format_values(tensor).split("\n"):
            print_line(line)


def format_values(tensor: tw.Tensor) -> str:
    """Return the values as numpy prints them, without the middle of a large array."""
    if tensor.data is None:
        return "(in shared memory)"
    array = tensor.as_numpy()
    if tensor.datatype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    max_length = MAX_TEXT if array.size == 1 else MAX_ELEMENT
    if array.ndim > 4:
        array = array.reshape(-1)
    return np.array2string(
        array,
        threshold=100,
        edgeitems=3 if array.ndim <= 2 else 1,
        formatter={"object": partial(format_element, max_length)},
    )


def format_element(max_length: int, element: bytes) -> str:
    """Format an element of BYTES: as text if it is valid UTF-8. A long one is cut."""
    shown: str | bytes = element
    with contextlib.suppress(UnicodeDecodeError):
        shown = element.decode()
    return repr(shown[:max_length]) + ("..." if len(shown) > max_length else "")


def save_outputs(outputs: Iterable[tw.Tensor], folder: Path) -> None:
    """Write each output to a .npy file, whose name has no special characters."""
    for tensor in outputs:
        if tensor.data is None:
            print_outputs([tensor])
            continue
        path = folder / f"{quote(tensor.name, safe=':')}.npy"
        array, form = array_to_save(tensor)
        np.save(path, array, allow_pickle=False)
        print_line(f"{path}  {tensor.datatype}  {list(tensor.shape)}{form}")


def array_to_save(tensor: tw.Tensor) -> tuple[NDArray[Any], str]:
    """Return an array that contains no Python objects, and a note on its form."""
    if not isinstance(tensor.data, tw.BytesArray):
        return tensor.as_numpy(), "  (as uint16)" if tensor.datatype == "BF16" else ""
    elements = tensor.data.reshape((tensor.data.size,))
    is_exact = not any(element.endswith(b"\0") for element in elements)
    nbytes = max(map(len, elements), default=0) * tensor.data.size
    if is_exact and nbytes <= MAX_PADDING * tensor.data.nbytes:
        return tensor.data.as_numpy("S"), ""
    return np.frombuffer(tensor.data.wire, np.uint8), "  (for tensorwire.decode_bytes)"


# --- the command ---------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Call the model. Raises UsageError, CommandError and OSError."""
    try:
        with make_client(options) as client:
            outputs = call_model(client, options)
    except CALL_ERRORS as error:
        prefix = "the response is invalid: " if isinstance(error, tw.DecodeError) else ""
        raise CommandError(f"{prefix}{' '.join(str(error).split())}") from None
    except (ImportError, ValueError) as error:  # ValueError: the model, an input or an option
        raise UsageError(str(error)) from None
    if options.save is None:
        print_outputs(outputs)
    else:
        save_outputs(outputs, options.save)
    return 0


def call_model(client: Client, options: argparse.Namespace) -> Sequence[tw.Tensor]:
    """Build the request, send it, and return the outputs."""
    inputs = make_inputs(options, declared_inputs(client.model_metadata(options.model)))
    if options.save is not None:
        try:
            options.save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(str(error)) from None
    bar = ProgressBar()
    try:
        response = client.infer(
            options.model,
            inputs,
            options.outputs,
            binary_inputs=not options.json,
            nonfinite="literal",  # Triton rejects null
            on_progress=partial(draw_call, bar),
        )
    finally:
        bar.clear()
    return response.outputs


def draw_call(bar: ProgressBar, progress: Progress) -> None:
    if progress.received_nbytes:
        bar.draw("receiving", progress.received_nbytes, progress.response_nbytes)
    else:
        bar.draw("sending", progress.sent_nbytes, progress.request_nbytes)
