"""``tensorwire demo``: compare tensorwire with plain Python code."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .output import draw_progress, print_line

IMAGES_SHAPE = (64, 4, 256, 256)  # FP32: 64 MiB
N_PROMPTS = 200_000


@dataclass
class Arrays:
    """The data that is sent in a request and returned in a response."""

    images: NDArray[np.float32]
    prompts: list[str]
    thresholds: NDArray[np.float64]


def make_arrays() -> Arrays:
    rng = np.random.default_rng(7)
    prompts = [f"prompt {i}:{' word' * (i % 7)}" for i in range(N_PROMPTS)]
    return Arrays(rng.random(IMAGES_SHAPE, np.float32), prompts, np.array([0.25, 0.5, 0.75]))


@dataclass
class Measurement:
    """The time in seconds and the copied payload bytes of each step of one implementation."""

    name: str
    steps: dict[str, tuple[float, int]] = field(default_factory=dict)

    def step(self, name: str, work: Callable[[], tuple[Any, int]]) -> Any:
        """Run ``work``, which returns its result and the number of payload bytes copied."""
        draw_progress(f"{self.name}: {name} ...")
        begin = time.perf_counter()
        result, n_copied = work()
        self.steps[name] = (time.perf_counter() - begin, n_copied)
        draw_progress("")
        return result


def count_copied(payload: Iterable[Any], source: Any) -> int:
    """Return the total size in bytes of those buffers that do not share memory with ``source``."""
    memory = np.frombuffer(source, np.uint8)
    flat = [np.frombuffer(buffer, np.uint8) for buffer in payload]
    return sum(buffer.nbytes for buffer in flat if not np.shares_memory(buffer, memory))


# --- tensorwire ----------------------------------------------------------------------------------


def measure_tensorwire(arrays: Arrays) -> tuple[Measurement, tw.InferRequest, tw.Frame]:
    """Encode and decode a request, then a response with the same tensors."""
    measurement = Measurement("tensorwire")

    def encode_request() -> tuple[tw.Frame, int]:
        inputs = [
            tw.Tensor("images", arrays.images),
            tw.Tensor("prompts", arrays.prompts),
            tw.Tensor("thresholds", arrays.thresholds, binary=False),
        ]
        request = tw.InferRequest(inputs, parameters={"binary_data_output": True})
        frame = tw.encode_request(request)
        return frame, count_copied(frame.buffers[1:], arrays.images)

    def decode_request() -> tuple[tw.InferRequest, int]:
        request = tw.decode_request(body, tw.header_length(frame.headers))
        data = [request["images"].data, wire_bytes(request["prompts"])]
        return request, count_copied(data, body)

    def make_objects() -> tuple[list[str], int]:
        prompts = request["prompts"].data
        assert isinstance(prompts, tw.BytesArray)
        return prompts.as_strings().tolist(), prompts.nbytes

    def encode_response() -> tuple[tw.Frame, int]:
        outputs = [request["images"], request["prompts"], request["thresholds"]]
        response_frame = tw.encode_response(tw.InferResponse(outputs, model_name="demo"), request)
        return response_frame, count_copied(response_frame.buffers[1:], body)

    def decode_response() -> tuple[tw.InferResponse, int]:
        response = tw.decode_response(response_body, response_frame.header_length)
        data = [response["images"].data, wire_bytes(response["prompts"])]
        return response, count_copied(data, response_body)

    frame = measurement.step("encode request", encode_request)
    body = bytes(frame)  # instead of sending it
    request = measurement.step("decode request", decode_request)
    prompts = measurement.step("strings as objects", make_objects)
    response_frame = measurement.step("encode response", encode_response)
    response_body = bytes(response_frame)
    response = measurement.step("decode response", decode_response)

    assert np.array_equal(request["images"].as_numpy(), arrays.images)
    assert np.array_equal(request["thresholds"].as_numpy(), arrays.thresholds)
    assert prompts == arrays.prompts
    assert np.array_equal(response["images"].as_numpy(), arrays.images)
    assert response["prompts"].data == request["prompts"].data
    assert np.array_equal(response["thresholds"].as_numpy(), arrays.thresholds)
    return measurement, request, frame


def wire_bytes(tensor: tw.Tensor) -> memoryview:
    assert isinstance(tensor.data, tw.BytesArray)
    return tensor.data.wire


# --- plain Python --------------------------------------------------------------------------------


def measure_plain_python(arrays: Arrays) -> Measurement:
    """Encode and decode the same messages with a struct loop, tobytes, join and slices."""
    measurement = Measurement("plain Python")

    def encode(
        images: NDArray[np.float32], prompts: list[str], thresholds: list[float]
    ) -> tuple[tuple[bytes, int], int]:
        parts = []
        for prompt in prompts:
            element = prompt.encode()
            parts.append(struct.pack("<I", len(element)))
            parts.append(element)
        payload = [images.tobytes(), b"".join(parts)]
        entries = [
            binary_entry("images", "FP32", IMAGES_SHAPE, payload[0]),
            binary_entry("prompts", "BYTES", (N_PROMPTS,), payload[1]),
            {"name": "thresholds", "datatype": "FP64", "shape": [3], "data": thresholds},
        ]
        header = json.dumps({"inputs": entries}).encode()
        return (b"".join([header, *payload]), len(header)), 2 * sum(map(len, payload))

    def decode(body: bytes, header_nbytes: int) -> tuple[tuple[Any, bytes, list[float]], int]:
        images, prompts, thresholds = json.loads(body[:header_nbytes])["inputs"]
        middle = header_nbytes + images["parameters"]["binary_data_size"]
        end = middle + prompts["parameters"]["binary_data_size"]
        array = np.frombuffer(body[header_nbytes:middle], np.float32).reshape(images["shape"])
        return (array, body[middle:end], thresholds["data"]), end - header_nbytes

    def make_objects(data: bytes) -> tuple[list[str], int]:
        texts, offset = [], 0
        while offset < len(data):
            (nbytes,) = struct.unpack_from("<I", data, offset)
            (element,) = struct.unpack_from(f"<{nbytes}s", data, offset + 4)
            texts.append(element.decode())
            offset += 4 + nbytes
        return texts, len(data)

    thresholds = arrays.thresholds.tolist()
    body = measurement.step(
        "encode request", lambda: encode(arrays.images, arrays.prompts, thresholds)
    )
    images, data, numbers = measurement.step("decode request", lambda: decode(*body))
    prompts = measurement.step("strings as objects", lambda: make_objects(data))
    answer = measurement.step("encode response", lambda: encode(images, prompts, numbers))
    response = measurement.step("decode response", lambda: decode(*answer))
    for found, elements, last in ((images, data, numbers), response):
        assert np.array_equal(found, arrays.images)
        assert (elements, last) == (data, thresholds)
    assert prompts == arrays.prompts
    return measurement


def binary_entry(name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> dict[str, Any]:
    size = {"binary_data_size": len(data)}
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": size}


# --- the table -----------------------------------------------------------------------------------


def run() -> None:
    """Encode and decode with both implementations, and print time and copied bytes."""
    draw_progress("creating 64 MiB of images and 200,000 strings ...")
    arrays = make_arrays()
    ours, request, frame = measure_tensorwire(arrays)
    plain = measure_plain_python(arrays)

    print_line(f"{'tensor':<20}{'datatype':<10}{'shape':<20}{'bytes':>12}", bold=True)
    for tensor in request.inputs:
        nbytes = f"{tensor.data.nbytes:,}" if tensor.data is not None else "-"
        how = "" if tensor.binary else "  (as JSON)"
        row = f"{tensor.name:<20}{tensor.datatype:<10}{list(tensor.shape)!s:<20}{nbytes:>12}{how}"
        print_line(row)
    print_line(f"one request: {len(frame):,} bytes, {frame.header_length} of them JSON")
    print_line()
    print_line(f"{'':<20}{ours.name:>24}{plain.name:>28}", bold=True)
    print_line(f"{'step':<20}{'time':>12}{'copied':>12}{'time':>16}{'copied':>12}")
    for step in ours.steps:
        print_line(f"{step:<20}{format_row(*ours.steps[step])}    {format_row(*plain.steps[step])}")
    totals = [tuple(map(sum, zip(*one.steps.values(), strict=True))) for one in (ours, plain)]
    total = "    ".join(format_row(*one) for one in totals)
    print_line(f"{'total':<20}{total}", bold=True)
    print_line()
    print_line("both implementations returned all tensors unchanged")


def format_row(seconds: float, nbytes: int) -> str:
    return f"{seconds * 1e3:>9.2f} ms{nbytes / 2**20:>8.1f} MiB"
