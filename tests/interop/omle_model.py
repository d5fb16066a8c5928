"""Write a model for omle-server, run in the environment "omle": `python omle_model.py FILE`.

The model returns the weighted sum of three numbers, and whether it is negative as an integer.
"""

from __future__ import annotations

import sys

import omle
from omle import DataType, Node, NodeInput, NodeOutput, OutputRole, TensorType

WEIGHTS, INTERCEPT = [1.0, 10.0, 100.0], [0.5]


def vector(values: list[float]) -> omle.TensorValue:
    kind = TensorType(DataType.FLOAT32, [len(values)])
    return omle.TensorValue(tensor=omle.Tensor(type=kind, float32_data=values))


SUM = TensorType(DataType.FLOAT32, [-1, 1])
LABEL = TensorType(DataType.INT64, [-1])
PROBABILITY = TensorType(DataType.FLOAT32, [-1, 2])
model = omle.OMLEModel(
    operator_imports=[omle.NamespaceImport(name, "0.1") for name in ("omle.ml",)],
    inputs=[omle.InputSpec("x", TensorType(DataType.FLOAT32, [-1, 3]))],
    outputs=[
        omle.OutputSpec("sum", SUM, role=OutputRole.PREDICTION),
        omle.OutputSpec("label", LABEL, role=OutputRole.PREDICTION),
    ],
    nodes=[
        Node(
            "linear",
            "omle.ml",
            "Linear",
            inputs=[NodeInput(omle.NameRef("x"))],
            outputs=[NodeOutput("sum", SUM, role=OutputRole.PREDICTION)],
            linear=omle.Linear(omle.TaskType.REGRESSION, vector(WEIGHTS), vector(INTERCEPT)),
        ),
        Node(
            "classify",
            "omle.ml",
            "Linear",
            inputs=[NodeInput(omle.NameRef("x"))],
            outputs=[
                NodeOutput("label", LABEL, role=OutputRole.PREDICTION),
                NodeOutput("probability", PROBABILITY, role=OutputRole.PROBABILITY),
            ],
            linear=omle.Linear(
                omle.TaskType.BINARY,
                vector(WEIGHTS),
                vector(INTERCEPT),
                post_transform=omle.PostTransform.SIGMOID_BINARY,
            ),
        ),
    ],
)
found = omle.validate(model)
assert found.is_valid, found
omle.save(model, sys.argv[1])
