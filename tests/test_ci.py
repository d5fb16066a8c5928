"""The steps of .ci/run and .ci/nightly: they run by default, in workflows, and are documented."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"

pytestmark = [
    pytest.mark.no_sanitizers(reason="it reads the repository"),
    pytest.mark.skipif(not WORKFLOWS.exists(), reason="this checkout has no workflows"),
]
# Not on hosted runners: `pythons` needs root, `benchmarks` needs a quiet machine.
NOT_HOSTED = {"run": set[str](), "nightly": {"pythons", "benchmarks"}}


def steps(script: str) -> list[str]:
    """Return the steps that the script defines, in this order."""
    return re.findall(r"^step_(\w+)\(\)", (ROOT / ".ci" / script).read_text(), re.MULTILINE)


def hosted(script: str) -> set[str]:
    """Return the steps of a script that the workflows run."""
    found = set()
    for workflow in WORKFLOWS.glob("*.yml"):
        text = workflow.read_text()
        for step in re.findall(rf"run: \.ci/{script} (\S+)", text):
            variable = step.strip('"') == "$STEP"
            lists = re.findall(r"^ *step: \[(.*)\]", text, re.MULTILINE)
            found |= set(", ".join(lists).split(", ")) if variable else {step}
    return found


@pytest.mark.parametrize("script", ["run", "nightly"])
def test_all_steps_run_by_default(script: str) -> None:
    text = (ROOT / ".ci" / script).read_text()
    [default] = re.findall(r"^    (?:main -2|set --) (.*)$", text, re.MULTILINE)
    assert set(default.split()) == set(steps(script))


@pytest.mark.parametrize("script", ["run", "nightly"])
def test_workflows_run_all_steps(script: str) -> None:
    assert hosted(script) == set(steps(script)) - NOT_HOSTED[script]


@pytest.mark.parametrize("script", ["run", "nightly"])
def test_steps_are_documented(script: str) -> None:
    comment = (ROOT / ".ci" / script).read_text().partition("\nsource ")[0]
    assert set(re.findall(r"^#   (\w+)  ", comment, re.MULTILINE)) == set(steps(script))
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.partition(f"| step of `.ci/{script}` |")[2].partition("\n\n")[0]
    names = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines()[2:]]
    assert {name for row in names for name in row} == set(steps(script))


def test_unknown_step_is_an_error() -> None:
    command = [str(ROOT / ".ci" / "run"), "no_such_step"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the steps are: benchmarks docs fuzz" in done.stderr


@pytest.mark.parametrize(
    ("tag", "printed", "error"),
    [
        ("v1.2.0", "### Fixed\n\n- A leak.\n", ""),
        ("v1.3.0", "", "the tag is v1.3.0, but the version is 1.2.0\n"),
    ],
)
def test_release_notes(tmp_path: Path, tag: str, printed: str, error: str) -> None:
    changelog = "# Changelog\n\n## [Unreleased]\n\n"
    changelog += "## [1.2.0] - 2030-01-31\n\n### Fixed\n\n- A leak.\n\n"
    changelog += "## [1.1.0] - 2029-12-31\n\n- Old.\n\n[1.2.0]: https://example.com\n"
    files = {
        ".ci/release_notes.py": (ROOT / ".ci" / "release_notes.py").read_text(),
        "src/tensorwire/__init__.py": '"""Text."""\n\n__version__ = "1.2.0"\n',
        "CHANGELOG.md": changelog,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, str(tmp_path / ".ci" / "release_notes.py"), tag]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (printed, error)
    assert done.returncode == (1 if error else 0)
