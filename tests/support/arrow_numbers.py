"""Producers of Arrow arrays and streams, whose structs can be changed to invalid ones."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .arrow_structs import ArrowArray, ArrowSchema, ReleaseCallback, capsule

StreamCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

Changes = Mapping[int, Mapping[str, Any]]


class Producer:
    """A producer of its first array, which counts the releases of arrays."""

    schemas: list[ArrowSchema]
    arrays: list[ArrowArray]

    def __init__(self) -> None:
        self.n_releases = 0
        self.on_release = ReleaseCallback(self._released)
        self.release = ctypes.cast(self.on_release, ctypes.c_void_p).value

    def _released(self, at: int) -> None:
        if at == ctypes.addressof(self.schemas[0]):
            self.schemas[0].release = None
        else:
            self.n_releases += 1

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return capsule(self.schemas[0], "schema"), capsule(self.arrays[0], "array")


class NumbersProducer(Producer):
    """A producer of an array of numbers, or of fixed-size lists of them, without nulls.

    The structs are in order from the outermost to the innermost one. `schema_changes` and
    `array_changes` map the index of a struct to the fields to change. `data` is the memory of the
    numbers.
    """

    def __init__(
        self,
        n_rows: int = 2,
        list_sizes: Sequence[int] = (3,),
        format: bytes | None = b"i",
        data: Any = None,
        *,
        schema_changes: Changes | None = None,
        array_changes: Changes | None = None,
    ) -> None:
        super().__init__()
        self.data = (ctypes.c_int32 * 12)(*range(12)) if data is None else data
        formats = [*(b"+w:%d" % size for size in list_sizes), format]
        self.buffers = [
            *((ctypes.c_void_p * 1)(None) for _ in list_sizes),
            (ctypes.c_void_p * 2)(None, ctypes.addressof(self.data)),
        ]
        self.schemas = [
            ArrowSchema(format=text, name=b"", release=self.release) for text in formats
        ]
        self.arrays = []
        length = n_rows
        for buffers, size in zip(self.buffers, (*list_sizes, 0), strict=True):
            self.arrays.append(
                ArrowArray(
                    length=length,
                    n_buffers=len(buffers),
                    buffers=ctypes.addressof(buffers),
                    release=self.release,
                )
            )
            length *= size
        self.children = [*self._link(self.schemas), *self._link(self.arrays)]
        for structs, changes in ((self.schemas, schema_changes), (self.arrays, array_changes)):
            for i, fields in (changes or {}).items():
                for field, value in fields.items():
                    setattr(structs[i], field, value)

    @staticmethod
    def _link(structs: Sequence[Any]) -> list[Any]:
        """Make each struct the child of the one before it. Return the lists of children."""
        lists = []
        for parent, child in pairwise(structs):
            children = (ctypes.c_void_p * 1)(ctypes.addressof(child))
            parent.n_children, parent.children = 1, ctypes.addressof(children)
            lists.append(children)
        return lists


class TextProducer(Producer):
    """A producer of the texts a, bc and def, with some fields of the struct of its array changed.

    `layout` is the format of strings or binary data, and determines the type of the offsets.
    """

    def __init__(self, layout: bytes = b"u", **fields: Any) -> None:
        super().__init__()
        self.data = ctypes.create_string_buffer(b"abcdef")
        offsets = ctypes.c_int64 if layout in (b"U", b"Z") else ctypes.c_int32
        self.offsets = (offsets * 4)(*fields.pop("offsets", (0, 1, 3, 6)))
        data = ctypes.addressof(self.data) if fields.pop("has_data", True) else None
        where = ctypes.addressof(self.offsets) if fields.pop("has_offsets", True) else None
        self.buffers = (ctypes.c_void_p * 3)(None, where, data)
        self.schema = ArrowSchema(format=fields.pop("format", layout), release=self.release)
        known = {"length": 3, "n_buffers": 3, "buffers": ctypes.addressof(self.buffers)}
        self.array = ArrowArray(**{**known, "release": self.release, **fields})
        self.schemas, self.arrays = [self.schema], [self.array]


class NumbersStream:
    """A stream of the arrays of some producers, whose schema is that of the first one.

    After them, the stream ends, or it fails with an undefined struct, and with the text of an error
    if there is one. If there are no producers, getting the schema fails.
    """

    def __init__(
        self,
        producers: Sequence[Producer],
        is_failing: bool = False,
        error: bytes | None = None,
    ) -> None:
        self.producers = producers
        self.is_failing = is_failing
        self.error = None if error is None else ctypes.create_string_buffer(error)
        error_address = None if self.error is None else ctypes.addressof(self.error)
        self.n_sent = 0
        self.n_releases = 0
        self.n_released_schemas = 0
        self.on_schema_release = ReleaseCallback(self._schema_released)
        self.schema_release = ctypes.cast(self.on_schema_release, ctypes.c_void_p).value
        self.calls = (
            StreamCallback(self._get_schema),
            StreamCallback(self._get_next),
            ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: error_address),
            ReleaseCallback(self._released),
        )
        addresses = [ctypes.cast(call, ctypes.c_void_p).value for call in self.calls]
        self.stream = (ctypes.c_void_p * 5)(*addresses, None)

    def _get_schema(self, _stream: int, target: int) -> int:
        if not self.producers:
            return 5
        schema = ArrowSchema.from_address(target)
        ctypes.pointer(schema)[0] = self.producers[0].schemas[0]
        schema.release = self.schema_release
        return 0

    def _get_next(self, _stream: int, target: int) -> int:
        array = ArrowArray.from_address(target)
        if self.n_sent < len(self.producers):
            ctypes.pointer(array)[0] = self.producers[self.n_sent].arrays[0]
            self.n_sent += 1
            return 0
        array.release = 8 if self.is_failing else None  # not the address of a function
        return 5 if self.is_failing else 0

    def _schema_released(self, at: int) -> None:
        ArrowSchema.from_address(at).release = None
        self.n_released_schemas += 1

    def _released(self, at: int) -> None:
        self.n_releases += 1
        (ctypes.c_void_p * 5).from_address(at)[3] = None

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return capsule(self.stream, "array_stream")
