"""Run one target under libFuzzer: `python -m fuzz.libfuzzer TARGET [OPTIONS] [CORPUS ...]`.

run.py starts this program and prepares its environment. `--show` prints what a property draws.
"""

from __future__ import annotations

import gc
import shlex
import sys

import atheris
from hypothesis import Verbosity, settings

with atheris.instrument_imports(include=["tensorwire", "support.reference"]):
    import tensorwire  # noqa: F401
    from support import reference  # noqa: F401

if "--show" in sys.argv:
    sys.argv.remove("--show")
    settings.register_profile("show", verbosity=Verbosity.verbose)
    settings.load_profile("show")

from fuzz.targets import TARGETS  # the properties take their settings from the profile


def main() -> None:
    name = sys.argv.pop(1)
    # libFuzzer runs this command, through a shell, when it merges.
    sys.argv[0] = shlex.join([sys.executable, "-m", "fuzz.libfuzzer", name])
    target = TARGETS[name]

    def run(data: bytes) -> None:  # atheris does not accept the bytes that a property returns
        target(data)

    gc.collect()
    gc.freeze()  # imported modules are not traversed in each collection
    atheris.Setup(sys.argv, run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
