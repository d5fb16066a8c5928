"""Check the types of the Python examples of README.md and of the manual, and of the public API.

    python tests/check_types.py

runs ``mypy --strict``, pyright in strict mode and ``pyright --verifytypes``. An error of an example
names the line of its page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ANYTHING = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
# Stubs of packages that have no types, or are not installed where this program runs; and of the
# modules of the reader.
WITHOUT_TYPES = (
    *("django/__init__", "django/core/__init__", "django/core/handlers/__init__"),
    *("django/core/handlers/wsgi", "django/http", "django/urls", "django/views/__init__"),
    *("django/views/decorators/__init__", "django/views/decorators/csrf", "grpc/__init__"),
    *("jax/__init__", "jax/numpy", "mlserver/codecs", "pandas/__init__", "pyarrow/__init__"),
    *(
        "ray/__init__",
        "torch/__init__",
        "tqdm/__init__",
        "tqdm/auto",
        "tritonclient/__init__",
        "tritonclient/grpc/__init__",
    ),
    *("tritonclient/http/__init__", "tritonclient/utils/__init__"),
)
STUBS = {
    **dict.fromkeys(WITHOUT_TYPES, ANYTHING),
    "bentoml/__init__": """
from collections.abc import Callable
from typing import Any
def asgi_app(app: Any) -> Callable[[type], type]: ...
def service(inner: type) -> Any: ...
""",
    "kserve/__init__": f"""{ANYTHING}
class Model:
    name: str
    ready: bool
    def __init__(self, name: str) -> None: ...
class InferRequest:
    id: str | None
    inputs: list[Any]
class InferResponse:
    def __init__(self, response_id: str | None, model_name: str, outputs: list[Any]) -> None: ...
""",
    "litserve/__init__": "class LitAPI: ...\n",
    "mlserver/__init__": "class MLModel:\n    name: str\n",
    "mlserver/types": """
from typing import Any
class InferenceRequest:
    inputs: list[Any]
class InferenceResponse:
    def __init__(self, *, model_name: str, outputs: list[Any]) -> None: ...
""",
    "module": "from tensorwire.server import Model\nmodels: dict[str, Model]\n",
    "service": f"{ANYTHING}from tensorwire.server import create_app\napp: create_app\n",
}
# A block of type `python` is also run by the tests. A block of type `py` needs other programs.
BLOCK = re.compile(r"^```py(?:thon)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PUBLIC = re.compile(
    r"tensorwire(\.client|\.server|\.integrations\.(kserve|mlserver|tritonclient))?\.[A-Za-z_]+"
)
NOT_COMPLETE = {
    "tensorwire.server.InferProtocol",  # uvicorn creates it; its attributes are not for others
}
# If there are fewer, they were not found.
MIN_BLOCKS = 50
MIN_PUBLIC = 60


def write_examples(folder: Path) -> dict[str, Path]:
    """Write each example to a file of its own, and return their pages by the names of the files.

    An example has the same lines in its file as in its page.
    """
    pages = {}
    for page in PAGES:
        text = page.read_text()
        for block in BLOCK.finditer(text):
            n_lines = text.count("\n", 0, block.start(1))
            name = "_".join([*page.relative_to(ROOT).with_suffix("").parts, str(n_lines)])
            file = f"{name.replace('-', '_')}.py"
            (folder / file).write_text("\n" * n_lines + block[1])
            pages[file] = page
    assert len(pages) >= MIN_BLOCKS
    return pages


def write_stubs(folder: Path) -> None:
    for name, text in STUBS.items():
        path = folder / f"{name}.pyi"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(*command: str | Path, **variables: str) -> str:
    """Return what a program prints."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        sys.exit(f"{command[0]} failed: {done.stdout}{done.stderr}")
    return done.stdout


def mypy_errors(folder: Path) -> Iterator[tuple[Path, int, str]]:
    files = sorted(folder.glob("*.py"))
    # A cache of its own: other runs of mypy do not have these stubs.
    options = ["--strict", "--output=json", "--cache-dir=.mypy_cache/examples"]
    output = run("mypy", *options, *files, MYPYPATH=str(folder / "stubs"))
    for line in output.split("\n"):
        if not line:  # mypy prints an empty line if there are no errors
            continue
        found = json.loads(line)
        if Path(found["file"]).parent != folder:  # the stubs are too short for our integrations
            continue
        yield Path(found["file"]), found["line"], f"{found['message']} [mypy: {found['code']}]"


def pyright_errors(folder: Path) -> Iterator[tuple[Path, int, str]]:
    configuration = {
        "include": ["*.py"],
        "typeCheckingMode": "strict",
        "stubPath": str(folder / "stubs"),
        "extraPaths": [str(ROOT / "src")],
        "reportMissingModuleSource": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(configuration))
    output = run("pyright", "--project", folder, "--pythonpath", sys.executable, "--outputjson")
    for found in json.loads(output)["generalDiagnostics"]:
        line = found["range"]["start"]["line"] + 1
        message = found["message"].replace("\n", "\n    ")
        yield Path(found["file"]), line, f"{message} [pyright: {found.get('rule', 'syntax')}]"


def incomplete_types() -> list[str]:
    """Return the public names whose types are not complete."""
    options = ["--verifytypes", "tensorwire", "--ignoreexternal", "--outputjson"]
    source = str(ROOT / "src")
    output = run("pyright", *options, "--pythonpath", sys.executable, PYTHONPATH=source)
    symbols = json.loads(output)["typeCompleteness"]["symbols"]
    public = [symbol for symbol in symbols if PUBLIC.fullmatch(symbol["name"])]
    assert len(public) >= MIN_PUBLIC
    return [
        f"the types of {symbol['name']} are not complete: pyright --verifytypes tensorwire says why"
        for symbol in public
        if not symbol["isTypeKnown"] and symbol["name"] not in NOT_COMPLETE
    ]


def main() -> None:
    incomplete = incomplete_types()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        write_stubs(folder / "stubs")
        pages = write_examples(folder)
        errors = [*mypy_errors(folder), *pyright_errors(folder)]
    for file, line, message in sorted(errors, key=str):
        print(f"{pages.get(file.name, file)}:{line}: {message}")
    for message in incomplete:
        print(message)
    sys.exit(1 if errors or incomplete else 0)


if __name__ == "__main__":
    main()
