"""Decimal numbers of all lengths, at all distances from the end of the text.

Most numbers in JSON have a decimal point and no exponent. They are read by a separate function if
enough text follows, and by the general function near the end of the text. Both must round
correctly.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

REGION = 64  # bytes: more than the fast function needs after a number


def read(datatype: str, numbers: list[str], end: str = "]}]}") -> NDArray[Any]:
    entry = f'{{"name":"x","datatype":"{datatype}","shape":[{len(numbers)}],"data":['
    text = f'{{"model_name":"m","outputs":[{entry}{",".join(numbers)}{end}'
    return tw.decode_response(text.encode())["x"].as_numpy()


def bits(values: Any) -> list[int]:
    found: list[int] = np.asarray(values, np.float64).view(np.uint64).tolist()
    return found


def digits(rng: random.Random, n: int) -> str:
    return "".join(rng.choices("0123456789", k=n))


def lengths() -> list[str]:
    """Return numbers with integer parts of 1 to 12 digits, fractions of 1 to 30, and both signs."""
    rng = random.Random(3)
    return [
        f"{sign}{first}{digits(rng, n_whole - 1)}.{digits(rng, n_fraction)}"
        for n_whole in range(1, 13)
        for n_fraction in range(1, 31)
        for sign in ("", "-")
        for first in (["0", "7"] if n_whole == 1 else ["7"])
    ]


def halfway(rng: random.Random) -> str:
    """Return the midpoint of two adjacent doubles, as text of 17 to 19 digits with a fraction."""
    mantissa = rng.randrange(1 << 52, 1 << 53)
    whole, half = divmod(2 * mantissa + 1, 4)
    return f"{whole}.{25 * half:02d}"


def test_numbers_of_all_lengths() -> None:
    numbers = lengths()
    assert bits(read("FP64", numbers)) == bits([float(number) for number in numbers])


def test_numbers_at_all_distances_from_the_end() -> None:
    for number in lengths():
        assert bits(read("FP64", [number])) == bits([float(number)])
    for n_blanks in range(REGION):
        found = read("FP64", ["-3.0625", "0.1"], f"{' ' * n_blanks}]}}]}}")
        assert found.tolist() == [-3.0625, 0.1]


def test_quotients_by_all_powers_of_five() -> None:
    """Numbers of 16 to 19 digits, from the smallest to the largest, divided by 10^1 to 10^27."""
    rng = random.Random(5)
    values = [10**15, 10**15 + 1, 10**19 - 1, (1 << 53) + 1, (1 << 63) - 1, 1 << 63]
    values += [rng.randrange(10**15, 10**19) for _ in range(200)]
    numbers = []
    for exponent in range(1, 28):
        for value in values:
            text = str(value).rjust(exponent + 1, "0")
            numbers.append(f"{text[:-exponent]}.{text[-exponent:]}")
    assert bits(read("FP64", numbers)) == bits([float(number) for number in numbers])


def test_numbers_halfway_between_two_doubles() -> None:
    rng = random.Random(7)
    numbers = [halfway(rng) for _ in range(3000)]
    assert bits(read("FP64", numbers)) == bits([float(number) for number in numbers])
