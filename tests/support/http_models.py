"""The models of tests/test_http_conformance.py, which every server of http_servers.py serves."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tensorwire as tw
from tensorwire.server import Model, RequestError, create_app

from .memory import in_use
from .scale import scaled

MAX_BODY = 8 << 20
RECEIVE_TIMEOUT = 2.0  # seconds
RECEIVE_TIMEOUT_VARIABLE = "TENSORWIRE_TEST_RECEIVE_TIMEOUT"  # another timeout, for `app`
BIG_NBYTES = scaled(100_000_000)
SLEEP = 0.5  # seconds


async def echo(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(request.inputs)


def echo_in_thread(request: tw.InferRequest) -> tw.InferResponse:
    assert threading.current_thread() is not threading.main_thread()
    return tw.InferResponse(request.inputs)


async def raises(_: tw.InferRequest) -> tw.InferResponse:
    raise ValueError("an internal detail that clients must not see")


def raises_in_thread(_: tw.InferRequest) -> tw.InferResponse:
    raise ValueError("an internal detail that clients must not see")


async def rejects(_: tw.InferRequest) -> tw.InferResponse:
    raise RequestError("the image is too small", 422)


def rejects_in_thread(_: tw.InferRequest) -> tw.InferResponse:
    raise RequestError("the quota is exhausted", 429)


async def cancelled(_: tw.InferRequest) -> tw.InferResponse:
    """Fail like a model that waits for a task that was cancelled."""
    raise asyncio.CancelledError


async def leaves(_: tw.InferRequest) -> tw.InferResponse:
    raise GeneratorExit


async def cancels_itself(_: tw.InferRequest) -> tw.InferResponse:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    raise AssertionError("unreachable")


async def nonsense_output(_: tw.InferRequest) -> Any:
    return {"y": np.array([object()])}


async def big(_: tw.InferRequest) -> dict[str, np.ndarray[Any, Any]]:
    """Return an array that no other response shares."""
    return {"y": np.full(BIG_NBYTES, 7, np.uint8)}


async def sleep(request: tw.InferRequest) -> tw.InferResponse:
    await asyncio.sleep(SLEEP)
    return tw.InferResponse(request.inputs)


def sleep_in_thread(request: tw.InferRequest) -> tw.InferResponse:
    time.sleep(SLEEP)
    return tw.InferResponse(request.inputs)


async def never(_: tw.InferRequest) -> tw.InferResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def memory(_: tw.InferRequest) -> dict[str, list[int]]:
    """Collect garbage, return free memory to the operating system, and return what is in use."""
    found = in_use()
    ctypes.CDLL(None).malloc_trim(0)
    return {"in_use": list(found)}


models: dict[str, Callable[..., Any] | Model] = {
    "echo": echo,
    "echo_in_thread": echo_in_thread,
    "raises": raises,
    "raises_in_thread": raises_in_thread,
    "rejects": rejects,
    "rejects_in_thread": rejects_in_thread,
    "rejects_at_once": Model(rejects_in_thread, in_event_loop=True),
    "cancelled": cancelled,
    "leaves": leaves,
    "cancels_itself": cancels_itself,
    "nonsense_output": nonsense_output,
    "big": big,
    "sleep": sleep,
    "sleep_in_thread": sleep_in_thread,
    "never": never,
    "memory": memory,
    "raw": Model(echo, [tw.TensorSpec("x", "INT64", [-1])]),
    "a b": echo,
    "a/b": echo,
    "50%": echo,
    "größe": echo,
}

app = create_app(
    models,
    max_body_nbytes=MAX_BODY,
    receive_timeout=float(os.environ.get(RECEIVE_TIMEOUT_VARIABLE, RECEIVE_TIMEOUT)),
    compress_responses=True,
)
