"""Tensors of torch, in and out, and columns of pandas, with the real packages.

`test_programs.py` runs this file in an environment with these packages.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tensorwire as tw
from support.array_samples import (
    DTYPES,
    address,
    assert_consumers_outlive_message_and_module,
    assert_only_the_array_keeps_the_body,
    decoded,
    every_datatype,
    every_shape,
    memory_of,
    sample,
)
from support.examples import Example, examples_with, run
from support.scripts import run_script

TORCH_DTYPES = {
    **{"BOOL": torch.bool, "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32},
    **{"UINT64": torch.uint64, "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32},
    **{"INT64": torch.int64, "FP16": torch.float16, "BF16": torch.bfloat16},
    **{"FP32": torch.float32, "FP64": torch.float64},
}


def numbers(tensor: Any) -> Any:
    """Return the values as float64, through lists."""
    return np.array(tensor.tolist(), np.float64).reshape(tensor.shape)


# --- to torch ---


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("readonly", [False, True])
@every_shape
@every_datatype
def test_to_torch(datatype: str, shape: tuple[int, ...], readonly: bool, offset: int) -> None:
    """torch takes misaligned memory as it is, and does not respect the read-only flag."""
    array = sample(datatype, shape)
    tensor = decoded(array, readonly=readonly, offset=offset)
    made = torch.from_dlpack(tensor)
    assert made.dtype == TORCH_DTYPES[datatype]
    assert made.shape == shape
    assert np.array_equal(numbers(made), array.astype(np.float64))
    if array.size:
        assert made.data_ptr() == address(tensor)
    assert made.is_contiguous()


@pytest.mark.parametrize("readonly", [False, True])
def test_to_torch_with_copy(readonly: bool) -> None:
    tensor = decoded(sample("FP32"), readonly=readonly, offset=1)
    made = torch.from_dlpack(tensor, copy=True)
    assert made.data_ptr() != address(tensor)
    assert made.data_ptr() % 4 == 0
    made += 1
    assert np.array_equal(tensor.as_numpy(), sample("FP32"))


def test_torch_functions_that_accept_arrays() -> None:
    tensor = decoded(sample("INT64"))
    for function in (torch.as_tensor, torch.asarray):
        assert function(tensor).data_ptr() == address(tensor)
    assert torch.tensor(tensor).tolist() == sample("INT64").tolist()


# --- from torch ---


@every_shape
@every_datatype
def test_from_torch(datatype: str, shape: tuple[int, ...]) -> None:
    source = torch.tensor(sample(datatype, shape).tolist(), dtype=TORCH_DTYPES[datatype])
    tensor = tw.Tensor("x", source.reshape(shape))
    assert (tensor.datatype, tensor.shape) == (datatype, shape)
    assert tensor.as_numpy().dtype == DTYPES[datatype]
    assert np.array_equal(tensor.as_numpy(), sample(datatype, shape))
    assert tensor.as_numpy().flags.writeable
    if source.numel():
        assert address(tensor) == source.data_ptr()
    frame = tw.encode_request(tw.InferRequest([tensor]))
    back = tw.decode_request(bytearray(bytes(frame)), frame.header_length)["x"]
    assert torch.equal(torch.from_dlpack(back), source.reshape(shape))


STRIDED: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda tensor: tensor.T,
    lambda tensor: tensor[:, ::2],
    lambda tensor: tensor[0].expand(4, 3),
    lambda tensor: tensor.flip(0),
    lambda tensor: tensor[1:, 1:],
)


@every_datatype
def test_from_strided_and_misaligned_torch(datatype: str) -> None:
    """The elements are copied only if they are strided."""
    made = torch.tensor(sample(datatype).tolist(), dtype=TORCH_DTYPES[datatype])
    misaligned = torch.from_dlpack(decoded(sample(datatype), offset=1))
    assert misaligned.data_ptr() % 2 == 1
    sources = [misaligned, *(change(made) for change in STRIDED)]
    for source in sources:
        tensor = tw.Tensor("x", source)
        assert tensor.shape == source.shape
        assert np.array_equal(tensor.as_numpy().astype(np.float64), numbers(source))
        assert tensor.as_numpy().flags.c_contiguous
        assert (address(tensor) == source.data_ptr()) == source.is_contiguous()


WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None  # cannot be imported
import torch, tensorwire as tw
source = torch.tensor([0.5, -2, float("inf")], dtype=torch.bfloat16)
frame = tw.encode_response(tw.InferResponse([tw.Tensor("x", source)]))
limits = tw.Limits(bf16_as_uint16=True)
tensor = tw.decode_response(bytearray(bytes(frame)), frame.header_length, limits=limits)["x"]
made = torch.from_dlpack(tensor)
assert made.dtype == torch.bfloat16 and torch.equal(made, source)
assert made.data_ptr() == tensor.as_numpy().ctypes.data
"""


