"""Each module imports only modules of lower layers."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tensorwire

pytestmark = pytest.mark.no_sanitizers(reason="it reads the repository")

PACKAGE = Path(tensorwire.__file__).parent

# From the lowest layer to the highest one. A module may import the modules of the layers above it
# in this list.
LAYERS = [
    [
        "errors",
        "versions",
        *(f"_codec.{name}" for name in ("wire", "utf8", "shortest", "npystring")),
    ],
    ["http", "_codec", "_codec.arrow_abi", "_codec.dlpack_abi"],
    ["_codec.json_scanner"],
    ["_codec.json_numbers"],
    ["_codec.datatypes", "_codec.json_reader"],
    ["_codec.memory", "_codec.parameters"],
    ["_codec.dlpack", "_codec.arrow"],
    ["_codec.bytes_reader", "_codec.bytes_writer"],
    ["_codec.json_writer"],
    ["_codec.bytes_array"],
    ["_codec.conversion"],
    ["_codec.messages"],
    ["_codec.decoder", "_codec.encoder", "dataframes"],
    ["__init__"],
    ["arguments", "cli.demo", "cli.inspect", "server.framing", "integrations.digests"],
    ["integrations.patching"],
    ["server.body"],
    ["server.workers"],
    ["server.model"],
    ["server.service"],
    ["server.exchange"],
    ["server.asgi", "server.rsgi", "server.uvicorn"],
    ["server.app"],
    ["server", "server.serve", "client.calls", "client.responses"],
    ["client.sync", "client.aio"],
    ["integrations.tritonclient.fast"],
    ["integrations.tritonclient.transport"],
    ["integrations.json_data"],
    [
        f"integrations.{peer}.{name}"
        for peer in ("tritonclient", "kserve", "mlserver")
        for name in ("sources", "convert")
    ],
    ["integrations.kserve.server", "integrations.mlserver.server"],
    [f"integrations.{peer}.patches" for peer in ("tritonclient", "kserve", "mlserver")],
    ["integrations.tritonclient", "integrations.kserve", "integrations.mlserver"],
    ["integrations.mlserver.__main__"],
    ["client"],
    ["cli.infer", "cli.serve"],
    ["integrations", "cli"],
    ["__main__"],
]
LAYER = {module: n for n, layer in enumerate(LAYERS) for module in layer}
SOURCES = [p for p in PACKAGE.rglob("*.p[yx]*") if p.suffix in (".py", ".pyx", ".pxd")]
IMPORTS = re.compile(
    r"^\s*(?:from (\.+)(\w*) c?import (\w+(?:, \w+)*|\()|import (tensorwire)|from (tensorwire))",
    re.MULTILINE,
)


def module(source: Path) -> str:
    """Return the name in LAYERS of a source file, such as ``server.app``.

    The package itself is ``__init__``, and a package in it has its own name, such as ``server``.
    """
    parts = source.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "__init__"


def imported(text: str, package: str = "") -> set[str]:
    """Return the modules of this package that a source file imports anywhere."""
    found = set()
    parts = package.split(".") if package else []
    for dots, relative, names, *absolute in IMPORTS.findall(text):
        prefix = "".join(f"{part}." for part in parts[: len(parts) + 1 - len(dots)])
        if any(absolute):
            found.add("__init__")
        elif relative:
            found.add(prefix + relative)
        else:  # from . import a, b
            found.update(prefix + name for name in names.split(", "))
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_lower_layers(source: Path) -> None:
    name = module(source)
    assert name in LAYER, f"{name} is in no layer: add it to LAYERS"
    package = ".".join(source.parent.relative_to(PACKAGE).parts)
    not_below = {
        other
        for other in imported(source.read_text(), package) - {name}
        if LAYER[other] >= LAYER[name]
    }
    assert not not_below


def test_import_tensorwire_loads_only_numpy() -> None:
    script = (
        "import sys; before = set(sys.modules); import numpy; import tensorwire;"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & "
        "{'ml_dtypes', 'msgspec', 'pyarrow', 'http', 'asyncio', 'urllib', 'tritonclient'}))"
    )
    # Optional packages and modules that perform I/O are not loaded.
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    baseline = subprocess.run(
        [sys.executable, "-I", "-c", script.replace("import tensorwire;", "")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded == set(baseline.stdout.split())


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("tensorwire", ["tensorwire.server", "tensorwire.client", "tensorwire.integrations"]),
        ("tensorwire.server", ["uvicorn", "httptools", "granian", "grpc", "starlette"]),
        ("tensorwire.client", ["httptools", "asyncio", "tensorwire.server"]),
    ],
)
def test_import_does_not_load(name: str, others: list[str]) -> None:
    script = f"import sys, {name}; print(*sorted(set({others}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_numpy_is_the_only_dependency() -> None:
    required = metadata.requires("tensorwire") or []
    assert [name for name in required if "extra ==" not in name] == ["numpy>=2.0"]


@pytest.mark.parametrize("other", ["byteorder = 'big'", "maxsize = 2**31 - 1"])
def test_import_fails_on_other_machines(other: str) -> None:
    script = f"import sys; sys.path = {sys.path!r}; sys.{other}; import tensorwire"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ImportError: tensorwire requires a 64-bit little-endian machine" in done.stderr
