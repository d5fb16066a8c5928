"""PEERS that live in environments of their own, and are measured there by its interpreter.

KServe's messages read and write the binary extension; an environment is an entry of PROGRAMS in
``tests/interop/environment.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .contender import Contender, Encoded, Found, Names, installed, module, parts_of
from .missing import Unsupported
from .workloads import Message, Part

# --- KServe: its requests and responses, with its own JSON library ---

KSERVE, KSERVE_BACKEND = "kserve", "tensorwire.integrations.kserve"


def kserve_encode(parts: list[Part]) -> Encoded:
    kserve, inputs = module(KSERVE), []
    for name, array, datatype, shape, is_binary in parts:
        tensor = kserve.InferInput(name, shape, datatype)
        tensor.set_data_from_numpy(array, binary_data=is_binary)
        inputs.append(tensor)
    body, header_length = kserve.InferRequest("m", inputs).to_rest()
    return (module("orjson").dumps(body) if isinstance(body, dict) else body), header_length


def kserve_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    response: Any = module(KSERVE).InferResponse
    if header_length is None:
        found = response.from_rest(module("orjson").loads(body))
    else:
        found = response.from_bytes(body, header_length)
    return [found.get_output_by_name(name).as_numpy() for name in names]


# --- MLServer: a gRPC response with raw contents, as it has no binary REST of its own ---

MLSERVER, MLSERVER_BACKEND = "mlserver", "tensorwire.integrations.mlserver"


def converter() -> Any:
    return module("mlserver.grpc.converters").ModelInferResponseConverter


def mlserver_output(name: str, array: NDArray[Any]) -> Any:
    if array.dtype.kind == "O":  # its codec would make them of one length
        output = module("mlserver.types").ResponseOutput
        return output(name=name, shape=list(array.shape), datatype="BYTES", data=array.tolist())
    tensor = module("mlserver.codecs").NumpyCodec.encode_output(name, array)
    tensor.shape = list(array.shape)  # its codec makes a column of a vector
    return tensor


def mlserver_array(tensor: Any) -> NDArray[Any]:
    if tensor.datatype == "BYTES":
        return np.array(list(tensor.data), object).reshape(tensor.shape)
    array: NDArray[Any] = module("mlserver.codecs").NumpyCodec.decode_output(tensor)
    return array


def mlserver_encode(message: Message) -> bytes:
    if message.as_json:
        raise Unsupported("gRPC has no JSON")
    outputs = [mlserver_output(name, array) for name, array in message.arrays.items()]
    response = module("mlserver.types").InferenceResponse(model_name="m", outputs=outputs)
    body: bytes = converter().from_types(response, use_raw=True).SerializeToString()
    return body


def mlserver_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    response = module("mlserver.grpc.dataplane_pb2").ModelInferResponse.FromString(body)
    found = {t.name: mlserver_array(t) for t in converter().to_types(response).outputs}
    return [found[name] for name in names]


def mlserver(*backends: str) -> Contender:
    return Contender(
        mlserver_encode,
        mlserver_decode,
        join=lambda body: (body, None),
        needs=(MLSERVER, *backends),
        own=True,
        setting=lambda: installed(*backends),
        environment="mlserver",
        most_nbytes=LIST_MOST_NBYTES,
    )


# Without our codec both make lists of Python's numbers: 30 bytes and more for each.
LIST_MOST_NBYTES = 128 << 20

PEERS = {
    "kserve": Contender(
        kserve_encode,
        kserve_decode,
        parts_of,
        needs=(KSERVE,),
        environment="kserve",
        most_nbytes=LIST_MOST_NBYTES,
    ),
    "kserve on tensorwire": Contender(
        kserve_encode,
        kserve_decode,
        parts_of,
        needs=(KSERVE, KSERVE_BACKEND),
        setting=lambda: installed(KSERVE_BACKEND),
        environment="kserve",
    ),
    "mlserver, gRPC raw": mlserver(),
    "mlserver, gRPC raw, on tensorwire": mlserver(MLSERVER_BACKEND),
}
