"""``tensorwire demo``: compare tensorwire with plain Python code."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .output import draw_progress, print_line

IMAGES_SHAPE = (64, 4, 256, 256)  # FP32: 64 MiB
N_PROMPTS = 200_000

Images = NDArray[np.float32]


class Measurement:
    """The time in seconds and the copied payload bytes of each step of one implementation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds: dict[str, float] = {}
        self.copied: list[int] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the time of a ``with`` block."""
        draw_progress(f"{self.name}: {name} ...")
        begin = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begin
        draw_progress("")

    def rows(self) -> list[str]:
        """Return the row of each step, and that of all steps."""
        rows = [*zip(self.seconds.values(), self.copied, strict=True)]
        rows.append((sum(self.seconds.values()), sum(self.copied)))
        return [f"{seconds * 1e3:>9.2f} ms{n / 2**20:>8.1f} MiB" for seconds, n in rows]


def count_copied(payload: Iterable[Any], source: Any) -> int:
    """Return the total size in bytes of those buffers that do not share memory with ``source``."""
    memory = np.frombuffer(source, np.uint8)
    flat = [np.frombuffer(buffer, np.uint8) for buffer in payload]
    return sum(buffer.nbytes for buffer in flat if not np.shares_memory(buffer, memory))


def measure_tensorwire(
    images: Images, prompts: list[str], thresholds: list[float]
) -> tuple[Measurement, tw.InferRequest, tw.Frame]:
    """Encode and decode a request, then a response with the same tensors."""
    measurement = Measurement("tensorwire")
    with measurement.step("encode request"):
        inputs = [
            tw.Tensor("images", images),
            tw.Tensor("prompts", prompts),
            tw.Tensor("thresholds", np.array(thresholds), binary=False),
        ]
        request = tw.InferRequest(inputs, parameters={"binary_data_output": True})
        frame = tw.encode_request(request)
    body = bytes(frame)  # instead of sending it
    with measurement.step("decode request"):
        request = tw.decode_request(body, tw.header_length(frame.headers))
    strings: Any = request["prompts"].data
    with measurement.step("strings as objects"):
        objects = strings.as_strings().tolist()
    with measurement.step("encode response"):
        response = tw.InferResponse(request.inputs, model_name="demo")
        response_frame = tw.encode_response(response, request)
    response_body = bytes(response_frame)
    with measurement.step("decode response"):
        response = tw.decode_response(response_body, response_frame.header_length)
    returned: Any = response["prompts"].data

    measurement.copied = [
        count_copied(frame.buffers[1:], images),
        count_copied([request["images"].data, strings.wire], body),
        strings.nbytes,
        count_copied(response_frame.buffers[1:], body),
        count_copied([response["images"].data, returned.wire], response_body),
    ]
    for message in (request, response):
        assert np.array_equal(message["images"].as_numpy(), images)
        assert message["thresholds"].as_numpy().tolist() == thresholds
    assert objects == prompts
    assert returned == strings
    return measurement, request, frame


def measure_plain_python(
    images: Images, prompts: list[str], thresholds: list[float]
) -> Measurement:
    """Encode and decode the same messages with a struct loop, tobytes, join and slices."""
    measurement = Measurement("plain Python")
    with measurement.step("encode request"):
        parts = []
        for prompt in prompts:
            element = prompt.encode()
            parts += [struct.pack("<I", len(element)), element]
        body, header_nbytes = join_message(images, b"".join(parts), thresholds)
    with measurement.step("decode request"):
        array, data, numbers = split_message(body, header_nbytes)
    with measurement.step("strings as objects"):
        texts, offset = [], 0
        while offset < len(data):
            (nbytes,) = struct.unpack_from("<I", data, offset)
            (element,) = struct.unpack_from(f"<{nbytes}s", data, offset + 4)
            texts.append(element.decode())
            offset += 4 + nbytes
    with measurement.step("encode response"):
        response = join_message(array, data, numbers)
    with measurement.step("decode response"):
        returned = split_message(*response)

    nbytes = len(body) - header_nbytes
    measurement.copied = [2 * nbytes, nbytes, len(data), 2 * nbytes, nbytes]
    for found, elements, last in ((array, data, numbers), returned):
        assert np.array_equal(found, images)
        assert (elements, last) == (data, thresholds)
    assert texts == prompts
    return measurement


def join_message(images: Images, data: bytes, thresholds: list[float]) -> tuple[bytes, int]:
    """Return a body and the length of its header. The payload is copied twice."""
    payload = {"images": images.tobytes(), "prompts": data}
    entries: list[dict[str, Any]] = [
        {"name": "images", "datatype": "FP32", "shape": IMAGES_SHAPE},
        {"name": "prompts", "datatype": "BYTES", "shape": [N_PROMPTS]},
        {"name": "thresholds", "datatype": "FP64", "shape": [3], "data": thresholds},
    ]
    for entry in entries[:2]:
        entry["parameters"] = {"binary_data_size": len(payload[entry["name"]])}
    header = json.dumps({"inputs": entries}).encode()
    return b"".join([header, *payload.values()]), len(header)


def split_message(body: bytes, header_nbytes: int) -> tuple[Images, bytes, list[float]]:
    """Return the tensors of a body. The payload is copied once."""
    images, prompts, thresholds = json.loads(body[:header_nbytes])["inputs"]
    middle = header_nbytes + images["parameters"]["binary_data_size"]
    end = middle + prompts["parameters"]["binary_data_size"]
    array = np.frombuffer(body[header_nbytes:middle], np.float32).reshape(images["shape"])
    return array, body[middle:end], thresholds["data"]


def run(_: Any) -> int:
    """Encode and decode with both implementations, and print time and copied bytes."""
    draw_progress("creating 64 MiB of images and 200,000 strings ...")
    images = np.random.default_rng(7).random(IMAGES_SHAPE, np.float32)
    prompts = [f"prompt {i}:{' word' * (i % 7)}" for i in range(N_PROMPTS)]
    thresholds = [0.25, 0.5, 0.75]
    ours, request, frame = measure_tensorwire(images, prompts, thresholds)
    plain = measure_plain_python(images, prompts, thresholds)

    print_line(f"{'tensor':<20}{'datatype':<10}{'shape':<20}{'bytes':>12}", bold=True)
    for tensor in request.inputs:
        data: Any = tensor.data
        how = "" if tensor.binary else "  (as JSON)"
        shape = str(list(tensor.shape))
        print_line(f"{tensor.name:<20}{tensor.datatype:<10}{shape:<20}{data.nbytes:>12,}{how}")
    print_line(f"one request: {len(frame):,} bytes, {frame.header_length} of them JSON")
    print_line()
    print_line(f"{'':<20}{ours.name:>24}{plain.name:>28}", bold=True)
    print_line(f"{'step':<20}{'time':>12}{'copied':>12}{'time':>16}{'copied':>12}")
    steps = [*ours.seconds, "total"]
    for step, *rows in zip(steps, ours.rows(), plain.rows(), strict=True):
        print_line(f"{step:<20}{'    '.join(rows)}", bold=step == "total")
    print_line()
    print_line("both implementations returned all tensors unchanged")
    return 0
