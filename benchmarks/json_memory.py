"""Texts that take much memory to read, in relation to their length, and what reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tensorwire as tw

from .json_ways import LIBRARIES, OURS, elements, json_response

N = 200_000  # elements
MANY_TENSORS = 4000  # below the default of Limits.max_tensors


def response(*, extra: str = "", outputs: str = "") -> bytes:
    return f'{{"model_name":"m",{extra}"outputs":[{outputs}]}}'.encode()


def tensor(datatype: str, element: str) -> bytes:
    data = ",".join([element] * N)
    return response(outputs=f'{{"name":"x","datatype":"{datatype}","shape":[{N}],"data":[{data}]}}')


def empty_tensors() -> bytes:
    return response(
        outputs=",".join(
            f'{{"name":"{i}","datatype":"INT8","shape":[0],"data":[]}}' for i in range(MANY_TENSORS)
        )
    )


KEYS = ",".join(f'"{i}":0' for i in range(N))
LISTS = ",".join(["[]"] * N)

# Of the tensor `x`, if there is one, an array is made.
TEXTS: dict[str, Callable[[], bytes]] = {
    "FP64, all digits": lambda: json_response(elements("FP64", N), "FP64"),
    "FP64, one digit": lambda: tensor("FP64", "0"),
    "INT64, one digit": lambda: tensor("INT64", "0"),
    "INT8, one digit": lambda: tensor("INT8", "0"),
    "BYTES, 0-40 characters": lambda: json_response(elements("BYTES", N), "BYTES"),
    "BYTES, empty": lambda: tensor("BYTES", '""'),
    "BYTES, one character": lambda: tensor("BYTES", '"a"'),
    "unknown member: a list of lists": lambda: response(extra=f'"more":[{LISTS}],'),
    "unknown member: an object": lambda: response(extra=f'"more":{{{KEYS}}},'),
    "parameters: a list of lists": lambda: response(extra=f'"parameters":{{"p":[{LISTS}]}},'),
    "4,000 empty tensors": empty_tensors,
}


def job(contender: str, workload: str, text: bytes) -> Callable[[], Any]:
    """What is measured, ready to run. It returns all that it has made."""
    dtype = workload.partition(",")[0].replace("FP", "float").replace("INT", "int")
    dtype = "object" if dtype == "BYTES" else dtype
    has_array = workload.startswith(("FP", "INT", "BYTES"))
    if contender == OURS:

        def ours() -> Any:
            found = tw.decode_response(text)
            is_numeric = has_array and dtype != "object"
            return (found, found["x"].as_numpy()) if is_numeric else found

        return ours
    loads = LIBRARIES[contender]().loads

    def theirs() -> Any:
        found = loads(text)
        return np.array(found["outputs"][0]["data"], dtype) if has_array else found

    return theirs
