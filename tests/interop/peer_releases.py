"""Compare the releases of the packages that the integrations change: their functions' sources.

`python tests/interop/peer_releases.py [--record] [PACKAGE ...]` downloads, with pip, all releases
of each package since the oldest tested one. It lists which of the functions that the integration
replaces or relies on have changed, and in which release. Nothing of the packages is imported.

`--record` writes the digests of the tested releases to `sources.json` of the integration, which
`install` compares with those of newer releases. The file lists the functions in groups: add a new
one to a group, with `{}` as its digests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any
from zipfile import ZipFile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tensorwire.integrations.digests import Sources
from tensorwire.integrations.patching import release

WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "releases"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
N_DOWNLOADS = 4

# Other packages whose functions the integrations replace, with their first and last version that
# the tested releases were used with.
OTHER_PACKAGES = {
    "kserve": {"starlette": ("0.49.1", "1.10")},
    "mlserver": {
        "starlette": ("0.36.3", "0.46"),
        "fastapi": ("0.110.0", "0.115"),
        "pydantic": ("2.13.0", "2.14"),
    },
    "tritonclient": {"geventhttpclient": ("2.3.3", "2.6")},
}

Releases = list[str]


@dataclass
class Package:
    """The releases of a package, and the digests of its functions in each of them."""

    name: str
    tested: tuple[str, str]
    releases: Releases = field(default_factory=list)
    digests: dict[str, dict[str, str | None]] = field(default_factory=dict)  # by function, release

    def is_tested(self, version: str) -> bool:
        last = release(self.tested[1])
        return release(version)[: len(last)] <= last

    @property
    def tested_releases(self) -> Releases:
        return list(filter(self.is_tested, self.releases))


def main() -> None:
    names = [argument for argument in sys.argv[1:] if argument != "--record"]
    if any(name not in OTHER_PACKAGES for name in names):
        sys.exit(f"usage: peer_releases.py [--record] [{'|'.join(OTHER_PACKAGES)} ...]")
    for peer in names or OTHER_PACKAGES:
        integration: Any = import_module(f"tensorwire.integrations.{peer}")
        groups = integration._PATCH.groups()
        functions = [function for group in groups.values() for function in group]
        packages = [Package(peer, integration._PATCH.versions)]
        packages += [Package(name, tested) for name, tested in OTHER_PACKAGES[peer].items()]
        for package in packages:
            own = [f for f in functions if f.partition(".")[0].partition(":")[0] == package.name]
            examine(package, own, is_peer=package.name == peer)
            print("\n".join(report(package)), end="\n\n")
        if "--record" in sys.argv:
            record(integration._PATCH.file, groups, packages)


# --- releases ---


def examine(package: Package, functions: list[str], is_peer: bool) -> None:
    """Download the releases, and compute the digests of the functions in each of them.

    Of other packages than the peer, only the newest of the releases that are not tested matters.
    """
    first = release(package.tested[0])
    found = [v for v in releases_of(package.name) if release(v) >= first]
    package.releases = [v for v in found if is_peer or package.is_tested(v) or v == found[-1]]
    package.digests = {function: {} for function in functions}
    with ThreadPoolExecutor(N_DOWNLOADS) as threads:
        wheels = list(threads.map(lambda v: download(package.name, v), package.releases))
    for version, wheel in zip(package.releases, wheels, strict=True):
        with ZipFile(wheel) as archive:
            sources = WheelSources(archive)
            for function, digests in package.digests.items():
                digests[version] = sources.digest(function)


class WheelSources(Sources):
    """The sources of the modules in a wheel."""

    def __init__(self, archive: ZipFile) -> None:
        super().__init__(self.read_module)
        self.archive = archive

    def read_module(self, module: str) -> bytes | None:
        path = module.replace(".", "/")
        for name in self.archive.namelist():
            inside = re.sub(r"^[^/]*\.data/(purelib|platlib)/", "", name)
            if inside in (f"{path}.py", f"{path}/__init__.py"):
                return self.archive.read(name)
        return None


def releases_of(name: str) -> Releases:
    """Return the releases of a package on the index, the oldest first."""
    done = subprocess.run(
        [*PIP, "index", "versions", "--ignore-requires-python", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # pip warns that the command is experimental
        text=True,
        check=True,
    )
    found = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if not found:
        sys.exit(f"pip found no release of {name}")
    return sorted(found[1].split(", "), key=release)


def download(name: str, version: str) -> Path:
    """Return the wheel of a release, which is downloaded if necessary, without dependencies."""
    pattern = f"{name}-{version}-*.whl"
    if not list(WHEELS.glob(pattern)):
        options = ["-qq", "--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
        command = [*PIP, "download", *options, "--dest", str(WHEELS), f"{name}=={version}"]
        subprocess.run(command, check=True)
    return next(WHEELS.glob(pattern))


# --- the report and the recorded digests ---


def report(package: Package) -> Iterator[str]:
    """Describe in which releases a function changed; one line for each change."""
    first, last = package.releases[0], package.releases[-1]
    yield (
        f"{package.name}: {len(package.releases)} releases, {first} to {last}; "
        f"tested: {package.tested[0]} to {package.tested[1]}"
    )
    n_unchanged = 0
    for function, digests in sorted(package.digests.items()):
        changes = [f"  {function}: missing in {first}"] if digests[first] is None else []
        for before, version in pairwise(package.releases):
            if digests[version] != digests[before]:
                state = "changed" if digests[version] else "missing"
                changes.append(f"  {function}: {state} in {version}")
        n_unchanged += not changes
        yield from changes
    yield f"  the other functions ({n_unchanged} of {len(package.digests)}) are the same in all"
    newer = [version for version in package.releases if not package.is_tested(version)]
    for version in newer:
        others = [
            function
            for function, digests in package.digests.items()
            if digests[version] not in {digests[v] for v in package.tested_releases}
        ]
        if others:
            yield f"  {version} has sources that no tested release has: {', '.join(others)}"
    if newer:
        yield f"  newer than the tested releases: {', '.join(newer)}"


def record(file: Path, groups: dict[str, dict[str, Any]], packages: list[Package]) -> None:
    """Write the digests of the tested releases, with the releases of each digest."""
    found = {f: digests for package in packages for f, digests in package.digests.items()}
    table: dict[str, dict[str, str]] = {}
    for function in found:
        package = next(p for p in packages if function in p.digests)
        versions = package.tested_releases
        digests = [found[function][version] for version in versions]
        if digests[-1] is None:
            sys.exit(f"{function} is not defined in {package.name} {versions[-1]}")
        table[function] = {
            digest: spans(versions, [d == digest for d in digests])
            for digest in dict.fromkeys(digests)
            if digest
        }
    sections = []
    for name, functions in groups.items():
        rows = (f"  {json.dumps(f)}: {json.dumps(table[f])}" for f in sorted(functions))
        sections.append(f" {json.dumps(name)}: {{\n" + ",\n".join(rows) + "}")
    text = "{\n" + ",\n".join(sections) + "\n}\n"
    if file.exists() and file.read_text("ascii") == text:
        print(f"{file} is up to date")
        return
    file.write_text(text, "ascii")
    print(f"wrote {file}")


def spans(versions: Releases, selected: list[bool]) -> str:
    """Return the selected versions: `1.0 to 1.3, 1.5` if 1.4 is not selected."""
    groups = groupby(zip(versions, selected, strict=True), key=itemgetter(1))
    runs = [[version for version, _ in group] for is_selected, group in groups if is_selected]
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


if __name__ == "__main__":
    main()
