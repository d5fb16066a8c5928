"""Run episodes of random bytes; see the docstring of the package `fuzz.api`."""

from __future__ import annotations

import argparse
import faulthandler
import gc
from pathlib import Path

from fuzz.api import episode, episode_bytes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz.api", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10_000, help="minimum number of steps")
    parser.add_argument("--episode", type=int, help="run only this one, and print its steps")
    parser.add_argument("--file", type=Path, help="run this input, and print its steps")
    parser.add_argument("--progress", type=Path, help="write the current episode to this file")
    arguments = parser.parse_args()
    faulthandler.enable()
    if arguments.episode is not None or arguments.file is not None:
        data = (
            arguments.file.read_bytes()
            if arguments.file
            else episode_bytes(arguments.seed, arguments.episode)
        )
        print(episode(data, lambda text: print(text, flush=True)), "steps")
        return
    gc.collect()
    gc.freeze()  # imported modules are not traversed in each collection
    n_steps = number = 0
    while n_steps < arguments.steps:
        if arguments.progress:
            arguments.progress.write_text(f"--seed {arguments.seed} --episode {number}\n")
        faulthandler.dump_traceback_later(60, exit=True)
        try:
            n_steps += episode(episode_bytes(arguments.seed, number))
        except BaseException:
            print(f"a finding: --seed {arguments.seed} --episode {number}", flush=True)
            raise
        number += 1
    print(f"{n_steps} steps in {number} episodes: no finding")


if __name__ == "__main__":
    main()
