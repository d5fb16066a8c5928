"""The context of a request: what models know of it besides its message, over every transport."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, NamedTuple
from unittest import mock
from weakref import ref

import pytest

import tensorwire as tw
from support.asgi_requests import infer
from support.http_exchange import connect, echo, post
from support.lifetimes import without_gc
from support.requirements import package
from support.servers import uvicorn_server
from support.threads import wait_for

grpc = package("grpc")

from support.grpc_served_app import message, served_app  # noqa: E402
from tensorwire.grpc_messages import SERVICE  # noqa: E402
from tensorwire.server import (  # noqa: E402
    InferProtocol,
    Model,
    Models,
    RequestContext,
    RequestError,
    create_app,
)
from tensorwire.server.grpc import context_of  # noqa: E402

pytestmark = [
    pytest.mark.thread_unsafe(reason="the tests share a server"),
    pytest.mark.no_sanitizers(reason="it tests sockets and event loops"),
]


def tell(request: tw.InferRequest, context: RequestContext) -> dict[str, Any]:
    """Send back the header X-Tag, and the others in a form that shows them exactly."""
    context.response_headers["X-Tag"] = context.headers["x-tag"]
    context.response_headers["x-others"] = ascii(
        {k: v for k, v in context.headers.items() if k.startswith(("x-a", "x-b", "cookie"))}
    )
    context.response_headers["x-client"] = repr(context.client)
    context.response_headers["x-remaining"] = repr(context.time_remaining())
    if "x-fail" in context.headers:
        raise RequestError("no", 429)
    return {"y": [1.5]}


async def tell_later(request: tw.InferRequest, *, context: RequestContext) -> dict[str, Any]:
    await asyncio.sleep(0)
    return tell(request, context)


def returns_coroutine(request: tw.InferRequest, context: RequestContext) -> Any:
    return tell_later(request, context=context)


MODELS: Models = {
    "thread": tell,
    "async": tell_later,
    "event loop": Model(tell, in_event_loop=True),
    "coroutine": returns_coroutine,
}


class Answer(NamedTuple):
    is_error: bool
    headers: dict[str, str]


class Server(NamedTuple):
    ask: Callable[..., Answer]  # with a model, and headers as pairs of str and bytes
    address: str
    is_grpc: bool = False


@pytest.fixture(scope="module", params=["ASGI", "InferProtocol", "gRPC"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    def ask_grpc(model: str, *headers: tuple[str, bytes], **options: Any) -> Answer:
        metadata = [(k, v if k.endswith("-bin") else v.decode()) for k, v in headers]
        call = served.method.future(message(model), metadata=metadata, **options)
        code = call.code()
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED), call.details()
        return Answer(code is not grpc.StatusCode.OK, dict(call.trailing_metadata()))

    def ask_http(model: str, *headers: tuple[str, bytes]) -> Answer:
        with connect(address) as connection:
            response = connection.ask(posted(model, *headers))
        assert response.status in (200, 429), response.body
        return Answer(response.status == 429, response.headers)

    app = create_app(MODELS)
    if request.param == "gRPC":
        with served_app(app) as served:
            yield Server(ask_grpc, served.address, True)
    else:
        protocol = InferProtocol if request.param == "InferProtocol" else "httptools"
        with uvicorn_server(app, http=protocol) as address:
            yield Server(ask_http, address)


def posted(model: str, *headers: tuple[str, bytes]) -> bytes:
    sent = echo()
    lines = [f"{name}: {value.decode('latin-1')}" for name, value in headers]
    return post(model.replace(" ", "%20"), sent, [*sent.headers, *lines])


TAG = ("x-tag", b"1")


@pytest.mark.parametrize("model", MODELS)
def test_headers_in_both_directions(server: Server, model: str) -> None:
    """Also those that are repeated, not ASCII, or binary."""
    other = ("x-b-bin", b"\0\xff") if server.is_grpc else ("x-b", b"\xe4\xff \t")
    expected = {"x-b-bin": "AP8="} if server.is_grpc else {"x-b": "äÿ"}
    many = [("x-a", b"%d" % i) for i in range(100)]
    answer = server.ask(
        model, TAG, *many[:50], other, *many[50:], ("cookie", b"a"), ("cookie", b"b")
    )
    assert (answer.is_error, answer.headers["x-tag"]) == (False, "1")
    expected |= {"x-a": ", ".join(map(str, range(100))), "cookie": "a; b"}
    assert eval(answer.headers["x-others"]) == expected
    answer = server.ask(model, TAG, ("x-fail", b"1"))
    assert (answer.is_error, answer.headers["x-tag"]) == (True, "1")


def test_client_and_deadline(server: Server) -> None:
    found = server.ask("async", TAG).headers
    host, port = eval(found["x-client"])
    assert (host, 0 < port < 1 << 16, found["x-remaining"]) == ("127.0.0.1", True, "None")
    if server.is_grpc:
        assert 0 < float(server.ask("async", TAG, timeout=20).headers["x-remaining"]) < 21
    else:  # uvicorn trusts a proxy at this address
        found = server.ask("async", TAG, ("x-forwarded-for", b"192.0.2.7")).headers
        assert found["x-client"] == "('192.0.2.7', 0)"


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:192.0.2.7:80", ("192.0.2.7", 80)),
        ("ipv6:%5B2001:db8::1%5D:80", ("2001:db8::1", 80)),
        ("ipv6:[2001:db8::1]:80", ("2001:db8::1", 80)),
        *((peer, None) for peer in ("unix:", "unix:/run/a:80", "unix-abstract:a:80", "unknown")),
    ],
)
def test_clients_of_grpc(peer: str, client: Any) -> None:
    call = mock.Mock()
    call.configure_mock(**{"peer.return_value": peer, "time_remaining.return_value": None})
    call.invocation_metadata.return_value = None
    assert context_of(call).client == client


@pytest.mark.parametrize("model", MODELS)
def test_contexts_of_requests_on_a_connection_do_not_mix(server: Server, model: str) -> None:
    tags = [str(i) for i in range(60)]
    if server.is_grpc:
        with grpc.insecure_channel(server.address) as channel:
            infer_on_channel = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            calls = [
                infer_on_channel.future(message(model), metadata=[("x-tag", tag)]) for tag in tags
            ]
            assert [dict(call.trailing_metadata())["x-tag"] for call in calls] == tags
    else:
        with connect(server.address) as connection:
            connection.send(b"".join(posted(model, ("x-tag", tag.encode())) for tag in tags))
            assert [connection.read().headers["x-tag"] for _ in tags] == tags


def test_stream_has_the_headers_of_all_its_requests() -> None:
    """A context belongs to a request, and the metadata to the call."""
    contexts: list[RequestContext] = []

    def model(request: tw.InferRequest, context: RequestContext) -> Any:
        contexts.append(context)
        context.response_headers.update({f"x-{len(contexts)}": "1", "x-n": str(len(contexts))})
        if len(contexts) == 2:
            raise RequestError("no")
        return {"y": [1]}

    with served_app(create_app({"m": model})) as served:
        call = served.stream(iter([message("m")] * 3))
        assert len(list(call)) == 3
        assert dict(call.trailing_metadata()) == {"x-1": "1", "x-2": "1", "x-3": "1", "x-n": "3"}
    assert len(set(contexts)) == 3
    assert contexts[0].response_headers == {"x-1": "1", "x-n": "1"}


def test_cancelled_call() -> None:
    """The context remains usable, and the server, too."""
    started, released, found = threading.Event(), threading.Event(), []

    def model(request: tw.InferRequest, context: RequestContext) -> Any:
        started.set()
        assert released.wait(20)
        context.response_headers["x-a"] = context.headers["x-tag"]
        found.append(context)
        return {"y": [1]}

    with served_app(create_app({"m": model})) as served:
        call = served.start("m", metadata=[("x-tag", "1")], timeout=20)
        assert started.wait(20)
        call.cancel()
        released.set()
        served.infer("m", metadata=[("x-tag", "2")])
        wait_for(lambda: len(found) == 2)  # the cancelled call may end later
    by_tag = {context.headers["x-tag"]: context for context in found}
    assert by_tag.keys() == {"1", "2"}
    assert 0 < (by_tag["1"].time_remaining() or 0) < 21


def test_context_that_is_kept() -> None:
    """It keeps nothing of the request, and what is set after the response has no effect."""
    kept: list[Any] = []

    def model(request: tw.InferRequest, context: RequestContext) -> Any:
        kept.extend([context, ref(request["x"].as_numpy())])
        return {"y": [1]}

    with without_gc():
        answer = infer(create_app({"m": Model(model, in_event_loop=True)}), "m")
        assert kept[1]() is None
    kept[0].response_headers["x-late"] = "1"
    assert (answer.status, "x-late" in answer.headers, kept[0].client) == (200, False, None)


def test_context_of_a_test() -> None:
    context = RequestContext([("X-Secret", "s3cret"), (b"b", b"\xff")], ("h", 1), -math.inf)
    assert (dict(context.headers), context.client) == ({"x-secret": "s3cret", "b": "ÿ"}, ("h", 1))
    assert (context.time_remaining(), RequestContext().time_remaining()) == (0, None)
    context.response_headers["X-Secret"] = "s3cret"
    assert "s3cret" not in f"{context}{context.response_headers}"
    assert "x-SECRET" in context.response_headers
    assert 5 not in context.response_headers  # type: ignore[comparison-overlap]
    assert context.response_headers.pop("X-SECRET") == "s3cret"
    assert not context.response_headers
    with pytest.raises(AttributeError):
        context.response_headers = {"a": "b\r\n"}  # type: ignore[misc]
    with pytest.raises(TypeError):
        context.headers["a"] = "b"  # type: ignore[index]


NOT_A_NAME = "must consist of ASCII letters, digits, -, _ and ., not begin with grpc-"
NOT_A_VALUE = "the value of the response header 'x-a' must be printable ASCII"


@pytest.mark.parametrize(
    ("name", "value", "error", "expected"),
    [
        *((name, "1", ValueError, NOT_A_NAME) for name in ("", "a b", "a\n", ":path", "ä", "a:")),
        *((name, "1", ValueError, NOT_A_NAME) for name in ("Grpc-Status", "x-bin", "a\r\nb: c")),
        *((name, "1", ValueError, "the server sets it") for name in ("Content-Length", "DATE")),
        *((name, "1", ValueError, "the server sets it") for name in ("TE", "content-type")),
        ("Inference-Header-Content-Length", "1", ValueError, "the server sets it"),
        *(
            ("X-A", v, ValueError, NOT_A_VALUE)
            for v in ("s3\r\nb: c", "s3\n", "ä", "\0", " s3", "s3\t")
        ),
        (1, "1", TypeError, "the name of a response header must be a str, not int"),
        (
            "x-a",
            b"s3",
            TypeError,
            "the value of the response header 'x-a' must be a str, not bytes",
        ),
        ("n" * 10_000 + " ", "1", ValueError, NOT_A_NAME),
    ],
)
def test_response_headers_that_cannot_be_set(
    name: Any, value: Any, error: type[Exception], expected: str
) -> None:
    headers = RequestContext().response_headers
    with pytest.raises(error) as caught:
        headers[name] = value
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 500 and "s3" not in str(caught.value)
    assert not headers


def passes_all(function: Any) -> Any:
    @wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    return wrapper


def passes_request(function: Any) -> Any:
    @wraps(function)
    def wrapper(request: Any) -> Any:
        return function(request)

    return wrapper


class Methods:
    def __call__(self, request: Any, context: Any = None) -> Any:
        return {"y": [context is not None]}

    def method(self, request: Any, context: Any = None) -> Any:
        return self(request, context)

    static = staticmethod(lambda request, *, context=None: {"y": [context is not None]})

    @classmethod
    def of_class(cls, request: Any, context: Any = None) -> Any:
        return cls()(request, context)


plain = Methods.static
Unsigned = type("Unsigned", (Methods,), {"__signature__": "unknown"})


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        *((each, True) for each in (plain, Methods(), Methods().method, Methods.of_class)),
        *((each, True) for each in (passes_all(plain), partial(passes_all(plain)))),
        (partial(Methods.__call__, Methods()), True),
        (mock.create_autospec(plain, side_effect=plain), True),
        (lambda request: {"y": [False]}, False),
        (lambda request, **others: {"y": [bool(others)]}, False),
        (lambda context: {"y": [isinstance(context, RequestContext)]}, False),
        (lambda request, context=None, /: {"y": [context is not None]}, False),
        (partial(plain, context=None), False),
        (passes_request(plain), False),
        (mock.Mock(return_value={"y": [False]}), False),
        (mock.MagicMock(return_value={"y": [False]}), False),
        (Unsigned(), False),
        ({"y": [False]}.__class__.fromkeys, False),
    ],
)
def test_which_functions_get_a_context(function: Any, expected: bool) -> None:
    """They have a parameter with this name, after the request, that `partial` has not bound."""
    model = Model(function, in_event_loop=True)
    assert model.takes_context is expected
    if function != dict.fromkeys:
        assert infer(create_app({"m": model}), "m").response()["y"].tolist() == [expected]
