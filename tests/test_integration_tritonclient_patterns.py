"""How programs call tritonclient: each pattern sends the same requests, but makes fewer copies.

The patterns are those of public programs: the examples of Triton's client, clients for images,
texts and speech, and wrappers around tritonclient.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryFile
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorwire as tw
import test_integration_tritonclient_calls as http_calls
import test_integration_tritonclient_grpc as grpc_calls
from interop.samples import Array
from support import tritonclient_comparison
from support.servers import http as http_response
from support.tritonclient_comparison import LARGE, module, object_array
from tensorwire.integrations import tritonclient

pytestmark = http_calls.pytestmark
http = tritonclient_comparison.http  # fixture

IMAGE = np.arange(3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224)
TOKENS = np.arange(128).reshape(1, 128)


HWC = np.ascontiguousarray(IMAGE[0].transpose(1, 2, 0))
JPEG = bytes(range(256)) * (LARGE // 100)
JSON_ANSWER = http_response(
    bytes(tw.encode_response(tw.InferResponse([tw.Tensor("OUTPUT0", IMAGE, binary=False)])))
)


class Size(tuple[int, ...]):
    """As the shape of a tensor of torch, a subclass of tuple."""


# --- patterns ------------------------------------------------------------------------------------

SMALL = {"http send": "a body below 256 KiB is joined, which takes less time than several sends"}
NO_DATA = {"http send": "there is no data"}
TO_JSON = {"send": "the client's JSON package writes the numbers, so that the text is the same"}
FROM_JSON = {"receive": "the response has no binary data"}
COMPRESSED = {"send": "the client compresses the whole body"}
UNPACKED = {"receive": "the client decompresses the whole body"}
PRINTED = {"send": "the client prints the body, which must be bytes"}
OVERRIDDEN = {"send": "a subclass may override the methods that return the data"}
NO_REQUEST = dict.fromkeys(
    ("http send", "http receive"), "the client cannot write numpy's integers as JSON"
)


class Pattern(NamedTuple):
    """Calls of a client, and the reason for each step that tritonclient itself performs.

    ``calls`` gets the module of the client, and returns the arguments of each call. A step is
    "set", "send" or "receive", or begins with "http" or "grpc" if it is only one of this client.
    """

    calls: Callable[[Any], Iterable[dict[str, Any]]]
    reasons: dict[str, str] | None = None
    only: str = ""  # "http" or "grpc"
    answer: bytes = http_calls.ANSWER
    options: dict[str, Any] | None = None  # of the client


def given(api: Any, array: Array, shape: Any = None, datatype: str = "FP32", **options: Any) -> Any:
    tensor = api.InferInput("x", array.shape if shape is None else shape, datatype)
    return tensor.set_data_from_numpy(array, **options)


def one(array: Array, shape: Any = None, datatype: str = "FP32", reasons: Any = None) -> Pattern:
    """Return the pattern of a call with this input."""
    return Pattern(lambda api: [{"inputs": [given(api, array, shape, datatype)]}], reasons)


def in_json(array: Array, datatype: str) -> Pattern:
    return Pattern(
        lambda api: [{"inputs": [given(api, array, None, datatype, binary_data=False)]}],
        TO_JSON,
        "http",
    )


def image(call: Any, reasons: Any = None, only: str = "", **options: Any) -> Pattern:
    """Return the pattern of a call with an image, and with other arguments."""
    return Pattern(
        lambda api: [{"inputs": [given(api, IMAGE)], **call(api)}], reasons, only, **options
    )


def output(**options: Any) -> Callable[[Any], Any]:
    return lambda api: {"outputs": [api.InferRequestedOutput("OUTPUT0", **options)]}


def memory_mapped() -> Array:
    with TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=(1, LARGE))


def set_shape_later(api: Any) -> Any:
    tensor = api.InferInput("x", [1], "FP32").set_shape(IMAGE.shape)
    return [{"inputs": [tensor.set_data_from_numpy(IMAGE)]}]


def subclass(api: Any) -> Any:
    kind = type("Input", (api.InferInput,), {})
    return [{"inputs": [given(SimpleNamespace(InferInput=kind), IMAGE)]}]


def in_shared_memory(api: Any) -> Any:
    tensor = api.InferInput("x", IMAGE.shape, "FP32")
    return [{"inputs": [tensor.set_shared_memory("region", IMAGE.nbytes)]}]


def data_and_shared_memory(api: Any) -> Iterator[dict[str, Any]]:
    tensor = given(api, IMAGE)
    yield {"inputs": [tensor]}
    yield {"inputs": [tensor.set_shared_memory("region", IMAGE.nbytes)]}
    yield {"inputs": [tensor.set_data_from_numpy(IMAGE + 1)]}


def one_input_again(api: Any) -> Iterator[dict[str, Any]]:
    tensor, buffer = given(api, IMAGE), np.empty_like(IMAGE)
    for i in range(2):
        buffer[:] = i
        yield {"inputs": [tensor.set_data_from_numpy(buffer)]}


def one_buffer(api: Any) -> Any:
    """The program fills it with 0, 1 and 2, and changes it again before the call."""
    buffer, inputs = np.empty_like(IMAGE), []
    for i in range(3):
        buffer[:] = i
        inputs.append(given(api, buffer))
    buffer[:] = 7
    return [{"inputs": inputs}]


PATTERNS: dict[str, Pattern] = {
    "shape of the array": one(IMAGE),
    "list of the shape": one(IMAGE, list(IMAGE.shape)),
    "shape of a tensor of torch": one(IMAGE, Size(IMAGE.shape)),
    "shape as an array": one(IMAGE, np.array(IMAGE.shape), reasons=NO_REQUEST),
    "shape of numpy's integers": one(IMAGE, list(np.array(IMAGE.shape)), reasons=NO_REQUEST),
    "shape set later": Pattern(set_shape_later),
    "FP16": one((IMAGE % 100).astype(np.float16), None, "FP16"),
    "image of cv2": one(np.tile(HWC.astype(np.uint8), 2), None, "UINT8"),
    "transposed image": one(HWC.transpose(2, 0, 1)[None]),
    "part of an array": one(np.tile(IMAGE, (2, 1, 1, 2))[:1, ..., ::2]),
    "np.memmap": one(memory_mapped(), None, "UINT8"),
    "memory of another object": one(np.frombuffer(IMAGE.tobytes(), np.float32)),
    "tokens": one(TOKENS, None, "INT64", SMALL),
    "texts": one(object_array(["a", "\xe9"]), None, "BYTES", SMALL),
    "np.bytes_": one(np.array([b"a", b"bc"]), None, "BYTES", SMALL),
    "encoded image": one(object_array([JPEG], (1, 1)), None, "BYTES"),
    "encoded image as np.bytes_": one(np.array([[JPEG]]), None, "BYTES"),
    "image as JSON": in_json(IMAGE, "FP32"),
    "tokens as JSON": in_json(TOKENS, "INT64"),
    "subclass of InferInput": Pattern(subclass, OVERRIDDEN, "http"),
    "image and tokens": Pattern(
        lambda api: [{"inputs": [given(api, IMAGE), given(api, TOKENS, None, "INT64")]}]
    ),
    "tuple of inputs": Pattern(lambda api: [{"inputs": (given(api, IMAGE),)}]),
    "one input in two calls": Pattern(
        lambda api: [{"inputs": [x]} for x in [given(api, IMAGE)] * 2]
    ),
    "one input with other data": Pattern(one_input_again),
    "one buffer for three inputs": Pattern(one_buffer),
    "shared memory": Pattern(in_shared_memory, NO_DATA),
    "data and shared memory": Pattern(data_and_shared_memory),
    "output": image(output()),
    "binary output": image(output(binary_data=True), only="http"),
    "JSON output": image(output(binary_data=False), FROM_JSON, "http", answer=JSON_ANSWER),
    "class_count": image(output(class_count=3)),
    "id and version": image(lambda _: {"request_id": "7", "model_version": "2"}),
    "sequence": image(lambda _: {"sequence_id": 5, "sequence_start": True, "priority": 3}),
    "parameters": image(lambda _: {"parameters": {"a": 1.5, "b": "\xe9"}, "timeout": 10**6}),
    "headers": image(lambda _: {"headers": {"x-id": "7"}}),
    "query_params": image(lambda _: {"query_params": {"a": [1, "b c"]}}, only="http"),
    "gzip": image(lambda _: {"request_compression_algorithm": "gzip"}, COMPRESSED, "http"),
    "gzip over gRPC": image(lambda _: {"compression_algorithm": "gzip"}, only="grpc"),
    "compressed response": image(
        lambda _: {"response_compression_algorithm": "gzip"},
        UNPACKED,
        "http",
        answer=http_calls.ANSWERS["gzip"],
    ),
    "verbose": image(lambda _: {}, PRINTED, "http", options={"verbose": True}),
    "channel_args": image(
        lambda _: {}, only="grpc", options={"channel_args": [("grpc.max_send_message_length", -1)]}
    ),
}

HTTP = {f"http {name}": infer for name, infer in http_calls.CLIENTS.items()}
GRPC = {f"grpc {name}": infer for name, infer in grpc_calls.CLIENTS.items()}
ROWS = [
    (client, name)
    for client in (*HTTP, *GRPC)
    for name, pattern in PATTERNS.items()
    if client.startswith(pattern.only)
]


@pytest.mark.parametrize(("client", "name"), ROWS)
def test_pattern(http: ModuleType, client: str, name: str) -> None:
    """The server gets the same requests, and tritonclient does only what has a reason."""
    kind, pattern = client.partition(" ")[0], PATTERNS[name]
    expected = exchange(client, pattern)
    tritonclient.install()
    with functions_that_run() as ran:
        found = exchange(client, pattern)
    tritonclient.uninstall()
    assert found == expected
    reasons = {step.removeprefix(f"{kind} ") for step in pattern.reasons or ()}
    assert steps_of_tritonclient(ran, kind) == reasons & {"set", "send", "receive"}


def exchange(client: str, pattern: Pattern) -> Any:
    """Return the results of the calls, and the requests that the server gets."""
    options = pattern.options or {}
    if client in HTTP:
        calls = partial(pattern.calls, module("http", "http"))
        return http_calls.exchange(
            HTTP[client], lambda _: calls(), [pattern.answer] * 3, **options
        )[:2]
    calls = partial(pattern.calls, module("grpc", "grpc"))
    return grpc_calls.exchange(GRPC[client], lambda _: calls(), **options)[:2]


@contextmanager
def functions_that_run() -> Iterator[set[str]]:
    """Collect the functions that this thread and new threads run: ``module:name``."""
    ran: set[str] = set()

    def record(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            ran.add(f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}")

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        yield ran
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


OURS = "tensorwire.integrations.tritonclient"


# Functions that run if data are sent, or received, without a copy.
SENT = {
    f"{OURS}.transport:FileBody.read",
    f"{OURS}.transport:payload_class.<locals>.BuffersPayload.write",
    f"{OURS}.grpc:RawRequest.serialized",
}
RECEIVED = {
    f"{OURS}.patches:replace_result_init.<locals>.__init__",
    f"{OURS}.grpc:RawResponse.__init__",
}


def steps_of_tritonclient(ran: set[str], kind: str) -> set[str]:
    """Return the steps that tritonclient has performed itself, with its copies."""
    copies = f"tritonclient.{kind}._infer_input:InferInput.set_data_from_numpy"
    parses = "tritonclient.http._infer_result:InferResult.__init__"
    return {
        # It does not copy BYTES, which our function serializes.
        *(["set"] if copies in ran and f"{OURS}.convert:serialized" not in ran else []),
        *(["send"] if not ran & SENT or f"{OURS}.grpc:RawRequest.message" in ran else []),
        *(["receive"] if not ran & RECEIVED or (kind == "http" and parses in ran) else []),
    }


# --- references to arrays ------------------------------------------------------------------------


@pytest.mark.parametrize("client", [*HTTP, *GRPC])
def test_inputs_refer_to_a_buffer_if_the_program_asks_for_it(http: ModuleType, client: str) -> None:
    """Otherwise, they have what it contained; see the pattern "one buffer for three inputs"."""
    tritonclient.install(refer_to_arrays=True)
    try:
        found = exchange(client, PATTERNS["one buffer for three inputs"])
    finally:
        tritonclient.uninstall()
    [request] = found[1]
    data = request[1] if client in HTTP else request
    assert data.count(np.full_like(IMAGE, 7).tobytes()) == 3


@pytest.mark.parametrize("api", ["http", "grpc"])
def test_last_install_determines_whether_inputs_refer_to_arrays(http: ModuleType, api: str) -> None:
    arrays = [IMAGE, IMAGE[:, ::-1], IMAGE[..., :9]]

    def refers() -> list[bool]:
        inputs = [given(module(api, api), array) for array in arrays]
        data = [getattr(x, "_raw_data" if api == "http" else "_raw_content") for x in inputs]
        assert [bytes(each) for each in data] == [array.tobytes() for array in arrays]
        return [np.shares_memory(np.frombuffer(each, np.uint8), IMAGE) for each in data]

    copied, referred = [False] * 3, [True, False, False]
    try:
        for option, expected in (
            (False, copied),
            (True, referred),
            (True, referred),
            (False, copied),
        ):
            tritonclient.install(refer_to_arrays=option)
            assert refers() == expected
        tritonclient.install(refer_to_arrays=True)
        tritonclient.uninstall()
        with pytest.raises(ValueError, match="untested"):
            tritonclient.install(refer_to_arrays=True, untested="all")  # type: ignore[arg-type]
        assert not tritonclient.is_installed()
        tritonclient.install()
        assert refers() == copied
    finally:
        tritonclient.uninstall()
