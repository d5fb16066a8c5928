"""The Python examples of README.md and docs/*.md run and print what the pages say.

`interop/inside_torch.py` runs the examples that need torch or JAX.
"""

from __future__ import annotations

import pytest

from support.examples import Example, examples, run

pytestmark = pytest.mark.no_sanitizers(reason="it reads the repository")

EXAMPLES = [example for example in examples() if not example.is_large]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.id)
def test_example(example: Example) -> None:
    assert run(example.code) == example.expected
