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
ASGI = ("asgi-h11", "asgi-httptools", "hypercorn", "granian")
HYPER = ("granian",)  # servers that use the parser of hyper


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


def case(
    id: str, sent: bytes, outcome: Outcome, *differs: Difference, method: str = "POST"
) -> Case:
    return Case(id, sent, outcome, differs, method)


def cases(outcome: Outcome, sent: dict[str, bytes], *differs: Difference) -> list[Case]:
    """Return cases with the same outcome."""
    return [Case(id, each, outcome, differs) for id, each in sent.items()]


OK = Outcome((200,), True)
OK_CLOSED = Outcome((200,), False)
OK_OR_CLOSED = Outcome((200,), None)
INVALID = Outcome((400,), False)  # rejected by the parser
REJECTED = Outcome((403,), None)


def error(status: int, message: str = "", *, stays_open: bool | None = True) -> Outcome:
    """Return the outcome of an error response of the application."""
    return Outcome((status,), stays_open, message)


ONE = echo()
N = len(ONE.body)
INFER = "POST /v2/models/echo/infer HTTP/1.1"
LENGTH = f"Content-Length: {N}"
HEADER = ONE.length_header
CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = chunked(ONE.body, (1, 10, 16))
VALID = post("echo", ONE)


def get(path: str, method: str = "GET", *headers: str) -> bytes:
    return head(f"{method} {path} HTTP/1.1", list(headers))


def infer(path: str) -> bytes:
    return VALID.replace(b"/v2/models/echo/infer", path.encode())


def lengths(*lines: str) -> bytes:
    """Return a request with these lines instead of Content-Length."""
    return head(INFER, [HEADER, *lines]) + ONE.body


def header_length(*lines: str) -> bytes:
    """Return a request with these lines instead of the header length."""
    return head(INFER, [LENGTH, *lines]) + ONE.body


def chunks(sent: bytes, *lines: str) -> bytes:
    """Return a request with a chunked body."""
    return head(INFER, [HEADER, *(lines or [CHUNKED])]) + sent


def line(text: str) -> bytes:
    """Return the request with an additional header line."""
    return post("echo", ONE, [*ONE.headers, text])


# --- lengths -------------------------------------------------------------------------------------

HYPER_DROPS_LENGTH = Difference(
    HYPER, OK_CLOSED, "hyper ignores Content-Length (RFC 9112 6.3), and the app does not see it"
)
EQUAL_LENGTHS = Difference(H11, OK, "h11 accepts equal values, as RFC 9112 6.3 allows")
EQUAL_LENGTHS_HYPER = Difference(HYPER, OK, "hyper accepts equal headers, as RFC 9112 6.3 allows")
DIGITS = Difference(H11, error(413, stays_open=None), "h11 accepts up to 20 digits")

LENGTH_CASES = (
    *cases(
        INVALID,
        {
            "Content-Length and Transfer-Encoding": chunks(CHUNKS, LENGTH, CHUNKED),
            "Transfer-Encoding and Content-Length": chunks(CHUNKS, CHUNKED, LENGTH),
        },
        HYPER_DROPS_LENGTH,
    ),
    case("Content-Length twice, equal", lengths(LENGTH, LENGTH), INVALID,
         EQUAL_LENGTHS, EQUAL_LENGTHS_HYPER),
    case("Content-Length twice, different", lengths(LENGTH, f"Content-Length: {N - 1}"), INVALID),
    case("Content-Length as a list", lengths(f"{LENGTH}, {N}"), INVALID, EQUAL_LENGTHS),
    *(
        case(f"Content-Length {value!r}", lengths(f"Content-Length: {value}"), INVALID)
        for value in (
            *(f"{N}, {N - 1}", f"+{N}", "-1", "", "   ", f"{N:#x}", "1e2", f"{N}.0"),
            *("1 0", "1_0", "1\xb2", "9" * 100),
        )
    ),
    *(
        case(f"Content-Length {length}", lengths(f"Content-Length: {length}"), INVALID, DIGITS)
        for length in (2**64, 2**64 + N)
    ),
    case("Content-Length of 2^63 - 1", lengths(f"Content-Length: {2**63 - 1}"),
         error(413, stays_open=None)),
    case("Content-Length with leading zeros", lengths(f"Content-Length: 000{N}"), OK),
    case("Content-Length with blanks around it", lengths(f"Content-Length: \t {N} "), OK),
    case("Content-Length in lower case", lengths(LENGTH.lower()), OK),
    case("a blank before the colon", lengths(f"Content-Length : {N}"), INVALID),
    case("no length", head(INFER, [HEADER]), error(400)),
    case("Content-Length 0", head(INFER, [HEADER, "Content-Length: 0"]), error(400)),
)  # fmt: skip

