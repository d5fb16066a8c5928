"""What each part of the package imports, and what it says if a package is missing."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest

import tensorwire
from support.requirements import package
from support.scripts import run_script

pytestmark = pytest.mark.no_sanitizers(reason="it reads the repository")

PACKAGE = Path(tensorwire.__file__).parent
# A part of the package, and what it may import besides itself. The codec knows no other part; the
# public names are imported as `tensorwire`.
CODEC = {"errors", "http"}
PUBLIC = {"tensorwire", "_codec", "arguments", "grpc", "grpc_messages", *CODEC}
ALLOWED = {
    "_codec": CODEC,
    "client": {*PUBLIC, "compression", "parameters", "sizes", "threads"},
    "server": {*PUBLIC, "compression", "sizes", "threads"},
    "integrations": {*PUBLIC, "parameters", "server", "sizes"},
    "cli": {*PUBLIC, "client", "server"},
}
IMPORTS = re.compile(
    r"^\s*(?:from (\.+)(\w*)[\w.]* c?import (\w+(?:, \w+)*|\()|(?:import|from) (tensorwire))",
    re.MULTILINE,
)


@pytest.mark.parametrize("part", ALLOWED)
def test_parts_import_only_what_they_may(part: str) -> None:
    for source in (PACKAGE / part).rglob("*.p[yx]*"):
        if source.suffix not in (".py", ".pyx", ".pxd"):
            continue
        n_folders = len(source.relative_to(PACKAGE).parts) - 1
        for dots, module, names, *absolute in IMPORTS.findall(source.read_text()):
            if any(absolute):
                found = {"tensorwire"}
            elif len(dots) <= n_folders:
                continue  # within the part
            else:
                found = {module} if module else set(names.split(", "))
            assert found <= ALLOWED[part], source


# The rooms of the codec. Each may import those before it, and the modules that are in no room; the
# last two do not know each other.
ROOMS = ("capsules", "bytes", "json", "messages", "http", "grpc")


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_of_the_codec_import_only_those_before(room: str) -> None:
    forbidden = {*ROOMS[ROOMS.index(room) + 1 :], *({"http"} if room == "grpc" else ())}
    sources = [
        *(PACKAGE / "_codec" / room).glob("*.p[yx]*"),
        *(PACKAGE / "_codec").glob("*.p[yx]*"),
    ]
    for source in sources:
        imported = re.findall(
            r"^\s*from \.\.?(\w+)[\w.]* c?import", source.read_text(), re.MULTILINE
        )
        is_ground = source.parent.name == "_codec"
        assert not set(imported) & ({*ROOMS} if is_ground else forbidden), source


def imported_files(source: Path) -> set[Path]:
    """Return the files of this package that a file imports, wherever the statement is."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            place = source.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for name in node.names:  # a module of a package, or a name in a module
                of_module = (place / f"{name.name}.py", place / name.name / "__init__.py")
                of_name = (place.with_suffix(".py"), place / "__init__.py")
                found.update([file for file in (*of_module, *of_name) if file.exists()][:1])
    return found


@pytest.mark.thread_unsafe(reason="ast.parse is not thread-safe before Python 3.11.8")
@pytest.mark.parametrize("part", ["client", "server", "integrations", "cli"])
def test_files_do_not_import_each_other_in_a_circle(part: str) -> None:
    """Also not under TYPE_CHECKING, nor in functions."""
    files = set((PACKAGE / part).rglob("*.py"))
    graph = {file: imported_files(file) & files for file in files}
    assert len(list(TopologicalSorter(graph).static_order())) == len(files)


OPTIONAL = ["ml_dtypes", "msgspec", "pyarrow", "tritonclient"]
FOR_IO = ["http", "asyncio", "urllib"]


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("tensorwire", [*OPTIONAL, *FOR_IO]),
        ("tensorwire", ["tensorwire.server", "tensorwire.client", "tensorwire.integrations"]),
        ("tensorwire.server", ["uvicorn", "httptools", "granian", "grpc", "starlette"]),
        ("tensorwire.client", ["httptools", "asyncio", "tensorwire.server"]),
    ],
)
def test_import_does_not_load(name: str, others: list[str]) -> None:
    """numpy loads some of these modules itself."""
    script = (
        "import sys, numpy; before = set(sys.modules);"
        f"import {name}; print(*sorted(set({others}) & (set(sys.modules) - before)))"
    )
    done = run_script(script)
    assert (done.stdout.split(), done.returncode) == ([], 0), done.stderr


