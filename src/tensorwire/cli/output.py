"""What the commands print.

Names, values and errors of others can contain characters that control a terminal, or that change
the order in which text is shown. Whatever the commands print is escaped by `escape`.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from textwrap import indent
from threading import Timer
from typing import Any, NoReturn

from ..client import Progress

DRAW_SECONDS = 0.1  # minimum time between two updates of the progress bar
MIN_SHOWN_NBYTES = 8_000_000  # bodies of this size or more get a progress bar at once
WAITING = "waiting for the response"
SLOW_SECONDS = 1.0  # calls that take this long get one, too


class UsageError(Exception):
    """The arguments do not match the command, the model or the machine. The exit status is 2."""


class CommandError(Exception):
    """The command has failed. The exit status is 1."""


class OutputError(Exception):
    """The standard output cannot be written. The cause is an OSError."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are escaped."""

    def error(self, message: str) -> NoReturn:
        super().error(escape_lines(message))


def escape(text: str) -> str:
    """Escape all characters that are not printable, as ``repr`` does."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def escape_lines(text: str) -> str:
    """Escape a text, except for its line feeds."""
    return "\n".join(map(escape, text.split("\n")))


def print_line(line: str = "") -> None:
    """Write an escaped line to the standard output. Raises OutputError."""
    try:
        print(escape(line))
    except OSError as error:
        raise OutputError from error


def flush_output() -> None:
    """Write what `print_line` and others have printed. Raises OutputError."""
    if sys.stdout is None:  # the file descriptor was closed when the program began
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OutputError from error


def discard_output(error: OutputError, program: str) -> int:
    """Report that the output cannot be written, and return the exit status.

    As for other programs, it is no error if the reader of a pipe needs no more.
    """
    # The interpreter would write the rest at its end, and fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error.__cause__, BrokenPipeError):
        return 128 + getattr(signal, "SIGPIPE", 13)  # Windows has no such signal
    print_error(f"{program}: the output cannot be written: {error.__cause__}")
    return 1


def print_error(line: str) -> None:
    """Write an escaped line to the standard error."""
    _write_error(f"{escape(line)}\n")


class ProgressBar:
    """A line on stderr that is overwritten, for large or slow calls and if stderr is a terminal."""

    def __init__(self) -> None:
        self._text = WAITING
        self._drawn_at = float("-inf")
        self._timer = Timer(SLOW_SECONDS, self._draw)
        self._timer.daemon = True

    def __enter__(self) -> ProgressBar:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._drawn_at > 0:
            self._text = ""
            self._draw()

    def update(self, progress: Progress) -> None:
        """Show how much has been transferred, unless this was drawn shortly before."""
        label, done, total = "receiving", progress.received_nbytes, progress.response_nbytes
        if not done:
            label, done, total = "sending", progress.sent_nbytes, progress.request_nbytes
        self._text = f"{label} {done / 1e6:,.1f} MB"
        if label == "sending" and done == total:
            self._text = WAITING
        elif total is not None:
            filled = "#" * int(30 * done / total)
            self._text = f"{label} [{filled:<30}] {done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
        is_shown = (total or done) >= MIN_SHOWN_NBYTES or not self._timer.is_alive()
        if is_shown and (done == total or time.monotonic() - self._drawn_at >= DRAW_SECONDS):
            self._draw()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        if sys.stderr is not None and sys.stderr.isatty():
            _write_error(f"\r{self._text}\x1b[K")


def _write_error(text: str) -> None:
    with suppress(OSError):  # the exit status remains
        print(text, end="", file=sys.stderr, flush=True)


def escape_record(record: logging.LogRecord) -> bool:
    """Escape what a log record contains of others. This is a filter of loggers."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            arg if isinstance(arg, (int, float)) else escape(str(arg)) for arg in record.args
        )
    if record.exc_info:
        text = escape_lines(logging.Formatter().formatException(record.exc_info))
        record.exc_text = indent(text, "  ")  # no line of it looks like that of another record
    return True


class AccessFormatter(logging.Formatter):
    """Formats the records of ``uvicorn.access`` in the common log format of web servers."""

    def format(self, record: logging.LogRecord) -> str:
        client, method, target, version, status = record.args  # type: ignore[misc]
        host, target = (
            # A header of a client can contain any text, which must not look like other fields.
            text.replace(" ", "%20").replace('"', "%22")
            for text in (str(client).rpartition(":")[0] or "-", str(target))
        )
        date = self.formatTime(record, "%d/%b/%Y:%H:%M:%S %z")
        nbytes = getattr(record, "nbytes", "-")
        return f'{host} - - [{date}] "{method} {target} HTTP/{version}" {status} {nbytes}'


def log_config(level: str) -> dict[str, Any]:
    """Return the configuration of the log: each line has its time, level and logger."""
    handler = {"class": "logging.StreamHandler"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "default": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
            "access": {"()": AccessFormatter},
        },
        "handlers": {
            "default": {**handler, "formatter": "default"},
            "access": {**handler, "formatter": "access", "stream": "ext://sys.stdout"},
        },
        "loggers": {
            "tensorwire": {"level": level.upper()},
            "uvicorn": {"level": level.upper()},
            "uvicorn.access": {"handlers": ["access"], "propagate": False},
        },
        "root": {"handlers": ["default"], "level": "WARNING"},
    }
