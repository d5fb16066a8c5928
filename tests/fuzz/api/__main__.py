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
    parser.add_argument("--steps", type=int, default=10_000, help="at least")
    parser.add_argument("--episode", type=int, help="run only this one, and print its steps")
    parser.add_argument("--file", type=Path, help="run this input, and print its steps")
    parser.add_argument("--first", type=int, default=0, help="the first episode")
    parser.add_argument("--progress", type=Path, help="a file for the number of the episode")
    asked = parser.parse_args()
    faulthandler.enable()
    if asked.episode is not None or asked.file is not None:
        data = asked.file.read_bytes() if asked.file else episode_bytes(asked.seed, asked.episode)
        print(episode(data, lambda text: print(text, flush=True)), "steps")
        return
    gc.collect()
    gc.freeze()  # what was imported is not looked through again
    n_steps, number = 0, asked.first
    while n_steps < asked.steps:
        if asked.progress:
            asked.progress.write_text(f"--seed {asked.seed} --episode {number}\n")
        faulthandler.dump_traceback_later(60, exit=True)
        try:
            n_steps += episode(episode_bytes(asked.seed, number))
        except BaseException:
            print(f"a finding: --seed {asked.seed} --episode {number}", flush=True)
            raise
        number += 1
    print(f"{n_steps} steps in {number - asked.first} episodes: no finding")


if __name__ == "__main__":
    main()
