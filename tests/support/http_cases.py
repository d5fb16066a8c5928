"""HTTP requests as exact bytes, and what a server must respond.

Each case is sent on a new connection. If the connection stays open, the server must answer another
request on it. ``differs`` lists the servers that respond in another way, for a reason that the
application cannot change.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass

from .http_exchange import chunked, echo, head, post
from .http_models import MAX_BODY

H11 = ("asgi-h11", "hypercorn")  # servers that use the parser h11
LLHTTP = ("asgi-httptools", "fast")  # servers that use the parser llhttp
ASGI = ("asgi-h11", "asgi-httptools", "hypercorn", "granian-asgi")
HYPER = ("granian-asgi", "granian-rsgi")  # servers that use the parser of hyper


@dataclass(frozen=True)
class Outcome:
    """The responses to a case."""

    statuses: tuple[int, ...]
    stays_open: bool | None  # None: either is allowed
    error: str | None = None  # part of the application's error message; None: the server's error


@dataclass(frozen=True)
class Difference:
    """The outcome with some servers, and why it is not that of the other servers."""

    transports: tuple[str, ...]
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Case:
    id: str
    sent: bytes
    outcome: Outcome
    differs: tuple[Difference, ...] = ()
    method: str = "POST"

    def expected(self, transport: str) -> Outcome:
        for difference in self.differs:
            if transport in difference.transports:
                return difference.outcome
        return self.outcome


OK = Outcome((200,), True)
OK_CLOSED = Outcome((200,), False)
INVALID = Outcome((400,), False)  # rejected by the parser
INVALID_HEAD = Outcome((431,), False)


def error(status: int, message: str, *, stays_open: bool | None = True) -> Outcome:
    """Return the outcome of an error response of the application."""
    return Outcome((status,), stays_open, message)


HYPER_DROPS_LENGTH = Difference(
    HYPER, OK_CLOSED, "hyper ignores Content-Length (RFC 9112 6.3), and the app does not see it"
)
EQUAL_LENGTHS = Difference(H11, OK, "h11 accepts equal values, as RFC 9112 6.3 allows")
EQUAL_LENGTHS_HYPER = Difference(HYPER, OK, "hyper accepts equal headers, as RFC 9112 6.3 allows")
MALFORMED_BODY = Difference(
    ("granian-asgi",),
    Outcome((500,), False),
    "granian reports a disconnect to the app, and sends its own 500",
)
COMPLETE_MESSAGE = Difference(
    ("granian-rsgi",),
    OK_CLOSED,
    "granian ends the body as after the last chunk, and the message is complete by its own lengths",
)
UNKNOWN_CODING = Difference(("hypercorn",), Outcome((501,), False), "h11 proposes 501")
BARE_LF = Difference((*H11, *HYPER), OK, "they accept a bare LF, as RFC 9112 2.2 allows")
OBS_FOLD = Difference(H11, OK, "h11 replaces it with a blank, as RFC 9112 5.2 allows")
HOST_UNCHECKED = Difference((*LLHTTP, *HYPER), OK, "neither llhttp nor hyper checks Host")
ANY_METHOD = Difference((*H11, *HYPER), error(405, ""), "h11 and hyper accept any method")
ANY_METHOD_UPPER = Difference(("hypercorn",), OK, "hypercorn converts methods to upper case")
ANY_VERSION = Difference(H11, OK, "h11 accepts any version")
ABSOLUTE_FORM = Difference(H11, error(404, "http://"), "the servers pass the whole target as path")

ONE = echo()
N = len(ONE.body)
INFER = "POST /v2/models/echo/infer HTTP/1.1"
LENGTH = f"Content-Length: {N}"
HEADER = ONE.length_header
CHUNKED = "Transfer-Encoding: chunked"


def lengths(*lines: str) -> bytes:
    """Return a request with these lines instead of Content-Length."""
    return head(INFER, [HEADER, *lines]) + ONE.body


def header_length(*lines: str) -> bytes:
    """Return a request with these lines instead of the header length."""
    return head(INFER, [LENGTH, *lines]) + ONE.body


def chunks(sent: bytes, *lines: str) -> bytes:
    """Return a request with a chunked body."""
    return head(INFER, [HEADER, *(lines or [CHUNKED])]) + sent


CHUNKS = chunked(ONE.body, (1, 10, 16))

LENGTH_CASES = (
    Case(
        "Content-Length and Transfer-Encoding",
        chunks(CHUNKS, LENGTH, CHUNKED),
        INVALID,
        differs=(HYPER_DROPS_LENGTH,),
    ),
    Case(
        "Transfer-Encoding and Content-Length",
        chunks(CHUNKS, CHUNKED, LENGTH),
        INVALID,
        differs=(HYPER_DROPS_LENGTH,),
    ),
    Case(
        "Content-Length twice, equal",
        lengths(LENGTH, LENGTH),
        INVALID,
        differs=(
            EQUAL_LENGTHS,
            EQUAL_LENGTHS_HYPER,
        ),
    ),
    Case("Content-Length twice, different", lengths(LENGTH, f"Content-Length: {N - 1}"), INVALID),
    Case(
        "Content-Length as a list of equal values",
        lengths(f"{LENGTH}, {N}"),
        INVALID,
        differs=(EQUAL_LENGTHS,),
    ),
    *(
        Case(f"Content-Length {value!r}", lengths(f"Content-Length: {value}"), INVALID)
        for value in (
            *(f"{N}, {N - 1}", f"+{N}", "-1", "", "   ", f"{N:#x}", "1e2", f"{N}.0"),
            *("1 0", "1_0", "1\xb2", "9" * 100),
        )
    ),
    *(
        Case(
            f"Content-Length {length}",
            lengths(f"Content-Length: {length}"),
            INVALID,
            differs=(
                Difference(H11, error(413, "", stays_open=None), "h11 accepts up to 20 digits"),
            ),
        )
        for length in (2**64, 2**64 + N)
    ),
    Case(
        "Content-Length of 2^63 - 1",
        lengths(f"Content-Length: {2**63 - 1}"),
        error(413, "", stays_open=None),
    ),
    Case("Content-Length with leading zeros", lengths(f"Content-Length: 000{N}"), OK),
    Case("Content-Length with blanks around it", lengths(f"Content-Length: \t {N} "), OK),
    Case("Content-Length in lower case", lengths(LENGTH.lower()), OK),
    Case("a blank before the colon", lengths(f"Content-Length : {N}"), INVALID),
    Case("no length", head(INFER, [HEADER]), error(400, "")),
    Case("Content-Length 0", head(INFER, [HEADER, "Content-Length: 0"]), error(400, "")),
)

HEADER_LENGTH_CASES = (
    *(
        Case(f"header length {lines}", header_length(*lines), OK)
        for lines in (
            [f"{HEADER} \t "],
            [HEADER.replace(" ", " \t ")],
            [HEADER.lower()],
            [HEADER, HEADER],
            [f"{HEADER}, {ONE.header_length}"],
            [f"{HEADER} ,\t {ONE.header_length} "],
        )
    ),
    Case(
        "header length twice, different",
        header_length(HEADER, "Inference-Header-Content-Length: 10"),
        error(400, "header length"),
    ),
    Case(
        "header length as a list of different values",
        header_length(f"{HEADER}, 10"),
        error(400, "header length"),
    ),
    *(
        Case(
            f"header length {value!r}",
            header_length(f"Inference-Header-Content-Length: {value}"),
            error(400, "Inference-Header-Content-Length"),
        )
        for value in ("", "-1", "+5", "1.0", "1e2", "0x10", "5 5", "five", "9" * 21, "5,", "1\xb2")
    ),
    Case(
        "header length longer than the body",
        header_length(f"Inference-Header-Content-Length: {N + 1}"),
        error(400, ""),
    ),
)

CHUNKED_CASES = (
    Case("chunked", chunks(CHUNKS), OK),
    Case("chunked in upper case", chunks(CHUNKS, "TRANSFER-ENCODING: CHUNKED"), OK),
    Case("chunked, one byte in each", chunks(chunked(ONE.body, (1,) * (N - 1))), OK),
    Case(
        "chunk sizes with leading zeros and upper case",
        chunks(b"00A\r\n%b\r\n000%X\r\n%b\r\n000\r\n\r\n" % (ONE.body[:10], N - 10, ONE.body[10:])),
        OK,
    ),
    Case(
        "chunk extensions",
        chunks(
            b'a;name=value\r\n%b\r\n%x;a;b="c d"\r\n%b\r\n0;last\r\n\r\n'
            % (ONE.body[:10], N - 10, ONE.body[10:])
        ),
        OK,
    ),
    Case("trailers", chunks(chunked(ONE.body, end=b"0\r\nA: b\r\nC: d\r\n\r\n")), OK),
    Case(
        "trailers that look like framing",
        chunks(
            chunked(
                ONE.body,
                end=b"0\r\nContent-Length: 9\r\nInference-Header-Content-Length: 1\r\n\r\n",
            )
        ),
        OK,
        differs=(Difference(LLHTTP, INVALID, "llhttp rejects Content-Length in trailers"),),
    ),
    Case(
        "Connection in trailers",
        chunks(chunked(ONE.body, end=b"0\r\nConnection: close\r\n\r\n")),
        OK,
        differs=(
            Difference(("fast",), OK_CLOSED, "llhttp closes the connection"),
            Difference(("asgi-httptools",), Outcome((200,), None), "llhttp ignores what follows"),
        ),
    ),
    Case("chunked without data", chunks(b"0\r\n\r\n"), error(400, "")),
    Case(
        "chunk size of 2^64",
        chunks(b"10000000000000000\r\nabcde\r\n0\r\n\r\n"),
        INVALID,
        differs=(
            MALFORMED_BODY,
            Difference(H11, Outcome((), None), "h11 accepts 20 digits, and waits for the data"),
        ),
    ),
    *(
        Case(name, chunks(sent), INVALID, differs=(MALFORMED_BODY,))
        for name, sent in (
            ("chunk size is not a number", b"xyz\r\n" + ONE.body),
            ("chunk size empty", b"\r\n" + ONE.body),
            ("chunk size with a sign", b"+5\r\nabcde\r\n0\r\n\r\n"),
            ("chunk size negative", b"-5\r\nabcde\r\n0\r\n\r\n"),
            ("chunk size with 0x", b"0x5\r\nabcde\r\n0\r\n\r\n"),
            ("chunk size of 40 digits", b"f" * 40 + b"\r\nabcde\r\n0\r\n\r\n"),
            ("chunk longer than its size", b"5\r\nabcdefgh\r\n0\r\n\r\n"),
            ("chunk size with a bare LF", b"5\nabcde\r\n0\r\n\r\n"),
            ("chunk data with a bare LF", b"5\r\nabcde\n0\r\n\r\n"),
        )
    ),
    Case(
        "malformed chunk after a valid one",
        chunks(b"%x\r\n%b\r\nxyz\r\n" % (N, ONE.body)),
        INVALID,
        differs=(MALFORMED_BODY, COMPLETE_MESSAGE),
    ),
    Case(
        "malformed trailer",
        chunks(chunked(ONE.body, end=b"0\r\nno colon\r\n\r\n")),
        INVALID,
        differs=(MALFORMED_BODY, COMPLETE_MESSAGE),
    ),
    Case(
        "chunked twice",
        chunks(CHUNKS, "Transfer-Encoding: chunked, chunked"),
        INVALID,
        differs=(
            Difference(HYPER, OK, "hyper accepts it"),
            UNKNOWN_CODING,
        ),
    ),
    *(
        Case(
            f"Transfer-Encoding {coding}",
            chunks(CHUNKS, f"Transfer-Encoding: {coding}"),
            INVALID,
            differs=(UNKNOWN_CODING,),
        )
        for coding in ("chunked, gzip", "xchunked", "identity")
    ),
    Case(
        "Transfer-Encoding with a vertical tab",
        chunks(CHUNKS, "Transfer-Encoding: \x0bchunked"),
        INVALID,
    ),
)

VALID = post("echo", ONE)


def line(text: str) -> bytes:
    """Return the request with an additional header line."""
    return post("echo", ONE, [*ONE.headers, text])


SYNTAX_CASES = (
    Case("bare LF after every line", VALID.replace(b"\r\n", b"\n"), INVALID, differs=(BARE_LF,)),
    Case(
        "bare LF after one header",
        VALID.replace(b"Host: tests\r\n", b"Host: tests\nA: b\r\n"),
        INVALID,
        differs=(BARE_LF,),
    ),
    Case("bare CR in a header", line("A: b\rc"), INVALID),
    Case("NUL in a header", line("A: b\0c"), INVALID),
    Case("obs-fold", line("A: b\r\n  c"), INVALID, differs=(OBS_FOLD,)),
    Case("obs-fold in the first header", VALID.replace(b"Host:", b" Host:"), INVALID),
    Case("header line without a colon", line("no colon here"), INVALID),
    Case("header without a name", line(": value"), INVALID),
    Case("header name with a blank", line("a b: c"), INVALID),
    Case("header name with a bracket", line("a[b: c"), INVALID),
    Case("header value with UTF-8 and Latin-1", line("A: gr\xc3\xb6\xdfe"), OK),
    Case(
        "empty lines before the request",
        b"\r\n\r\n" + VALID,
        OK,
        differs=(Difference(H11, INVALID, "h11 rejects empty lines"),),
    ),
    Case("no Host", VALID.replace(b"Host: tests\r\n", b""), INVALID, differs=(HOST_UNCHECKED,)),
    Case("Host twice", line("Host: other"), INVALID, differs=(HOST_UNCHECKED,)),
    Case(
        "method in lower case",
        VALID.replace(b"POST", b"post"),
        INVALID,
        differs=(
            ANY_METHOD_UPPER,
            ANY_METHOD,
        ),
    ),
    Case("unknown method", VALID.replace(b"POST", b"INFER"), INVALID, differs=(ANY_METHOD,)),
    Case(
        "two blanks in the first line",
        VALID.replace(b"POST ", b"POST  "),
        INVALID,
        differs=(Difference(LLHTTP, OK, "llhttp accepts several blanks"),),
    ),
    Case(
        "no version",
        VALID.replace(b" HTTP/1.1", b""),
        INVALID,
        differs=(Difference(LLHTTP, OK_CLOSED, "llhttp accepts HTTP/0.9"),),
    ),
    Case(
        "HTTP/2.0 as the version",
        VALID.replace(b"HTTP/1.1", b"HTTP/2.0"),
        INVALID,
        differs=(
            Difference(
                LLHTTP, OK_CLOSED, "llhttp accepts it, as HTTP/2.0 without a connection preface"
            ),
            ANY_VERSION,
        ),
    ),
    Case(
        "HTTP/1.2 as the version",
        VALID.replace(b"HTTP/1.1", b"HTTP/1.2"),
        INVALID,
        differs=(ANY_VERSION,),
    ),
    Case("HTTP/1.10 as the version", VALID.replace(b"HTTP/1.1", b"HTTP/1.10"), INVALID),
    Case("http in lower case", VALID.replace(b"HTTP/1.1", b"http/1.1"), INVALID),
    Case("TLS", bytes.fromhex("16030100c8010000c40303") + bytes(200), INVALID),
    Case("bytes that are not HTTP", b"\xff\xfe\x00\x01" * 50 + b"\r\n\r\n", INVALID),
    Case("text that is not HTTP", b"hello\r\n\r\n", INVALID),
    Case(
        "300 headers",
        post("echo", ONE, [*ONE.headers, *(["A: b"] * 297)]),
        OK,
        differs=(
            Difference(("fast",), error(431, "256 headers", stays_open=False), "the limit is 256"),
            Difference(HYPER, INVALID_HEAD, "hyper accepts 100"),
        ),
    ),
    Case("90 headers", post("echo", ONE, [*ONE.headers, *(["A: b"] * 87)]), OK),
    Case("a header of 7 KiB", line("A: " + "b" * 7000), OK),
)


def get(path: str, method: str = "GET", *headers: str) -> bytes:
    return head(f"{method} {path} HTTP/1.1", list(headers))


# A server may ignore Upgrade (RFC 9110 7.8). The body of the request is then a body like any other,
# and not the next request. All bytes of these cases arrive at once; `test_upgrade_in_two_parts` is
# for a body that arrives later.
NOT_A_BODY = Difference(
    ("asgi-httptools",),
    Outcome((400,), None, ""),
    "uvicorn drops the body: httptools does not parse it",
)
REJECTED = Outcome((403,), None)
WEBSOCKET = Difference(("hypercorn", *HYPER), REJECTED, "the application rejects WebSockets")
WEBSOCKET_POST = Difference(HYPER, REJECTED, "granian does not check the method")
SWITCHED = Difference(("hypercorn",), Outcome((), None), "hypercorn switches to HTTP/2")
UPGRADE = "Connection: Upgrade\r\nUpgrade: "
HANDSHAKE = (
    f"{UPGRADE}websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB"
UPGRADE_LINES = {
    "an unknown protocol": f"{UPGRADE}unknown",
    "h2c": H2C,  # as Java's HttpClient sends it
    "several protocols": f"{UPGRADE}foo/1, bar",
    "a WebSocket": "\r\n".join(HANDSHAKE),
}


def upgrade_cases(name: str, lines: str) -> list[Case]:
    """Return cases for requests that ask for an upgrade."""
    with_body = {"a WebSocket": (NOT_A_BODY, WEBSOCKET_POST)}.get(name, (NOT_A_BODY,))
    without = {"a WebSocket": (WEBSOCKET,), "h2c": (SWITCHED,)}.get(name, ())
    return [
        Case(f"upgrade to {name}", line(lines), OK, with_body),
        Case(f"upgrade to {name}, chunked", chunks(CHUNKS, CHUNKED, lines), OK, with_body),
        Case(
            f"upgrade to {name} without a body",
            head("GET /nothing HTTP/1.1", [lines]),
            error(404, ""),
            without,
        ),
    ]


UPGRADE_CASES = (
    *(case for name, lines in UPGRADE_LINES.items() for case in upgrade_cases(name, lines)),
)


def infer(path: str) -> bytes:
    return VALID.replace(b"/v2/models/echo/infer", path.encode())


PATH_CASES = (
    Case("live", get("/v2/health/live"), OK),
    Case("query string", infer("/v2/models/echo/infer?a=b&c"), OK),
    Case("version 1", infer("/v2/models/echo/versions/1/infer"), OK),
    *(
        Case(f"version {version}", infer(path), error(404, "version"))
        for version in ("99", "2", "01", "1.0", "latest")
        for path in [f"/v2/models/echo/versions/{version}/infer"]
    ),
    *(
        Case(f"path {path}", infer(path), error(404, path))
        for path in (
            "/v2/models//infer",
            "/v2/models/echo/other",
            "/v2/models/echo/infer/more",
            "/v2/models/echo/versions//infer",
            "/v2/models",
            "/v1/models/echo:predict",
            "/",
            "//v2/models/echo/infer",
        )
    ),
    Case("path of a version", infer("/v2/models/echo/versions/infer"), error(404, "")),
    Case("unknown model", infer("/v2/models/nobody/infer"), error(404, "'nobody'")),
    Case("model name with an escaped letter", infer("/v2/models/%65cho/infer"), OK),
    Case("model name with a blank", infer("/v2/models/a%20b/infer"), OK),
    Case("model name with an escaped slash", infer("/v2/models/a%2Fb/infer"), OK),
    Case("model name with a slash", infer("/v2/models/a/b/infer"), OK),
    Case("model name with a percent sign", infer("/v2/models/50%25/infer"), OK),
    Case("model name in UTF-8", infer("/v2/models/gr%C3%B6%C3%9Fe/infer"), OK),
    Case(
        "model name in UTF-8, not escaped",
        infer("/v2/models/größe/infer"),
        INVALID,
        differs=(Difference(HYPER, OK, "hyper accepts UTF-8"),),
    ),
    Case("model name in invalid UTF-8", infer("/v2/models/%FF/infer"), error(404, "")),
    Case("invalid escape", infer("/v2/models/%zz/infer"), error(404, "")),
    Case("percent sign at the end", infer("/v2/models/echo/infer%"), error(404, "")),
    Case("escaped NUL and line end", infer("/v2/models/%00%0D%0A/infer"), error(404, "")),
    Case("a path of 6 KiB", infer("/v2/models/" + "a" * 6000 + "/infer"), error(404, "")),
    Case(
        "a path that starts without a slash",
        infer("v2/models/echo/infer"),
        INVALID,
        differs=(Difference(H11, error(404, ""), "h11 does not check the target"),),
    ),
    Case("absolute-form", infer("http://tests/v2/models/echo/infer"), OK, differs=(ABSOLUTE_FORM,)),
    Case(
        "absolute-form with a port",
        infer("http://tests:80/v2/models/echo/infer?a"),
        OK,
        differs=(ABSOLUTE_FORM,),
    ),
    Case(
        "absolute-form without a path",
        get("http://tests"),
        error(404, ""),
        differs=(Difference(("asgi-httptools",), INVALID, "uvicorn expects a path"),),
    ),
    Case(
        "a target of 20 KiB",
        get("/v2/health/live?" + "a" * 20_000),
        OK,
        differs=(Difference(("fast",), error(414, "20016 bytes"), "the limit is 16 KiB"),),
    ),
    Case("GET infer", get("/v2/models/echo/infer"), error(405, "GET")),
    Case("DELETE infer", get("/v2/models/echo/infer", "DELETE"), error(405, "DELETE")),
    Case("PUT with a body", VALID.replace(b"POST", b"PUT"), error(405, "PUT")),
    Case("POST to metadata", infer("/v2/models/echo"), error(405, "POST")),
    Case("OPTIONS", get("/v2/models/echo/infer", "OPTIONS"), error(405, "OPTIONS")),
    Case("OPTIONS *", get("*", "OPTIONS"), error(404, "")),
    Case("HEAD", get("/v2/models/echo", "HEAD"), OK, method="HEAD"),
    Case("HEAD infer", get("/v2/models/echo/infer", "HEAD"), error(405, ""), method="HEAD"),
    Case("HEAD of an unknown path", get("/nothing", "HEAD"), error(404, ""), method="HEAD"),
    Case("HTTP/1.0", VALID.replace(b"HTTP/1.1", b"HTTP/1.0"), OK_CLOSED),
    Case(
        "HTTP/1.0 with keep-alive",
        line("Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK_CLOSED,
        differs=(
            Difference(
                HYPER, OK, "hyper supports it; uvicorn and hypercorn close, which is allowed"
            ),
        ),
    ),
    Case("Connection: close", line("Connection: close"), OK_CLOSED),
    Case("Connection: Close in a list", line("Connection: a, Close"), OK_CLOSED),
    Case("Connection: keep-alive", line("Connection: keep-alive"), OK),
    Case(
        "Connection: close, and an error",
        head(INFER, ["Connection: close"]),
        error(400, "", stays_open=False),
    ),
)


def encoded(coding: str, body: bytes, *lines: str) -> bytes:
    return (
        head(INFER, [HEADER, f"Content-Encoding: {coding}", f"Content-Length: {len(body)}", *lines])
        + body
    )


ZIPPED = gzip.compress(ONE.body)
RAW = head(
    INFER,
    ["Inference-Header-Content-Length: 0", "Content-Length: 15"],
) + bytes(15)

BODY_CASES = (
    Case("gzip", encoded("gzip", ZIPPED), OK),
    Case("GZIP in upper case", encoded("GZIP", ZIPPED), OK),
    Case("deflate", encoded("deflate", zlib.compress(ONE.body)), OK),
    Case("identity", encoded("identity", ONE.body), OK),
    Case(
        "gzip in chunks",
        chunks(chunked(ZIPPED, (1, 2, 3)), CHUNKED, "Content-Encoding: gzip"),
        OK,
    ),
    Case("gzip, truncated", encoded("gzip", ZIPPED[:-9]), error(400, "truncated")),
    Case("gzip of other data", encoded("gzip", ONE.body), error(400, "compressed")),
    Case("gzip, followed by data", encoded("gzip", ZIPPED + b"more"), error(400, "followed")),
    Case("brotli", encoded("br", ONE.body), error(415, "'br'")),
    Case(
        "coding that is not ASCII",
        encoded("\xe9", ONE.body),
        error(415, "'\xe9'"),
        differs=(
            Difference(("granian-rsgi",), OK, "granian leaves out headers that are not ASCII"),
        ),
    ),
    Case(
        "gzip of more than max_body",
        encoded("gzip", gzip.compress(bytes(MAX_BODY + 1))),
        error(413, ""),
    ),
    Case("a body that is not JSON", post("echo", ONE, [LENGTH]), error(400, "")),
    Case("raw request to a model without one declared input", RAW, error(400, "")),
    Case("raw request of a wrong length", RAW.replace(b"/echo/", b"/raw/"), error(400, "")),
    Case("model in a thread", post("echo_in_thread", ONE), OK),
    Case(
        "model that cancels its own task",
        post("cancels_itself", ONE),
        error(500, "internal server error", stays_open=None),
        differs=(
            Difference(
                ASGI, Outcome((500,), None), "the cancellation reaches the server, which replies"
            ),
        ),
    ),
    *(
        Case(f"model {model!r}", post(model, ONE), error(status, message))
        for model, status, message in (
            ("raises", 500, "'raises' failed"),
            ("raises_in_thread", 500, "'raises_in_thread' failed"),
            ("cancelled", 500, "'cancelled' failed"),
            ("leaves", 500, "'leaves' failed"),
            ("rejects", 422, "the image is too small"),
            ("rejects_in_thread", 429, "the quota is exhausted"),
            ("rejects_at_once", 429, "the quota is exhausted"),
            ("nonsense", 500, ""),
            ("nonsense_output", 500, "cannot be sent"),
        )
    ),
)

EXPECT = "Expect: 100-continue"
TOO_LONG = f"Content-Length: {MAX_BODY + 1}"

CASES = (
    *LENGTH_CASES,
    *HEADER_LENGTH_CASES,
    *CHUNKED_CASES,
    *SYNTAX_CASES,
    *PATH_CASES,
    *UPGRADE_CASES,
    *BODY_CASES,
)