HEADER_LENGTH_CASES = (
    *(
        case(f"header length {lines}", header_length(*lines), OK)
        for lines in (
            [f"{HEADER} \t "],
            [HEADER.replace(" ", " \t ")],
            [HEADER.lower()],
            [HEADER, HEADER],
            [f"{HEADER}, {ONE.header_length}"],
            [f"{HEADER} ,\t {ONE.header_length} "],
        )
    ),
    *cases(
        error(400, "header length"),
        {
            "header length twice": header_length(HEADER, "Inference-Header-Content-Length: 10"),
            "header length as a list of different values": header_length(f"{HEADER}, 10"),
        },
    ),
    *(
        case(
            f"header length {value!r}",
            header_length(f"Inference-Header-Content-Length: {value}"),
            error(400, "Inference-Header-Content-Length"),
        )
        for value in ("", "-1", "+5", "1.0", "1e2", "0x10", "5 5", "five", "9" * 21, "5,", "1\xb2")
    ),
    case(
        "header length longer than the body",
        header_length(f"Inference-Header-Content-Length: {N + 1}"),
        error(400),
    ),
)

# --- chunked bodies ------------------------------------------------------------------------------

MALFORMED_BODY = Difference(
    HYPER,
    Outcome((500,), False),
    "granian reports a disconnect to the app, and sends its own 500",
)
CODED_CHUNKS = Difference(("asgi-httptools", *HYPER), OK, "they ignore codings before chunked")
UNKNOWN_CODING = Difference(("hypercorn",), Outcome((501,), False), "h11 proposes 501")
TRAILERS = Difference(LLHTTP, INVALID, "llhttp rejects Content-Length in trailers")
CLOSE_IN_TRAILERS = (
    Difference(("fast",), OK_CLOSED, "llhttp closes the connection"),
    Difference(("asgi-httptools",), OK_OR_CLOSED, "llhttp ignores what follows"),
)
LONG_SIZE = Difference(H11, Outcome((), None), "h11 accepts 20 digits, and waits for the data")
TRAILER_LENGTHS = b"0\r\nContent-Length: 9\r\nInference-Header-Content-Length: 1\r\n\r\n"
FIRST, REST = ONE.body[:10], ONE.body[10:]

