"""Mutations that keep most of an input valid, so that it reaches the code after the parser.

A quarter of the mutations are libFuzzer's own, which do not depend on the format.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from fuzz import grpc_messages
from fuzz.targets import N_CHOICES
from interop.message_generator import NOT_APPLICABLE, TREE, random_message
from interop.plain_message import Members, read, write
from support import reference

CHOOSER = random.Random()  # seeded for each mutation, because creating one is slower
Bytewise = Callable[[bytes, int], bytes]
MAX_RANDOM_NBYTES = 2000  # larger messages would be cut off
TOKENS = (
    *(b"NaN", b"Infinity", b"-Infinity", b"null", b"1e400", b"-0", b"-0.0", b"01", b"1" * 4400),
    *(rb'"\ud800"', rb'"\ud83d\ude00"', b'"\xff"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf", b"\0"),
    *(b" ", b"\n", b",", b"]", b"}", b"[" * 101, b"1E5", b"0.1", b"18446744073709551616"),
)


def mutated(target: str, data: bytes, max_nbytes: int, seed: int, bytewise: Bytewise) -> bytes:
    """Return a mutated copy of at most `max_nbytes`."""
    mutate = MUTATORS.get(target)
    if mutate is None:
        return bytewise(data, max_nbytes)
    chooser = CHOOSER
    chooser.seed(seed)
    if chooser.random() < 0.25:
        return bytewise(data, max_nbytes)
    for _ in range(chooser.choice((1, 1, 2, 4))):
        data = mutate(data, chooser, bytewise)
    return data[:max_nbytes]


# --- messages ------------------------------------------------------------------------------------

CHANGES = ("choices", "prefixes", "prefixes", "token", "bytes", *("header",) * 5)


def message(
    data: bytes, chooser: random.Random, bytewise: Bytewise, *, is_response: bool = False
) -> bytes:
    """Make one change to the header or the bytes after it, and usually correct the length."""
    front, body = bytearray(data[:N_CHOICES].ljust(N_CHOICES, b"\0")), data[N_CHOICES:]
    length = len(body) if front[0] % 8 == 0 else int.from_bytes(front[1:3], "little")
    text, blob = body[:length], body[length:]
    if chooser.random() < 0.1:  # it takes longer than the other changes
        made = random_message(chooser)
        if len(made.body) < MAX_RANDOM_NBYTES:
            text, blob = made.parts()
            if is_response:
                text = text.replace(b'"inputs"', b'"outputs"', 1)
    change = chooser.choice(CHANGES)
    if change == "choices":
        front[chooser.randrange(N_CHOICES)] = chooser.randrange(256)
    elif change == "prefixes":
        blob = prefixes(blob, chooser)
    elif change == "token":
        at = chooser.randrange(len(text) + 1)
        text = text[:at] + chooser.choice(TOKENS) + text[at + chooser.choice((0, 0, 1)) :]
    elif change == "bytes" and text:
        text = bytewise(text, len(text) + 64)
    else:
        text = header(text, chooser, is_response)
    if chooser.random() < 0.9:
        front[1:3] = min(len(text), 2**16 - 1).to_bytes(2, "little")
        if blob and front[0] % 8 == 0:
            front[0] += 1 + chooser.randrange(3)
    return bytes(front) + text + blob


SWAPPED = {"inputs": "outputs", "outputs": "inputs"}


def header(text: bytes, chooser: random.Random, is_response: bool) -> bytes:
    """Change the JSON in the ways of the differential test, which are for requests."""
    with suppress(*NOT_APPLICABLE):
        tree = read(text)
        if is_response:
            swap(tree)
        chooser.choice(TREE)(tree, chooser)
        if is_response:
            swap(tree)
        return write(tree)
    return text


def swap(tree: Members) -> None:
    for member in tree:
        member[0] = SWAPPED.get(member[0], member[0])


# --- BYTES ---------------------------------------------------------------------------------------


def prefixes(blob: bytes, chooser: random.Random) -> bytes:
    """Change a length prefix, add or remove elements, truncate the data, or append bytes."""
    starts, position = [0], 0
    while position + 4 <= len(blob) and len(starts) < 64:
        position += 4 + int.from_bytes(blob[position : position + 4], "little")
        if position > len(blob):
            break
        starts.append(position)
    at = chooser.choice(starts)
    element = reference.elements([chooser.choice((b"", b"a", b"\xc3\xa9", b"\0\0", b"z" * 13))])
    kind = chooser.randrange(5)
    if kind == 0:
        return blob[:at] + element + blob[at:]
    if kind == 1:
        return blob[:at] + blob[chooser.choice(starts) :]
    if kind == 2:
        return blob[: chooser.randrange(len(blob) + 1)]
    if kind == 3:
        return blob + chooser.randbytes(chooser.randrange(1, 6))
    length = int.from_bytes(blob[at : at + 4], "little")
    room = max(len(blob) - at - 4, 0)
    length = chooser.choice(
        (length + 1, length - 1, room, room + 1, 0, 2**31, 2**32 - 1, 2**32 - 4)
    )
    return blob[:at] + (length % 2**32).to_bytes(4, "little") + blob[at + 4 :]


def elements(data: bytes, chooser: random.Random, bytewise: Bytewise) -> bytes:
    """Change the elements, and sometimes the options and the count before them."""
    front, blob = data[:3].ljust(3, b"\0"), prefixes(data[3:], chooser)
    if chooser.random() < 0.2:
        front = bytes([chooser.randrange(4), chooser.randrange(8), 0])
    return front + blob


# --- gRPC messages -------------------------------------------------------------------------------


def grpc_message(data: bytes, chooser: random.Random, bytewise: Bytewise) -> bytes:
    """Change a field of the message, or sometimes the choices before it or all of it."""
    choices = data[:1] or b"\0"
    if chooser.random() < 0.1:
        choices = chooser.randbytes(1)
    kind = grpc_messages.KINDS[choices[0] % 4]
    fields = grpc_messages.parsed(kind, data[1:])
    if chooser.random() < 0.1:
        fields = grpc_messages.generated(kind, chooser)
    grpc_messages.changed(kind, fields, chooser)
    return choices + grpc_messages.written(fields)


MUTATORS: dict[str, Callable[[bytes, random.Random, Bytewise], bytes]] = {
    "request": message,
    "response": partial(message, is_response=True),
    "decode_bytes": elements,
    "grpc": grpc_message,
}
