"""What is wrong with this machine for measurements that are published.

Each function of ``CHECKS`` returns a sentence, or an empty one if there is nothing wrong.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import tensorwire as tw

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src", "setup.py", "benchmarks/*.py")
MAX_LOAD = 0.5  # processes that ran or waited for a CPU, on average, in the last minute
MAX_BUSY = 0.05  # of one CPU
BUSY_SECONDS = 1.0


def description() -> str:
    """Return the processor, the number of CPUs and the operating system."""
    model = None
    with suppress(OSError):
        model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    name = model[1] if model else platform.machine()
    return f"{name}, {os.cpu_count()} CPUs, {platform.system()}"


def problems() -> list[str]:
    """Return why results that are measured now cannot be published."""
    return [text for check in CHECKS if (text := check())]


def high_load() -> str:
    load = os.getloadavg()[0]
    return f"the load average of the last minute is {load:.2f}" if load > MAX_LOAD else ""


def busy_process() -> str:
    """Look for one second at the CPU time of all other processes."""
    before = cpu_times()
    time.sleep(BUSY_SECONDS)
    used = {pid: (n - before.get(pid, (0, ""))[0], name) for pid, (n, name) in cpu_times().items()}
    used.pop(os.getpid(), None)
    n_ticks, name = max(used.values(), default=(0, ""))
    share = n_ticks / os.sysconf("SC_CLK_TCK") / BUSY_SECONDS
    return f"{name!r} uses {share:.0%} of a CPU" if share > MAX_BUSY else ""


def cpu_times() -> dict[int, tuple[int, str]]:
    """Return the CPU time in ticks and the name of each process."""
    return {pid: (sum(map(int, fields[11:13])), name) for pid, name, fields in process_stats()}


def process_stats() -> Iterator[tuple[int, str, list[str]]]:
    """Yield the id, the name, and the fields of ``/proc/PID/stat`` after it, for each process."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            # The name is in parentheses, and may contain any character.
            name, _, rest = path.read_text(errors="replace").partition("(")[2].rpartition(")")
            yield int(path.parent.name), name, rest.split()


def uncommitted_changes() -> str:
    git = ["git", "status", "--porcelain", "--", *SOURCES]
    run = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        return f"{ROOT} is not a git checkout"
    changed = [line[3:] for line in run.stdout.splitlines()]
    return f"not committed: {', '.join(changed)}" if changed else ""


def other_build() -> str:
    """Check that the measured extensions are optimised, and compiled from this checkout."""
    package = Path(tw.__file__).resolve().parent
    if package != ROOT / "src" / "tensorwire":
        return f"tensorwire is imported from {package}: install it with `pip install -e .`"
    sources = [path for path in package.rglob("*") if path.suffix in {".pyx", ".pxd", ".h"}]
    newest = max(sources, key=modified)
    for source in sources:
        extension = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
        if source.suffix != ".pyx":
            continue
        if modified(extension) < modified(newest):
            return f"{extension.name} is older than {newest.name}: compile it again"
        if b".debug_info" in extension.read_bytes():
            return f"{extension.name} is compiled with TENSORWIRE_DEBUG"
    return ""


def modified(path: Path) -> float:
    return path.stat().st_mtime


CHECKS = (high_load, busy_process, uncommitted_changes, other_build)
