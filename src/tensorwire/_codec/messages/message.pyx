"""Requests and responses."""

cimport cython

from ..messages.convert cimport iterator_of
from ..messages.parameters cimport (
    checked_flag, checked_name, checked_text, exact_str, own_parameters, read_only)
from ..messages.tensor cimport Tensor, make_once

from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import Any, Self, TypeVar

from ..signatures import constructor_signature

from ...errors import (
    EncodeError, TensorNotFoundError, format_names, format_subject, format_value, name_subject,
    name_tensor)

# For annotations and signatures.
Default = TypeVar("Default")
Tensors = Iterable[Tensor] | Mapping[str, Any]
globals().update(Tensor=Tensor)

cdef extern from *:
    """
    #define set_mapping_flag(type) (((PyTypeObject *)(type))->tp_flags |= Py_TPFLAGS_MAPPING)
    """
    void set_mapping_flag(type kind)  # match statements use it

cdef extern from *:
    dict new_dict "__Pyx_PyDict_NewPresized"(Py_ssize_t n_items)  # of Cython

cdef frozenset TEXTS = frozenset(("id", "model_name", "model_version"))  # members of messages


# --- checks of arguments ---


cdef tuple checked_tensors(items, str what):
    """Return the tensors of a message. `items` is a mapping of names to data, or an iterable."""
    cdef tuple tensors
    cdef Py_ssize_t i = 0
    if type(items) is list or type(items) is tuple:
        tensors = tuple(items)
    elif type(items) is Tensor:
        raise TypeError(f"{what} must be a mapping or an iterable of tensors, not a Tensor")
    elif isinstance(items, Mapping):
        named = []
        for name in items:
            named.append(named_tensor(name, items[name]))
        return tuple(named)
    else:
        if hasattr(type(items), "columns"):  # a data frame, or a table of pyarrow
            raise TypeError(
                f"{what} must be a mapping or an iterable of tensors, not {type(items).__name__}: "
                f"pass tensors_from_dataframe({what})")
        # tuple() would allocate memory for the length that an object with __len__ declares.
        iterator = iterator_of(items, what, "a mapping or an iterable of tensors")
        collected = []
        for item in iterator:
            collected.append(item)
        tensors = tuple(collected)
    for item in tensors:
        if type(item) is not Tensor:  # a final class
            shown = "None" if item is None else type(item).__name__
            raise TypeError(f"{what}[{i}] must be a Tensor, not {shown}")
        i += 1
    return tensors


cdef Tensor named_tensor(name, data):
    """Return a tensor of a mapping. A Tensor keeps its parameters and the way it is sent."""
    if type(data) is not Tensor:
        return Tensor(name, data)
    if (<Tensor>data).name != name:
        return (<Tensor>data).replace(name=name)
    return data


cdef dict items_by_name(tuple items, str kind, type error_class):
    """Return tensors or requested outputs by their names, which differ; None for fewer than two."""
    cdef dict by_name
    cdef str name
    cdef Py_ssize_t n_items = 0
    if len(items) < 2:
        return None
    by_name = new_dict(len(items))
    for item in items:
        name = (<Tensor>item).name if type(item) is Tensor else (<RequestedOutput>item).name
        by_name[name] = item
        n_items += 1
        if len(by_name) < n_items:
            raise error_class(f"{format_subject(kind, name)} appears twice", tensor=name)
    return by_name


cdef tuple checked_outputs(items):
    """Return the requested outputs; None for None. An item may also be a name."""
    cdef list checked
    if items is None:
        return None
    checked = []
    if type(items) is not list and isinstance(items, (str, Mapping, Tensor, RequestedOutput)):
        raise TypeError(
            f"outputs must be an iterable of names or RequestedOutput, not {type(items).__name__}")
    for item in iterator_of(items, "outputs", "an iterable of names or RequestedOutput"):
        if isinstance(item, str):
            item = RequestedOutput(item)
        elif type(item) is not RequestedOutput:
            shown = "None" if item is None else type(item).__name__
            raise TypeError(
                f"outputs[{len(checked)}] must be a RequestedOutput or a str, not {shown}")
        checked.append(item)
    cdef tuple outputs = tuple(checked)
    items_by_name(outputs, "requested output", EncodeError)
    return outputs


# --- requests and responses ---


