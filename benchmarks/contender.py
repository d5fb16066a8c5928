"""Contender: one way to encode a request and to decode a response.

Each takes and returns the same things, so that one check holds for all: a message in, body and
header length out; and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .missing import Missing, Unsupported
from .workloads import DATATYPES, Message, Part

Names = list[str]
Found = list[NDArray[Any]]
Encoded = tuple[bytes, int | None]  # the body, and how much of it is header

DTYPES = {datatype: np.dtype(dtype) for dtype, datatype in DATATYPES.items()}


@cache
def module(name: str) -> Any:
    """An optional module. Raises Missing."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: tritonclient without its extra
        raise Missing(f"{name} cannot be imported: {str(error).splitlines()[0]}") from None


@contextmanager
def installed(*integrations: str) -> Iterator[None]:
    """With our codec in the place of the peer's. Raises Missing where it refuses the peer."""
    if not integrations:
        yield
        return
    (backend,) = map(module, integrations)
    try:
        backend.install()
    except tw.TensorwireError as error:
        raise Missing(str(error)) from None
    try:
        yield
    finally:
        backend.uninstall()


def as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Contender:
    """``encode`` and ``decode`` are measured; None where there is no such thing.

    ``prepare`` makes what ``encode`` takes, ``join`` one body and its header length of what it
    returned. ``decode`` takes a body, its header length and the names of the arrays to return. The
    body is a response; of a format of one's ``own``, what ``encode`` has made.
    """

    encode: Callable[[Any], Any] | None
    decode: Callable[[bytes, int | None, Names], Found] | None
    prepare: Callable[[Message], Any] = as_it_is
    join: Callable[[Any], Encoded] = as_it_is
    needs: tuple[str, ...] = ()  # modules
    own: bool = False
    setting: Callable[[], AbstractContextManager[None]] = nullcontext  # in which it is measured
    environment: str = ""  # whose interpreter it needs; ours when empty
    most_nbytes: int = 1 << 40  # of a message that is worth waiting for

    def available(self) -> None:
        """Raises Missing with the reason."""
        for name in self.needs:
            module(name)

    def encoder(self) -> Callable[[Any], Any]:
        """Raises Missing or Unsupported."""
        self.available()
        if self.encode is None:
            raise Unsupported("has no way to encode")
        return self.encode

    def decoder(self) -> Callable[[bytes, int | None, Names], Found]:
        """Raises Missing or Unsupported."""
        self.available()
        if self.decode is None:
            raise Unsupported("has no way to decode")
        return self.decode

    def accept(self, message: Message) -> None:
        """Raises Unsupported for a message that would take too long."""
        if message.nbytes > self.most_nbytes:
            raise Unsupported(f"not tried above {self.most_nbytes >> 20} MB")

    def body_of(self, message: Message) -> Encoded:
        """What ``decode`` is measured on."""
        if self.own:
            return self.join(self.encoder()(self.prepare(message)))
        return response_of(message)

    def read_back(self, encoded: Encoded, names: Names) -> Found:
        """What stands in what it has encoded."""
        if self.own:
            return self.decoder()(*encoded, names)
        request = tw.decode_request(*encoded)
        return [request[name].as_numpy() for name in names]


# --- the response that everybody decodes ---


def parts_of(message: Message) -> list[Part]:
    return message.parts


def our_tensors(parts: list[Part]) -> list[tw.Tensor]:
    return [tw.Tensor(name, array, binary=is_binary) for name, array, _, _, is_binary in parts]


def joined(frame: tw.Frame) -> Encoded:
    return bytes(frame), frame.header_length


def response_of(message: Message) -> Encoded:
    """The response that everybody decodes."""
    return joined(tw.encode_response(tw.InferResponse(our_tensors(message.parts), model_name="m")))
