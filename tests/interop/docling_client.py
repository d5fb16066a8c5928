"""docling's client for the protocol, written with tensorwire's Client.

docling constructs one client for HTTP and one for gRPC, and calls the three methods of its
``KserveV2Client``. The keyword arguments are docling's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np
from docling.models.inference_engines.common.kserve_v2_types import KserveV2ModelMetadataResponse

from tensorwire.client import Client, Timeout


class ModelClient:
    """A client of one model; subclasses know the transport."""

    def __init__(self, client: Client, model_name: str, model_version: str | None) -> None:
        self.client = client
        self.name, self.version = model_name, model_version or None

    def get_model_metadata(self) -> Any:
        metadata = self.client.model_metadata(self.name, version=self.version)
        return KserveV2ModelMetadataResponse.model_validate(metadata)

    def infer(
        self,
        *,
        inputs: Mapping[str, np.ndarray],
        output_names: list[str],
        request_parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, np.ndarray]:
        response = self.client.infer(
            self.name, inputs, output_names, version=self.version, parameters=request_parameters
        )
        return {name: tensor.as_numpy() for name, tensor in response.items()}

    def close(self) -> None:
        self.client.close()


class HttpClient(ModelClient):
    def __init__(
        self,
        *,
        base_url: str,
        model_name: str,
        model_version: str | None,
        timeout: float,
        headers: Mapping[str, str],
        use_binary_data: bool = True,
    ) -> None:
        client = Client(base_url, timeout=timeout, headers=headers, binary_inputs=use_binary_data)
        super().__init__(client, model_name, model_version)


class GrpcClient(ModelClient):
    """``use_binary_data`` has no effect: every server of gRPC reads the raw contents."""

    def __init__(
        self,
        *,
        base_url: str,
        model_name: str,
        model_version: str | None,
        timeout: float,
        metadata: Mapping[str, str],
        use_tls: bool,
        max_message_bytes: int,
        use_binary_data: bool = True,
        grpc_channel_args: Sequence[tuple[str, Any]] = (),
    ) -> None:
        # Client has no options for these, and no URLs such as dns:///host:8001.
        options = [
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.max_receive_message_length", max_message_bytes),
            *grpc_channel_args,
        ]
        self.channel = (
            grpc.secure_channel(base_url, grpc.ssl_channel_credentials(), options)
            if use_tls
            else grpc.insecure_channel(base_url, options)
        )
        url = f"grpc://{base_url.removeprefix('dns:///')}"
        limits = Timeout(total=timeout)
        client = Client(url, timeout=limits, headers=metadata, channel=self.channel)
        super().__init__(client, model_name, model_version)

    def close(self) -> None:
        super().close()
        self.channel.close()
