"""The models the server is given: each returns its inputs, INPUT0 as OUTPUT0 and so on.

The outputs come in the order in which the request listed the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BF16", "BYTES"),
)


@dataclass(frozen=True)
class Model:
    """A model's name, and the datatype and dims of each input, which its output shares."""

    name: str
    tensors: tuple[tuple[str, list[int]], ...]
    max_batch_size: int = 0


MODELS = (
    *(Model(f"identity_{datatype.lower()}", ((datatype, [-1]),)) for datatype in DATATYPES),
    Model("two", (("FP32", [-1]), ("BYTES", [-1]))),
    Model("batching", (("FP32", [-1]),), max_batch_size=8),
    Model("matrix", (("FP32", [-1, 3]),)),
    Model("raw_bytes", (("BYTES", [1]),)),  # the one shape in which a raw request may carry BYTES
)

# DLPack has no strings and numpy no BF16, so neither road alone serves every datatype.
PROGRAM = """\
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        inputs = json.loads(args["model_config"])["input"]
        self.strings = {i["name"] for i in inputs if i["data_type"] == "TYPE_STRING"}

    def execute(self, requests):
        return [pb_utils.InferenceResponse(list(map(self.echo, r.inputs()))) for r in requests]

    def echo(self, tensor):
        name = tensor.name().replace("INPUT", "OUTPUT")
        if tensor.name() in self.strings:
            return pb_utils.Tensor(name, tensor.as_numpy())
        return pb_utils.Tensor.from_dlpack(name, tensor)
"""


def write_models(repository: Path) -> None:
    """Write every model into the folder, in the layout the server expects."""
    for model in MODELS:
        version = repository / model.name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(PROGRAM)
        (version.parent / "config.pbtxt").write_text(config(model))


def config(model: Model) -> str:
    """The model's configuration, in protobuf's text format."""
    lines = [
        'backend: "python"',
        f"max_batch_size: {model.max_batch_size}",
        "instance_group { kind: KIND_CPU }",
    ]
    for i, (datatype, dims) in enumerate(model.tensors):
        kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
        lines.append(f'input {{ name: "INPUT{i}" data_type: {kind} dims: {dims} }}')
        lines.append(f'output {{ name: "OUTPUT{i}" data_type: {kind} dims: {dims} }}')
    return "\n".join(lines) + "\n"