CHUNKED_CASES = (
    *cases(
        OK,
        {
            "chunked": chunks(CHUNKS),
            "chunked in upper case": chunks(CHUNKS, "TRANSFER-ENCODING: CHUNKED"),
            "chunked, one byte in each": chunks(chunked(ONE.body, (1,) * (N - 1))),
            "chunk sizes with leading zeros and upper case": chunks(
                b"00A\r\n%b\r\n000%X\r\n%b\r\n000\r\n\r\n" % (FIRST, N - 10, REST)
            ),
            "chunk extensions": chunks(
                b'a;name=value\r\n%b\r\n%x;a;b="c d"\r\n%b\r\n0;last\r\n\r\n'
                % (FIRST, N - 10, REST)
            ),
            "trailers": chunks(chunked(ONE.body, end=b"0\r\nA: b\r\nC: d\r\n\r\n")),
        },
    ),
    case("lengths in trailers", chunks(chunked(ONE.body, end=TRAILER_LENGTHS)), OK, TRAILERS),
    case(
        "Connection in trailers",
        chunks(chunked(ONE.body, end=b"0\r\nConnection: close\r\n\r\n")),
        OK,
        *CLOSE_IN_TRAILERS,
    ),
    case("chunked without data", chunks(b"0\r\n\r\n"), error(400)),
    case(
        "chunk size of 2^64",
        chunks(b"10000000000000000\r\nabcde\r\n0\r\n\r\n"),
        INVALID,
        MALFORMED_BODY,
        LONG_SIZE,
    ),
    *cases(
        INVALID,
        {
            "chunk size is not a number": chunks(b"xyz\r\n" + ONE.body),
            "chunk size empty": chunks(b"\r\n" + ONE.body),
            "chunk size with a sign": chunks(b"+5\r\nabcde\r\n0\r\n\r\n"),
            "chunk size negative": chunks(b"-5\r\nabcde\r\n0\r\n\r\n"),
            "chunk size with 0x": chunks(b"0x5\r\nabcde\r\n0\r\n\r\n"),
            "chunk size of 40 digits": chunks(b"f" * 40 + b"\r\nabcde\r\n0\r\n\r\n"),
            "chunk longer than its size": chunks(b"5\r\nabcdefgh\r\n0\r\n\r\n"),
            "chunk size with a bare LF": chunks(b"5\nabcde\r\n0\r\n\r\n"),
            "chunk data with a bare LF": chunks(b"5\r\nabcde\n0\r\n\r\n"),
        },
        MALFORMED_BODY,
    ),
    *cases(
        INVALID,
        {
            "malformed chunk after a valid one": chunks(b"%x\r\n%b\r\nxyz\r\n" % (N, ONE.body)),
            "malformed trailer": chunks(chunked(ONE.body, end=b"0\r\nno colon\r\n\r\n")),
        },
        MALFORMED_BODY,
    ),
    case(
        "chunked twice",
        chunks(CHUNKS, "Transfer-Encoding: chunked, chunked"),
        INVALID,
        Difference(HYPER, OK, "hyper accepts it"),
        UNKNOWN_CODING,
    ),
    *cases(
        INVALID,
        {
            f"Transfer-Encoding {coding}": chunks(CHUNKS, f"Transfer-Encoding: {coding}")
            for coding in ("chunked, gzip", "xchunked", "identity")
        },
        UNKNOWN_CODING,
    ),
    case(
        "Transfer-Encoding gzip, chunked",
        chunks(CHUNKS, "Transfer-Encoding: gzip, chunked"),
        error(501, "is not supported", stays_open=False),
        CODED_CHUNKS,
    ),
    case("Transfer-Encoding \\v", chunks(CHUNKS, "Transfer-Encoding: \x0bchunked"), INVALID),
)

# --- the head ------------------------------------------------------------------------------------

BARE_LF = Difference((*H11, *HYPER), OK, "they accept a bare LF, as RFC 9112 2.2 allows")
OBS_FOLD = Difference(H11, OK, "h11 replaces it with a blank, as RFC 9112 5.2 allows")
EMPTY_LINES = Difference(H11, INVALID, "h11 rejects empty lines")
ONE_HOST = Difference(("fast",), error(400, "one Host header", stays_open=False), "its own text")
HOST_UNCHECKED = Difference(("asgi-httptools", *HYPER), OK, "neither llhttp nor hyper checks Host")
ANY_METHOD = Difference((*H11, *HYPER), error(405), "h11 and hyper accept any method")
ANY_METHOD_UPPER = Difference(("hypercorn",), OK, "hypercorn converts methods to upper case")
ANY_VERSION = Difference(H11, OK, "h11 accepts any version")
BLANKS = Difference(LLHTTP, OK, "llhttp accepts several blanks")
OTHER_VERSION = Difference(
    ("fast",), error(505, "is not supported", stays_open=False), "its own status"
)
HTTP_0_9 = Difference(("asgi-httptools",), OK_CLOSED, "llhttp accepts HTTP/0.9")
HTTP_2 = Difference(
    ("asgi-httptools",), OK_CLOSED, "llhttp accepts HTTP/2.0 without a connection preface"
)
MANY_HEADERS = (
    Difference(("fast",), error(431, "256 headers", stays_open=False), "the limit is 256"),
    Difference(HYPER, Outcome((431,), False), "hyper accepts 100"),
)


def headers(n: int) -> bytes:
    return post("echo", ONE, [*ONE.headers, *(["A: b"] * (n - 3))])


def version(text: bytes) -> bytes:
    return VALID.replace(b"HTTP/1.1", text)


