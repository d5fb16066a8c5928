"""Print the release notes of a tag: `python3 .ci/release_notes.py v1.2.3`.

The notes are the section of the version in CHANGELOG.md. The exit code is 1 if the tag is not the
version in `src/tensorwire/__init__.py`, or if CHANGELOG.md has no dated section of this version.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: release_notes.py TAG")
    tag = sys.argv[1]
    package = (ROOT / "src" / "tensorwire" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', package, re.MULTILINE)
    if version is None or tag != f"v{version[1]}":
        sys.exit(f"the tag is {tag}, but the version is {version and version[1]}")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    section = re.search(
        rf"^## \[{re.escape(version[1])}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |^\[|\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if section is None:
        sys.exit(f"CHANGELOG.md has no section '## [{version[1]}] - YYYY-MM-DD'")
    print(section[1].strip())


if __name__ == "__main__":
    main()
