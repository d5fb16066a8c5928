"""NVIDIA's tritonclient on this codec: same calls, same results, fewer copies.

    from tensorwire.integrations import tritonclient
    tritonclient.install()

The client's own code goes on doing everything but three things. BYTES are packed, and read, by the
compiled codec (whatever that does not take exactly as the client does, the client still does, so
results and errors are its own). ``http.InferInput`` refers to a large array instead of copying it.
``http.InferResult`` keeps the body that it was given, and ``as_numpy`` views it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from math import prod
from operator import index
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._codec.bytes_reader import elements_nbytes
from .._codec.bytes_tensor import BytesTensor, decode_bytes
from .._codec.bytes_writer import all_plain
from .._codec.conversion import encode_bytes
from .._codec.memory import Body
from ..errors import EncodeError, TensorwireError
from .patching import Patch, Replacement

_PATCH = Patch("tritonclient", ("2.60", "2.73"))

# Below, a copy costs less than what it takes to do without (benchmarks/bench_integrations.py).
REFER_FROM_NBYTES = 256 * 1024
VIEW_FROM_NBYTES = 64 * 1024


def install() -> None:
    """Put the codec into tritonclient, in the whole process; again does nothing.

    Imports what is installed of ``tritonclient.http``, ``.grpc`` and ``.utils.shared_memory``.
    Names that other modules, imported before or after, took from there change with them.

    From now on ``http.InferInput.set_data_from_numpy`` refers to a C-contiguous array of 256 KiB
    and more until the input goes or gets other data: a change to it before the request is built (in
    ``infer``, or when that is awaited) is sent. Pass a copy where that is not meant.
    ``as_numpy`` of a binary output is a view that pins the whole response and may be misaligned; it
    is read-only, as it was, when the body is ``bytes``, which it is from every transport of the
    client. Bodies of other types, given to ``parse_response_body``, are copied as before.
    BYTES inputs may be a BytesTensor, ``U`` or StringDType arrays, too.

    Raises IntegrationError, with nothing changed, when tritonclient is missing, of a version that
    was not tested, or not laid out as expected.
    """
    _PATCH.install(_replacements)


def uninstall() -> None:
    """Put back what ``install`` changed. Inputs and results made meanwhile stay usable."""
    _PATCH.uninstall()


def is_installed() -> bool:
    """Whether the codec is in."""
    return _PATCH.installed


def _replacements() -> list[Replacement]:
    utils = import_module("tritonclient.utils")
    found = [
        Replacement(utils, "serialize_byte_tensor", _serializer),
        Replacement(utils, "deserialize_bytes_tensor", _deserializer),
    ]
    if shared_memory := _usable("tritonclient.utils.shared_memory"):
        found.append(Replacement(shared_memory, "get_contents_as_numpy", _shared_memory_reader))
    if http := _usable("tritonclient.http"):
        found += [
            Replacement(http.InferInput, "set_data_from_numpy", _http_setter),
            Replacement(http.InferInput, "_get_binary_data", _http_getter),
            Replacement(
                import_module("tritonclient.http._utils"),
                "_get_inference_request",
                partial(_http_builder, http.InferInput),
            ),
            Replacement(http.InferResult, "__init__", _http_result),
            Replacement(http.InferResult, "from_response_body", _http_parser),
        ]
    if grpc := _usable("tritonclient.grpc"):
        found.append(Replacement(grpc.InferInput, "set_data_from_numpy", _grpc_setter))
    return found


def _usable(name: str) -> ModuleType | None:
    """The module, or ``None`` without the extra that it needs: then no program uses it either."""
    try:
        return import_module(name)
    except Exception:  # ImportError, and what it, or protobuf, raises for versions it refuses
        return None


# --- BYTES -----------------------------------------------------------------------------------


class _Packed(np.ndarray[Any, Any]):
    """What stands for BYTES that are packed: their shape, ``None`` for elements, and the wire."""

    wire: bytes


def _serializer(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def serialize_byte_tensor(input_tensor: Any) -> Any:
        wire = _wire_of(input_tensor)
        if wire is None:
            return original(input_tensor)
        if not wire:
            return np.empty([0], object)
        held = np.empty((), object)
        held[()] = wire
        return held

    return serialize_byte_tensor


def _wire_of(values: Any) -> bytes | None:
    """Wire bytes, or ``None`` for what the client's own function turns into bytes, or refuses."""
    if isinstance(values, _Packed):
        return values.wire
    is_extra = isinstance(values, BytesTensor)
    if type(values) is np.ndarray:
        kind = values.dtype.kind
        is_extra = kind in "UT"
        if kind == "O":
            values = np.require(values, requirements=["C", "A"])
            if not all_plain(values):
                return None  # str() of numbers, None, subclasses and so on
        elif kind != "S" and not is_extra:
            return None
    elif not is_extra:
        return None
    try:
        return encode_bytes(values)
    except EncodeError:  # a lone surrogate, or 4 GiB
        if is_extra:
            raise
        return None