# The garbage collector does not clear messages: see Tensor.
@cython.freelist(8)  # also of the subclasses, which have the same size
@cython.no_gc_clear
cdef class Message:
    """What requests and responses have in common: a mapping of names to tensors, and its copies."""

    def __cinit__(self):
        self.tensors = ()

    @property
    def parameters(self):
        return read_only(self._parameters)

    def __getitem__(self, name):
        cdef Tensor tensor = find(self, name)
        if tensor is not None:
            return tensor
        error = TensorNotFoundError(
            f"no tensor {format_value(name)}: there are {format_names(list(self))}",
            tensor=exact_str(name) if isinstance(name, str) else None,
            status=500 if isinstance(self, InferResponse) else 400)
        error.tensors = self.tensors
        raise error

    def get(self, name: str, default: Default = None) -> Tensor | Default:
        """Return the tensor with a name, or ``default`` if there is none."""
        tensor = find(self, name)
        return default if tensor is None else tensor

    def __contains__(self, name):
        return find(self, name) is not None

    def __iter__(self):
        names = []
        for tensor in self.tensors:
            names.append((<Tensor>tensor).name)
        return iter(names)

    def __len__(self):
        return len(self.tensors)

    def keys(self) -> KeysView[str]:
        """Return a view of the names."""
        return as_dict(self).keys()

    def values(self) -> ValuesView[Tensor]:
        """Return a view of the tensors."""
        return as_dict(self).values()

    def items(self) -> ItemsView[str, Tensor]:
        """Return a view of the pairs of a name and its tensor."""
        return as_dict(self).items()

    def replace(self, **changes: Any) -> Self:
        """Return a message with other values for some arguments of the constructor.

        Parameters
        ----------
        **changes
            Arguments of ``InferRequest`` or ``InferResponse``.

        Returns
        -------
        InferRequest or InferResponse
            The changed copy. Tensors that are not replaced are the same objects.

        Raises
        ------
        EncodeError
            The values are invalid in a message.
        TypeError
            There is no such argument, or it has the wrong type.
        """
        cdef Message copy
        if not changes.keys() <= TEXTS:
            return type(self)(**{**arguments_of(self), **changes})
        # Servers do this with every request. Everything else in the message has been checked.
        copy = new_message(type(self) is InferRequest)
        fill_message(
            copy, self.tensors, self.by_name, self.requested, self._parameters,
            changes.get("id", self.id), changes.get("model_name", self.model_name),
            changes.get("model_version", self.model_version))
        return copy

    __replace__ = replace

    __reversed__ = None  # as in Mapping

    def __copy__(self):
        return self

    def __reduce__(self):
        return _unpickled, (type(self), arguments_of(self))

    def __repr__(self):
        return f"<{type(self).__name__} {list(self.tensors)}>"

    def _repr_html_(self) -> str:
        from .html import tensors_as_html
        return tensors_as_html(self.tensors)


Mapping.register(Message)


cdef Tensor find(Message message, name):
    cdef str wanted
    if not isinstance(name, str):
        return None
    wanted = exact_str(name)
    if message.by_name is not None:
        return message.by_name.get(wanted)
    if message.tensors and (<Tensor>message.tensors[0]).name == wanted:
        return message.tensors[0]
    return None


cdef dict as_dict(Message message):
    """Return a new dict of the tensors, because its views give access to it."""
    if message.by_name is not None:
        return message.by_name.copy()
    return {(<Tensor>tensor).name: tensor for tensor in message.tensors}


cdef dict arguments_of(Message message):
    """Return the arguments for a copy, without objects that can be modified."""
    cdef dict arguments = {
        "id": message.id, "model_name": message.model_name,
        "model_version": message.model_version, "parameters": own_parameters(message._parameters),
    }
    if type(message) is InferRequest:
        return {**arguments, "inputs": message.tensors, "outputs": message.requested}
    return {**arguments, "outputs": message.tensors}


def _unpickled(kind, arguments):
    return kind(**arguments)


