"""Models: functions with declared tensors, and the checks of what they take and return."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

import tensorwire as tw

from .._codec.messages.lists import choose_datatype, is_list_of_numbers
from ..arguments import check_integer, check_type, format_cast
from ..errors import (
    MAX_ITEMS,
    format_names,
    format_shape,
    format_subject,
    format_text,
    format_value,
)
from .context import RequestContext
from .errors import InputError, InvalidOutputError, RequestError

Result = tw.InferResponse | Mapping[str, Any]
VERSION = "1"  # the version of every model
_MAX_MISMATCHES_TEXT = 1500  # characters of an error
SpecsByName = dict[str, tw.TensorSpec]


class FunctionWithContext(Protocol):
    """A function that takes the context of a request."""

    def __call__(
        self, request: tw.InferRequest, /, *, context: RequestContext
    ) -> Result | Awaitable[Result]: ...


ModelFunction = Callable[[tw.InferRequest], Result | Awaitable[Result]] | FunctionWithContext


class Model:
    """A function with its declared inputs and outputs.

    The arrays that the function reads depend on the transport. Those of binary data are views of
    the request: over HTTP, they are writable, and only the first one is certain to be aligned; over
    gRPC, they are read-only and may all be misaligned. Arrays of JSON data and of typed contents
    are writable and aligned. With ``writable_inputs``, all arrays are.

    Parameters
    ----------
    function : callable
        Takes an ``InferRequest``, and returns an ``InferResponse`` or a mapping of output names to
        arrays, lists or numbers. An async function is awaited. Any other function is called in a
        thread pool, unless ``in_event_loop`` is true. If it has a parameter ``context``, it gets a
        ``RequestContext`` as this keyword argument.
    inputs : sequence of TensorSpec, default ()
        The declared inputs. A request with other inputs is rejected with status 400. If empty, any
        inputs are accepted, and a request is rejected with status 400 if it lacks an input that the
        function reads with ``request[name]``, or if that input has numbers and the function reads
        text. Raw binary requests require exactly one declared input (WIRE.md 5).
    outputs : sequence of TensorSpec, default ()
        The declared outputs. If the function returns an output that is not declared, the response
        has status 500. The function may omit declared outputs. If empty, any outputs are accepted.
    batching : bool, default False
        Whether every declared shape has a batch dimension before its ``dims``.
    in_event_loop : bool, default False
        Whether to call a synchronous function in the thread of the event loop, which saves the cost
        of the thread pool. All other requests wait until the function returns, so use it only for
        functions that take microseconds.
    writable_inputs : bool, default False
        Whether the arrays of all inputs of numbers are writable and aligned, over every transport.
        Those that are not so in the request are copied before the function is called.
    parameters : mapping of str to str, optional
        Parameters for clients, which read them in the configuration of the model, as those of
        Triton: ``{"names": "cat,dog"}`` is ``{"names": {"string_value": "cat,dog"}}``.
    max_batch_size : int, default 0
        The maximum batch size, as in Triton: if it is 1 or more, every declared shape has a batch
        dimension before its ``dims``, and a request with a larger batch is rejected with status
        400. Requests are never combined.

    Raises
    ------
    TypeError
        ``function`` is not callable, ``inputs`` or ``outputs`` is not a sequence of TensorSpecs,
        ``parameters`` is not a mapping of str to str, or ``max_batch_size`` is not an int.
    ValueError
        A tensor is declared twice, ``in_event_loop`` is true for an async function,
        ``max_batch_size`` is negative, or a parameter contains a lone surrogate.

    Examples
    --------
    >>> from tensorwire import TensorSpec
    >>> from tensorwire.server import Model
    >>> def double(request):
    ...     return {"y": request["x"].as_numpy() * 2}
    >>> model = Model(double, [TensorSpec("x", "FP32", [-1])], [TensorSpec("y", "FP32", [-1])])
    """

    def __init__(
        self,
        function: ModelFunction,
        inputs: Sequence[tw.TensorSpec] = (),
        outputs: Sequence[tw.TensorSpec] = (),
        batching: bool = False,
        *,
        in_event_loop: bool = False,
        writable_inputs: bool = False,
        parameters: Mapping[str, str] | None = None,
        max_batch_size: int = 0,
    ) -> None:
        if not callable(function):
            raise TypeError(f"a model must be a function or a Model, not {type(function).__name__}")
        self.function = function
        self.takes_context: bool = takes_context(function)
        self.max_batch_size: int = check_integer("max_batch_size", max_batch_size, minimum=0)
        batching = batching or self.max_batch_size > 0
        self.inputs: SpecsByName = specs_by_name("inputs", inputs, batching)
        self.outputs: SpecsByName = specs_by_name("outputs", outputs, batching)
        specs = list(self.inputs.values())
        self.raw_input: tw.TensorSpec | None = specs[0] if len(specs) == 1 else None
        call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        self.is_async: bool = any(map(inspect.iscoroutinefunction, (function, call)))
        if in_event_loop and self.is_async:
            raise ValueError("in_event_loop is only for synchronous functions")
        self.in_event_loop = in_event_loop
        self.writable_inputs = writable_inputs
        self.parameters: dict[str, str] = checked_parameters(parameters)


Models = Mapping[str, ModelFunction | Model]
"""The models of an application by name: functions, objects with ``__call__`` and ``Model``s."""


def signature_of(function: Any, follow_wrapped: bool = True) -> inspect.Signature:
    """Return a signature. Raises TypeError if there is none, and ValueError if it is unknown."""
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):  # annotations may have names that are only known to a checker
        from annotationlib import Format  # noqa: PLC0415

        options["annotation_format"] = Format.FORWARDREF
    return inspect.signature(function, follow_wrapped=follow_wrapped, **options)


def takes_context(function: Any) -> bool:
    """Return whether a function takes a context, which has not been bound by ``partial``.

    A wrapper with ``**kwargs`` passes it on if the wrapped function takes it.
    """
    if isinstance(function, partial) and "context" in function.keywords:
        return False
    try:
        signature_of(function, follow_wrapped=False).bind(None, context=None)
        return "context" in signature_of(function).parameters
    except (TypeError, ValueError):
        return False


def checked_parameters(parameters: Mapping[str, str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    if parameters is not None:
        check_type("parameters", parameters, Mapping, "a mapping of str to str")
        for key, value in parameters.items():
            check_type("a key of parameters", key, str, "a str")
            subject = f"parameters[{format_value(key)}]"
            check_type(subject, value, str, "a str, such as the result of json.dumps")
            f"{key}{value}".encode()  # ValueError for a lone surrogate, which gRPC cannot send
            found[key] = value
    return found


def specs_by_name(
    argument: str, specs: Sequence[tw.TensorSpec], batching: bool = False
) -> SpecsByName:
    check_type(argument, specs, Iterable, "a sequence of TensorSpecs")
    by_name: SpecsByName = {}
    for i, spec in enumerate(specs):
        check_type(f"{argument}[{i}]", spec, tw.TensorSpec, "a TensorSpec")
        if spec.name in by_name:
            raise ValueError(f"{format_subject('tensor', spec.name)} is declared twice")
        is_batched = spec.batching or batching
        by_name[spec.name] = tw.TensorSpec(spec.name, spec.datatype, spec.dims, is_batched)
    return by_name


def as_tensor(name: str, value: Any, declared: SpecsByName) -> tw.Tensor:
    """Convert an item of the mapping that a model returned to a Tensor.

    Numbers and lists of them are converted to the declared datatype, or to the one that numpy
    chooses if the output is not declared.
    """
    if isinstance(value, tw.Tensor):
        return value if value.name == name else value.replace(name=name)
    if value is None:
        raise InvalidOutputError(f"the model returned None for {format_subject('output', name)}")
    if isinstance(value, bool | int | float | str | bytes | list | tuple):
        spec = declared.get(name)
        is_scalar = not isinstance(value, list | tuple)
        items = [value] if is_scalar else value
        datatype = None if spec is None else spec.datatype
        if spec is None and is_list_of_numbers(items):
            items, datatype = choose_datatype(items)
        return tw.Tensor(name, items, datatype=datatype, shape=() if is_scalar else None)
    try:
        return tw.Tensor(name, value)
    except TypeError:
        if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
            raise
        raise InvalidOutputError(
            f"the model returned {type(value).__name__} for {format_subject('output', name)}, "
            "which is not an array, a list or a number"
        ) from None


def as_writable(tensor: tw.Tensor) -> tw.Tensor:
    """Return a tensor whose array, if it has one, is writable and aligned."""
    array = tensor.data
    if not isinstance(array, np.ndarray) or (array.flags.writeable and array.flags.aligned):
        return tensor
    return tensor.replace(data=array.copy(), datatype=tensor.datatype)


def check_inputs(
    tensors: Sequence[tw.Tensor], declared: SpecsByName, receiver: str = "the model"
) -> None:
    """Raise InputError unless the inputs are exactly the declared ones, in any order.

    The decoder has already rejected duplicate names.
    """
    wrong: list[tw.Tensor] = []
    for tensor in tensors:
        spec = declared.get(tensor.name)
        if spec is None:
            subject, known = format_subject("input", tensor.name), format_names(list(declared))
            text = f"unexpected {subject}: {receiver} takes {known}"
            raise InputError(text, tensor=tensor.name)
        if not spec.accepts(tensor):
            wrong.append(tensor)
    if wrong:
        texts = [
            f"{format_subject('input', tensor.name)} is "
            + format_mismatch(tensor, declared[tensor.name], receiver)
            for tensor in wrong[:MAX_ITEMS]
        ]
        text = format_text("; ".join(texts), _MAX_MISMATCHES_TEXT)
        raise InputError(text, tensor=wrong[0].name)
    if len(tensors) < len(declared):
        missing = min(declared.keys() - {tensor.name for tensor in tensors})
        raise InputError(f"{format_subject('input', missing)} is missing", tensor=missing)


def check_batch_size(tensors: Sequence[tw.Tensor], max_batch_size: int) -> None:
    """Raise InputError if the first dimension of an input exceeds the maximum batch size."""
    for tensor in tensors:
        if tensor.shape[:1] > (max_batch_size,):
            raise InputError(
                f"{format_subject('input', tensor.name)} has a batch of {tensor.shape[0]}, but the "
                f"maximum batch size of the model is {max_batch_size}",
                tensor=tensor.name,
            )


def check_requested_outputs(request: tw.InferRequest) -> None:
    """Raise RequestError if a requested output has a parameter that Triton would not ignore.

    With ``classification``, Triton returns the K highest elements as text instead of the output,
    and with ``shared_memory_region``, it writes the output to shared memory.
    """
    for output in request.outputs or ():
        for parameter in ("classification", "shared_memory_region"):
            if output.parameters.get(parameter) not in (None, 0):
                raise RequestError(
                    f"{format_subject('requested output', output.name)} has the parameter "
                    f"{parameter}, which is not supported: without it, the whole output is in the "
                    "response",
                    tensor=output.name,
                )


def check_outputs(tensors: Sequence[tw.Tensor], declared: SpecsByName) -> None:
    """Raise InvalidOutputError unless all outputs are declared. Declared outputs may be absent."""
    for tensor in tensors:
        spec = declared.get(tensor.name)
        if spec is None:
            raise InvalidOutputError(
                f"the model returned {format_subject('output', tensor.name)}, which is not "
                f"declared: the model declares {format_names(list(declared))}"
            )
        if not spec.accepts(tensor):
            raise InvalidOutputError(
                f"{format_subject('output', tensor.name)} is {format_mismatch(tensor, spec)}"
            )


def format_mismatch(tensor: tw.Tensor, spec: tw.TensorSpec, declarer: str = "the model") -> str:
    found, declared = format_shape(tensor.shape), format_shape(spec.shape)
    text = f"{tensor.datatype} {found}, but {declarer} declares {spec.datatype} {declared}"
    cast = format_cast(tensor.name, tensor.datatype, spec.datatype)
    return f"{text}: use {cast}" if cast else text
