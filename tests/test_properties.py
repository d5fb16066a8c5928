"""The encoder raises an error, or a decoder with the same limits accepts its result."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorwire as tw
from fuzz import hostile
from support.scale import scaled
from tensorwire._codec import datatypes

DTYPES = [row.dtype for row in datatypes.DATATYPES.values() if row.dtype is not None]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
TEXT_ARRAYS = SHAPES.flatmap(
    lambda shape: hnp.arrays(object, shape, elements=st.binary(max_size=14))
)
STRING_CLASSES = [hostile.Str, hostile.UnequalStr, hostile.EqualStr]
RESERVED = ["binary_data_size", "shared_memory_region", "binary_data", "binary_data_output"]
TEXTS = st.one_of(
    st.sampled_from([*RESERVED, "x", "y", "é", "", "\ud800", "a\0", "😀" * 3]), st.text(max_size=3)
)
# A text as str, and as subclasses whose comparisons, hashes and conversions are wrong.
STRINGS = st.builds(lambda kind, text: kind(text), st.sampled_from([str, *STRING_CLASSES]), TEXTS)
JSON_VALUES = st.recursive(
    st.one_of(
        STRINGS,
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.sampled_from(
            [None, True, False, hostile.Int(3), hostile.Float(0.5), hostile.Integer(7)]
        ),
        st.sampled_from([np.int8(1), np.bool_(True), np.float16(2)]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(STRINGS, inner, max_size=3),
        st.dictionaries(STRINGS, inner, max_size=3).map(hostile.Dict),
    ),
    max_leaves=6,
)
PARAMETERS = st.one_of(st.none(), st.dictionaries(STRINGS, JSON_VALUES, max_size=3))
SENT_TENSORS = st.fixed_dictionaries(
    {
        "data": st.one_of(ARRAYS, TEXT_ARRAYS, st.none()),
        "binary": st.booleans(),
        "parameters": PARAMETERS,
    }
)
SENT_LIMITS: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional={
            "max_header_nbytes": st.integers(0, 1000),
            "max_tensors": st.integers(0, 4),
            "max_rank": st.integers(0, 4),
            "max_name_nbytes": st.integers(0, 8),
            "max_nesting": st.integers(0, 8),
            "max_parameters": st.integers(0, 6),
            "max_elements": st.integers(0, 20),
        },
    ),
)


def plain(value: Any) -> Any:
    """Return what a reader of JSON sees of a value that was written to JSON."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in dict(value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(np.generic.item(value))
    if isinstance(value, float):
        return float.__add__(value, 0.0) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool) else int.__add__(value, 0)


def sent_tensor(name: str, fields: dict[str, Any]) -> tw.Tensor:
    data = fields["data"]
    shape: Any = {} if data is not None else {"datatype": "FP32", "shape": [2, 3]}
    return tw.Tensor(name, data, parameters=fields["parameters"], binary=fields["binary"], **shape)


@settings(max_examples=scaled(1000), deadline=None)
@given(st.data())
def test_decoder_accepts_what_the_encoder_returns(data: st.DataObject) -> None:
    limits = tw.Limits(bf16_as_uint16=True, check_bool=False, **data.draw(SENT_LIMITS))
    names = data.draw(st.lists(STRINGS, max_size=3))
    requested = data.draw(st.none() | st.lists(STRINGS, max_size=3))
    strings = data.draw(st.tuples(*[st.none() | STRINGS] * 3))
    parameters = data.draw(PARAMETERS)
    is_request = data.draw(st.booleans())
    members: dict[str, Any] = dict(
        zip(("id", "model_name", "model_version"), strings, strict=True), parameters=parameters
    )
    try:
        tensors = [sent_tensor(name, data.draw(SENT_TENSORS)) for name in names]
        asked = tw.InferRequest(
            tensors,
            requested
            and [
                tw.RequestedOutput(
                    name, binary=data.draw(st.sampled_from([None, True])), parameters=parameters
                )
                for name in requested
            ],
            **members,
        )
        answer = tw.InferResponse(tensors, **members)
        frame = (
            tw.encode_request(asked, limits=limits)
            if is_request
            else tw.encode_response(
                answer, asked if data.draw(st.booleans()) else None, limits=limits
            )
        )
    except tw.EncodeError as error:
        event(" ".join(re.sub("'.*'|[0-9]+", "", str(error)).split()[-4:]))
        return
    decode: Any = tw.decode_request if is_request else tw.decode_response
    decoded = decode(bytes(frame), frame.header_length, limits=limits)
    event("encoded")
    if is_request:
        sent = plain(parameters or {})
        assert repr(plain(decoded.parameters)) == repr(sent)
        assert list(decoded) == [plain(name) for name in names]
        assert [decoded.id, decoded.model_name, decoded.model_version] == plain(list(strings))
