"""How the benchmarks measure two states in turns."""

from __future__ import annotations

from itertools import pairwise

import pytest

from support.requirements import package

package("pytest_benchmark")

from benchmarks import measure  # noqa: E402

pytestmark = [
    pytest.mark.no_sanitizers(reason="it tests Python code"),
    pytest.mark.thread_unsafe(reason="it replaces the clock of a module"),
]

N_PAIRS, ROUND_SECONDS = 4, 0.05
CALL_SECONDS = {False: 0.01, True: 0.001}


class Machine:
    """A clock, and a function that takes less time in one of two states."""

    slower_per_switch = 1

    def __init__(self) -> None:
        self.now = 0.0
        self.slowdown = 1
        self.states = [False]
        self.switched = [0.0]  # the times of the switches

    def call(self, argument: str) -> None:
        assert argument == "argument"
        self.now += CALL_SECONDS[self.states[-1]] * self.slowdown

    def switch(self, state: bool) -> None:
        self.states.append(state)
        self.switched.append(self.now)
        self.slowdown *= self.slower_per_switch


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(measure, "perf_counter", lambda: machine.now)
    monkeypatch.setattr(measure.Pairs, "n_pairs", N_PAIRS)
    return machine


def test_ratio_is_the_median_of_the_ratios_of_pairs(machine: Machine) -> None:
    machine.slower_per_switch = 2
    first, second = measure.measure_pairs(machine.call, "argument", machine.switch, ROUND_SECONDS)
    assert second["ratio"] == pytest.approx((5 + 20) / 2)
    # The rounds of the first state are slower by 1, 8, 16 and 128, the others by 2, 4, 32 and 64.
    assert first["median"] / second["median"] == pytest.approx(10 * 24 / 36)
    assert first["rounds"] == second["rounds"] == N_PAIRS


def test_rounds_are_long_enough_in_both_states(machine: Machine) -> None:
    measure.measure_pairs(machine.call, "argument", machine.switch, ROUND_SECONDS)
    assert machine.states[3:-1] == [False, True, True, False] * (N_PAIRS // 2)
    assert machine.states[-1] is False
    # The first two switches are those that choose the number of calls.
    for start, end in pairwise(machine.switched[3:]):
        assert end - start >= ROUND_SECONDS / 2
