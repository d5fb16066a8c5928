"""tritonclient: install and uninstall, in all orders and releases."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from interop.recorded_sources import (
    check_next_release,
    check_recorded,
    check_replacements_are_shown_alike,
)
from interop.samples import bits, bytes_array
from support import tritonclient_comparison as comparison
from support.tritonclient_calls import given, http
from support.tritonclient_comparison import FLOATS, LARGE, parsed, response
from tensorwire.integrations import tritonclient

pytestmark = comparison.MARKS


def test_objects_created_while_installed_stay_usable() -> None:
    body, length = response(FLOATS, bytes_array([b"x", b"\0"] * LARGE))
    tritonclient.install()
    tensor, result = given(http), parsed(body, length)
    tritonclient.uninstall()
    sent, sent_length = http.InferenceServerClient.generate_request_body([tensor])
    assert sent[sent_length:] == FLOATS.tobytes()
    assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)
    assert result.as_numpy("OUTPUT1").tolist() == [b"x", b"\0"] * LARGE


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "TypeError"])
def test_part_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """protobuf raises a TypeError, and tritonclient a RuntimeError, for an unsupported version."""
    (tmp_path / "failing_part.py").write_text(f"raise {error}('an unsupported version')")
    monkeypatch.syspath_prepend(str(tmp_path))
    patches = import_module("tensorwire.integrations.tritonclient.patches")
    assert patches.import_if_usable("failing_part") is None


# --- releases ------------------------------------------------------------------------------------


def test_digests_are_recorded() -> None:
    check_recorded(tritonclient)


def test_replacements_are_shown_like_their_originals() -> None:
    check_replacements_are_shown_alike(tritonclient)


HTTP_INPUTS = {
    "http._infer_input.InferInput.set_data_from_numpy",
    "http._utils._get_inference_request",
    "http._client.InferenceServerClient.infer",
    "http._client.InferenceServerClient.async_infer",
    "http.aio.InferenceServerClient.infer",
}
RESULTS = {"http._infer_result.InferResult.__init__"}
GRPC_REQUEST = {"grpc._utils._get_inference_request"}
GRPC_STREAM = {"grpc._client.InferenceServerClient.async_stream_infer"}
GRPC_CALLS = {
    "grpc._client.InferenceServerClient.infer",
    "grpc._client.InferenceServerClient.async_infer",
    "grpc._client.InferenceServerClient.start_stream",
    "grpc.aio.InferenceServerClient.infer",
    "grpc.aio.InferenceServerClient.stream_infer",
}


@pytest.mark.parametrize(
    ("name", "old", "new", "left_out"),
    [
        ("http._utils", "infer_request = {}", "infer_request = {  }  # empty", set()),
        ("utils", "(input_tensor):", "(input_tensor):\n    1", {"utils.serialize_byte_tensor"}),
        ("http._infer_result", "as_numpy(self, name)", "as_numpy(self, /, name)", RESULTS),
        ("http._infer_result", "def from_response_body(", "def renamed(", RESULTS),
        ("http._infer_input", "_get_tensor(self):", "_get_tensor(self, x=1):", HTTP_INPUTS),
        ("grpc._infer_result", "get_output(self,", "get_output(self, /,", GRPC_CALLS),
        ("grpc._infer_stream", "_stream = stream", "_stream = (stream)", set()),
        ("grpc._infer_stream", "_stream = stream", "_stream = [stream]", GRPC_STREAM),
        (
            *("grpc._utils", "request.model_name = model_name", "request.model_name = '' "),
            GRPC_REQUEST | GRPC_CALLS | GRPC_STREAM,
        ),
    ],
)  # fmt: skip
def test_next_release(
    caplog: pytest.LogCaptureFixture, name: str, old: str, new: str, left_out: set[str]
) -> None:
    check_next_release(tritonclient, caplog, (f"tritonclient.{name}", old, new), left_out)
