"""Properties that hold for any input, drawn from the strategies in support/strategies.py.

The fuzz targets (fuzz/targets.py) run them under libFuzzer with sanitizers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tensorwire as tw
from support.requirements import package
from support.scale import scaled

package("pyarrow")
package("tritonclient.grpc")

# ruff: noqa: E402 - they import these packages
from fuzz import bodybuffer, exports, grpc_judge, json_writer
from fuzz.headers import check_header_length
from fuzz.messages import check_elements, check_message, check_raw_request
from support import grpc_strategies, invalid_arrow, invalid_dlpack, strategies

OPTIONS = st.integers(0, 7)
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def examples(n: int) -> Callable[[Any], Any]:
    """Return the settings for `n` examples, which are the same each time."""
    return settings(
        max_examples=scaled(n),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=QUIET,
    )


@examples(300)
@given(strategies.requests, OPTIONS)
def test_request(body: strategies.Body, options: int) -> None:
    check_message("request", body.whole, body.length, options)


@examples(200)
@given(strategies.responses, OPTIONS)
def test_response(body: strategies.Body, options: int) -> None:
    check_message("response", body.whole, body.length, options)


@examples(200)
@given(strategies.json_tensors)
def test_json_tensor(text: bytes) -> None:
    check_message("request", text, None)


@examples(200)
@given(strategies.raw_requests, st.sampled_from([0, "0", b"0", "0" * 20]), OPTIONS)
def test_raw_request(request: tuple[tw.TensorSpec, bytes], length: Any, options: int) -> None:
    check_raw_request(*request, length, options)


@examples(200)
@given(strategies.damaged_elements)
def test_elements(wire_and_count: tuple[bytes, int | None]) -> None:
    check_elements(*wire_and_count)


@examples(200)
@given(strategies.headers, st.integers(0, 3))
def test_header_length(fields: list[tuple[str, str]], form: int) -> None:
    check_header_length(fields, form)


@examples(300)
@given(grpc_strategies.messages, OPTIONS)
def test_grpc_message(message: tuple[str, bytes], options: int) -> None:
    grpc_judge.compare(*message, options)


@examples(300)
@given(
    strategies.indexed_elements,
    st.sampled_from(exports.MAKERS),
    st.sampled_from(exports.EXPORTS),
    st.binary(max_size=12),
)
def test_export(array: tuple[Any, ...], maker: Any, export: Any, rest: bytes) -> None:
    items, shape, index = array
    exports.check_export(items, shape, index, maker, export, rest)


@examples(200)
@example((None, None, 100, [("write", 17), ("receive", 22), ("receive", 131072)]))
@given(strategies.buffers)
def test_bodybuffer(case: tuple[Any, ...]) -> None:
    bodybuffer.check_calls(*case)


@examples(200)
@given(
    st.one_of(
        st.tuples(
            st.just(json_writer.check_numbers),
            strategies.arrays,
            st.sampled_from(json_writer.NONFINITE),
        ),
        st.tuples(st.just(json_writer.check_elements), strategies.elements),
        st.tuples(st.just(json_writer.check_names), strategies.texts),
        st.tuples(st.just(json_writer.check_parameters), strategies.parameters),
    )
)
def test_json_writer(case: tuple[Any, ...]) -> None:
    check, *arguments = case
    check(*arguments)


@examples(150)
@given(strategies.chosen(invalid_arrow.producer), strategies.chosen(invalid_dlpack.any_producer))
def test_invalid_producers(arrow: Any, dlpack: Any) -> None:
    """They are read or rejected, and nothing else happens."""
    for producer in (arrow, dlpack):
        for consume in (tw.encode_bytes, lambda value: tw.Tensor("x", value).as_numpy()):
            with contextlib.suppress(tw.EncodeError, BufferError, TypeError):
                consume(producer)
