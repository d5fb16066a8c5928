"""HTTP requests as exact bytes, and what a server must respond.

Each case is sent on a new connection. If the connection stays open, the server must answer another
request on it. What the parser of a server decides is tested only with `InferProtocol`, except
contradicting lengths, which the manual mentions.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass

from .http_exchange import chunked, echo, head, post
from .http_models import MAX_BODY

FAST = ("fast",)
HYPER = ("granian",)  # servers that use the parser hyper
LLHTTP = ("asgi-httptools", "fast")  # servers that use the parser llhttp


@dataclass(frozen=True)
class Outcome:
    """The responses to a case."""

    statuses: tuple[int, ...]
    stays_open: bool | None  # None: either is allowed
    error: str = ""  # part of the error message


@dataclass(frozen=True)
class Case:
    id: str
    sent: bytes
    outcome: Outcome
    servers: tuple[str, ...] = ()  # by default, all
    method: str = "POST"

    def is_for(self, server: str) -> bool:
        return not self.servers or server in self.servers


def cases(
    outcome: Outcome, sent: dict[str, bytes], servers: tuple[str, ...] = (), method: str = "POST"
) -> list[Case]:
    """Return cases with the same outcome."""
    return [Case(id, each, outcome, servers, method) for id, each in sent.items()]


OK = Outcome((200,), True)
OK_CLOSED = Outcome((200,), False)
INVALID = Outcome((400,), False)


def error(status: int, message: str = "", *, stays_open: bool | None = True) -> Outcome:
    """Return the outcome of an error response."""
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


# --- lengths and chunked bodies ------------------------------------------------------------------

TRAILER_LENGTHS = b"0\r\nContent-Length: 9\r\nInference-Header-Content-Length: 1\r\n\r\n"
FIRST, REST = ONE.body[:10], ONE.body[10:]


def transfer_coding(value: str) -> bytes:
    return chunks(CHUNKS, f"Transfer-Encoding: {value}")


TWO_LENGTHS = {
    "Content-Length and Transfer-Encoding": chunks(CHUNKS, LENGTH, CHUNKED),
    "Transfer-Encoding and Content-Length": chunks(CHUNKS, CHUNKED, LENGTH),
}
FRAMING_CASES = (
    *cases(
        OK,
        {
            "Content-Length with leading zeros": lengths(f"Content-Length: 000{N}"),
            "Content-Length with blanks around it": lengths(f"Content-Length: \t {N} "),
            "Content-Length in lower case": lengths(LENGTH.lower()),
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
    *cases(
        error(400),
        {
            "no length": head(INFER, [HEADER]),
            "Content-Length 0": head(INFER, [HEADER, "Content-Length: 0"]),
            "chunked without data": chunks(b"0\r\n\r\n"),
        },
    ),
    *cases(
        error(413, stays_open=None),
        {"Content-Length of 2^63 - 1": lengths(f"Content-Length: {2**63 - 1}")},
    ),
    *cases(
        OK_CLOSED,
        {
            "Connection in trailers": chunks(
                chunked(ONE.body, end=b"0\r\nConnection: close\r\n\r\n")
            )
        },
        FAST,
    ),
    *cases(
        error(501, "is not supported", stays_open=False),
        {"Transfer-Encoding gzip, chunked": transfer_coding("gzip, chunked")},
        FAST,
    ),
    *cases(INVALID, TWO_LENGTHS, ("asgi-h11", "hypercorn", *LLHTTP)),
    *cases(OK_CLOSED, TWO_LENGTHS, HYPER),
    Case("Content-Length twice, different", lengths(LENGTH, f"Content-Length: {N - 1}"), INVALID),
    *cases(
        INVALID,
        {
            "Content-Length twice, equal": lengths(LENGTH, LENGTH),
            "a blank before the colon": lengths(f"Content-Length : {N}"),
            **{
                f"Content-Length {value!r}": lengths(f"Content-Length: {value}")
                for value in (
                    *(f"{N}, {N}", f"{N}, {N - 1}", f"+{N}", "-1", "", "   ", f"{N:#x}", "1e2"),
                    *(f"{N}.0", "1 0", "1_0", "1\xb2", "9" * 100, 2**64, 2**64 + N),
                )
            },
            "lengths in trailers": chunks(chunked(ONE.body, end=TRAILER_LENGTHS)),
            **{
                f"Transfer-Encoding {coding!r}": transfer_coding(coding)
                for coding in (
                    *("chunked, gzip", "xchunked", "identity", "chunked, chunked"),
                    "\x0bchunked",
                )
            },
            "chunk size of 2^64": chunks(b"10000000000000000\r\nabcde\r\n0\r\n\r\n"),
            "chunk size is not a number": chunks(b"xyz\r\n" + ONE.body),
            "chunk size empty": chunks(b"\r\n" + ONE.body),
            "chunk size with a sign": chunks(b"+5\r\nabcde\r\n0\r\n\r\n"),
            "chunk size negative": chunks(b"-5\r\nabcde\r\n0\r\n\r\n"),
            "chunk size with 0x": chunks(b"0x5\r\nabcde\r\n0\r\n\r\n"),
            "chunk size of 40 digits": chunks(b"f" * 40 + b"\r\nabcde\r\n0\r\n\r\n"),
            "chunk longer than its size": chunks(b"5\r\nabcdefgh\r\n0\r\n\r\n"),
            "chunk size with a bare LF": chunks(b"5\nabcde\r\n0\r\n\r\n"),
            "chunk data with a bare LF": chunks(b"5\r\nabcde\n0\r\n\r\n"),
            "malformed chunk after a valid one": chunks(b"%x\r\n%b\r\nxyz\r\n" % (N, ONE.body)),
            "malformed trailer": chunks(chunked(ONE.body, end=b"0\r\nno colon\r\n\r\n")),
        },
        FAST,
    ),
)

NAME = "Inference-Header-Content-Length"
HEADER_LENGTH_CASES = (
    *cases(
        OK,
        {
            f"header length {lines}": header_length(*lines)
            for lines in (
                [f"{HEADER} \t "],
                [HEADER.replace(" ", " \t ")],
                [HEADER.lower()],
                [HEADER, HEADER],
                [f"{HEADER}, {ONE.header_length}"],
                [f"{HEADER} ,\t {ONE.header_length} "],
            )
        },
    ),
    *cases(
        error(400, "header length"),
        {
            "header length twice": header_length(HEADER, f"{NAME}: 10"),
            "header length as a list of different values": header_length(f"{HEADER}, 10"),
        },
    ),
    *cases(
        error(400, NAME),
        {
            f"header length {value!r}": header_length(f"{NAME}: {value}")
            for value in (
                *("", "-1", "+5", "1.0", "1e2", "0x10", "5 5", "five", "9" * 21, "5,", "1\xb2"),
            )
        },
    ),
    *cases(error(400), {"header length longer than the body": header_length(f"{NAME}: {N + 1}")}),
)

# --- the head ------------------------------------------------------------------------------------


def headers(n: int) -> bytes:
    return post("echo", ONE, [*ONE.headers, *(["A: b"] * (n - 3))])


def version(text: bytes) -> bytes:
    return VALID.replace(b"HTTP/1.1", text)


SYNTAX_CASES = (
    *cases(
        OK,
        {
            "header value with UTF-8 and Latin-1": line("A: gr\xc3\xb6\xdfe"),
            "90 headers": headers(90),
            "a header of 7 KiB": line("A: " + "b" * 7000),
        },
    ),
    *cases(
        OK,
        {
            "empty lines before the request": b"\r\n\r\n" + VALID,
            "two blanks in the first line": VALID.replace(b"POST ", b"POST  "),
        },
        FAST,
    ),
    *cases(
        INVALID,
        {
            "bare LF after every line": VALID.replace(b"\r\n", b"\n"),
            "bare LF after one header": VALID.replace(b"tests\r\n", b"tests\nA: b\r\n"),
            "bare CR in a header": line("A: b\rc"),
            "NUL in a header": line("A: b\0c"),
            "obs-fold": line("A: b\r\n  c"),
            "obs-fold in the first header": VALID.replace(b"Host:", b" Host:"),
            "header line without a colon": line("no colon here"),
            "header without a name": line(": value"),
            "header name with a blank": line("a b: c"),
            "header name with a bracket": line("a[b: c"),
            "method in lower case": VALID.replace(b"POST", b"post"),
            "unknown method": VALID.replace(b"POST", b"INFER"),
            "HTTP/1.2 as the version": version(b"HTTP/1.2"),
            "HTTP/1.10 as the version": version(b"HTTP/1.10"),
            "http in lower case": version(b"http/1.1"),
            "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
            "bytes that are not HTTP": b"\xff\xfe\x00\x01" * 50 + b"\r\n\r\n",
            "text that is not HTTP": b"hello\r\n\r\n",
        },
        FAST,
    ),
    *cases(
        Outcome((200, 400), False, "Invalid HTTP request received."),
        {"garbage after a request": VALID + b"\0garbage\r\n\r\n"},
        FAST,
    ),
    *cases(
        error(400, "one Host header", stays_open=False),
        {"no Host": VALID.replace(b"Host: tests\r\n", b""), "Host twice": line("Host: other")},
        FAST,
    ),
    *cases(
        error(505, "is not supported", stays_open=False),
        {
            "no version": version(b"").replace(b" \r\n", b"\r\n", 1),
            "HTTP/2.0 as the version": version(b"HTTP/2.0"),
        },
        FAST,
    ),
    *cases(
        error(431, stays_open=False),
        {
            "300 headers": headers(300),
            "20,000 headers": headers(20_000),
            "a value of 100 KB": line("A: " + "b" * 100_000),
            "a name of 100 KB": line("a" * 100_000 + ": b"),
        },
        FAST,
    ),
)

# --- Upgrade -------------------------------------------------------------------------------------

# A server may ignore Upgrade (RFC 9110 7.8). The body of the request is then a body like any other,
# and not the next request. All bytes of these cases arrive at once;
# `test_upgrade_with_a_body_that_arrives_later` is for the others.
UPGRADE = "Connection: Upgrade\r\nUpgrade: "
HANDSHAKE = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB"
UPGRADE_LINES = {
    "an unknown protocol": f"{UPGRADE}unknown",
    "h2c": H2C,  # as Java's HttpClient sends it
    "several protocols": f"{UPGRADE}foo/1, bar",
    "a WebSocket": f"{UPGRADE}websocket\r\n{HANDSHAKE}",
}
UPGRADE_CASES = [
    case
    for name, lines in UPGRADE_LINES.items()
    for outcome, sent in (
        (OK, {"": line(lines), ", chunked": chunks(CHUNKS, CHUNKED, lines)}),
        (error(404), {" without a body": get("/nothing", "GET", lines)}),
    )
    for case in cases(outcome, {f"upgrade to {name}{k}": v for k, v in sent.items()}, LLHTTP)
]
# The parser accepts Transfer-Encoding gzip only in a head with an upgrade.
GZIP = "Transfer-Encoding: gzip"
UPGRADE_CASES += cases(
    Outcome((200, 501), False, "is not supported"),
    {
        "upgrade, Transfer-Encoding gzip": VALID + chunks(CHUNKS, GZIP, f"{UPGRADE}x"),
        "CONNECT, Transfer-Encoding gzip": VALID + head("CONNECT a:1 HTTP/1.1", [GZIP]) + CHUNKS,
    },
    FAST,
)
UPGRADE_CASES += cases(
    Outcome((200, 400), False),
    {"upgrade, two lengths": VALID + chunks(CHUNKS, LENGTH, CHUNKED, f"{UPGRADE}x")},
    FAST,
)

# --- targets, methods and connections ------------------------------------------------------------

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
    *cases(
        error(404, "version"),
        {
            f"version {each}": infer(f"/v2/models/echo/versions/{each}/infer")
            for each in ("99", "2", "01", "1.0", "latest")
        },
    ),
    *(
        Case(f"path {path}", infer(path), error(404, path))
        for path in (
            *("/v2/models//infer", "/v2/models/echo/other", "/v2/models/echo/infer/more"),
            *("/v2/models/echo/versions//infer", "/v2/models", "/v1/models/echo:predict", "/"),
            "//v2/models/echo/infer",
        )
    ),
    *cases(error(404, "'unknown'"), {"unknown model": infer("/v2/models/unknown/infer")}),
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
    *cases(
        INVALID,
        {
            "model name in UTF-8, not escaped": infer("/v2/models/größe/infer"),
            "no slash at the beginning": infer("v2/models/echo/infer"),
        },
        FAST,
    ),
    *cases(
        OK,
        {
            "absolute-form": infer("http://tests/v2/models/echo/infer"),
            "absolute-form with a port": infer("http://tests:80/v2/models/echo/infer?a"),
        },
        FAST,
    ),
    *cases(error(404), {"absolute-form without a path": get("http://tests")}, FAST),
    *cases(
        error(414, "20016 bytes"),
        {"a target of 20 KiB": get("/v2/health/live?" + "a" * 20_000)},
        FAST,
    ),
    *(
        Case(f"{method} infer", get("/v2/models/echo/infer", method), error(405, method))
        for method in ("GET", "DELETE", "OPTIONS")
    ),
    *cases(error(405, "PUT"), {"PUT with a body": VALID.replace(b"POST", b"PUT")}),
    *cases(error(405, "POST"), {"POST to metadata": infer("/v2/models/echo")}),
    *cases(OK, {"HEAD": get("/v2/models/echo", "HEAD")}, method="HEAD"),
    *cases(error(405), {"HEAD infer": get("/v2/models/echo/infer", "HEAD")}, method="HEAD"),
    *cases(error(404), {"HEAD of an unknown path": get("/nothing", "HEAD")}, method="HEAD"),
    *cases(
        OK_CLOSED,
        {
            "HTTP/1.0": version(b"HTTP/1.0"),
            "Connection: close": line("Connection: close"),
            "Connection: Close in a list": line("Connection: a, Close"),
        },
    ),
    *cases(
        OK_CLOSED,
        {
            "HTTP/1.0 with keep-alive": line("Connection: keep-alive").replace(
                b"HTTP/1.1", b"HTTP/1.0"
            )
        },
        FAST,
    ),
    *cases(
        error(400, stays_open=False),
        {"Connection: close, and an error": head(INFER, ["Connection: close"])},
    ),
)

# --- bodies and models ---------------------------------------------------------------------------


def encoded(coding: str, body: bytes, *lines: str) -> bytes:
    length = f"Content-Length: {len(body)}"
    return head(INFER, [HEADER, f"Content-Encoding: {coding}", length, *lines]) + body


ZIPPED = gzip.compress(ONE.body)
BOMB = gzip.compress(bytes(MAX_BODY + 1))
RAW = head(INFER, ["Inference-Header-Content-Length: 0", "Content-Length: 15"]) + bytes(15)

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
    Case("gzip, truncated", encoded("gzip", ZIPPED[:-9]), error(400, "truncated")),
    Case("gzip of other data", encoded("gzip", ONE.body), error(400, "compressed")),
    Case("gzip, followed by data", encoded("gzip", ZIPPED + b"more"), error(400, "followed")),
    Case("gzip of more than max_body_nbytes", encoded("gzip", BOMB), error(413)),
    Case("brotli", encoded("br", ONE.body), error(415, "'br'")),
    Case("coding that is not ASCII", encoded("\xe9", ONE.body), error(415, "'\xe9'")),
    Case("a body that is not JSON", post("echo", ONE, [LENGTH]), error(400)),
    Case("raw request to a model without one declared input", RAW, error(400)),
    Case("raw request of a wrong length", RAW.replace(b"/echo/", b"/raw/"), error(400)),
    *cases(
        error(500, "internal server error", stays_open=None),
        {"model that cancels its own task": post("cancels_itself", ONE)},
        FAST,  # for the other servers, the task is theirs
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
            ("nonsense_output", 500, "cannot be sent"),
        )
    ),
)

EXPECT = "Expect: 100-continue"
NINE = "Content-Length: 9"

EXPECT_CASES = tuple(  # rejected without asking for the body
    Case(
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
    *FRAMING_CASES,
    *HEADER_LENGTH_CASES,
    *SYNTAX_CASES,
    *PATH_CASES,
    *UPGRADE_CASES,
    *BODY_CASES,
    *EXPECT_CASES,
)
