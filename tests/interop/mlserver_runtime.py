"""MLServer models, as users write them. `TENSORWIRE_INSTALL=1` installs the integration here."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

if os.environ.get("TENSORWIRE_INSTALL"):
    from tensorwire.integrations import mlserver

    mlserver.install(max_body_nbytes=1 << 22)


class Echo(MLModel):  # type: ignore[misc]
    """Return every input through the codec of its content type or datatype."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = []
        for tensor in payload.inputs:
            codec = StringCodec if tensor.datatype == "BYTES" else NumpyCodec
            decoded = self.decode(tensor, default_codec=codec)
            output = codec.encode_output(tensor.name, decoded)
            output.shape = tensor.shape
            outputs.append(output)
        return InferenceResponse(model_name=self.name, outputs=outputs)


class Raw(MLModel):  # type: ignore[misc]
    """Return the list of every input, as a runtime without codecs does."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = [
            ResponseOutput(
                name=tensor.name,
                shape=tensor.shape,
                datatype=tensor.datatype,
                data=list(tensor.data.root),
            )
            for tensor in payload.inputs
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)


class Negate(MLModel):  # type: ignore[misc]
    """Return `-x`, computed in the memory of the request, and facts about that memory."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        array: Any = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        np.negative(array, out=array)
        output = NumpyCodec.encode_output("y", array)
        array[:] = 0  # the output already has a copy of the values
        facts = [str(array.base is None), str(os.getpid())]
        return InferenceResponse(
            model_name=self.name, outputs=[output, StringCodec.encode_output("facts", facts)]
        )
