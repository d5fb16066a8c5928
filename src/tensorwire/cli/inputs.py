"""The inputs of ``tensorwire infer``, from its options and from files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .._codec.datatypes import DATATYPES, RAW_BF16, bf16_dtype, datatype_of
from .._codec.messages.lists import is_list_of_numbers
from ..errors import format_names, format_shape, format_value
from .output import UsageError

MAX_NAMED = 10  # maximum number of inputs that an error message names
STDIN = "-"


class Assignment(NamedTuple):
    """The argument of ``--input``."""

    name: str
    datatype: Any  # a str, which `Tensor` checks, or None
    value: str

    def __str__(self) -> str:
        """Return what the user has written, for errors. A long value is left out."""
        return f"--input {self.name}" + (f"={self.value}" if len(self.value) <= 200 else "")


def assignment(text: str) -> Assignment:
    """Parse ``NAME=VALUE`` or ``NAME:DATATYPE=VALUE``. Other colons are part of the name."""
    target, equals, value = text.partition("=")
    name, colon, datatype = target.rpartition(":")
    has_datatype = colon and datatype in DATATYPES
    found = Assignment(name, datatype, value) if has_datatype else Assignment(target, None, value)
    if not equals or not found.name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return found


def unique(option: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict of the pairs. Raises UsageError if a key occurs twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UsageError(f"{option} {key} is given twice")
        found[key] = value
    return found


def declared_inputs(metadata: dict[str, Any]) -> dict[str, tw.TensorSpec]:
    """Return the inputs that the metadata of a model declares. Raises DecodeError."""
    try:
        inputs = metadata.get("inputs") or ()
        specs = [tw.TensorSpec(each["name"], each["datatype"], each["shape"]) for each in inputs]
    except (TypeError, ValueError, LookupError) as error:
        problem = f"the inputs in the metadata of the model are invalid: {error!r}"
        raise tw.DecodeError(problem) from None
    return {spec.name: spec for spec in specs}


def make_inputs(options: argparse.Namespace, specs: dict[str, tw.TensorSpec]) -> list[tw.Tensor]:
    """Return the inputs of the request. Raises UsageError."""
    given = unique("--input", ((each.name, each) for each in options.inputs))
    for name in given:
        if specs and name not in specs:
            raise UsageError(f"the model has no input {name!r}; it has {format_specs(specs)}")
    absent = {name: spec for name, spec in specs.items() if name not in given}
    if absent:
        raise UsageError(f"missing {format_specs(absent)}: use --input")
    if not given:
        raise UsageError("the model declares no inputs: use --input")
    if sum(each.value in (STDIN, f"@{STDIN}") for each in options.inputs) > 1:
        raise UsageError("only one --input can be the standard input")
    tensors = []
    for name in {**specs, **given}:
        with errors_of(given[name]):
            tensors.append(make_input(given[name], specs.get(name)))
    return [tensor for tensor in tensors if tensor is not None]


def format_specs(specs: dict[str, tw.TensorSpec]) -> str:
    """Describe the first inputs: ``input 'x' (FP32 [-1, 3]), ...``."""
    first = list(specs.values())[:MAX_NAMED]
    texts = [f"input {format_value(s.name)} ({s.datatype} {format_shape(s.shape)})" for s in first]
    more = f" and {len(specs) - MAX_NAMED} more" if len(specs) > MAX_NAMED else ""
    return ", ".join(texts) + more


def make_input(given: Assignment, spec: tw.TensorSpec | None) -> tw.Tensor | None:
    """Return the tensor of an ``--input``; None if it is ``null``."""
    value = read_argument(given)
    if value is None:
        return None
    datatype = given.datatype if given.datatype or spec is None else spec.datatype
    shape = None
    if isinstance(value, np.ndarray):
        value = in_datatype(value, datatype, given)
    elif not isinstance(value, list):
        value, shape = [value], [1] * (1 if spec is None else len(spec.shape))
    if datatype is None and is_list_of_numbers(value):
        raise UsageError(f"the model does not declare it: use --input {given.name}:DATATYPE=")
    return tw.Tensor(given.name, value, datatype=datatype, shape=shape)


@contextmanager
def errors_of(argument: object) -> Iterator[None]:
    """Raise UsageError with the argument that an error is about."""
    try:
        yield
    except Exception as error:  # an OSError, a ValueError, or whatever a parser of files raises
        raise UsageError(f"{argument}: {error}") from None


def read_argument(given: Assignment) -> Any:
    """Return the array, bytes or JSON value that an ``--input`` stands for."""
    name, _, text = given
    if text.startswith("@"):
        return read_file(text[1:])
    if text.endswith((".npy", ".npz")):
        return read_array(text)
    is_file = text == STDIN or text.endswith(".json")
    try:
        value = json.loads(read_file(text) if is_file else text)
    except (ValueError, RecursionError) as error:
        hint = f"; write text as {name}='\"...\"', and files as {name}=FILE.json or {name}=@FILE"
        raise UsageError(f"it is not JSON{f': {error}' if is_file else hint}") from None
    if isinstance(value, dict):
        raise UsageError("a JSON object is not a tensor; --request takes a whole request")
    return value


def read_file(path: str) -> bytes:
    if path != STDIN:
        return Path(path).read_bytes()
    if sys.stdin is None:
        raise UsageError("the standard input is closed")
    return sys.stdin.buffer.read()


def read_array(path: str) -> NDArray[Any]:
    """Read a file of numpy with one array, which must not contain Python objects."""
    with open(path, "rb") as file:
        source: IO[bytes] = file
        if path.endswith(".npz"):
            archive = ZipFile(file)
            names = archive.namelist()
            if len(names) != 1:
                raise UsageError(f"the file must have one array, not {format_names(names)}")
            source = archive.open(names[0])
        array: NDArray[Any] = np.lib.format.read_array(source, allow_pickle=False)
    return array


def in_datatype(array: NDArray[Any], datatype: str | None, given: Assignment) -> NDArray[Any]:
    """Return the array in the given datatype. Raises UsageError if it must not be converted."""
    if datatype == "BF16" and array.dtype in (np.dtype("V2"), RAW_BF16):
        return array.view(RAW_BF16)  # numpy saves bfloat16 as V2, and this command as uint16
    own = datatype_of(array.dtype)
    if own is None or datatype in (None, own.name, "BYTES"):
        return array  # if it is not a valid array for the datatype, Tensor says so
    if given.datatype is None:
        raise UsageError(
            f"the array is {own.name}, but the model declares {datatype}; "
            f"to convert it, use --input {given.name}:{datatype}={given.value}"
        )
    dtype = DATATYPES[datatype].dtype if datatype != "BF16" else bf16_dtype()
    if dtype is None:
        raise UsageError("converting an array to BF16 requires ml_dtypes")
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        is_exact = dtype.kind not in "iub" or np.array_equal(converted, array)
    if not is_exact:  # floats are rounded, but integers must not change
        raise UsageError(f"the array has values that {datatype} cannot represent")
    return converted
