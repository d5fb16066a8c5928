"""Run many examples of a property without a fuzzer: `python -m fuzz.campaign grpc_message`.

A failing example is printed with the options that repeat it.
"""

from __future__ import annotations

import argparse

import test_properties
from support.strategies import run_examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("property", help="a test of test_properties.py, without test_")
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--begin", type=int, default=0, help="the number of the first example")
    options = parser.parse_args()
    test = getattr(test_properties, f"test_{options.property}")
    run_examples(test, options.examples, options.seed, options.begin)
    print(f"{options.property}: {options.examples} examples")


if __name__ == "__main__":
    main()
