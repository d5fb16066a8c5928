"""Other formats, for orientation, and limits: what it costs to copy the bytes once.

The formats carry the same arrays without the protocol: no JSON, no datatypes that others know.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .contender import Contender, Encoded, Found, Names, module
from .missing import Unsupported
from .workloads import Message

# --- safetensors ---

SAFETENSORS = "safetensors.numpy"


def safetensors_encode(message: Message) -> Encoded:
    if any(array.dtype.kind == "O" for array in message.arrays.values()):
        raise Unsupported("safetensors has no strings")
    return module(SAFETENSORS).save(message.arrays), None


def safetensors_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    found = module(SAFETENSORS).load(body)
    return [found[name] for name in names]


# --- Arrow IPC: one batch; a tensor is flat in its column, its shape in the metadata ---

ARROW = "pyarrow"


def arrow_encode(message: Message) -> Any:
    pa, arrays = module(ARROW), message.arrays
    columns = [
        pa.array(array, pa.binary() if array.dtype.kind == "O" else None)
        for array in (array.ravel() for array in arrays.values())
    ]
    fields = [
        pa.field(name, pa.large_list(column.type), metadata={"shape": repr(arrays[name].shape)})
        for name, column in zip(arrays, columns, strict=True)
    ]
    lists = [
        pa.LargeListArray.from_arrays(pa.array([0, len(column)], pa.int64()), column)
        for column in columns
    ]
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(lists, schema=pa.schema(fields))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def arrow_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    batch = module(ARROW).ipc.open_stream(body).read_next_batch()
    found = []
    for name in names:
        column = batch.column(name).values
        shape = [int(n) for n in batch.field(name).metadata[b"shape"][1:-1].split(b",") if n]
        is_copied = column.type in (module(ARROW).binary(), module(ARROW).bool_())
        found.append(column.to_numpy(zero_copy_only=not is_copied).reshape(shape))
    return found


# --- pickle, protocol 5, with out-of-band buffers behind it ---


def pickle_encode(message: Message) -> list[Any]:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(dict(message.arrays), protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    return [pickle.dumps((data, [view.nbytes for view in views])), *views]


def pickle_join(buffers: list[Any]) -> Encoded:
    return b"".join(buffers), len(buffers[0])


def pickle_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    assert header_length is not None
    view, offset, buffers = memoryview(body), header_length, []
    data, sizes = pickle.loads(view[:header_length])
    for nbytes in sizes:
        buffers.append(view[offset : offset + nbytes])
        offset += nbytes
    found = pickle.loads(data, buffers=buffers)
    return [found[name] for name in names]


OTHER_FORMATS = {
    "safetensors": Contender(
        safetensors_encode, safetensors_decode, needs=(SAFETENSORS,), own=True
    ),
    "Arrow IPC": Contender(
        arrow_encode, arrow_decode, join=lambda b: (b.to_pybytes(), None), needs=(ARROW,), own=True
    ),
    "pickle 5": Contender(pickle_encode, pickle_decode, join=pickle_join, own=True),
}


# --- limits ---


class Memcpy:
    """The array's bytes from one place to another, where no page is fresh."""

    target: NDArray[Any]

    @classmethod
    def prepare(cls, message: Message) -> NDArray[Any]:
        (array, *more) = message.arrays.values()
        if more or array.dtype.kind == "O" or message.as_json:
            raise Unsupported("measured on one array")
        cls.target = np.zeros_like(array)
        cls.target.fill(1)
        return array

    @classmethod
    def encode(cls, array: NDArray[Any]) -> NDArray[Any]:
        np.copyto(cls.target, array)
        return cls.target

    @classmethod
    def decode(cls, body: bytes, header_length: int | None, names: Names) -> Found:
        np.copyto(cls.target.reshape(-1).view(np.uint8), np.frombuffer(body, np.uint8))
        return [cls.target]


LIMITS = {
    "memcpy": Contender(
        Memcpy.encode,
        Memcpy.decode,
        Memcpy.prepare,
        lambda array: (array.tobytes(), None),
        own=True,
    ),
}
