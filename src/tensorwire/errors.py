"""The exceptions, and functions that format parts of their messages.

Functions that check the data of a tensor do not know its name. They raise errors whose message
contains the placeholder SUBJECT. Their callers, which know the tensor, replace the placeholder with
`name_tensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# A placeholder. Other parts of such messages contain no NUL: names are formatted like repr().
SUBJECT = "\0"

# What a message contains of other people's data. With these bounds, no message exceeds 2,000
# characters, whatever the names, shapes and values are.
MAX_TEXT = 80  # characters of a name or value
MAX_FOREIGN_TEXT = 500  # characters of an error message of other code
MAX_ITEMS = 8  # names of a list, and dimensions of a shape


class TensorwireError(Exception):
    """Base class of all errors of this package.

    Attributes
    ----------
    tensor : str or None
        Name of the tensor. This and the following attributes are None if they do not apply.
    element : int or None
        Flat, row-major index of the element.
    offset : int or None
        Position in the body, message or buffer, in bytes.
    expected, actual : int or None
        The expected and the actual number, or a limit and the number that exceeds it. The message
        contains the unit.
    status : int
        The HTTP status with which a server should respond.
    url : str or None
        The URL of the call of a client that has failed; that of the server over gRPC.

    Examples
    --------
    >>> import tensorwire as tw
    >>> try:
    ...     tw.decode_bytes(b"\\x09\\x00\\x00\\x00abc")
    ... except tw.TensorwireError as error:
    ...     print(type(error).__name__, error.element, error.offset, error.expected, error.actual)
    ElementError 0 0 9 3
    """

    status: int = 500
    url: str | None = None

    def __init__(
        self,
        message: str,
        *,
        tensor: str | None = None,
        element: int | None = None,
        offset: int | None = None,
        expected: int | None = None,
        actual: int | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.tensor = tensor
        self.element = element
        self.offset = offset
        self.expected = expected
        self.actual = actual
        if status is not None:
            self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, self.__dict__


class DecodeError(TensorwireError, ValueError):
    """The bytes are not a valid message, or are BF16 and ml_dtypes is not installed.

    ``status`` is 400, unless a subclass has another one.
    """

    status = 400


class HeaderError(DecodeError):
    """The JSON header or its length, or a field of a gRPC message, is invalid.

    The rules are in WIRE.md 1, 3, 4 and 12.
    """


class LayoutError(DecodeError):
    """Shapes, sizes, typed contents and the length of the body do not agree.

    The rules are in WIRE.md 1, 3, 4, 5 and 12.
    """


class ElementError(DecodeError):
    """An element of a BYTES, BOOL or JSON tensor, or of typed contents, is invalid.

    The rules are in WIRE.md 2 to 4 and 12.
    """


class BodyTooLargeError(DecodeError):
    """The body is longer than a limit, or there is no memory for it.

    ``status`` is 413. It is 503 if the body could be received at another time.
    """

    status = 413


class DecompressionError(DecodeError):
    """The body is compressed, and cannot be decompressed."""


class InferenceServerError(TensorwireError):
    """The server responded with an HTTP status that is not 2xx, or with a gRPC status of an error.

    Attributes
    ----------
    status : int
        The HTTP status of the response, or the one that corresponds to a gRPC status: 404 for
        NOT_FOUND, for example. 500 for an error in a stream, which has no status.
    message : str
        The error message of the server, shortened to 2000 characters: the ``error`` member of a
        JSON body, or the text of any other body.
    model : str or None
        The name of the model. None if the request does not concern a model.
    retry_after : float or None
        The number of seconds in the Retry-After header of the response. None if there is none.
    id : str or None
        The id of the request that has failed, for an error in a stream that names it.

    Examples
    --------
    >>> from tensorwire.client import Client, InferenceServerError
    >>> client = Client("localhost:8000")
    >>> try:                                              # doctest: +SKIP
    ...     client.infer("resnet50", {"x": np.ones(3)})
    ... except InferenceServerError as error:
    ...     print(error.status, error.model, error.message)
    404 resnet50 model 'resnet50' is not known: the models are ['resnet18']
    """

    message: str = ""
    model: str | None = None
    retry_after: float | None = None
    id: str | None = None


class ErrorResponseError(InferenceServerError, DecodeError):
    """The bytes are the error of a server, and not a response with outputs.

    ``status`` is 400, because the message does not contain that of the server. ``message`` is
    shortened to 500 characters.
    """

    @classmethod
    def quoting(cls, text: str) -> ErrorResponseError:
        message = format_text(text, MAX_FOREIGN_TEXT)
        error = cls(f"the server returned an error: {message}")
        error.message = message
        return error


class EncodeError(TensorwireError, ValueError):
    """The message cannot be encoded as an HTTP body or a gRPC message.

    ``status`` is 500. It is 400 if a request can be the cause: if the request selects an output
    that does not exist, or if data cannot be sent as JSON (FP16, BF16, and BYTES that are not valid
    UTF-8).
    """


class TensorNotFoundError(TensorwireError, KeyError):
    """A message has no tensor with the name.

    ``status`` is 400 for a request, because servers read its inputs by their names, and 500 for a
    response.

    Attributes
    ----------
    tensors : tuple of Tensor or None
        The tensors of the message; None after unpickling.
    """

    status = 400
    tensors: tuple[Any, ...] | None = None

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would add quotation marks

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {**self.__dict__, "tensors": None}


class DatatypeError(TensorwireError, TypeError):
    """A method of BYTES was called for a tensor of another datatype.

    ``status`` is 400, because the client of a server chooses the datatype of an input.
    """

    status = 400


class IntegrationError(TensorwireError, ImportError):
    """An integration does not support the installed version of a package, and changed nothing.

    Attributes
    ----------
    distribution : str or None
        Name of the package's distribution.
    installed : str or None
        Its installed version; None if it is not installed.
    tested : str or None
        The versions that the integration was tested with, for example ``"2.60 to 2.73"``.
    """

    def __init__(
        self,
        message: str,
        *,
        distribution: str | None = None,
        installed: str | None = None,
        tested: str | None = None,
    ) -> None:
        super().__init__(message)
        self.distribution = distribution
        self.installed = installed
        self.tested = tested


def name_tensor(error: Exception, kind: str, name: str | None) -> None:
    """Replace SUBJECT in the message of an error by the kind and the name of a tensor.

    An error whose message does not contain SUBJECT is not changed. ``kind`` is "input", "output" or
    "tensor", for example. If ``name`` is None, only the kind is inserted.
    """
    if name_subject(error, format_subject(kind, name)) and isinstance(error, TensorwireError):
        error.tensor = name


def name_subject(error: Exception, text: str) -> bool:
    """Replace SUBJECT in the message of an error by a text. Return whether it was there."""
    message = error.args[0] if error.args else None
    if not isinstance(message, str) or SUBJECT not in message:
        return False
    error.args = (message.replace(SUBJECT, text, 1), *error.args[1:])
    return True


def format_subject(kind: str, name: str | None) -> str:
    """Return the subject of a message: ``input 'image'``, or ``the input`` without a name."""
    if name is None:
        return f"the {kind}"
    return f"{kind} {format_value(name)}"


def format_text(text: object, max_length: int = MAX_TEXT) -> str:
    """Format the ``str`` of an object without quotes. A long one is cut."""
    text = str(text)
    return text if len(text) <= max_length else f"{text[:max_length]}..."


def format_value(value: object) -> str:
    """Format a name or another untrusted value: ``'image'``, ``5``, ``None``, ``list``.

    A long text is cut: ``'aaa'...``. The methods of subclasses are not called.
    """
    if isinstance(value, str):
        text = str.__str__(value)
        n_shown = MAX_TEXT
        while len(shown := repr(text[:n_shown])) > 2 * MAX_TEXT:  # it has many escapes
            n_shown //= 2
        return shown if len(text) <= n_shown else f"{shown}..."
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int):
        return format_number(int.__index__(value))
    if isinstance(value, float):
        return float.__repr__(value)
    return type(value).__name__


def format_names(names: Sequence[object]) -> str:
    """Format a list of names, abbreviating long ones: ``['a', 'b']``, ``['a', ... 9 names]``."""
    shown = [format_value(name) for name in names[:MAX_ITEMS]]
    if len(names) > MAX_ITEMS:
        shown.append(f"... {len(names)} names")
    return f"[{', '.join(shown)}]"


def format_number(number: int) -> str:
    """Format an untrusted integer, abbreviating very large values."""
    if number.bit_length() <= 64:
        return str(number)
    return "more than 2^64" if number > 0 else "less than -2^64"


def format_count(noun: str, number: int) -> str:
    """Return the number and the noun: ``1 byte``, ``2 bytes``."""
    return f"{format_number(number)} {noun}{'' if number == 1 else 's'}"


def format_seconds(seconds: float) -> str:
    """Return a duration: ``1 second``, ``0.5 seconds``."""
    return f"{seconds:g} second" if seconds == 1 else f"{seconds:g} seconds"


def format_shape(shape: Sequence[int]) -> str:
    """Format an untrusted shape, abbreviating long ones: ``[2, 3]``, ``[1, ... 9 dimensions]``."""
    dims = [format_number(dim) for dim in shape[:MAX_ITEMS]]
    if len(shape) > MAX_ITEMS:
        dims.append(f"... {len(shape)} dimensions")
    return f"[{', '.join(dims)}]"