def _deserializer(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
        try:
            if memoryview(encoded_tensor).shape == (len(encoded_tensor),):
                return decode_bytes(encoded_tensor).as_numpy()
        except (TensorwireError, TypeError, BufferError):
            pass
        return original(encoded_tensor)

    return deserialize_bytes_tensor


def _shared_memory_reader(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_contents_as_numpy(shm_handle: Any, datatype: Any, shape: Any, offset: Any = 0) -> Any:
        if datatype in (np.object_, np.bytes_):
            try:
                return _elements_at(shm_handle._mpsm_handle.buf, shape, offset)
            except (TensorwireError, AttributeError, TypeError, ValueError, OverflowError):
                pass
        return original(shm_handle, datatype, shape, offset)

    return get_contents_as_numpy


def _elements_at(region: memoryview, shape: Any, offset: int) -> NDArray[np.object_]:
    """The elements of ``shape`` that begin at ``offset``; what is behind them does not matter."""
    dims = tuple(index(dim) for dim in shape)
    if min(dims, default=1) <= 0 or offset < 0:
        raise ValueError("the client has an answer of its own to these")
    body = Body(region[offset:])
    n_elements = prod(dims)
    nbytes = elements_nbytes(body, n_elements)
    return decode_bytes(body.view(0, nbytes), n_elements).as_numpy().reshape(dims)


def _stand_in(values: Any, is_json: bool = False) -> Any:
    """The kinds of BYTES that the client does not know, as an array that passes its checks."""
    if not isinstance(values, BytesTensor):
        if type(values) is not np.ndarray or values.dtype.kind not in "UT":
            return values
        if is_json:
            return values.astype(object)
    elif is_json:
        return values.as_numpy()
    packed = np.broadcast_to(np.array(None, object), values.shape).view(_Packed)
    packed.wire = encode_bytes(values)
    return packed


# --- InferInput ------------------------------------------------------------------------------


class _Referenced(np.ndarray[Any, Any]):
    """An array whose ``tobytes`` is no copy: a flat read-only uint8 view, to be joined later."""

    def tobytes(self, order: Any = "C") -> Any:
        if not self.flags.c_contiguous or not self.size:
            return super().tobytes(order)
        flat = self.view(np.ndarray).reshape(-1).view(np.uint8)
        flat.flags.writeable = False
        return flat


def _http_setter(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_data_from_numpy(self: Any, input_tensor: Any, binary_data: bool = True) -> Any:
        if self.datatype() == "BYTES":
            input_tensor = _stand_in(input_tensor, is_json=not binary_data)
        elif binary_data and _is_large(input_tensor):
            input_tensor = input_tensor.view(_Referenced)
        return original(self, input_tensor, binary_data)

    return set_data_from_numpy


def _http_getter(original: Callable[..., Any]) -> Callable[..., Any]:
    def _get_binary_data(self: Any) -> Any:
        raw = original(self)
        return raw.tobytes() if type(raw) is np.ndarray else raw

    return _get_binary_data


class _Joined:
    """An input that refers to its data, as the client's own code shall join it: without a copy.

    Programs that build bodies themselves ask the input, and need ``bytes``.
    """

    def __init__(self, referring: Any) -> None:
        self._get_tensor = referring._get_tensor
        self._raw_data = referring._raw_data

    def _get_binary_data(self) -> Any:
        return self._raw_data


def _http_builder(infer_input: type[Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def joinable(given: Any) -> Any:
        # A subclass may have a _get_binary_data of its own.
        is_referring = type(given) is infer_input and type(given._raw_data) is np.ndarray
        return _Joined(given) if is_referring else given

    def _get_inference_request(
        inputs: Any,
        request_id: Any,
        outputs: Any,
        sequence_id: Any,
        sequence_start: Any,
        sequence_end: Any,
        priority: Any,
        timeout: Any,
        custom_parameters: Any,
    ) -> Any:
        return original(
            [joinable(given) for given in inputs],
            request_id,
            outputs,
            sequence_id,
            sequence_start,
            sequence_end,
            priority,
            timeout,
            custom_parameters,
        )

    return _get_inference_request


def _grpc_setter(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_data_from_numpy(self: Any, input_tensor: Any) -> Any:
        if self.datatype() == "BYTES":
            input_tensor = _stand_in(input_tensor)
        return original(self, input_tensor)

    return set_data_from_numpy


def _is_large(values: Any) -> bool:
    return (
        isinstance(values, np.ndarray)
        and values.nbytes >= REFER_FROM_NBYTES
        and type(values).tobytes is np.ndarray.tobytes  # a masked array fills in
    )


# --- InferResult -----------------------------------------------------------------------------


class _Response:
    """A body as the response that ``InferResult`` reads: its JSON, then a view of the rest."""

    def __init__(self, body: bytes, header_length: Any, content_encoding: Any) -> None:
        self.body = body
        self.position = 0
        self.headers = {
            "Inference-Header-Content-Length": header_length,
            "Content-Encoding": content_encoding,
        }

    def get(self, name: str) -> Any:
        return self.headers.get(name)

    def read(self, length: int = -1) -> Any:
        if length != -1:
            begin = self.position
            self.position += length
            return self.body[begin : self.position]
        if self.position == 0 or len(self.body) < VIEW_FROM_NBYTES:
            return self.body[self.position :]
        return np.frombuffer(self.body, np.uint8)[self.position :]


def _http_result(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, response: Any, verbose: Any) -> None:
        original(self, response, verbose)
        buffer = vars(self).get("_buffer")
        if type(buffer) is bytes and len(buffer) >= VIEW_FROM_NBYTES:
            # A slice of an array is a view; unlike a memoryview it pickles, as bytes do.
            self._buffer = np.frombuffer(buffer, np.uint8)

    return __init__


def _http_parser(original: Callable[..., Any]) -> Callable[..., Any]:
    def from_response_body(
        cls: Any,
        response_body: Any,
        verbose: bool = False,
        header_length: Any = None,
        content_encoding: Any = None,
    ) -> Any:
        if type(response_body) is not bytes:
            return original(cls, response_body, verbose, header_length, content_encoding)
        return cls(_Response(response_body, header_length, content_encoding), verbose)

    return from_response_body