SYNTAX_CASES = (
    *cases(
        INVALID,
        {
            "bare LF after every line": VALID.replace(b"\r\n", b"\n"),
            "bare LF after one header": VALID.replace(b"tests\r\n", b"tests\nA: b\r\n"),
        },
        BARE_LF,
    ),
    *cases(
        INVALID,
        {
            "bare CR in a header": line("A: b\rc"),
            "NUL in a header": line("A: b\0c"),
            "obs-fold in the first header": VALID.replace(b"Host:", b" Host:"),
            "header line without a colon": line("no colon here"),
            "header without a name": line(": value"),
            "header name with a blank": line("a b: c"),
            "header name with a bracket": line("a[b: c"),
            "HTTP/1.10 as the version": version(b"HTTP/1.10"),
            "http in lower case": version(b"http/1.1"),
            "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
            "bytes that are not HTTP": b"\xff\xfe\x00\x01" * 50 + b"\r\n\r\n",
            "text that is not HTTP": b"hello\r\n\r\n",
        },
    ),
    case("obs-fold", line("A: b\r\n  c"), INVALID, OBS_FOLD),
    case("header value with UTF-8 and Latin-1", line("A: gr\xc3\xb6\xdfe"), OK),
    case("empty lines before the request", b"\r\n\r\n" + VALID, OK, EMPTY_LINES),
    case("no Host", VALID.replace(b"Host: tests\r\n", b""), INVALID, ONE_HOST, HOST_UNCHECKED),
    case("Host twice", line("Host: other"), INVALID, ONE_HOST, HOST_UNCHECKED),
    case("method in lower case", VALID.replace(b"POST", b"post"), INVALID,
         ANY_METHOD_UPPER, ANY_METHOD),
    case("unknown method", VALID.replace(b"POST", b"INFER"), INVALID, ANY_METHOD),
    case("two blanks in the first line", VALID.replace(b"POST ", b"POST  "), INVALID, BLANKS),
    case("no version", version(b"").replace(b" \r\n", b"\r\n", 1), INVALID,
         OTHER_VERSION, HTTP_0_9),
    case("HTTP/2.0 as the version", version(b"HTTP/2.0"), INVALID,
         OTHER_VERSION, HTTP_2, ANY_VERSION),
    case("HTTP/1.2 as the version", version(b"HTTP/1.2"), INVALID, ANY_VERSION),
    case("300 headers", headers(300), OK, *MANY_HEADERS),
    case("90 headers", headers(90), OK),
    case("a header of 7 KiB", line("A: " + "b" * 7000), OK),
)  # fmt: skip

# --- Upgrade -------------------------------------------------------------------------------------

# A server may ignore Upgrade (RFC 9110 7.8). The body of the request is then a body like any other,
# and not the next request. All bytes of these cases arrive at once;
# `test_upgrade_with_a_body_that_arrives_later` is for the others.
WEBSOCKET = Difference(("hypercorn", *HYPER), REJECTED, "the application rejects WebSockets")
WEBSOCKET_POST = Difference(HYPER, REJECTED, "granian does not check the method")
SWITCHED = Difference(("hypercorn",), Outcome((), None), "hypercorn switches to HTTP/2")
UPGRADE = "Connection: Upgrade\r\nUpgrade: "
HANDSHAKE = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB"
UPGRADE_LINES = {
    "an unknown protocol": f"{UPGRADE}unknown",
    "h2c": H2C,  # as Java's HttpClient sends it
    "several protocols": f"{UPGRADE}foo/1, bar",
    "a WebSocket": f"{UPGRADE}websocket\r\n{HANDSHAKE}",
}


def upgrade_cases(name: str, lines: str) -> list[Case]:
    """Return cases for requests that ask for an upgrade."""
    with_body = {"a WebSocket": (WEBSOCKET_POST,)}.get(name, ())
    without = {"a WebSocket": (WEBSOCKET,), "h2c": (SWITCHED,)}.get(name, ())
    return [
        case(f"upgrade to {name}", line(lines), OK, *with_body),
        case(f"upgrade to {name}, chunked", chunks(CHUNKS, CHUNKED, lines), OK, *with_body),
        case(
            f"upgrade to {name} without a body", get("/nothing", "GET", lines), error(404), *without
        ),
    ]


UPGRADE_CASES = [case for each in UPGRADE_LINES.items() for case in upgrade_cases(*each)]

