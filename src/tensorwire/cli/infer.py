"""``tensorwire infer URL MODEL``: call a model, and print or save its outputs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import ssl
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .._codec.datatypes import DATATYPES, RAW_BF16, bf16_dtype, datatype_of
from ..arguments import is_list_of_numbers
from ..client import DEFAULT_TIMEOUT, RESPONSE_LIMITS, Client, InferenceServerError, Progress
from ..client.addresses import Server, parse_url
from ..client.requests import Target, model_path
from ..errors import format_shape, format_value
from .output import ProgressBar, UsageError, print_error, print_line

LARGE_NBYTES = 8_000_000  # bodies of this size or more get a progress bar
MAX_NAMED = 10  # maximum number of inputs that an error message names
MAX_TEXT = 10_000  # maximum number of characters or bytes that are printed of a single element
MAX_ELEMENT = 60  # the same of each of several elements
MAX_PADDING = 4  # an S array may be this many times as large as its elements
_BOUNDS = ("max_header_nbytes", "max_tensors", "max_name_nbytes", "max_parameters")
# Those of the client, but BF16 needs no ml_dtypes.
LIMITS = tw.Limits(bf16_as_uint16=True, **{n: getattr(RESPONSE_LIMITS, n) for n in _BOUNDS})

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


class Assignment(NamedTuple):
    """The argument of ``--input``, before the value is parsed."""

    name: str
    datatype: Any  # a str, which `Tensor` checks, or None
    value: str


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
    parser.set_defaults(program=parser.prog)
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


def assignment(text: str) -> Assignment:
    """Parse ``NAME=VALUE`` or ``NAME:DATATYPE=VALUE``. Other colons are part of the name."""
    target, equals, value = text.partition("=")
    name, colon, datatype = target.rpartition(":")
    has_datatype = colon and datatype in DATATYPES
    found = Assignment(name, datatype, value) if has_datatype else Assignment(target, None, value)
    if not equals or not found.name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return found


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not 'NAME: VALUE'")
    return name, value.strip()


def unique(option: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict of the pairs. Raises UsageError if a key occurs twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UsageError(f"{option} {key} is given twice")
        found[key] = value
    return found


def make_client(options: argparse.Namespace) -> Client:
    """Return a client with the options. Raises UsageError."""
    try:
        server = parse_url(options.url)
        if options.json and server.is_grpc:
            raise UsageError("--json requires HTTP: gRPC has no JSON")
        if not server.is_grpc:
            model_path(Target(options.model, None, None))
        return Client(
            options.url,
            timeout=options.timeout,
            headers=unique("--header", options.headers),
            ssl_context=make_ssl_context(options, server),
            limits=LIMITS,
        )
    except (ImportError, ValueError) as error:  # ValueError: the model, URL, a header or timeout
        raise UsageError(str(error)) from None


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


# --- inputs --------------------------------------------------------------------------------------


def declared_inputs(metadata: dict[str, Any]) -> dict[str, tw.TensorSpec]:
    """Return the inputs that the metadata of a model declares. Raises DecodeError."""
    try:
        specs = [
            tw.TensorSpec(entry["name"], entry["datatype"], entry["shape"])
            for entry in metadata.get("inputs") or ()
        ]
    except (TypeError, ValueError, LookupError) as error:
        raise tw.DecodeError(
            f"the inputs in the metadata of the model are invalid: {error!r}"
        ) from None
    return {spec.name: spec for spec in specs}


def make_inputs(options: argparse.Namespace, specs: dict[str, tw.TensorSpec]) -> list[tw.Tensor]:
    """Return the inputs of the request. Raises UsageError."""
    given = unique("--input", ((one.name, one) for one in options.inputs))
    for name in given:
        if specs and name not in specs:
            raise UsageError(
                f"the model has no input {name!r}; it has {format_specs(specs.values())}"
            )
    absent = [spec for name, spec in specs.items() if name not in given]
    if absent:
        raise UsageError(f"missing {format_specs(absent)}: use --input")
    if not given:
        raise UsageError("the model declares no inputs: use --input")
    tensors = []
    for name in {**specs, **given}:
        try:
            tensor = given_input(given[name], specs.get(name))
        except (tw.EncodeError, TypeError) as error:
            raise UsageError(str(error)) from None
        if tensor is not None:
            tensors.append(tensor)
    return tensors


def format_specs(specs: Iterable[tw.TensorSpec]) -> str:
    """Describe the first inputs: ``input 'x' (FP32 [-1, 3]), ...``."""
    texts = [f"input {format_value(s.name)} ({s.datatype} {format_shape(s.shape)})" for s in specs]
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return ", ".join(texts[:MAX_NAMED]) + more


def given_input(given: Assignment, spec: tw.TensorSpec | None) -> tw.Tensor | None:
    """Return the tensor of an ``--input``; None if it is ``null``. Raises EncodeError, too."""
    name, datatype, text = given
    if datatype is None and spec is not None:
        datatype = spec.datatype
    if text.endswith(".npy") and not text.startswith("@"):
        array = load_array(text)
        if datatype is not None:
            array = in_datatype(array, datatype, given)
        return tw.Tensor(name, array, datatype=datatype)
    value = read_file(text[1:]) if text.startswith("@") else parse_json(name, text)
    if value is None:
        return None
    shape = None
    if not isinstance(value, list):
        value, shape = [value], [1] * (1 if spec is None else len(spec.shape))
    if datatype is None and is_list_of_numbers(value):
        raise UsageError(f"the model does not declare input {name!r}: use --input {name}:DATATYPE=")
    return tw.Tensor(name, value, datatype=datatype, shape=shape)


def read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(str(error)) from None


def parse_json(name: str, text: str) -> Any:
    """Parse the value of an ``--input``. Raises UsageError."""
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(
            f"--input {name}: {shown!r} is not JSON; write text as {name}='\"...\"', "
            f"and files as {name}=FILE.npy or {name}=@FILE"
        ) from None
    if isinstance(value, dict):
        raise UsageError(f"--input {name}: a JSON object is not a tensor: {shown!r}")
    return value


def load_array(path: str) -> NDArray[Any]:
    """Read a .npy file, which must not contain Python objects. Raises UsageError."""
    try:
        with open(path, "rb") as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise UsageError(str(error)) from None
    except Exception as error:  # a ValueError, or whatever its parser raises for a header
        raise UsageError(f"{path}: {error}") from None
    return array


def in_datatype(array: NDArray[Any], datatype: str, given: Assignment) -> NDArray[Any]:
    """Return the array in the given datatype. Raises UsageError if it must not be converted."""
    if datatype == "BF16" and array.dtype in (np.dtype("V2"), RAW_BF16):
        return array.view(RAW_BF16)  # numpy saves bfloat16 as V2, and this command as uint16
    own = datatype_of(array.dtype)
    if own is None or datatype in (own.name, "BYTES"):
        return array  # if it is not a valid array for the datatype, Tensor says so
    if given.datatype is None:
        raise UsageError(
            f"{given.value} has datatype {own.name}, but the model declares {datatype}; "
            f"to convert it, use --input {given.name}:{datatype}={given.value}"
        )
    dtype = DATATYPES[datatype].dtype if datatype != "BF16" else bf16_dtype()
    if dtype is None:
        raise UsageError("converting an array to BF16 requires ml_dtypes")
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        is_exact = dtype.kind not in "iub" or np.array_equal(converted, array)
    if not is_exact:  # floats are rounded, but integers must not change
        raise UsageError(f"{given.value} has values that {datatype} cannot represent")
    return converted


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
    longest, is_exact = 0, True
    for element in elements:
        longest = max(longest, len(element))
        is_exact = is_exact and not element.endswith(b"\0")
    if is_exact and longest * tensor.data.size <= MAX_PADDING * tensor.data.nbytes:
        return tensor.data.as_numpy("S"), ""
    return np.frombuffer(tensor.data.wire, np.uint8), "  (for tensorwire.decode_bytes)"


# --- the command ---------------------------------------------------------------------------------

CALL_ERRORS = (InferenceServerError, tw.DecodeError, ConnectionError, TimeoutError)


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status. Raises UsageError."""
    try:
        with make_client(options) as client:
            return call_model(client, options)
    except CALL_ERRORS as error:
        prefix = "the response is invalid: " if isinstance(error, tw.DecodeError) else ""
        print_error(f"{options.program}: {prefix}{' '.join(str(error).split())}")
        return 1


def call_model(client: Client, options: argparse.Namespace) -> int:
    """Build the request, and send it. Return the exit status."""
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
    except tw.EncodeError as error:
        raise UsageError(str(error)) from None
    finally:
        bar.clear()
    if options.save is None:
        print_outputs(response.outputs)
        return 0
    try:
        save_outputs(response.outputs, options.save)
    except OSError as error:
        print_error(f"{options.program}: {error}")
        return 1
    return 0


def draw_call(bar: ProgressBar, progress: Progress) -> None:
    """Draw the progress of a call, if its bodies are large."""
    label, done = "sending", progress.sent_nbytes
    total: int | None = progress.request_nbytes
    if progress.received_nbytes:
        label, done, total = "receiving", progress.received_nbytes, progress.response_nbytes
    if (done if total is None else total) >= LARGE_NBYTES:
        bar.draw(label, done / 1e6, None if total is None else total / 1e6, "MB")
