"""A producer of Arrow numbers in fixed-size lists, whose structs can be changed to invalid ones."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .arrow_structs import ArrowArray, ArrowSchema, ReleaseCallback, capsule

Changes = Mapping[int, Mapping[str, Any]]


class NumbersProducer:
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
        self.n_releases = 0
        self.on_release = ReleaseCallback(self._released)
        release = ctypes.cast(self.on_release, ctypes.c_void_p).value
        self.data = (ctypes.c_int32 * 12)(*range(12)) if data is None else data
        formats = [*(b"+w:%d" % size for size in list_sizes), format]
        self.buffers = [
            *((ctypes.c_void_p * 1)(None) for _ in list_sizes),
            (ctypes.c_void_p * 2)(None, ctypes.addressof(self.data)),
        ]
        self.schemas = [ArrowSchema(format=text, name=b"", release=release) for text in formats]
        self.arrays = []
        length = n_rows
        for buffers, size in zip(self.buffers, (*list_sizes, 0), strict=True):
            self.arrays.append(
                ArrowArray(
                    length=length,
                    n_buffers=len(buffers),
                    buffers=ctypes.addressof(buffers),
                    release=release,
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

    def _released(self, at: int) -> None:
        if at == ctypes.addressof(self.schemas[0]):
            self.schemas[0].release = None
        else:
            self.n_releases += 1

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return capsule(self.schemas[0], "schema"), capsule(self.arrays[0], "array")
