"""gRPC: messages alone, and whole calls to a model that returns its input, measured in turns.

The contenders use the same grpcio. *Generated classes* are those of tritonclient, without the rest
of tritonclient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw
import tensorwire.grpc

from .arrays import Array, check, datatype_of, floats, texts
from .bench_calls import Call, Caller, by_our_client, by_tritonclient, calling, model_of
from .contenders import parts_of, triton_inputs
from .measuring import copies, in_turns, integration, module, row
from .servers import LOOPBACK, Server, Servers

MESSAGES = "tritonclient.grpc.service_pb2"


# --- messages ---


def encode_ours(array: Array) -> bytes:
    return tw.grpc.encode_request(tw.InferRequest({"INPUT0": array}, model_name="m"))


def encode_generated(array: Array) -> bytes:
    """Build a request, and serialize it, as a program without tritonclient does."""
    message: bytes = generated_request(array, "m").SerializeToString()
    return message


def generated_request(array: Array, model: str) -> Any:
    request = module(MESSAGES).ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype=datatype_of(array), shape=array.shape)
    is_text = array.dtype.kind == "O"
    request.raw_input_contents.append(tw.encode_bytes(array) if is_text else array.tobytes())
    return request


def encode_triton(array: Array) -> bytes:
    """Do what ``infer`` of tritonclient does before it calls grpcio."""
    arguments = {"model_name": "m", "inputs": triton_inputs(parts_of({"INPUT0": array}), "grpc")}
    more = {"outputs": None, "sequence_id": 0, "sequence_start": False, "sequence_end": False}
    request = module("tritonclient.grpc._utils")._get_inference_request(
        **arguments, **more, model_version="", request_id="", priority=0, timeout=None,
        parameters=None,
    )  # fmt: skip
    message: bytes = request.SerializeToString()
    return message


def decode_ours(message: bytes) -> Array:
    return tw.grpc.decode_response(message)["OUTPUT0"].as_numpy()


def decode_generated(message: bytes) -> Array:
    return array_of(module(MESSAGES).ModelInferResponse.FromString(message))


def array_of(response: Any) -> Array:
    output, content = response.outputs[0], response.raw_output_contents[0]
    if output.datatype == "BYTES":
        found: Array = module("tritonclient.utils").deserialize_bytes_tensor(content)
        return found.reshape(output.shape)
    return np.frombuffer(content, "<f4").reshape(output.shape)


def decode_triton(message: bytes) -> Array:
    """Do what ``infer`` of tritonclient does after grpcio, and read the array."""
    response = module(MESSAGES).ModelInferResponse.FromString(message)
    found: Array = module("tritonclient.grpc").InferResult(response).as_numpy("OUTPUT0")
    return found


CODECS: dict[str, tuple[Callable[[Array], bytes], Callable[[bytes], Array]]] = {
    "tensorwire": (encode_ours, decode_ours),
    "generated classes": (encode_generated, decode_generated),
    "tritonclient": (encode_triton, decode_triton),
}
COPIES = {  # what encoding and decoding write to new memory for each byte of an FP32 tensor
    "tensorwire": (1, 0),
    "generated classes": (4, 2),
    "tritonclient": (4, 2),
}
every_codec = pytest.mark.parametrize("contender", CODECS)
large = pytest.mark.large
every_size = pytest.mark.parametrize("size", ["128 B", pytest.param("64 MB", marks=large)])
N_FLOATS = {"128 B": 32, "64 MB": 16_000_000}


@contextmanager
def encoding(contender: str, array: Array) -> Iterator[Callable[[], bytes]]:
    yield partial(CODECS[contender][0], array)


@contextmanager
def decoding(contender: str, array: Array) -> Iterator[Callable[[], Array]]:
    message = tw.grpc.encode_response(tw.InferResponse({"OUTPUT0": array}, model_name="m"))
    yield partial(CODECS[contender][1], message)


OPERATIONS = {"encode": encoding, "decode": decoding}


@every_codec
@every_size
def test_encode(benchmark: BenchmarkFixture, size: str, contender: str) -> None:
    array = floats(N_FLOATS[size])
    if size == "64 MB":
        n = copies(contender, "bench_grpc", "encode", COPIES[contender][0])
        benchmark.extra_info["copied"] = n
    with row(benchmark, f"gRPC: encode {size}", contender), encoding(contender, array) as encode:
        check(tw.grpc.decode_request(encode())["INPUT0"].as_numpy(), array)
        benchmark(encode)


@every_codec
@every_size
def test_decode(benchmark: BenchmarkFixture, size: str, contender: str) -> None:
    array = floats(N_FLOATS[size])
    if size == "64 MB":
        n = copies(contender, "bench_grpc", "decode", COPIES[contender][1])
        benchmark.extra_info["copied"] = n
    with row(benchmark, f"gRPC: decode {size}", contender), decoding(contender, array) as decode:
        check(decode(), array)
        benchmark(decode)


# --- whole calls ---


@contextmanager
def by_generated_classes(server: Server, array: Array) -> Iterator[Call]:
    grpc, services = module("grpc"), module("tritonclient.grpc.service_pb2_grpc")
    options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    with grpc.insecure_channel(f"{LOOPBACK}:{server.grpc_port}", options) as channel:
        stub = services.GRPCInferenceServiceStub(channel)
        yield lambda: array_of(stub.ModelInfer(generated_request(array, model_of(array))))


by_our_grpc = partial(by_our_client, scheme="grpc")
by_triton_grpc = partial(by_tritonclient, api="grpc")
CALLS: dict[str, tuple[Caller, str]] = {  # the client and the name of the server
    "tensorwire": (by_our_grpc, "tensorwire serve"),
    "generated classes": (by_generated_classes, "generated classes"),
    "tritonclient": (by_triton_grpc, "tensorwire serve"),
    "tritonclient, drop-in": (by_triton_grpc, "tensorwire serve"),
    "Triton: tensorwire": (by_our_grpc, "Triton"),
    "Triton: tritonclient": (by_triton_grpc, "Triton"),
    "Triton: tritonclient, drop-in": (by_triton_grpc, "Triton"),
    "KServe: tritonclient": (by_triton_grpc, "KServe"),
    "KServe, drop-in: tritonclient": (by_triton_grpc, "KServe, drop-in"),
}
ARRAYS: dict[str, tuple[Callable[[], Array], int]] = {  # the array and the number of rounds
    "128 B": (partial(floats, 32), 100),
    "1 MB": (partial(floats, 250_000), 100),
    "16 MB": (partial(floats, 4_000_000), 30),
    "64 MB": (partial(floats, 16_000_000), 10),
    "200k x 0-40 B": (partial(texts, 200_000, 0, 40), 7),
}
every_array = [
    pytest.param(size, id=size, marks=[] if size in ("128 B", "1 MB") else [large])
    for size in ARRAYS
]


@pytest.mark.parametrize("size", every_array)
def test_call(benchmark: BenchmarkFixture, servers: Servers, size: str) -> None:
    make, rounds = ARRAYS[size]
    array, benchmark.group = make(), f"gRPC: call {size}"
    # KServe takes seconds for larger tensors.
    names = [name for name in CALLS if array.nbytes <= 1_000_000 or not name.startswith("KServe: ")]
    servers.start({server for name in names for server in [CALLS[name][1]]})
    calls = {name: partial(calling, servers, *CALLS[name], array) for name in names}
    in_turns(benchmark, calls, rounds, partial(check, sent=array), integration("tritonclient"))
