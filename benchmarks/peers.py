"""PEERS that live in environments of their own, and are measured there by its interpreter.

KServe's messages read and write the binary extension; an environment is an entry of PROGRAMS in
``tests/interop/environment.py``.
"""

from __future__ import annotations

from typing import Any

from .contender import DATATYPES, Contender, Encoded, Found, Names, installed, module
from .workloads import Message

# --- KServe: its requests and responses, with its own JSON library ---

KSERVE, KSERVE_BACKEND = "kserve", "tensorwire.integrations.kserve"


def kserve_encode(message: Message) -> Encoded:
    kserve, inputs = module(KSERVE), []
    for name, array in message.arrays.items():
        tensor = kserve.InferInput(name, list(array.shape), DATATYPES[array.dtype.str])
        tensor.set_data_from_numpy(array, binary_data=name not in message.as_json)
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


# It makes a list of Python's numbers: 30 bytes and more for each.
PEERS = {
    "kserve": Contender(
        kserve_encode,
        kserve_decode,
        needs=(KSERVE,),
        environment="kserve",
        most_nbytes=128 << 20,
    ),
    "kserve on tensorwire": Contender(
        kserve_encode,
        kserve_decode,
        needs=(KSERVE, KSERVE_BACKEND),
        setting=lambda: installed(KSERVE_BACKEND),
        environment="kserve",
    ),
}
