"""Functions that have the parameters of another function."""

from __future__ import annotations

from functools import update_wrapper
from inspect import Parameter, signature
from types import FunctionType
from typing import Any

PASSED: dict[Any, str] = {
    Parameter.VAR_POSITIONAL: "*{0}",
    Parameter.KEYWORD_ONLY: "{0}={0}",
    Parameter.VAR_KEYWORD: "**{0}",
}


def forwarder(target: Any, original: Any, *, is_async: bool) -> Any:
    """Return a function that calls ``target``, with the names and parameters of ``original``.

    They are in its code, because programs may read them there, and not follow ``__wrapped__``. If
    ``is_async``, it is a coroutine function, and awaits what the target returns.
    """
    # Those of the code, and not what `__signature__` or `__wrapped__` of the original say.
    found = signature(FunctionType(original.__code__, {}, closure=original.__closure__))
    passed = [PASSED.get(p.kind, "{0}").format(p.name) for p in found.parameters.values()]
    begin, call = ("async ", "await ") if is_async else ("", "")
    text = f"""def make(_target):
        {begin}def call{found}: return {call}_target({", ".join(passed)})
        return call"""
    code = compile(text, f"<tensorwire: {original.__qualname__}>", "exec")
    namespace: dict[str, Any] = {}
    exec(code, target.__globals__, namespace)
    made: Any = update_wrapper(namespace["make"](target), original)
    made.__defaults__, made.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    return made
