"""How programs call tritonclient: the same requests with fewer copies, by all clients.

Many of the patterns are those of public programs: the examples of Triton's client, clients for
images, texts and speech, and wrappers around tritonclient.
"""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorwire as tw
from interop.recorded_sources import check_calls_of_wrapper, wrappable_functions
from interop.samples import Array
from support import tritonclient_comparison as comparison
from support.servers import http as http_response
from support.tritonclient_calls import (
    ARRAYS,
    CLIENTS,
    GRPC,
    HTTP,
    LENGTH,
    Calls,
    exchange,
    given,
    grpc,
    http,
    http_aio,
    service,
)
from support.tritonclient_comparison import (
    FLOATS,
    LARGE,
    body_of,
    module,
    object_array,
    parsed,
    partly_installed,
    replaced,
    response,
)
from support.wrappers import Proxy, closure, functools_wrapper, wrapped
from tensorwire.integrations import tritonclient

pytestmark = comparison.MARKS
either, without_leftovers = comparison.either, comparison.without_leftovers

IMAGE = np.arange(3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224)
HWC = np.ascontiguousarray(IMAGE[0].transpose(1, 2, 0))
TOKENS = np.arange(128).reshape(1, 128)
JPEG = bytes(range(256)) * (LARGE // 100)
WORDS = object_array(["x", b"\0"])
BODY, HEADER_LENGTH = response(*ARRAYS)
HEADERS = {LENGTH: str(HEADER_LENGTH)}
JSON_BODY = tw.encode_response(tw.InferResponse([tw.Tensor("OUTPUT0", IMAGE, binary=False)]))


# --- patterns ------------------------------------------------------------------------------------

Reasons = dict[str, str]
NONE: dict[str, Any] = {}
SMALL = {"http send": "a small body is joined, which takes less time than several sends"}
NO_DATA = {"http send": "there is no data"}
TO_JSON = {"send": "the client's JSON package writes the numbers, so that the text is the same"}
FROM_JSON = {"receive": "the response has no binary data"}
COMPRESSED = {"send": "the client compresses the whole body"}
UNPACKED = {"receive": "the client decompresses the whole body"}
PRINTED = {
    "send": "the client prints the body, which must be bytes, or the message",
    "grpc receive": "the client prints the message",
}
OVERRIDDEN = {"send": "a subclass may override the methods that return the data"}
ITERATED = {"send": "an iterator can be read only once"}
NOT_PLAIN = {"grpc send": "the client reads all inputs of a request in the same way"}
CHANGED = {"send": "the program's own function expects a body of type bytes"}


class Pattern(NamedTuple):
    """Calls of a client, and the reason for each step that tritonclient itself performs.

    A step is "set", "send" or "receive", or begins with "http" or "grpc" if it is only one of these
    clients.
    """

    calls: Calls
    reasons: Reasons = NONE
    only: str = ""  # how the names of the clients begin
    answer: bytes | None = None
    options: dict[str, Any] = NONE  # of the client, or "prepare"


def several(inputs: Callable[[Any], Any], reasons: Reasons = NONE, only: str = "") -> Pattern:
    """Return the pattern of a call with these inputs."""
    return Pattern(lambda api: [{"inputs": inputs(api)}], reasons, only)


def one(
    array: Array, datatype: str = "FP32", reasons: Reasons = NONE, only: str = "", shape: Any = None
) -> Pattern:
    return several(lambda api: [given(api, array, "x", datatype, shape)], reasons, only)


def as_json(api: Any, array: Array, datatype: str) -> Any:
    tensor = api.InferInput("x", array.shape, datatype)
    return tensor.set_data_from_numpy(array, binary_data=False)


def in_json(array: Array, datatype: str) -> Pattern:
    return several(lambda api: [as_json(api, array, datatype)], TO_JSON, "http")


def image(reasons: Reasons = NONE, only: str = "", answer: Any = None, **call: Any) -> Pattern:
    """Return the pattern of a call with an image, and with other arguments."""
    # The client adds its own headers to a dict of headers.
    return Pattern(
        lambda api: [{"inputs": [given(api, IMAGE)], **deepcopy(call)}], reasons, only, answer
    )


def requesting(
    reasons: Reasons = NONE, only: str = "", answer: Any = None, **options: Any
) -> Pattern:
    """Return the pattern of a call for one output."""

    def calls(api: Any) -> list[Any]:
        outputs = [api.InferRequestedOutput("OUTPUT0", **options)]
        return [{"inputs": [given(api, IMAGE)], "outputs": outputs}]

    return Pattern(calls, reasons, only, answer)


def with_client(reasons: Reasons = NONE, only: str = "", **options: Any) -> Pattern:
    """Return the pattern of a client with these options."""
    return one(IMAGE, "FP32", reasons, only)._replace(options=options)


class Size(tuple[int, ...]):
    """As the shape of a tensor of torch, a subclass of tuple."""


def memory_mapped() -> Array:
    with TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=(1, LARGE))


