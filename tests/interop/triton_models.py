"""The models of the Triton server: each returns its inputs, INPUT0 as OUTPUT0 and so on.

The outputs have the order of the inputs in the request. The model `any` takes up to three tensors
of each datatype and rank, each with its own name.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def identity(datatype: str) -> str:
    """Return the name of the model that echoes one tensor of this datatype."""
    return f"identity_{datatype.lower()}"


MODELS = (
    *(Model(identity(datatype), ((datatype, [-1]),)) for datatype in DATATYPES),
    Model("two", (("FP32", [-1]), ("BYTES", [-1]))),
    Model("batching", (("FP32", [-1]),), max_batch_size=8),
    Model("matrix", (("FP32", [-1, 3]),)),
    Model("raw_bytes", (("BYTES", [1]),)),  # the one shape in which a raw request may carry BYTES
)

ANY = "any"
RANKS = (1, 2, 3, 4, 5, 65)  # 65: one more than numpy has
N_SLOTS = 3


def slot(datatype: str, rank: int, i: int) -> str:
    """Return the name, as input and output, of the i-th tensor of this kind in the model `any`."""
    return f"{datatype}_{rank}_{i}"


# DLPack has no strings and numpy has no BF16, so every datatype needs one of the two.
PROGRAM = """\
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        inputs = json.loads(args["model_config"])["input"]
        self.strings = {i["name"] for i in inputs if i["data_type"] == "TYPE_STRING"}

    def execute(self, requests):
        return [self.answer(request.inputs()) for request in requests]

    def answer(self, inputs):
        if not inputs:  # only if all are optional: otherwise the server rejects the request
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no inputs"))
        return pb_utils.InferenceResponse(list(map(self.echo, inputs)))

    def echo(self, tensor):
        name = tensor.name().replace("INPUT", "OUTPUT")
        if tensor.name() in self.strings:
            return pb_utils.Tensor(name, tensor.as_numpy())
        return pb_utils.Tensor.from_dlpack(name, tensor)
"""


def write_models(repository: Path, models: Iterable[Model] = MODELS) -> None:
    """Write the models and `any` into the folder, in the layout the server expects."""
    configs = {model.name: config(model) for model in models}
    for name, text in {**configs, ANY: any_config()}.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(PROGRAM)
        (version.parent / "config.pbtxt").write_text(text)


def config(model: Model) -> str:
    """Return the model's configuration, in protobuf's text format."""
    tensors = [
        (f"INPUT{i}", f"OUTPUT{i}", declaration(*tensor)) for i, tensor in enumerate(model.tensors)
    ]
    return text_of(model.max_batch_size, tensors)


def any_config() -> str:
    """Return the configuration of `any`: every input is optional."""
    tensors = [
        (slot(datatype, rank, i), slot(datatype, rank, i), declaration(datatype, [-1] * rank))
        for datatype in DATATYPES
        for rank in RANKS
        for i in range(N_SLOTS)
    ]
    return text_of(0, tensors, " optional: true")


def text_of(max_batch_size: int, tensors: Iterable[tuple[str, str, str]], option: str = "") -> str:
    lines = [
        'backend: "python"',
        f"max_batch_size: {max_batch_size}",
        "instance_group { kind: KIND_CPU }",
    ]
    for name, output, declared in tensors:
        lines.append(f'input {{ name: "{name}" {declared}{option} }}')
        lines.append(f'output {{ name: "{output}" {declared} }}')
    return "\n".join(lines) + "\n"


def declaration(datatype: str, dims: list[int]) -> str:
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return f"data_type: {kind} dims: {dims}"
