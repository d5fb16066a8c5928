"""``tensorwire infer URL MODEL``: call a model, and print or save its outputs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import ssl
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .._codec.limits import UNLIMITED
from ..client import Client, InferenceServerError
from ..client.addresses import ServerAddress, parse_url
from ..client.errors import HOW_TO_SEND_JSON
from ..client.options import DEFAULT_TIMEOUT
from .inputs import assignment, declared_inputs, errors_of, make_inputs, read_file, unique
from .output import CommandError, ProgressBar, UsageError, print_line

MAX_SINGLE = 10_000  # maximum number of characters or bytes that are printed of a single element
MAX_ELEMENT = 60  # the same of each of several elements
MAX_PADDING = 4  # an S array may be this many times as large as its elements
BOUNDS = ("max_header_nbytes", "max_tensors", "max_name_nbytes", "max_parameters")
# Those of the client, but BF16 needs no ml_dtypes.
LIMITS = tw.Limits(bf16_as_uint16=True, **{name: getattr(UNLIMITED, name) for name in BOUNDS})
CALL_ERRORS = (InferenceServerError, tw.DecodeError, ConnectionError, TimeoutError)

DESCRIPTION = """\
Call a model with arrays from files or JSON, and print its outputs.

An input is NAME=VALUE or NAME:DATATYPE=VALUE. VALUE is one of these:

  FILE.npy   an array, also FILE.npz with one array; DATATYPE converts it
  FILE.json  JSON in a file; - is JSON from the standard input
  @FILE      the content of a file, as one BYTES element; @- is that of the standard input
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
  echo '"a cat"' | %(prog)s localhost:8000 bert --input text=- --json | jq .outputs[0].data

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


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of the main parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "infer",
        usage="%(prog)s URL MODEL [--input NAME=VALUE ... | --request FILE] [options]",
        help="call a model on a server",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="http://host:8000, https://host, host:8000, unix:/run/socket or "
        "grpc://host:8001")  # fmt: skip
    add("model", metavar="MODEL", help="name of the model")
    add_one = parser.add_mutually_exclusive_group().add_argument
    add_one("--input", metavar="NAME=VALUE", type=assignment, action="append", default=[],
        dest="inputs", help="an input, see above; can be repeated")  # fmt: skip
    add_one("--request", metavar="FILE", help="a request in JSON; - is the standard input")
    add("--output", metavar="NAME", action="append", dest="outputs",
        help="an output to return (default: all); can be repeated")  # fmt: skip
    add("--save", metavar="FOLDER", type=Path, help=SAVE_HELP)
    add("--json", action="store_true", help="send and receive the tensors as JSON, and print the "
        "response as JSON on one line, unless it is saved; not over gRPC")  # fmt: skip
    add("--timeout", metavar="SECONDS", type=float, default=DEFAULT_TIMEOUT,
        help="timeout for connecting and for each send or receive operation (default: "
        "%(default)g)")  # fmt: skip
    add("--header", metavar="'NAME: VALUE'", type=header, action="append", default=[],
        dest="headers", help="an additional header, or gRPC metadata; can be repeated")  # fmt: skip
    add = parser.add_mutually_exclusive_group().add_argument
    add("--ca-file", metavar="FILE", help="certificates to verify an https or grpcs server with")
    add("--insecure", action="store_true", help="do not verify the certificate of an https server")
    return parser


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("it must be 'NAME: VALUE', and has no colon")
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


def make_ssl_context(options: argparse.Namespace, server: ServerAddress) -> ssl.SSLContext | None:
    """Return the context for an https URL, and set the variable that grpcio reads for grpcs."""
    if not options.insecure and options.ca_file is None:
        return None
    if not server.is_tls:
        raise UsageError("--insecure and --ca-file require an https:// or grpcs:// URL")
    if server.is_grpc and options.insecure:
        raise UsageError("--insecure requires an https:// URL: grpcio always verifies the server")
    with errors_of(f"--ca-file {options.ca_file}"):
        context = ssl.create_default_context(cafile=options.ca_file)
    if server.is_grpc:
        os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = options.ca_file
        return None
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def print_json(response: tw.InferResponse) -> None:
    """Print the response as JSON in ASCII, which ``print_line`` does not change."""
    outputs = [tensor.replace(binary=False) for tensor in response.outputs]
    try:
        frame = tw.encode_response(response.replace(outputs=outputs), limits=UNLIMITED)
    except tw.EncodeError as error:  # the server has sent it as binary data
        raise CommandError(f"the response cannot be printed as JSON: {error}") from None
    text = bytes(frame).decode()
    print_line(re.sub("[^ -~]", lambda found: json.dumps(found[0])[1:-1], text))


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
    max_length = MAX_SINGLE if array.size == 1 else MAX_ELEMENT
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


def run(options: argparse.Namespace) -> int:
    """Call the model. Raises UsageError, CommandError and OSError."""
    try:
        with make_client(options) as client:
            response = call_model(client, options)
        if options.save is not None:
            save_outputs(response.outputs, options.save)
        elif options.json:
            print_json(response)
        else:
            print_outputs(response.outputs)
    except CALL_ERRORS as error:
        prefix = "the response is invalid: " if isinstance(error, tw.DecodeError) else ""
        text = str(error).replace(HOW_TO_SEND_JSON, "use --json")
        raise CommandError(f"{prefix}{' '.join(text.split())}") from None
    except (ImportError, ValueError) as error:  # ValueError: the model, an input or an option
        raise UsageError(str(error)) from None
    return 0


def call_model(client: Client, options: argparse.Namespace) -> tw.InferResponse:
    """Build the request, send it, and return the response."""
    inputs: list[tw.Tensor] | tw.InferRequest
    if options.request is not None:
        with errors_of(f"--request {options.request}"):
            inputs = tw.decode_request(read_file(options.request), limits=UNLIMITED)
    else:
        inputs = make_inputs(options, declared_inputs(client.model_metadata(options.model)))
    if options.save is not None:
        with errors_of(f"--save {options.save}"):
            options.save.mkdir(parents=True, exist_ok=True)
    with ProgressBar() as bar:
        return client.infer(
            options.model,
            inputs,
            options.outputs,
            binary_inputs=not options.json,
            nonfinite="literal",  # Triton rejects null
            on_progress=bar.update,
        )
