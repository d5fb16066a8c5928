"""``tensorwire demo``: compare tensorwire with plain Python code."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .output import print_line

IMAGES_SHAPE = (64, 4, 256, 256)  # FP32: 64 MiB
N_PROMPTS = 200_000
STEPS = ("encode request", "decode request", "strings as objects")

Images = NDArray[np.float32]


def measure(times: list[float], function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, and append the time in seconds."""
    begin = time.perf_counter()
    result = function(*arguments)
    times.append(time.perf_counter() - begin)
    return result


def format_rows(times: list[float], copied: list[int]) -> list[str]:
    """Return the row of each step, and that of all steps, with the copied bytes."""
    rows = [*zip(times, copied, strict=True), (sum(times), sum(copied))]
    return [f"{seconds * 1e3:>9.2f} ms{n / 2**20:>8.1f} MiB" for seconds, n in rows]


def count_copied(payload: Iterable[Any], source: Any) -> int:
    """Return the total size in bytes of those buffers that do not share memory with ``source``."""
    memory = np.frombuffer(source, np.uint8)
    flat = [np.frombuffer(buffer, np.uint8) for buffer in payload]
    return sum(buffer.nbytes for buffer in flat if not np.shares_memory(buffer, memory))


def measure_tensorwire(images: Images, prompts: list[str]) -> tuple[list[str], tw.InferRequest]:
    """Return the rows, and the decoded request."""
    times: list[float] = []
    inputs = {"images": images, "prompts": prompts}
    frame = measure(times, lambda: tw.encode_request(tw.InferRequest(inputs)))
    body = bytes(frame)  # instead of sending it
    request = measure(times, tw.decode_request, body, frame.header_length)
    texts = measure(times, lambda: request["prompts"].as_strings().tolist())

    data = request["prompts"].data
    copied = [
        count_copied(frame.buffers[1:], images),
        count_copied([request["images"].data, data.wire], body),
        data.nbytes,
    ]
    assert np.array_equal(request["images"].as_numpy(), images)
    assert texts == prompts
    return format_rows(times, copied), request


def measure_plain_python(images: Images, prompts: list[str]) -> list[str]:
    """Return the rows of a struct loop, tobytes, join and slices."""
    times: list[float] = []
    body, header_nbytes = measure(times, encode, images, prompts)
    found, data = measure(times, decode, body, header_nbytes)
    texts = measure(times, strings_of, data)
    assert np.array_equal(found, images)
    assert texts == prompts
    nbytes = len(body) - header_nbytes
    return format_rows(times, [2 * nbytes, nbytes, len(data)])


def encode(images: Images, prompts: list[str]) -> tuple[bytes, int]:
    """Return a body and the length of its header. The payload is copied twice."""
    parts = []
    for prompt in prompts:
        element = prompt.encode()
        parts += [struct.pack("<I", len(element)), element]
    payload = [images.tobytes(), b"".join(parts)]
    entries: list[dict[str, Any]] = [
        {"name": "images", "datatype": "FP32", "shape": IMAGES_SHAPE},
        {"name": "prompts", "datatype": "BYTES", "shape": [N_PROMPTS]},
    ]
    for entry, data in zip(entries, payload, strict=True):
        entry["parameters"] = {"binary_data_size": len(data)}
    header = json.dumps({"inputs": entries}).encode()
    return b"".join([header, *payload]), len(header)


def decode(body: bytes, header_nbytes: int) -> tuple[Images, bytes]:
    """Return the data of a body. The payload is copied once."""
    images, _ = json.loads(body[:header_nbytes])["inputs"]
    middle = header_nbytes + images["parameters"]["binary_data_size"]
    array = np.frombuffer(body[header_nbytes:middle], np.float32).reshape(images["shape"])
    return array, body[middle:]


def strings_of(data: bytes) -> list[str]:
    texts, offset = [], 0
    while offset < len(data):
        (nbytes,) = struct.unpack_from("<I", data, offset)
        (element,) = struct.unpack_from(f"<{nbytes}s", data, offset + 4)
        texts.append(element.decode())
        offset += 4 + nbytes
    return texts


def run(_: Any) -> int:
    """Encode and decode with both implementations, and print time and copied bytes."""
    images = np.random.default_rng(7).random(IMAGES_SHAPE, np.float32)
    prompts = [f"prompt {i}:{' word' * (i % 7)}" for i in range(N_PROMPTS)]
    ours, request = measure_tensorwire(images, prompts)
    plain = measure_plain_python(images, prompts)

    for tensor in request.inputs:
        print_line(
            f"{tensor.name}  {tensor.datatype}  {list(tensor.shape)}  {tensor.nbytes:,} bytes"
        )
    print_line()
    print_line(f"{'':<20}{'tensorwire':>24}{'plain Python':>28}")
    print_line(f"{'step':<20}{'time':>12}{'copied':>12}{'time':>16}{'copied':>12}")
    for step, *rows in zip((*STEPS, "total"), ours, plain, strict=True):
        print_line(f"{step:<20}{'    '.join(rows)}")
    print_line()
    print_line("both implementations returned all tensors unchanged")
    return 0
