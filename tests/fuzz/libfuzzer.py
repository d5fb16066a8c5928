"""Run one target under libFuzzer: `python -m fuzz.libfuzzer TARGET [OPTIONS] [CORPUS ...]`.

run.py starts this program and prepares its environment.
"""

from __future__ import annotations

import gc
import shlex
import sys

import atheris

with atheris.instrument_imports(include=["tensorwire", "support.reference"]):
    import tensorwire  # noqa: F401
    from support import reference  # noqa: F401

from fuzz.mutations import mutated
from fuzz.targets import TARGETS


def main() -> None:
    name = sys.argv.pop(1)
    # libFuzzer runs this command, through a shell, when it merges.
    sys.argv[0] = shlex.join([sys.executable, "-m", "fuzz.libfuzzer", name])

    def mutate(data: bytes, max_nbytes: int, seed: int) -> bytes:
        return mutated(name, bytes(data), max_nbytes, seed, atheris.Mutate)

    gc.collect()
    gc.freeze()  # imported modules are not traversed in each collection
    atheris.Setup(sys.argv, TARGETS[name], custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