@cython.final
@cython.freelist(8)
@cython.no_gc  # it is not in a cycle: its parameters are JSON values
cdef class RequestedOutput:
    """An output that a request selects. It cannot be changed, and compares by identity.

    Parameters
    ----------
    name : str
        Name of the output, without NUL characters.
    binary : bool, optional
        Whether the server should send the output as binary data. By default, this depends on the
        request's parameter ``binary_data_output`` and on the server (WIRE.md 7).
    parameters : mapping, optional
        Other parameters of the output. A ``binary_data`` among them is the value of ``binary`` if
        that is None.

    Attributes
    ----------
    name : str
    binary : bool or None
    parameters : mapping
        The parameters without ``binary_data``. The mapping is read-only.

    Raises
    ------
    EncodeError
        The name contains a NUL, or a parameter is invalid.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> tw.RequestedOutput("probabilities", binary=True)
    <RequestedOutput 'probabilities' binary=True>
    """

    __signature__ = constructor_signature(
        "name: str, *, binary: bool | None = None, parameters: Mapping[str, Any] | None = None"
    )

    def __cinit__(self):
        self.name = ""

    def __init__(self, name, *, binary=None, parameters=None):
        make_once(self, &self.is_made)
        cdef dict own
        cdef str own_name = checked_name(name, "the name of an output")
        try:
            own = own_parameters(parameters)
        except (EncodeError, TypeError) as error:
            name_tensor(error, "output", own_name)
            raise
        if own is not None and "binary_data" in own:
            in_parameters = own.pop("binary_data")
            if binary is None and in_parameters is not None:
                if not isinstance(in_parameters, bool):
                    raise EncodeError(
                        f"binary_data of requested output {format_value(own_name)} must be True "
                        f"or False, not {type(in_parameters).__name__}", tensor=own_name)
                binary = in_parameters
        if binary is not None:
            checked_flag(binary, "binary")
        self.name, self.binary, self._parameters = own_name, binary, own or None

    @property
    def parameters(self):
        return read_only(self._parameters)

    def replace(self, **changes: Any) -> RequestedOutput:
        """Return a requested output with other values for some arguments of the constructor.

        Parameters
        ----------
        **changes
            Arguments of ``RequestedOutput``.

        Returns
        -------
        RequestedOutput
            The changed copy.

        Raises
        ------
        EncodeError
            A value is invalid; see ``RequestedOutput``.
        TypeError
            There is no such argument, or it has the wrong type.
        """
        return RequestedOutput(**{**output_arguments(self), **changes})

    __replace__ = replace

    def __copy__(self):
        return self

    def __reduce__(self):
        return _unpickled, (RequestedOutput, output_arguments(self))

    def __repr__(self):
        return f"<RequestedOutput {self.name!r} binary={self.binary}>"


cdef dict output_arguments(RequestedOutput output):
    """Return the arguments for a copy, without objects that can be modified."""
    return {
        "name": output.name, "binary": output.binary,
        "parameters": own_parameters(output._parameters),
    }


cdef RequestedOutput new_output(str name, binary, dict parameters):
    cdef RequestedOutput output = RequestedOutput.__new__(RequestedOutput)
    output.is_made = True
    output.name = name
    output.binary = binary
    output._parameters = parameters
    return output


@cython.final
@cython.no_gc_clear
cdef class InferRequest(Message):
    """An inference request. It cannot be changed, and compares by identity.

    ``request["name"]`` returns the input with that name. The request is a mapping of names to
    tensors: ``in``, ``len``, ``get``, ``keys``, ``values`` and ``items`` work as for a dict, and
    iterating over it returns the names. The TensorNotFoundError for an unknown name lists the first
    names of the inputs.

    Parameters
    ----------
    inputs : iterable of Tensor, or mapping
        The inputs, in the order of the message, or a mapping of their names to data that ``Tensor``
        accepts.
    outputs : iterable of RequestedOutput or str, optional
        The outputs to return, or their names. By default, or if there are none, all outputs of the
        model.
    id, model_name, model_version : str, optional
        Members of the JSON header.
    parameters : mapping, optional
        Parameters of the request. ``binary_data_output`` (bool) applies to outputs whose ``binary``
        is None (WIRE.md 7).

    Attributes
    ----------
    inputs : tuple of Tensor
        The inputs, in the order of the message.
    outputs : tuple of RequestedOutput or None
        The outputs that the request selects. None selects all.
    id, model_name, model_version : str or None
    parameters : mapping
        A read-only mapping.

    Raises
    ------
    EncodeError
        There are no inputs, a name appears twice, or a parameter is invalid.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> request = tw.InferRequest([tw.Tensor("text", ["a"])], id="1")
    >>> request["text"].shape
    (1,)
    """

    __signature__ = constructor_signature(
        "inputs: Tensors, outputs: Iterable[RequestedOutput | str] | None = None, *, "
        "id: str | None = None, model_name: str | None = None, model_version: str | None = None, "
        "parameters: Mapping[str, Any] | None = None"
    )

    def __init__(
        self, inputs, outputs=None, *,
        id=None, model_name=None, model_version=None, parameters=None,
    ):
        make_once(self, &self.is_made)
        cdef tuple tensors = checked_tensors(inputs, "inputs")
        cdef dict by_name = items_by_name(tensors, "input", EncodeError)
        cdef dict own = None if parameters is None else message_parameters(parameters)
        binary = None if own is None else own.get("binary_data_output")
        if binary is not None and type(binary) is not bool:
            raise EncodeError(
                f"binary_data_output of the request must be True or False, not "
                f"{format_value(binary)}")
        if not tensors:
            raise EncodeError("a request must have at least one input")
        cdef tuple requested = checked_outputs(outputs)
        fill_message(self, tensors, by_name, requested, own, id, model_name, model_version)

    @property
    def inputs(self):
        return self.tensors

    @property
    def outputs(self):
        return self.requested