# --- targets, methods and connections ------------------------------------------------------------

ABSOLUTE_FORM = Difference(H11, error(404, "http://"), "the servers pass the whole target as path")
AUTHORITY = Difference(("asgi-httptools",), INVALID, "uvicorn expects a path")
UTF8 = Difference(HYPER, OK, "hyper accepts UTF-8")
ANY_TARGET = Difference(H11, error(404), "h11 does not check the target")
LONG_TARGET = Difference(("fast",), error(414, "20016 bytes"), "the limit is 16 KiB")
KEEP_ALIVE = Difference(HYPER, OK, "hyper supports it; uvicorn and hypercorn may close")

PATH_CASES = (
    *cases(
        OK,
        {
            "live": get("/v2/health/live"),
            "query string": infer("/v2/models/echo/infer?a=b&c"),
            "slash at the end": infer("/v2/models/echo/infer/"),
            "version 1": infer("/v2/models/echo/versions/1/infer"),
            "model name with an escaped letter": infer("/v2/models/%65cho/infer"),
            "model name with a blank": infer("/v2/models/a%20b/infer"),
            "model name with an escaped slash": infer("/v2/models/a%2Fb/infer"),
            "model name with a slash": infer("/v2/models/a/b/infer"),
            "model name with a percent sign": infer("/v2/models/50%25/infer"),
            "model name in UTF-8": infer("/v2/models/gr%C3%B6%C3%9Fe/infer"),
            "Connection: keep-alive": line("Connection: keep-alive"),
        },
    ),
    *(
        case(
            f"version {each}",
            infer(f"/v2/models/echo/versions/{each}/infer"),
            error(404, "version"),
        )
        for each in ("99", "2", "01", "1.0", "latest")
    ),
    *(
        case(f"path {path}", infer(path), error(404, path))
        for path in (
            *("/v2/models//infer", "/v2/models/echo/other", "/v2/models/echo/infer/more"),
            *("/v2/models/echo/versions//infer", "/v2/models", "/v1/models/echo:predict", "/"),
            "//v2/models/echo/infer",
        )
    ),
    case("unknown model", infer("/v2/models/unknown/infer"), error(404, "'unknown'")),
    *cases(
        error(404),
        {
            "path of a version": infer("/v2/models/echo/versions/infer"),
            "model name in invalid UTF-8": infer("/v2/models/%FF/infer"),
            "invalid escape": infer("/v2/models/%zz/infer"),
            "percent sign at the end": infer("/v2/models/echo/infer%"),
            "escaped NUL and line end": infer("/v2/models/%00%0D%0A/infer"),
            "a path of 6 KiB": infer("/v2/models/" + "a" * 6000 + "/infer"),
            "OPTIONS *": get("*", "OPTIONS"),
        },
    ),
    case("model name in UTF-8, not escaped", infer("/v2/models/größe/infer"), INVALID, UTF8),
    case("no slash at the beginning", infer("v2/models/echo/infer"), INVALID, ANY_TARGET),
    *cases(
        OK,
        {
            "absolute-form": infer("http://tests/v2/models/echo/infer"),
            "absolute-form with a port": infer("http://tests:80/v2/models/echo/infer?a"),
        },
        ABSOLUTE_FORM,
    ),
    case("absolute-form without a path", get("http://tests"), error(404), AUTHORITY),
    case("a target of 20 KiB", get("/v2/health/live?" + "a" * 20_000), OK, LONG_TARGET),
    *(
        case(f"{method} infer", get("/v2/models/echo/infer", method), error(405, method))
        for method in ("GET", "DELETE", "OPTIONS")
    ),
    case("PUT with a body", VALID.replace(b"POST", b"PUT"), error(405, "PUT")),
    case("POST to metadata", infer("/v2/models/echo"), error(405, "POST")),
    case("HEAD", get("/v2/models/echo", "HEAD"), OK, method="HEAD"),
    case("HEAD infer", get("/v2/models/echo/infer", "HEAD"), error(405), method="HEAD"),
    case("HEAD of an unknown path", get("/nothing", "HEAD"), error(404), method="HEAD"),
    case("HTTP/1.0", version(b"HTTP/1.0"), OK_CLOSED),
    case(
        "HTTP/1.0 with keep-alive",
        line("Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK_CLOSED,
        KEEP_ALIVE,
    ),
    case("Connection: close", line("Connection: close"), OK_CLOSED),
    case("Connection: Close in a list", line("Connection: a, Close"), OK_CLOSED),
    case(
        "Connection: close, and an error",
        head(INFER, ["Connection: close"]),
        error(400, stays_open=False),
    ),
)

# --- bodies and models ---------------------------------------------------------------------------


def encoded(coding: str, body: bytes, *lines: str) -> bytes:
    length = f"Content-Length: {len(body)}"
    return head(INFER, [HEADER, f"Content-Encoding: {coding}", length, *lines]) + body


ZIPPED = gzip.compress(ONE.body)
BOMB = gzip.compress(bytes(MAX_BODY + 1))
RAW = head(INFER, ["Inference-Header-Content-Length: 0", "Content-Length: 15"]) + bytes(15)
CANCELLED = Difference(ASGI, Outcome((500,), None), "the cancellation reaches the server")
INTERNAL_ERROR = error(500, "internal server error", stays_open=None)

BODY_CASES = (
    *cases(
        OK,
        {
            "gzip": encoded("gzip", ZIPPED),
            "GZIP in upper case": encoded("GZIP", ZIPPED),
            "deflate": encoded("deflate", zlib.compress(ONE.body)),
            "identity": encoded("identity", ONE.body),
            "gzip in chunks": chunks(chunked(ZIPPED, (1, 2, 3)), CHUNKED, "Content-Encoding: gzip"),
            "model in a thread": post("echo_in_thread", ONE),
        },
    ),
    case("gzip, truncated", encoded("gzip", ZIPPED[:-9]), error(400, "truncated")),
    case("gzip of other data", encoded("gzip", ONE.body), error(400, "compressed")),
    case("gzip, followed by data", encoded("gzip", ZIPPED + b"more"), error(400, "followed")),
    case("gzip of more than max_body_nbytes", encoded("gzip", BOMB), error(413)),
    case("brotli", encoded("br", ONE.body), error(415, "'br'")),
    case("coding that is not ASCII", encoded("\xe9", ONE.body), error(415, "'\xe9'")),
    case("a body that is not JSON", post("echo", ONE, [LENGTH]), error(400)),
    case("raw request to a model without one declared input", RAW, error(400)),
    case("raw request of a wrong length", RAW.replace(b"/echo/", b"/raw/"), error(400)),
    case("model that cancels its own task", post("cancels_itself", ONE), INTERNAL_ERROR, CANCELLED),
    *(
        case(f"model {model!r}", post(model, ONE), error(status, message))
        for model, status, message in (
            ("raises", 500, "'raises' failed"),
            ("raises_in_thread", 500, "'raises_in_thread' failed"),
            ("cancelled", 500, "'cancelled' failed"),
            ("leaves", 500, "'leaves' failed"),
            ("rejects", 422, "the image is too small"),
            ("rejects_in_thread", 429, "the quota is exhausted"),
            ("rejects_at_once", 429, "the quota is exhausted"),
            ("nonsense_output", 500, "cannot be sent"),
        )
    ),
)

EXPECT = "Expect: 100-continue"
NINE = "Content-Length: 9"

EXPECT_CASES = tuple(  # rejected without asking for the body
    case(
        f"{EXPECT}, {status}, {lines}",
        head(start, [*lines, EXPECT]),
        error(status, stays_open=False),
    )
    for start, lines, status in (
        (INFER, [f"Content-Length: {MAX_BODY + 1}"], 413),
        (INFER, [NINE, "Content-Encoding: br"], 415),
        (INFER, [NINE, "Inference-Header-Content-Length: x"], 400),
        (INFER.replace("echo", "unknown"), [NINE], 404),
        (INFER.replace("POST", "PUT"), [CHUNKED], 405),
        ("POST /nothing HTTP/1.1", [NINE], 404),
    )
)

CASES = (
    *LENGTH_CASES,
    *HEADER_LENGTH_CASES,
    *CHUNKED_CASES,
    *SYNTAX_CASES,
    *PATH_CASES,
    *UPGRADE_CASES,
    *BODY_CASES,
    *EXPECT_CASES,
)