def test_bf16_of_torch_without_ml_dtypes() -> None:
    done = run_script(WITHOUT_ML_DTYPES)
    assert (done.returncode, done.stderr) == (0, "")


REJECTED: dict[str, tuple[Callable[[], torch.Tensor], type[Exception], str]] = {
    "parameter": (
        *(lambda: torch.nn.Parameter(torch.zeros(2)), tw.EncodeError),
        "requires gradients, which cannot be sent: pass tensor.detach()",
    ),
    "meta": (lambda: torch.zeros(2, device="meta"), tw.EncodeError, "cannot be exported by Tensor"),
    "sparse": (lambda: torch.zeros(2).to_sparse(), tw.EncodeError, "cannot be exported by Tensor"),
    **{
        name: (
            *(lambda dtype=dtype: torch.zeros(2).to(dtype), TypeError),
            f"has elements of the DLPack type {name}, which has no datatype",
        )
        for name, dtype in (("complex64", torch.complex64), ("float8_e5m2", torch.float8_e5m2))
    },
    "negated": (
        *(lambda: torch.ones(2, dtype=torch.complex64).conj().imag, tw.EncodeError),
        "is a view that negates its memory: pass tensor.resolve_neg()",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected_torch_tensor(name: str) -> None:
    make, kind, message = REJECTED[name]
    with pytest.raises(kind) as caught:
        tw.Tensor("x", make())
    assert str(caught.value).startswith(f"tensor 'x' {message}")


# --- lifetimes ---


def test_torch_tensor_outlives_body_and_message() -> None:
    assert_only_the_array_keeps_the_body(torch.from_dlpack)


def test_body_outlives_the_torch_tensor_that_was_encoded() -> None:
    source = torch.arange(4.0)
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", source)]))
    expected = source.numpy().tobytes()
    released = weakref.ref(source.untyped_storage())
    del source
    gc.collect()
    assert bytes(frame).endswith(expected)
    del frame
    gc.collect()
    assert released() is None


def test_autograd_thread_releases_the_memory() -> None:
    """The backward pass runs in a thread that torch creates, which drops saved tensors."""
    tensor = decoded(sample("FP32", (100,)))
    owner = weakref.ref(memory_of(tensor))
    weights = torch.ones(100, requires_grad=True)
    loss = (torch.from_dlpack(tensor) * weights).sum()
    del tensor
    loss.backward()
    del loss
    gc.collect()
    assert owner() is None
    assert weights.grad is not None


def test_consumers_outlive_message_and_module() -> None:
    assert_consumers_outlive_message_and_module(
        imports="import torch", from_dlpack="torch.from_dlpack", arange="torch.arange"
    )


# --- pandas, through __array__ ---


def test_pandas_columns() -> None:
    tensor = decoded(sample("INT64", (4,)))
    series = pd.Series(tensor)
    assert series.tolist() == [0, 1, 2, 3]
    assert series.dtype == np.int64
    words = tw.Tensor("w", ["a", "b", "c", "d"])
    frame = pd.DataFrame({"n": tensor, "w": words})
    assert frame["n"].tolist() == [0, 1, 2, 3]
    assert frame["w"].tolist() == [b"a", b"b", b"c", b"d"]


# --- docs/guide/arrays.md ---


@examples_with("torch")
def test_example(example: Example) -> None:
    assert run(example.code) == example.expected
