"""The codecs of content types "np" and "str": arrays in and out, lists where others want them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.codecs import string as string_codec
from mlserver.codecs.numpy import to_datatype
from mlserver.codecs.utils import inject_batch_dimension
from mlserver.types import Parameters, ResponseOutput

import tensorwire as tw

from ...errors import ElementError, TensorwireError, subject
from ..patching import Replacement
from .data import Array, ArrayData, array_of, is_flat, numeric_array, refusal, text_of

# The methods change, not the classes: these stand in registries and in the signatures of runtimes,
# and their other methods (encode_input, decode_output, the request codecs) go through these.


def replacements() -> list[Replacement]:
    return [
        Replacement(NumpyCodec, "decode_input", decode_numpy),
        Replacement(NumpyCodec, "encode_output", encode_numpy),
        Replacement(string_codec, "_decode_input_or_output", decode_strings),
        Replacement(StringCodec, "encode_output", encode_strings),
    ]


# --- np --------------------------------------------------------------------------------------


def decode_numpy(old: Callable[..., Any]) -> Callable[..., Any]:
    def decode_input(cls: Any, request_input: Any) -> Any:
        """The array itself, copied only if it is read-only or misaligned, which it never was.

        Of JSON data a copy, since MLServer makes a new array in each call.
        """
        data = array_of(request_input.data)
        is_json = text_of(request_input.data) is not None
        if isinstance(data, tw.BytesTensor) and data.size == prod(request_input.shape):
            if is_json:  # which MLServer makes an array of str
                return old(cls, request_input)
            return data.as_numpy("S").reshape(request_input.shape)
        array = numeric_array(request_input)
        if array is None:
            return old(cls, request_input)
        if is_json or not (array.flags.aligned and array.flags.writeable):
            array = array.copy()
        return array.reshape(request_input.shape)

    return decode_input


def encode_numpy(old: Callable[..., Any]) -> Callable[..., Any]:
    def encode_output(cls: Any, name: str, payload: Any, **kwargs: Any) -> Any:
        """One copy: the model may go on to write into its array before the answer is sent."""
        data = _snapshot(payload)
        if data is None:
            return old(cls, name, payload, **kwargs)
        return ResponseOutput(
            name=name,
            datatype=to_datatype(payload.dtype),
            shape=inject_batch_dimension(list(payload.shape)),
            data=ArrayData.over(data, is_encoded=True),
            parameters=Parameters(content_type=cls.ContentType),
        )

    return encode_output


def _snapshot(payload: Any) -> Array | tw.BytesTensor | None:
    if type(payload) is not np.ndarray:
        return None
    if payload.dtype.kind in "biufS" and payload.dtype.isnative:
        return payload.copy(order="C")
    return _packed(payload) if payload.dtype.kind == "U" else None


def _packed(texts: Any) -> tw.BytesTensor | None:
    try:
        packed = tw.Tensor("", texts, datatype="BYTES").data
    except (TensorwireError, TypeError):
        return None  # MLServer says what is wrong
    assert isinstance(packed, tw.BytesTensor)
    return packed


# --- str -------------------------------------------------------------------------------------


def decode_strings(old: Callable[..., Any]) -> Callable[..., Any]:
    def _decode_input_or_output(input_or_output: Any) -> Any:
        data = array_of(input_or_output.data)
        text = text_of(input_or_output.data)
        if not isinstance(data, tw.BytesTensor) or (text is not None and not is_flat(text)):
            return old(input_or_output)
        try:
            return data.as_strings().reshape(-1).tolist()
        except ElementError as error:
            named = ElementError(f"{subject('tensor', input_or_output.name)}: {error}")
            raise refusal(named) from error

    return _decode_input_or_output


def encode_strings(old: Callable[..., Any]) -> Callable[..., Any]:
    def encode_output(
        cls: Any, name: str, payload: Any, use_bytes: bool = True, **kwargs: Any
    ) -> Any:
        data = _packed(payload) if use_bytes and type(payload) is list else None
        if data is None or data.shape != (len(payload),):
            return old(cls, name, payload, use_bytes, **kwargs)
        return ResponseOutput(
            name=name,
            datatype="BYTES",
            shape=[len(payload), 1],
            data=ArrayData.over(data),
            parameters=Parameters(content_type=cls.ContentType),
        )

    return encode_output
