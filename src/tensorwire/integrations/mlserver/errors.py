"""What tensorwire refuses, in MLServer's words: its exception, with the status to answer with."""

from __future__ import annotations

from mlserver.errors import MLServerError

from ...errors import TensorwireError


def refusal(error: TensorwireError) -> Exception:
    """The exception that MLServer's REST and gRPC servers turn into an answer."""
    return MLServerError(str(error), error.status)  # type: ignore[no-any-return]
