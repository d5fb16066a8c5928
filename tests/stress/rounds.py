"""Random calls of a server in rounds, from several processes: what both soak programs share.

After each round, the memory of the idle server is measured. It must not grow after the first one.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from support.http_exchange import Echo, echo

N_CALLS, N_PROCESSES, N_ROUNDS = 1_000_000, 4, 5
# In seconds, for a call. The timeouts of the tests would be too short on a busy machine.
TIMEOUT = 60.0
MAX_WRONG = 20  # descriptions that a process collects before it stops
LENGTHS = [1, 1, 1, 10, 10, 100, 1000, 20_000]


class Memory(NamedTuple):
    """The memory of an idle server."""

    n_blocks: int  # of Python, which include all objects
    malloc_nbytes: int  # in use
    resident_nbytes: int  # of all processes


# How much more the server may use after the last round than after the first one: a constant, for
# caches, an amount per call, and one per gRPC call that the client cancelled or whose deadline
# expired. grpcio leaks the operations of such calls, up to 480 bytes of a call and 10 to 140 on
# average, whatever the method does (grpc/grpc#43360).
ALLOWED_GROWTH = Memory(1000, 50_000, 4 << 20)
ALLOWED_PER_CALL = (0.02, 5, 0)
ALLOWED_PER_CANCELLED = (0, 200, 200)


@dataclass
class Tally:
    """The numbers of calls by kind, and descriptions of wrong responses."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    n_cancelled: int = 0  # by the client, or because a deadline expired

    @property
    def n_all(self) -> int:
        return self.counts.total()


class Calls:
    """Makes the calls of one process in one round, and checks the responses."""

    WEIGHTS: ClassVar[dict[str, int]]  # how often each method is called, which returns its calls
    ERRORS: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, name: str) -> None:
        self.name, self.rng = name, random.Random(name)
        self.n_made = self.n_cancelled = 0

    def numbers(self) -> tuple[str, range]:
        """Return an id and the numbers of a request. Both are different for each request."""
        self.n_made += 1
        first = self.rng.getrandbits(40)
        numbers = range(first, first + self.rng.choice(LENGTHS))
        return f"{self.name}, request {self.n_made}", numbers

    def request(self) -> Echo:
        id, numbers = self.numbers()
        return echo(id, tuple(numbers))

    def recover(self) -> None:
        """Prepare the next call after a wrong one."""

    def close(self) -> None:
        raise NotImplementedError

    def run(self, n_calls: int) -> Tally:
        tally = Tally()
        while tally.n_all < n_calls and len(tally.wrong) < MAX_WRONG:
            [kind] = self.rng.choices([*self.WEIGHTS], [*self.WEIGHTS.values()])
            try:
                n = getattr(self, kind)()
            except self.ERRORS as error:
                tally.wrong.append(f"{self.name} after {tally.n_all}: {error!r}"[:1000])
                kind, n = "wrong", 1
                self.recover()
            tally.counts[kind] += n
        self.close()
        tally.n_cancelled = self.n_cancelled
        return tally


def run_process(make: Callable[[str], Calls], name: str, n_calls: int) -> Tally:
    return make(name).run(n_calls)


def growth(samples: list[Memory], n_calls: int, n_cancelled: int) -> Iterator[str]:
    """Describe which sizes have grown too much from the first to the last sample."""
    amounts = zip(ALLOWED_GROWTH, ALLOWED_PER_CALL, ALLOWED_PER_CANCELLED, strict=True)
    for name, each, (constant, per_call, per_cancelled) in zip(
        Memory._fields, zip(*samples, strict=True), amounts, strict=True
    ):
        if each[-1] - each[0] > constant + per_call * n_calls + per_cancelled * n_cancelled:
            yield f"{name} grows by {each[-1] - each[0]} in {n_calls} calls: {each}"


def run(title: str, make: Callable[[str], Calls], measure: Callable[[], Memory]) -> list[str]:
    """Make the calls that the command line asks for, and return what was wrong.

    A round with a wrong response is the last one.
    """
    n_calls, n_processes = [*map(int, sys.argv[1:3]), *(N_CALLS, N_PROCESSES)[len(sys.argv) - 1 :]]
    share = math.ceil(n_calls / n_processes / N_ROUNDS)
    tally, samples, n_cancelled_later = Tally(), list[Memory](), 0
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(n_processes) as pool:
        for number in range(N_ROUNDS):
            work = [(make, f"client {number}.{i}", share) for i in range(n_processes)]
            for part in pool.starmap(run_process, work):
                tally.counts += part.counts
                tally.wrong += part.wrong
                n_cancelled_later += part.n_cancelled if number else 0
            if tally.wrong:
                return tally.wrong
            samples.append(measure())
    rate = tally.n_all / (time.perf_counter() - started)
    print(f"{title}: {tally.n_all} calls, {rate:.0f}/s; after each round:")
    for name, sizes in zip(Memory._fields, zip(*samples, strict=True), strict=True):
        print(f"  {name}: " + ", ".join(f"{size:,}" for size in sizes))
    print("  " + ", ".join(f"{n} {kind}" for kind, n in sorted(tally.counts.items())), flush=True)
    return [*growth(samples, share * n_processes * (N_ROUNDS - 1), n_cancelled_later)]