def of_all_kinds(api: Any) -> list[Any]:
    return [
        given(api, FLOATS[:4], "a"),
        given(api, FLOATS, "b"),
        given(api, np.empty((0, 3), np.float32), "c"),
        given(api, WORDS, "d", "BYTES"),
        given(api, FLOATS[::-1], "e"),
        given(api, np.arange(LARGE // 8), "f", "INT64"),
        given(api, object_array(["x" * LARGE, b"y"]), "g", "BYTES"),
    ]


def set_shape_later(api: Any) -> list[Any]:
    tensor = api.InferInput("x", [1], "FP32").set_shape(IMAGE.shape)
    return [tensor.set_data_from_numpy(IMAGE)]


def in_shared_memory(api: Any) -> Any:
    return api.InferInput("s", [4], "FP32").set_shared_memory("region", 16, offset=64)


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


def one_buffer(api: Any) -> list[Any]:
    """The program fills it with 0, 1 and 2, and changes it again before the call."""
    buffer, inputs = np.empty_like(IMAGE), []
    for i in range(3):
        buffer[:] = i
        inputs.append(given(api, buffer))
    buffer[:] = 7
    return inputs


def reversed_input(api: Any) -> Any:
    """Return an input of a subclass, which overrides the method that returns the data."""
    method = "_get_binary_data" if api is http else "_get_content"

    def reversed_data(self: Any) -> bytes:
        data = getattr(super(subclass, self), method)()
        assert type(data) is bytes
        return data[::-1]

    subclass: Any = type("Reversed", (api.InferInput,), {method: reversed_data})
    return given(SimpleNamespace(InferInput=subclass), FLOATS, "r")


def of_own_class(api: Any) -> Any:
    """Return an input that is no instance of tritonclient's class, but has its two methods."""
    names = "_get_tensor", "_get_binary_data" if api is http else "_get_content"
    tensor = given(api)
    return SimpleNamespace(**{name: getattr(tensor, name) for name in names})


def with_content(api: Any, content: Any) -> Any:
    """Return an input whose data was replaced by the program."""
    tensor = given(api, FLOATS[:4])
    setattr(tensor, "_raw_data" if api is http else "_raw_content", content)
    return tensor


def with_region(api: Any) -> Any:
    """Return an input whose parameters were changed by the program."""
    tensor = as_json(api, FLOATS[:4], "FP32")
    tensor._parameters["shared_memory_region"] = "r"
    return tensor


def requested_outputs(api: Any) -> list[dict[str, Any]]:
    shared = api.InferRequestedOutput("OUTPUT2")
    shared.set_shared_memory("region", 8)
    classes = api.InferRequestedOutput("OUTPUT0", class_count=2)
    outputs = [api.InferRequestedOutput("OUTPUT1"), classes, shared]
    return [{"inputs": [given(api, IMAGE)], "outputs": outputs, "timeout": 10**6}]


def register_basic_auth(client: Any) -> None:
    client.register_plugin(import_module("tritonclient.http.auth").BasicAuth("user", "password"))


def replace_post(client: Any) -> None:
    """The program expects a body of type `bytes`, as it is without the integration."""
    original = client._post

    def post(request_uri: str, request_body: Any, headers: Any, query_params: Any) -> Any:
        assert type(request_body) is bytes
        return original(request_uri, request_body + b"", headers, query_params)

    client._post = post


def replace_class_of_the_library(client: Any) -> None:
    """The subclass may have methods that expect `bytes`."""
    stub = client._client_stub
    stub.__class__ = type("Subclass", (type(stub),), {})


UNLIMITED = [("grpc.max_send_message_length", -1)]
PATTERNS: dict[str, Pattern] = {
    "shape of the array": one(IMAGE, shape=IMAGE.shape),
    "list of the shape": one(IMAGE),
    "shape of a tensor of torch": one(IMAGE, shape=Size(IMAGE.shape)),
    "shape as an array": one(IMAGE, only="grpc", shape=np.array(IMAGE.shape)),
    "shape of numpy's integers": one(IMAGE, only="grpc", shape=list(np.array(IMAGE.shape))),
    "shape set later": several(set_shape_later),
    "FP16": one((IMAGE % 100).astype(np.float16), "FP16"),
    "image of cv2": one(np.tile(HWC.astype(np.uint8), 2), "UINT8"),
    "transposed image": one(HWC.transpose(2, 0, 1)[None]),
    "part of an array": one(np.tile(IMAGE, (2, 1, 1, 2))[:1, ..., ::2]),
    "np.memmap": one(memory_mapped(), "UINT8"),
    "memory of another object": one(np.frombuffer(IMAGE.tobytes(), np.float32)),
    "tokens": one(TOKENS, "INT64", SMALL),
    "texts": one(object_array(["a", "\xe9"]), "BYTES", SMALL),
    "np.bytes_": one(np.array([b"a", b"bc"]), "BYTES", SMALL),
    "encoded image": one(object_array([JPEG], (1, 1)), "BYTES"),
    "encoded image as np.bytes_": one(np.array([[JPEG]]), "BYTES"),
    "image as JSON": in_json(IMAGE, "FP32"),
    "tokens as JSON": in_json(TOKENS, "INT64"),
    "inputs of all kinds": several(of_all_kinds),
    "tuple of inputs": several(lambda api: (given(api, IMAGE), given(api, TOKENS, "y", "INT64"))),
    "iterator": several(lambda api: iter([given(api), given(api, FLOATS[:4], "y")]), ITERATED),
    "one input in two calls": Pattern(
        lambda api: [{"inputs": [x]} for x in [given(api, IMAGE)] * 2]
    ),
    "one input twice": several(lambda api: [given(api)] * 2),
    "one input with other data": Pattern(one_input_again),
    "one buffer for three inputs": several(one_buffer),
    "no inputs": several(lambda _: [], NO_DATA),
    "no data": several(lambda api: [api.InferInput("n", [1], "FP32")], NO_DATA),
    "shared memory": several(lambda api: [in_shared_memory(api)], NO_DATA),
    "shared memory among others": several(
        lambda api: [given(api), in_shared_memory(api), given(api, FLOATS + 1, "y")]
    ),
    "data and shared memory": Pattern(data_and_shared_memory),
    "subclass": several(lambda api: [reversed_input(api)], OVERRIDDEN),
    "subclass among others": several(lambda api: [given(api), reversed_input(api)], NOT_PLAIN),
    "own class": several(lambda api: [of_own_class(api), given(api)], NOT_PLAIN),
    "content of the program": several(lambda api: [with_content(api, b"abc"), given(api)]),
    "bytearray": several(
        lambda api: [with_content(api, bytearray(b"abc")), given(api)], only="http"
    ),
    "region of the program": several(lambda api: [with_region(api), given(api)], only="http"),
    "output": requesting(),
    "binary output": requesting(only="http", binary_data=True),
    "JSON output": requesting(
        FROM_JSON, "http", http_response(bytes(JSON_BODY)), binary_data=False
    ),
    "outputs of all kinds": Pattern(requested_outputs),
    "id and version": image(request_id="7", model_version="2"),
    "sequence": image(sequence_id=5, sequence_start=True, priority=3),
    "sequence of 64 bits": image(sequence_id=2**63 + 1, sequence_end=True, only="http"),
    "text as sequence": image(sequence_id="a", sequence_end=True, timeout=0),
    "parameters": image(parameters={"a": 1.5, "b": "\xe9"}, timeout=10**6),
    "headers": image(headers={"x-id": "7"}),
    "content type": image(headers={"Content-Type": "a/b"}, only="http"),
    "query_params": image(query_params={"a": [1, "b c"]}, only="http"),
    "gzip": image(COMPRESSED, "http", request_compression_algorithm="gzip"),
    "deflate": image(COMPRESSED, "http", request_compression_algorithm="deflate"),
    "gzip over gRPC": image(compression_algorithm="gzip", only="grpc"),
    "deflate over gRPC": image(compression_algorithm="deflate", only="grpc"),
    "unknown compression over gRPC": image(compression_algorithm="none such", only="grpc"),
    "compressed response": image(
        UNPACKED,
        "http",
        http_response(gzip.compress(BODY), {**HEADERS, "Content-Encoding": "gzip"}),
        response_compression_algorithm="gzip",
    ),
    "verbose": with_client(PRINTED, verbose=True),
    "channel_args": with_client(only="grpc", channel_args=UNLIMITED),
    "basic auth": with_client(only="http", prepare=register_basic_auth),
    "replaced _post": with_client(CHANGED, "http", prepare=replace_post),
    "subclass of the library": with_client(
        CHANGED, "http infer", prepare=replace_class_of_the_library
    ),
}
# The exceptions of the client are the same, and no request is sent.
REJECTED: dict[str, Pattern] = {
    "shape as an array": one(IMAGE, only="http", shape=np.array(IMAGE.shape)),
    "shape of numpy's integers": one(IMAGE, only="http", shape=list(np.array(IMAGE.shape))),
    "reserved parameter": image(parameters={"sequence_id": 1}),
    "parameter without a value": image(parameters={"a": None}, only="grpc"),
    "version that is no text": image(model_version=2),
    "id that is no text": image(request_id=2, only="grpc"),
    "no list of inputs": several(lambda _: None),
    "text as input": several(lambda _: ["x"]),
    "bytearray": several(lambda api: [given(api), with_content(api, bytearray(4))], only="grpc"),
    "upper-case metadata": image(headers={"X-Id": "7"}, only="grpc"),
    "chunked": image(headers={"Transfer-Encoding": "chunked"}, only="http"),
}


def rows(patterns: dict[str, Pattern]) -> list[tuple[str, str]]:
    return [
        (client, name)
        for client in CLIENTS
        for name, pattern in patterns.items()
        if client.startswith(pattern.only)
    ]


@pytest.mark.parametrize(("client", "name"), rows(PATTERNS))
def test_pattern(client: str, name: str) -> None:
    """The server gets the same requests, and tritonclient does only what has a reason."""
    kind, pattern = client.partition(" ")[0], PATTERNS[name]
    expected = exchange(client, pattern.calls, pattern.answer, **pattern.options)
    assert expected.requests
    with replaced(), functions_that_run() as ran:
        found = exchange(client, pattern.calls, pattern.answer, **pattern.options)
    assert found == expected
    steps = {step.removeprefix(f"{kind} ") for step in pattern.reasons}
    assert steps_of_tritonclient(ran, kind) == steps & {"set", "send", "receive"}


@pytest.mark.parametrize(("client", "name"), rows(REJECTED))
def test_rejected_call(client: str, name: str) -> None:
    pattern = REJECTED[name]
    expected = exchange(client, pattern.calls)
    assert not expected.requests
    with replaced():
        assert exchange(client, pattern.calls) == expected


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


SPLIT = "tensorwire.integrations.split"
OURS = "tensorwire.integrations.tritonclient"
# Functions that run if data are sent, or received, without a copy.
SENT = {
    f"{OURS}.bodies:FileBody.read",
    f"{OURS}.bodies:payload_class.<locals>.BuffersPayload.write",
    f"{SPLIT}:SplitMessage.SerializeToString",
}
RECEIVED = {f"{OURS}.http:replace_result_init.<locals>.__init__", f"{SPLIT}:read_split"}


def steps_of_tritonclient(ran: set[str], kind: str) -> set[str]:
    """Return the steps that tritonclient has performed itself, with its copies."""
    copies = f"tritonclient.{kind}._infer_input:InferInput.set_data_from_numpy"
    serializes = "tritonclient.utils:serialize_byte_tensor"
    parses = "tritonclient.http._infer_result:InferResult.__init__"
    # It does not copy BYTES that our function has serialized.
    is_ours = f"{OURS}.convert:serialized" in ran and serializes not in ran
    return {
        *(["set"] if copies in ran and not is_ours else []),
        *(["send"] if not ran & SENT or f"{SPLIT}:SplitMessage.complete" in ran else []),
        *(["receive"] if not ran & RECEIVED or parses in ran else []),
    }


@pytest.mark.parametrize("is_only", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
def test_each_replacement_works_without_the_others(client: str, is_only: bool) -> None:
    """Another thread may see this state during install and uninstall."""

    def outcomes() -> Any:
        result = parsed(BODY, str(HEADER_LENGTH))
        return (
            exchange(client, PATTERNS["inputs of all kinds"].calls),
            [comparison.described(result.as_numpy(name)) for name in ("OUTPUT0", "OUTPUT2")],
            body_of(object_array(["x", "\xe9"]), "BYTES"),
        )

    expected = outcomes()
    for name in partly_installed(is_only):
        assert outcomes() == expected, name
        try:
            assert body_of(np.array(["x", "\xe9"]), "BYTES") == expected[2], name
        except module("utils", "http").InferenceServerException as error:
            assert "unexpected datatype" in str(error)  # of an array that only we accept


# --- references to arrays ------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
def test_inputs_refer_to_a_buffer_if_the_program_asks_for_it(client: str) -> None:
    """Otherwise, they have what it contained; see the pattern "one buffer for three inputs"."""
    tritonclient.install(refer_to_arrays=True)
    [request] = exchange(client, PATTERNS["one buffer for three inputs"].calls).requests
    data = request[2] if client in HTTP else request[0]
    assert data.count(np.full_like(IMAGE, 7).tobytes()) == 3


@pytest.mark.parametrize(("api", "attribute"), [(http, "_raw_data"), (grpc, "_raw_content")])
def test_last_install_determines_whether_inputs_refer_to_arrays(api: Any, attribute: str) -> None:
    arrays = [IMAGE, IMAGE[:, ::-1], IMAGE[..., :9]]

    def refers() -> list[bool]:
        data = [getattr(given(api, array), attribute) for array in arrays]
        assert [bytes(each) for each in data] == [array.tobytes() for array in arrays]
        assert all(memoryview(each).readonly for each in data)
        return [np.shares_memory(np.frombuffer(each, np.uint8), IMAGE) for each in data]

    for option in (False, True, True, False, True):
        tritonclient.install(refer_to_arrays=option)
        assert refers() == [option, False, False]
    tritonclient.uninstall()
    with pytest.raises(ValueError, match="untested"):
        tritonclient.install(refer_to_arrays=True, untested="all")  # type: ignore[arg-type]
    assert not tritonclient.is_installed()
    tritonclient.install()
    assert refers() == [False] * 3


# --- wrappers of other code ----------------------------------------------------------------------


def read_everything(result: Any) -> None:
    result.get_output("OUTPUT0")
    result.as_numpy("OUTPUT0")
    result.get_response()


def workload(name: str) -> None:
    """Call everything that relies on a function, in all ways that may call it."""
    utils, memory = module("utils", "http"), module("utils.shared_memory", "http")
    utils.deserialize_bytes_tensor(utils.serialize_byte_tensor(WORDS).item())
    region = memory.create_shared_memory_region("tensorwire", "tensorwire_wrappers", 4096)
    try:
        memory.set_shared_memory_region(region, [utils.serialize_byte_tensor(WORDS)])
        assert memory.get_contents_as_numpy(region, np.object_, [2]).tolist() == [b"x", b"\0"]
    finally:
        memory.destroy_shared_memory_region(region)
    parsed(BODY, HEADER_LENGTH).as_numpy("OUTPUT2")
    body_of(WORDS, "BYTES")
    for client in HTTP if "http" in name else GRPC if "grpc" in name else CLIENTS:
        exchange(client, PATTERNS["inputs of all kinds"].calls, read=read_everything)


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
@pytest.mark.parametrize("name", wrappable_functions(tritonclient))
def test_wrapper_is_called_as_often_as_without_the_integration(
    name: str, wrap: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """This holds for each function that the integration replaces or relies on."""
    check_calls_of_wrapper(tritonclient, name, wrap, lambda: workload(name))
    is_called_anyway = "ServerClient." in name and not name.endswith(("__init__", "_post"))
    assert len(caplog.records) == (not is_called_anyway)
    if not is_called_anyway:
        assert name.replace(":", ".") in caplog.text


def functions_on_the_way(client: str) -> list[tuple[Any, str]]:
    """Return the functions through which a body or message goes, and their owners."""
    if client in GRPC:
        return [(import_module("tritonclient.grpc._utils"), "_get_inference_request")]
    if client == "http aio":
        api, stub, request = http_aio, import_module("aiohttp").ClientSession, "_request"
    else:
        api, stub = import_module("tritonclient.http._client"), import_module("geventhttpclient")
        stub, request = stub.HTTPClient, "request"
    own = [(api, "_get_inference_request"), (api.InferenceServerClient, "_post")]
    return [*own, (stub, "post"), (stub, request)]


@pytest.mark.parametrize("is_first", [True, False], ids=["wrapped first", "wrapped later"])
@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy, closure])
@pytest.mark.parametrize(
    ("client", "position"),
    [(client, i) for client in CLIENTS for i in range(len(functions_on_the_way(client)))],
)
def test_wrapper_gets_complete_requests(
    client: str, position: int, wrap: Any, is_first: bool
) -> None:
    """It gets the same types: bodies that are `bytes`, or messages of the generated class."""
    seen: list[type] = []

    def checking(function: Any, count: Callable[[], None]) -> Any:
        def checked(*arguments: Any, **options: Any) -> Any:
            found = function(*arguments, **options)
            results = found if type(found) is tuple else [found]
            seen.extend(map(type, [*arguments, *options.values(), *results]))
            return found

        return wrap(checked, count)

    def send() -> Any:
        seen.clear()
        return exchange(client).requests, list(seen)

    place = functions_on_the_way(client)[position]
    with wrapped(*place, checking, lambda: None):
        expected = send()
        if is_first:
            tritonclient.install()
            found = send()
            tritonclient.uninstall()
    if not is_first:
        tritonclient.install()
        with wrapped(*place, checking, lambda: None):
            found = send()
    assert (bytes if client in HTTP else service.ModelInferRequest) in expected[1]
    assert found == expected
