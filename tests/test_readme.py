"""README.md and the manual: their examples run, their links resolve, and the reference is complete.

`interop/inside_torch.py` and `interop/inside_jax.py` run the examples that need torch or JAX.
`sphinx-build` checks the links between the pages of the manual.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from support.examples import PAGES, ROOT, Example, examples, run
from support.public_api import MODULES
from support.requirements import package

pytestmark = pytest.mark.no_sanitizers(reason="it reads the repository")

# The other examples run in tests/interop: inside_torch.py and inside_jax.py.
EXAMPLES = [example for example in examples() if not example.packages & {"torch", "jax"}]
README = ROOT / "README.md"
LINK = re.compile(r"\]\((\S+)\)|^\[[^]]+\]: (\S+)", re.MULTILINE)


@pytest.mark.thread_unsafe(reason="some examples change tritonclient for the process")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.id)
def test_example(example: Example) -> None:
    for name in example.packages:
        package(name)
    assert run(example.code) == example.expected


def links(page: Path) -> list[str]:
    return [match[1] or match[2] for match in LINK.finditer(page.read_text())]


def file_of(url: str) -> Path | None:
    """Return the file of the repository that a URL refers to. None for other URLs."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    raw = urls["Source"].replace("//github.com/", "//raw.githubusercontent.com/")
    for root in (f"{urls['Source']}/blob/main/", f"{raw}/main/"):
        if url.startswith(root):
            return ROOT / url.removeprefix(root).partition("#")[0]
    if url.startswith(f"{urls['Documentation']}/"):
        page = url.removeprefix(f"{urls['Documentation']}/en/latest/").partition("#")[0]
        return ROOT / "docs" / f"{page.removesuffix('.html') or 'index'}.md"
    return None


def test_links_of_the_readme_work_on_a_package_index() -> None:
    relative = [url for url in links(README) if not url.startswith("https://")]
    assert relative == []


@pytest.mark.parametrize(
    "page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_into_the_repository_and_the_manual(page: Path) -> None:
    files = {url: file_of(url) for url in links(page)}
    assert [url for url, file in files.items() if file is not None and not file.is_file()] == []


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 190


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_reference_has_all_public_names(module: ModuleType) -> None:
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    text = "\n".join(page.read_text() for page in pages)
    entries = re.findall(r"^\.\. (?:auto|py:)\w+:: ([\w.]+)", text, re.MULTILINE)
    assert {f"{module.__name__}.{name}" for name in module.__all__} <= set(entries)
