"""``python -m benchmarks.kserve_server plain|installed PORT``: KServe's server on the loopback.

For the interpreter of the environment "kserve". One process, REST alone, and the identity models
that every server of the benchmarks has; "installed" is with our codec in it.
"""

from __future__ import annotations

import sys
from typing import Any

from kserve import InferRequest, InferResponse, Model, ModelServer

from interop.kserve_server import answer, stay_at_home
from tensorwire.integrations import kserve as backend


class Identity(Model):  # type: ignore[misc]
    """INPUT0 as OUTPUT0, as an author of models would write it."""

    def predict(self, payload: InferRequest, headers: Any = None) -> InferResponse:
        arrays = {
            tensor.name.replace("INPUT", "OUTPUT"): (tensor.datatype, tensor.as_numpy())
            for tensor in payload.inputs
        }
        return answer(self, payload, arrays)


def main() -> None:
    mode, port = sys.argv[1:]
    stay_at_home()
    if mode == "installed":
        backend.install()
    models = [Identity(f"identity_{datatype}") for datatype in ("fp32", "bytes")]
    for model in models:
        model.load()
    ModelServer(http_port=int(port), enable_grpc=False).start(models)


if __name__ == "__main__":
    main()
