"""A model for MLServer, as users write it."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


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