@cython.final
@cython.no_gc_clear
cdef class InferResponse(Message):
    """The response to an inference request. It cannot be changed, and compares by identity.

    ``response["name"]`` returns the output with that name. The response is a mapping of names to
    tensors; see ``InferRequest``.

    Parameters
    ----------
    outputs : iterable of Tensor, or mapping
        The outputs, in the order of the message, or a mapping of their names to data that
        ``Tensor`` accepts. The order may differ from that of the request.
    model_name, model_version, id : str, optional
        Members of the JSON header.
    parameters : mapping, optional
        Parameters of the response.

    Attributes
    ----------
    outputs : tuple of Tensor
    model_name, model_version, id : str or None
    parameters : mapping
        A read-only mapping.

    Raises
    ------
    EncodeError
        A name appears twice, or a parameter is invalid.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> response = tw.InferResponse([tw.Tensor("text", ["a"])], model_name="echo")
    >>> list(response)
    ['text']
    """

    __signature__ = constructor_signature(
        "outputs: Tensors, *, model_name: str | None = None, model_version: str | None = None, "
        "id: str | None = None, parameters: Mapping[str, Any] | None = None"
    )

    def __init__(
        self, outputs, *, model_name=None, model_version=None, id=None, parameters=None,
    ):
        make_once(self, &self.is_made)
        cdef tuple tensors = checked_tensors(outputs, "outputs")
        cdef dict by_name = items_by_name(tensors, "output", EncodeError)
        cdef dict own = None if parameters is None else message_parameters(parameters)
        fill_message(self, tensors, by_name, None, own, id, model_name, model_version)

    @property
    def outputs(self):
        return self.tensors


for kind in (Message, InferRequest, InferResponse):
    set_mapping_flag(kind)  # Mapping.register() cannot set it for compiled classes
del kind


@cython.final
@cython.no_gc  # it is not in a cycle, as RequestedOutput
cdef class ResponseOptions:
    """What a request says about its response. It cannot be changed, and compares by identity.

    Pass it to ``encode_response`` in place of a request whose inputs are not kept until then.

    Parameters
    ----------
    outputs : iterable of RequestedOutput or str, optional
        The outputs to send, or their names. By default, or if there are none, all are sent.
    binary : bool, default False
        Whether outputs whose ``binary`` is None are sent as binary data: ``binary_data_output`` of
        a request (WIRE.md 7).
    id : str, optional
        The ``id`` of a response that has none.

    Attributes
    ----------
    outputs : tuple of RequestedOutput or None
    binary : bool
    id : str or None

    Raises
    ------
    EncodeError
        An output is listed twice.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> request = tw.InferRequest({"text": ["a"]}, id="1")
    >>> options = tw.ResponseOptions(request.outputs, id=request.id)
    >>> bytes(tw.encode_response(tw.InferResponse({"y": ["b"]}), options))
    b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":["b"]}],"id":"1"}'
    """

    __signature__ = constructor_signature(
        "outputs: Iterable[RequestedOutput | str] | None = None, *, binary: bool = False, "
        "id: str | None = None"
    )

    def __cinit__(self, outputs=None, *, binary=False, id=None):
        self.outputs = checked_outputs(outputs)
        self.binary = checked_flag(binary, "binary")
        self.id = checked_text(id, "id")

    def __copy__(self):
        return self

    def __reduce__(self):
        arguments = {"outputs": self.outputs, "binary": self.binary, "id": self.id}
        return _unpickled, (ResponseOptions, arguments)

    def __repr__(self):
        outputs = None if self.outputs is None else list(self.outputs)
        return f"<ResponseOptions {outputs} binary={self.binary} id={self.id!r}>"


cdef Message new_message(bint is_request):
    """Return a message without tensors, whose fields the caller sets."""
    cdef Message message = (
        InferRequest.__new__(InferRequest) if is_request else InferResponse.__new__(InferResponse))
    message.is_made = True
    return message


cdef int fill_message(
    Message message, tuple tensors, dict by_name, tuple requested, dict parameters,
    id, model_name, model_version,
) except -1:
    """Check the texts, and set all fields. No other code runs while some of them are set."""
    cdef str own_id = checked_text(id, "id")
    cdef str own_model = checked_text(model_name, "model_name")
    cdef str own_version = checked_text(model_version, "model_version")
    message.tensors, message.by_name, message.requested = tensors, by_name, requested
    message.id, message.model_name, message.model_version = own_id, own_model, own_version
    message._parameters = parameters
    return 0


cdef dict message_parameters(parameters):
    try:
        return own_parameters(parameters)
    except (EncodeError, TypeError) as error:
        name_subject(error, "the message")
        raise


cdef binary_data_output(InferRequest request):
    return None if request._parameters is None else request._parameters.get("binary_data_output")
