"""Tensors of JAX, in and out, with the real package: `test_programs.py` runs this file.

It runs in a separate process, because JAX warns about each later fork of a process that has
imported it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorwire as tw
from support.array_samples import (
    DTYPES,
    address,
    assert_consumers_outlive_message_and_module,
    assert_no_reference_leaks,
    assert_only_the_array_keeps_the_body,
    decoded,
    every_datatype,
    every_shape,
    sample,
)
from support.examples import Example, examples_with, run

jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize("offset", [0, 1, 16])
@every_shape
@every_datatype
def test_to_jax(datatype: str, shape: tuple[int, ...], offset: int) -> None:
    """JAX shares memory that is aligned to 64 bytes, and copies other memory."""
    array = sample(datatype, shape)
    tensor = decoded(array, offset=offset)
    made = jax.dlpack.from_dlpack(tensor)
    assert made.dtype == array.dtype
    assert made.shape == shape
    assert np.array_equal(np.asarray(made), array)
    if array.size:
        assert (made.unsafe_buffer_pointer() == address(tensor)) == (offset == 0)


def test_body_buffer_is_aligned_for_jax() -> None:
    frame = tw.encode_response(tw.InferResponse([tw.Tensor("x", sample("FP32"))]))
    body = tw.BodyBuffer(len(frame), frame.header_length)
    body.write(bytes(frame))
    tensor = tw.decode_response(body, frame.header_length)["x"]
    assert jax.dlpack.from_dlpack(tensor).unsafe_buffer_pointer() == address(tensor)


@every_shape
@every_datatype
def test_to_jax_from_a_read_only_body(datatype: str, shape: tuple[int, ...]) -> None:
    """JAX before 0.12 requests capsules of DLPack 0.x, which have no read-only flag."""
    array = sample(datatype, shape)
    tensor = decoded(array, readonly=True)
    arrays = [jnp.asarray(tensor)]
    if jax.__version_info__ < (0, 12):
        with pytest.raises(BufferError, match="decode from a bytearray or a BodyBuffer"):
            jax.dlpack.from_dlpack(tensor)
    else:
        arrays.append(jax.dlpack.from_dlpack(tensor))
        if array.size:
            assert arrays[1].unsafe_buffer_pointer() == address(tensor)
    for made in arrays:
        assert made.dtype == DTYPES[datatype]
        assert np.array_equal(np.asarray(made), array)


@every_shape
@every_datatype
def test_from_jax(datatype: str, shape: tuple[int, ...]) -> None:
    source = jnp.asarray(sample(datatype, shape))
    tensor = tw.Tensor("x", source)
    assert (tensor.datatype, tensor.shape) == (datatype, shape)
    assert np.array_equal(tensor.as_numpy(), sample(datatype, shape))
    assert not tensor.as_numpy().flags.writeable  # arrays of JAX are immutable
    if source.size:
        assert address(tensor) == source.unsafe_buffer_pointer()
    if source.ndim > 1:
        assert np.array_equal(tw.Tensor("x", source.T).as_numpy(), sample(datatype, shape).T)


def test_rejected_jax_arrays() -> None:
    with pytest.raises(TypeError, match="has elements of the DLPack type complex64"):
        tw.Tensor("x", jnp.zeros(2, jnp.complex64))
    with pytest.raises(tw.EncodeError, match="cannot be exported by ArrayImpl: "):
        tw.Tensor("x", jnp.zeros(2, jnp.int4))


# --- lifetimes ---


def test_jax_array_outlives_body_and_message() -> None:
    assert_only_the_array_keeps_the_body(jax.dlpack.from_dlpack)


def test_no_reference_leaks() -> None:
    assert_no_reference_leaks(jax.dlpack.from_dlpack)


def test_consumers_outlive_message_and_module() -> None:
    assert_consumers_outlive_message_and_module(
        imports="import jax", from_dlpack="jax.dlpack.from_dlpack", arange="jax.numpy.arange"
    )


# --- docs/guide/arrays.md ---


@examples_with("jax")
def test_example(example: Example) -> None:
    assert run(example.code) == example.expected
