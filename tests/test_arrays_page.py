"""The examples of docs/arrays.md run and print what the page says.

`interop/inside_torch.py` runs the examples that need torch, JAX or pandas.
"""

from __future__ import annotations

import pytest

from support.examples import ARRAYS_PAGE, examples, run

pytestmark = pytest.mark.no_sanitizers(reason="it reads the repository")

EXAMPLES = examples(ARRAYS_PAGE)
ELSEWHERE = {"torch", "JAX", "pandas"}


def test_each_package_has_one_example() -> None:
    assert set(EXAMPLES) >= ELSEWHERE | {"numpy"}


@pytest.mark.parametrize("heading", sorted(EXAMPLES.keys() - ELSEWHERE))
def test_example(heading: str) -> None:
    code, expected = EXAMPLES[heading]
    assert run(code) == expected