CLIENT, INFER = "from tensorwire.client import *;", "from tensorwire.cli import main;"
SERVER, SERVE = "from tensorwire.server import *;", f"{INFER} main(['serve', '--echo', %s])"


@pytest.mark.parametrize(
    ("missing", "script", "expected"),
    [
        ("httptools", f"{CLIENT} Client('localhost')", "an HTTP client requires httptools: client"),
        ("httptools", f"{CLIENT} AsyncClient('localhost')", "client requires httptools: client"),
        ("httptools", f"{INFER} main(['infer', 'localhost', 'm'])", "requires httptools: client"),
        ("httptools", f"{CLIENT} Client('grpc://127.0.0.1:1').is_ready()", ""),
        ("grpc", f"{CLIENT} Client('grpc://localhost')", "a gRPC client requires grpcio: grpc"),
        ("grpc", f"{CLIENT} Client('localhost'); AsyncClient('localhost')", ""),
        ("grpc", f"{SERVER} add_to_grpc_server", "ImportError: gRPC requires grpcio: grpc"),
        ("grpc", SERVE % "'--grpc-port', '0'", "error: grpcio is not installed: grpc"),
        ("httptools", f"{SERVER} InferProtocol", "InferProtocol requires httptools: serve"),
        ("httptools", SERVE % "", "error: httptools is not installed: serve"),
        ("uvicorn", f"{SERVER} InferProtocol", "requires uvicorn.middleware: serve"),
        ("uvicorn", SERVE % "", "error: uvicorn is not installed: serve"),
        ("prometheus_client", f"{SERVER} create_app({{'m': print}}, metrics=True)",
         "ImportError: metrics require prometheus_client: metrics"),
        ("prometheus_client", SERVE % "'--metrics'",
         "--metrics: metrics require prometheus_client: metrics"),
    ],
)  # fmt: skip
def test_package_that_is_missing(missing: str, script: str, expected: str) -> None:
    """The last line says how to install it."""
    package("grpc")
    done = run_script(f"import sys; sys.modules['{missing}'] = None; {script}")
    last_line = "".join(done.stderr.strip().splitlines()[-1:])
    problem, _, extra = expected.rpartition(": ")
    install = f"{problem}: pip install 'tensorwire[{extra}]'"
    assert last_line.endswith(install) if expected else not last_line


def test_calls_import_no_modules() -> None:
    """A child that is forked while another thread imports a module waits for ever for its lock."""
    done = run_script("""
import sys
import numpy as np
import tensorwire as tw

before = set(sys.modules)
texts = np.array(["a", "b"], np.dtypes.StringDType())
for data in (np.arange(2), texts, texts.astype(object), [np.arange(2)], ["a", "b"]):
    for binary in (True, False):
        frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", data, binary=binary)]))
        tw.decode_request(bytes(frame), frame.header_length)["x"].as_numpy()
tw.decode_bytes(tw.encode_bytes(texts)).as_numpy(np.dtypes.StringDType())
print(*sorted(set(sys.modules) - before))
""")
    assert (done.stderr, done.stdout) == ("", "\n")


def test_numpy_is_the_only_dependency() -> None:
    required = metadata.requires("tensorwire") or []
    assert [name for name in required if "extra ==" not in name] == ["numpy>=2.1"]


@pytest.mark.parametrize("other", ["byteorder = 'big'", "maxsize = 2**31 - 1"])
def test_import_fails_on_other_machines(other: str) -> None:
    done = run_script(f"import sys; sys.{other}; import tensorwire")
    assert done.returncode == 1
    assert "ImportError: tensorwire requires a 64-bit little-endian machine" in done.stderr


def test_compiled_modules_have_no_list_comprehensions() -> None:
    """Cython 3.3.0 and 3.3.1 free an element twice if the list cannot grow."""
    comprehension = re.compile(r"\[(?:[^\[\]:]|\[[^\[\]]*\])*\sfor\s[^:]*?\sin\s")
    assert comprehension.search("f([a[0] for a in b])")
    for source in PACKAGE.rglob("*.pyx"):
        code = re.sub(r'"""[\s\S]*?"""|"[^"\n]*"|\'[^\'\n]*\'|#.*', "", source.read_text())
        assert comprehension.search(code) is None, source
