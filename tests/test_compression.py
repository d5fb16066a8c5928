"""Compressed bodies of requests and responses, and hostile ones, with each encoding."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.asgi_requests import read
from support.client_fixtures import Connect
from support.memory import peak_nbytes
from support.requirements import package
from support.servers import Scripted, http
from tensorwire import compression
from tensorwire.client import Client, InferenceServerError
from tensorwire.compression import Decompressor
from tensorwire.http import HEADER_LENGTH
from tensorwire.server import UnsupportedEncodingError
from tensorwire.server.body import RequestBody
from tensorwire.sizes import PIECE_NBYTES

zstd = package("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
server, client = client_fixtures.server, client_fixtures.client

MiB = 1 << 20
X = np.arange(MiB, dtype=np.float32) // 7
FRAME = tw.encode_request(tw.InferRequest([tw.Tensor("x", X)]))
BODY = bytes(FRAME)
SMALL = tw.encode_request(tw.InferRequest([tw.Tensor("x", X[:9])]))
PACKS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": partial(gzip.compress, compresslevel=1),
    "deflate": partial(zlib.compress, level=1),
    "zstd": zstd.compress,
}
PACKED = {encoding: pack(BODY) for encoding, pack in PACKS.items()}
TOO_LONG = r"body is \d+ bytes long; the limit is"
SKIPPABLE = b"\x50\x2a\x4d\x18\x03\0\0\0abc"


def window_log(value: int) -> bytes:
    """Return a frame that declares a window of 2**value bytes, and contains 64 MiB of zeros."""
    options = {zstd.CompressionParameter.window_log: value}
    maker = zstd.ZstdCompressor(options=options)
    first: bytes = maker.compress(bytes(64 * MiB))
    return first + bytes(maker.flush())


def unpack(body: bytes, encoding: str = "zstd", max_body_nbytes: int = 128 * MiB) -> Any:
    received = RequestBody(
        [(b"content-encoding", encoding.encode())], max(max_body_nbytes, len(body))
    )
    received.write(body)
    received.max_body_nbytes = max_body_nbytes
    received._decompress()
    return received.buffer


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        *((" GZip ", "gzip"), ("x-gzip", "gzip"), ("deflate", "deflate"), ("ZSTD", "zstd")),
        ("deflate", "gzip"),  # as some clients send it
    ],
)
@pytest.mark.parametrize("n_chunk", [7, 70_000])
def test_request_that_arrives_in_chunks(encoding: str, packed: str, n_chunk: int) -> None:
    frame = SMALL if n_chunk == 7 else FRAME
    sent = PACKS[packed](bytes(frame))
    chunks = [sent[i : i + n_chunk] for i in range(0, len(sent), n_chunk)]
    headers = {HEADER_LENGTH: str(frame.header_length), "Content-Encoding": encoding}
    found = read(headers, chunks)["x"].as_numpy()
    assert np.array_equal(found, X[:9] if frame is SMALL else X)
    assert found.ctypes.data % 64 == 0


DICTIONARY = zstd.train_dict([b"tensor %d wire" % i * 9 for i in range(5000)], 2000)
FOLLOWED = f"invalid after {len(BODY)} decompressed bytes: it is followed by other data"
REJECTED: list[tuple[bytes, str, str]] = [
    *((b"what?", encoding, "is invalid after 0 decompressed bytes") for encoding in PACKS),
    (zlib.compress(BODY)[2:-4], "deflate", "is invalid after 0 decomp"),  # without zlib's header
    (zstd.compress(BODY[:500], zstd_dict=DICTIONARY), "zstd", "is invalid after 0 decomp"),
    # A skippable frame is a frame without data, so that the frame after it is other data.
    (SKIPPABLE + PACKED["zstd"], "zstd", "bytes: it is followed by other"),
    (PACKED["zstd"] + SKIPPABLE, "zstd", FOLLOWED),
    # Only one frame: a body of many empty frames would take much time.
    *(
        (packed + tail, encoding, FOLLOWED)
        for encoding, packed in PACKED.items()
        for tail in (b"x", bytes(64 * MiB), packed)
    ),
]


@pytest.mark.parametrize(("body", "encoding", "problem"), REJECTED, ids=range(len(REJECTED)))
def test_invalid_bodies_are_rejected(body: bytes, encoding: str, problem: str) -> None:
    with pytest.raises(tw.DecompressionError, match=problem):
        unpack(body, encoding)


@pytest.mark.parametrize("encoding", PACKED)
@pytest.mark.parametrize("n_chunk", [1, 1000, PIECE_NBYTES])
def test_pieces_are_limited(encoding: str, n_chunk: int) -> None:
    decompressor = Decompressor(encoding.encode())
    sent = PACKED[encoding][: n_chunk * 1000]
    found = bytearray()
    for start in range(0, len(sent), n_chunk):
        for piece in decompressor.pieces(sent[start : start + n_chunk]):
            assert len(piece) <= PIECE_NBYTES
            found += piece
    assert BODY.startswith(found)
    assert decompressor.is_complete == (len(sent) == len(PACKED[encoding]))


@pytest.mark.parametrize("encoding", PACKED)
def test_every_truncated_body_is_rejected(encoding: str) -> None:
    sent = PACKS[encoding](BODY[:300])
    assert bytes(unpack(sent, encoding)) == BODY[:300]
    for n in range(len(sent)):
        with pytest.raises(tw.DecompressionError, match=rf"is truncated after {n} byte"):
            unpack(sent[:n], encoding)


def test_data_after_a_body_that_ends_with_a_step() -> None:
    sizes = range(PIECE_NBYTES - 400, PIECE_NBYTES)
    bodies = (zlib.compress(bytes(n), 0) for n in sizes)
    body = next(body for body in bodies if len(body) == PIECE_NBYTES)
    assert len(unpack(body, "deflate")) < PIECE_NBYTES
    with pytest.raises(tw.DecompressionError, match="followed by other data"):
        unpack(body + b"x", "deflate")


@pytest.mark.parametrize("encoding", PACKED)
def test_chunk_after_the_end(encoding: str) -> None:
    decompressor = Decompressor(encoding.encode())
    assert b"".join(decompressor.pieces(PACKED[encoding])) == BODY
    with pytest.raises(tw.DecompressionError, match=r"^it is followed by other data$"):
        list(decompressor.pieces(b"x"))


@pytest.mark.parametrize("encoding", PACKED)
def test_body_that_expands_is_rejected_early(encoding: str) -> None:
    zeros = bytes(256 * MiB)
    bomb = PACKS[encoding](zeros)
    del zeros

    def fail() -> None:
        with pytest.raises(tw.BodyTooLargeError, match=TOO_LONG) as caught:
            unpack(bomb, encoding, max_body_nbytes=2 * MiB)
        assert caught.value.status == 413

    assert peak_nbytes(fail) < 12 * MiB


def test_window_is_limited() -> None:
    """The decoder allocates a window before the first byte is decompressed (RFC 9659)."""
    assert len(unpack(window_log(23))) == 64 * MiB
    problem = r"invalid after 0 decompressed bytes: .* too much memory"
    for value in (24, 27, 31):
        with pytest.raises(tw.DecompressionError, match=problem) as caught:
            unpack(window_log(value)[:1000])
        assert caught.value.status == 400


@pytest.mark.parametrize("n", range(4, 40))
def test_damaged_bytes(n: int) -> None:
    checked = {zstd.CompressionParameter.checksum_flag: 1}
    damaged = bytearray(zstd.compress(os.urandom(20) + BODY[:400], options=checked))
    damaged[n] ^= 0x55
    with pytest.raises(tw.DecompressionError, match=r"body is (invalid|truncated)|other data"):
        unpack(bytes(damaged))


# --- without zstd ---


@pytest.fixture
def without_zstd(monkeypatch: pytest.MonkeyPatch) -> Any:
    def fail(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(compression, "import_module", fail)
    compression.find_zstd.cache_clear()
    yield
    compression.find_zstd.cache_clear()


@pytest.mark.usefixtures("without_zstd")
def test_server_without_zstd() -> None:
    with pytest.raises(UnsupportedEncodingError, match="'zstd' is not supported") as caught:
        unpack(PACKED["zstd"])
    assert caught.value.status == 415
    assert bytes(unpack(PACKED["gzip"], "gzip")) == BODY


@pytest.mark.usefixtures("without_zstd")
def test_client_without_zstd(connect: Connect) -> None:
    for name in ("request", "response"):
        options = {f"{name}_compression_algorithm": "zstd"}
        with connect("127.0.0.1:9") as client, pytest.raises(ImportError, match=r"tensorwire\[z"):
            client.infer("m", {"x": X}, **options)


# --- clients ---


@pytest.mark.parametrize("encoding", PACKED)
def test_requests_of_clients(client: Any, encoding: Any) -> None:
    response = client.infer("echo", {"x": X}, request_compression_algorithm=encoding)
    assert np.array_equal(response["x"].data, X)
    assert client_fixtures.seen[-1]["content-encoding"] == encoding
    assert int(client_fixtures.seen[-1]["content-length"]) < X.nbytes / 2


def test_grpc_has_no_zstd() -> None:
    package("grpc")
    options: Any = {"request_compression_algorithm": "zstd"}
    with Client("grpc://127.0.0.1:9") as client, pytest.raises(ValueError, match="gRPC has no"):
        client.infer("m", {"x": X}, **options)


def response_of(body: bytes, encoding: str = "zstd", status: str = "200 OK") -> bytes:
    length = {HEADER_LENGTH: str(RESPONSE.header_length)} if status == "200 OK" else {}
    return http(body, length | {"Content-Encoding": encoding}, status)


RESPONSE = tw.encode_response(tw.InferResponse([tw.Tensor("x", X)]))


@pytest.mark.parametrize("encoding", PACKED)
def test_responses_for_clients(connect: Connect, encoding: Any) -> None:
    answer = response_of(PACKS[encoding](bytes(RESPONSE)), encoding)
    with Scripted([answer]) as server, connect(server.address) as client:
        response = client.infer("m", {"x": X[:9]}, response_compression_algorithm=encoding)
        assert np.array_equal(response["x"].data, X)
        assert response["x"].data.ctypes.data % 64 == 0
        assert f"\r\naccept-encoding: {encoding}\r\n" in server.heads[0] + "\r\n"


@pytest.mark.parametrize("encoding", PACKED)
def test_response_that_expands(connect: Connect, encoding: str) -> None:
    """Its last chunk is decompressed in several steps."""
    body = PACKS[encoding](bytes(64 * MiB))
    fails = pytest.raises(tw.DecompressionError, match="is followed by other data")
    server = Scripted([response_of(body + b"x", encoding)])
    with server, connect(server.address) as client, fails:
        client.infer("m", {"x": X[:9]})
    server = Scripted([response_of(body, encoding)])
    with server, connect(server.address, max_body_nbytes=2 * MiB) as client:

        def fail() -> None:
            with pytest.raises(tw.BodyTooLargeError, match=TOO_LONG) as caught:
                client.infer("m", {"x": X[:9]})
            assert caught.value.status == 413

        assert peak_nbytes(fail) < 12 * MiB


@pytest.mark.parametrize("encoding", PACKED)
def test_errors_for_clients(connect: Connect, encoding: str) -> None:
    busy = PACKS[encoding](b'{"error": "busy"}')
    bodies = {
        busy: "busy",
        PACKS[encoding](b"no " * MiB): ("no " * MiB)[:2000],
        busy + b"x": "busy",
        busy + bytes(MiB): "busy",
        b"what?": "Busy",
    }
    for body, message in bodies.items():
        server = Scripted([response_of(body, encoding, "429 Busy")])
        fails = pytest.raises(InferenceServerError)
        with server, connect(server.address) as client, fails as caught:
            client.infer("m", {"x": X[:9]})
        assert (caught.value.status, caught.value.message) == (429, message)


@pytest.mark.parametrize(
    ("encoding", "module", "name", "is_late", "error"),
    [
        ("gzip", zlib, "decompressobj", False, MemoryError()),
        ("gzip", zlib, "decompressobj", True, MemoryError()),
        ("deflate", zlib, "decompressobj", True, zlib.error("Error -4 while decompressing data")),
        ("zstd", zstd, "ZstdDecompressor", False, zstd.ZstdError("Unable to create a context")),
        ("zstd", zstd, "ZstdDecompressor", True, zstd.ZstdError("Error : not enough memory")),
    ],
)
def test_body_without_memory_to_decompress_it(
    encoding: str,
    module: Any,
    name: str,
    is_late: bool,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that got status 400 would not try again."""
    state = Mock(eof=False, decompress=Mock(side_effect=error))
    monkeypatch.setattr(module, name, Mock(side_effect=[state] if is_late else error))
    with pytest.raises(tw.BodyTooLargeError, match="no memory to decompress") as caught:
        unpack(PACKED[encoding], encoding)
    assert caught.value.status == 503


@pytest.mark.parametrize("encoding", PACKED)
def test_error_that_expands(
    connect: Connect, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its beginning is decompressed, also if the whole body has arrived."""
    n_pieces = 0
    pieces = Decompressor.pieces

    def count(self: Decompressor, chunk: bytes) -> Iterator[bytes]:
        nonlocal n_pieces
        for piece in pieces(self, chunk):
            n_pieces += 1
            yield piece

    monkeypatch.setattr(Decompressor, "pieces", count)
    body = PACKS[encoding](bytes(64 * MiB))[: 16 << 10]
    server = Scripted([response_of(body, encoding, "500 Oh")])
    with server, connect(server.address) as client, pytest.raises(InferenceServerError):
        client.infer("m", {"x": X[:9]})
    assert 1 <= n_pieces <= 3  # one of each part that has arrived
