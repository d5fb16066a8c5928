"""The public API called with arguments and attributes of wrong types or values.

Each call must return or raise a documented exception. Calls that could crash or hang run in a
separate process with a timeout of one minute.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import tensorwire
from support import reference
from support.requirements import package
from support.scripts import run_script
from tensorwire._codec.views import view_tensor

tw: Any = tensorwire  # untyped, because most calls here violate the types

X = np.arange(4, dtype=np.float32)
REQUEST = tw.InferRequest([tw.Tensor("x", X)])


def run(code: str) -> None:
    """Run the code in a new interpreter, and fail after a crash or a deadlock of one minute."""
    watched = (
        "import faulthandler; faulthandler.enable()\n"
        "faulthandler.dump_traceback_later(60, exit=True)\n"
        "import gc\n"
        "import numpy as np\n"
        "import tensorwire as tw\n"
        f"{code}\n"
        "print('done')\n"
    )
    done = run_script(watched, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


# --- messages cannot change ---


@pytest.mark.parametrize("item", [None, "x", X, tw.RequestedOutput("y"), 5])
def test_message_lists_reject_items_of_wrong_types(item: Any) -> None:
    tensor = tw.Tensor("x", X)
    shown = "None" if item is None else type(item).__name__
    with pytest.raises(TypeError, match=rf"inputs\[1\] must be a Tensor, not {shown}$"):
        tw.InferRequest([tensor, item])
    with pytest.raises(TypeError, match=rf"outputs\[0\] must be a Tensor, not {shown}$"):
        tw.InferResponse([item])
    if not isinstance(item, str | tw.RequestedOutput):
        with pytest.raises(
            TypeError, match=rf"outputs\[1\] must be a RequestedOutput or a str, not {shown}$"
        ):
            tw.InferRequest([tensor], ["y", item])


@pytest.mark.parametrize(
    "outputs", ["abc", {"y": 1}, MappingProxyType({"y": 1}), 5, object(), tw.RequestedOutput("y")]
)
def test_names_of_outputs_are_an_iterable(outputs: Any) -> None:
    with pytest.raises(TypeError, match="outputs must be an iterable of names or RequestedOutput"):
        tw.InferRequest([tw.Tensor("x", X)], outputs)


NOT_INTS = "must be a sequence of ints, not int"
NOT_TENSORS = "must be a mapping or an iterable of tensors, not a Tensor"


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (f"inputs {NOT_TENSORS}", lambda: tw.InferRequest(tw.Tensor("x", X))),
        (f"outputs {NOT_TENSORS}", lambda: tw.InferResponse(tw.Tensor("x", X))),
        (f"the shape of tensor 'x' {NOT_INTS}", lambda: tw.Tensor("x", X, shape=5)),
        (f"the shape of tensor 'x' {NOT_INTS}64", lambda: tw.Tensor("x", X, shape=np.int64(5))),
        ("of tensor 'x' .* ints, not ndarray", lambda: tw.Tensor("x", X, shape=np.array(3))),
        ("dims must be an iterable of ints, not int", lambda: tw.TensorSpec("x", "FP32", 5)),
        (
            "inputs must be a mapping or an iterable of tensors, not N",
            lambda: tw.InferRequest(None),
        ),
        (
            "the datatype of tensor 'x' must be a str, not list",
            lambda: tw.Tensor("x", X, datatype=[]),
        ),
        ("datatype must be a str, not list", lambda: tw.TensorSpec("x", [], [1])),
        ("the name of a tensor must be a str, not int", lambda: tw.InferResponse({5: X})),
    ],
)
def test_errors_name_the_argument_and_its_type(message: str, call: Any) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_error_of_an_iterable_is_kept() -> None:
    class Failing:
        def __iter__(self) -> Any:
            raise TypeError("its own text")

    with pytest.raises(TypeError, match="its own text"):
        tw.InferRequest(Failing())


def test_dimension_that_converts_to_several_numbers() -> None:
    class Inconsistent:
        def __index__(self) -> int:
            return 2

        def __int__(self) -> int:
            return 100_000

    two: Any = Inconsistent()
    arrays = [
        view_tensor(b"\1\2", "x", "INT8", (two,), tw.Limits()).as_numpy(),
        tw.Tensor("x", np.ones(2, np.int8), shape=(two,)).as_numpy(),
    ]
    assert [array.shape for array in arrays] == [(2,), (2,)]


def both(frame: tensorwire.Frame) -> tuple[bytes, int | None]:
    return bytes(frame), frame.header_length


def values() -> dict[str, Any]:
    tensor = tw.Tensor("x", X, parameters={"k": 1})
    frame = tw.encode_request(tw.InferRequest([tensor], ["y"], parameters={"k": [1, {"a": 2}]}))
    decoded = tw.decode_request(*both(frame))
    return {
        "Tensor": tensor,
        "Tensor of BYTES": tw.Tensor("x", ["a"]),
        "RequestedOutput": tw.RequestedOutput("y", binary=True, parameters={"k": 1}),
        "InferRequest": tw.InferRequest([tensor], ["y"], id="1"),
        "InferResponse": tw.InferResponse([tensor], parameters={"k": 1}),
        "decoded InferRequest": decoded,
        "decoded Tensor": decoded["x"],
        "decoded RequestedOutput": decoded.outputs[0],
        "TensorSpec": tw.TensorSpec("x", "FP32", [-1]),
        "Limits": tw.Limits(),
        "Frame": frame,
        "BytesArray": tw.decode_bytes(b""),
    }


@pytest.mark.parametrize("kind", values())
def test_attributes_cannot_be_assigned_or_deleted(kind: str) -> None:
    value = values()[kind]
    public = [name for name in dir(value) if not name.startswith("_")]
    for name in [*public, "another"]:
        with pytest.raises(AttributeError):
            setattr(value, name, None)
        with pytest.raises(AttributeError):
            delattr(value, name)


@pytest.mark.parametrize("kind", values())
def test_init_does_not_change_a_value(kind: str) -> None:
    """Python code can call __init__ of an object that exists already."""
    value, other = values()[kind], values()[kind]
    arguments: list[Any] = [
        ("z", np.zeros(9)), (tw.Tensor("z", X),), ("z",), ([tw.Tensor("z", X)],), ((b"z",), 0), (),
        ("z", "INT8", [5]),
    ]  # fmt: skip
    for args in arguments:
        with suppress(TypeError):
            value.__init__(*args)
    assert repr(value) == repr(other)
    if kind == "Frame":
        assert bytes(value) == bytes(other)


@pytest.mark.parametrize("kind", values())
def test_parameters_are_read_only(kind: str) -> None:
    parameters = getattr(values()[kind], "parameters", None)
    if parameters is not None:
        changes: list[Callable[[], Any]] = [
            lambda: parameters.__setitem__("a", 1),
            lambda: parameters.__delitem__("k"),
            lambda: parameters.update(a=1),
            lambda: parameters.pop("k"),
            lambda: parameters["k"].append(1),
            lambda: parameters["k"][1].update(a=1),
        ]
        for change in changes:
            with pytest.raises((TypeError, AttributeError, KeyError)):
                change()


class TakesTheDict:
    """`==` of a MappingProxyType passes the dict behind it to the other object."""

    def __eq__(self, other: Any) -> bool:
        other["evil"] = object()
        return True

    __hash__ = None  # type: ignore[assignment]


def test_comparison_of_parameters_does_not_change_them() -> None:
    for value in values().values():
        if hasattr(value, "parameters"):
            assert value.parameters == TakesTheDict()
            assert "evil" not in value.parameters
    assert dict(tw.Tensor("x", X).parameters) == {}


# Since NumPy 2.5, assigning these attributes is deprecated.
assigns_attributes_of_arrays = pytest.mark.filterwarnings(
    "ignore:Setting the (dtype|shape) on a NumPy array:DeprecationWarning"
)


@assigns_attributes_of_arrays
def test_argument_objects_can_change_afterwards() -> None:
    """A message has copies of lists, dicts and attributes that callers keep."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    parameters: dict[str, Any] = {"k": [1, {"a": 2}]}
    tensors, outputs = [tw.Tensor("x", array, parameters=parameters)], ["y"]
    request = tw.InferRequest(tensors, outputs, parameters=parameters)
    response = tw.InferResponse(tensors, parameters=parameters)
    before = [bytes(tw.encode_request(request)), bytes(tw.encode_response(response))]
    array.shape = (6,)
    array.dtype = np.uint8  # type: ignore[assignment,misc]
    tensors.append(tw.Tensor("z", X))
    outputs.append("z")
    parameters["k"][1]["b"] = 3
    parameters["l"] = object()
    assert [bytes(tw.encode_request(request)), bytes(tw.encode_response(response))] == before
    assert (request["x"].shape, request["x"].data.shape, request["x"].data.dtype) == (
        (2, 3), (2, 3), np.float32,
    )  # fmt: skip


@assigns_attributes_of_arrays
@pytest.mark.parametrize("kind", ["Tensor", "decoded Tensor"])
def test_attributes_of_returned_arrays_can_change(kind: str) -> None:
    tensor = values()[kind]
    before = bytes(tw.encode_raw_request(tensor))
    for array in (tensor.data, tensor.as_numpy(), np.asarray(tensor)):
        array.shape = (2, 2)
        array.dtype = np.uint8  # type: ignore[misc]
        with pytest.raises(ValueError, match="resize"):
            array.resize(100)
    assert (tensor.data.shape, tensor.data.dtype) == ((4,), np.float32)
    assert bytes(tw.encode_raw_request(tensor)) == before
    with pytest.raises(ValueError, match="resize"):
        X.resize(100)


def test_elements_remain_those_of_the_caller() -> None:
    array = np.zeros(3, np.int32)
    tensor = tw.Tensor("x", array)
    frame = tw.encode_request(tw.InferRequest([tensor]))
    array[:] = [1, 2, 3]
    tensor.data[2] = 5
    assert tw.decode_request(*both(frame))["x"].tolist() == [1, 2, 5]


class WrongAttributes(np.ndarray[Any, Any]):
    """An array whose Python attributes differ from its memory."""

    shape = property(lambda self: (1000,))
    dtype = property(lambda self: np.dtype("f8"))

    def reshape(self, *shape: Any, **options: Any) -> Any:
        return np.zeros(1000)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("kind", ["tensor", "mapping"])
def test_subclass_of_ndarray_is_encoded_from_its_memory(binary: bool, kind: str) -> None:
    array = X.view(WrongAttributes)
    tensor = tw.Tensor("x", array, binary=binary)
    assert type(tensor.data) is np.ndarray
    request = tw.InferRequest([tensor] if kind == "tensor" else {"x": array})
    assert tw.decode_request(*both(tw.encode_request(request)))["x"].tolist() == X.tolist()


class ChangesTheCaller(str):
    """A key that changes the caller's array and list while a message is made."""

    array: Any
    tensors: list[Any]

    def __hash__(self) -> int:
        return hash("binary_data_size")

    def __eq__(self, other: object) -> bool:
        self.array.shape = (1, -1)
        self.tensors.clear()
        return False


def test_parameter_key_that_changes_the_arguments() -> None:
    key = ChangesTheCaller("k")
    key.array, key.tensors = X.copy(), []
    tensor = tw.Tensor("x", key.array, parameters={key: 1})
    key.tensors.append(tensor)
    request = tw.InferRequest(key.tensors, parameters={key: 1})
    found = tw.decode_request(*both(tw.encode_request(request)))
    assert (found["x"].shape, found["x"].parameters, found.parameters) == (
        (4,), {"k": 1}, {"k": 1},
    )  # fmt: skip


class ChangesItsArray:
    """A shape, a dimension, a datatype or an array that changes an array when it is used."""

    def __init__(self, array: Any, dtype: Any) -> None:
        self.array, self.dtype = array, dtype

    def change(self) -> None:
        self.array.dtype = self.dtype

    def __iter__(self) -> Iterator[int]:
        self.change()
        yield 4

    def __index__(self) -> int:
        self.change()
        return 4

    def __eq__(self, other: object) -> bool:
        self.change()
        return True

    def __ne__(self, other: object) -> bool:
        self.change()
        return False

    def __hash__(self) -> int:
        return hash("FP32")

    def __array__(self, *_args: Any, **_options: Any) -> Any:
        return self.array


class ChangingInt(ChangesItsArray, int):
    def __new__(cls, *_args: Any) -> Any:
        return int.__new__(cls, 4)


class ChangingStr(ChangesItsArray, str):  # type: ignore[misc]
    def __new__(cls, *_args: Any) -> Any:
        return str.__new__(cls, "FP32")


@assigns_attributes_of_arrays
@pytest.mark.parametrize("dtype", [np.complex128, np.int64, np.int32])
@pytest.mark.parametrize("through_array_method", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        lambda *change: {"datatype": ChangingStr(*change)},
        lambda *change: {"datatype": ChangingStr(*change), "shape": [4]},
        lambda *change: {"shape": ChangesItsArray(*change)},
        lambda *change: {"shape": (ChangesItsArray(*change),)},
        lambda *change: {"shape": (ChangingInt(*change),)},
        lambda *change: {"shape": [ChangingInt(*change)]},
    ],
)
def test_arguments_that_change_the_array(
    arguments: Any, through_array_method: bool, dtype: Any
) -> None:
    """The memory, the datatype and the shape of a tensor agree, whatever an argument does."""
    array = X.copy()
    data: Any = ChangesItsArray(array, dtype) if through_array_method else array
    try:
        tensor = tw.Tensor("x", data, **arguments(array, dtype))
    except tw.EncodeError:  # it was changed before it was read
        return
    assert tensor.nbytes == tensor.data.nbytes == 16
    found = tw.decode_request(*both(tw.encode_request(tw.InferRequest([tensor]))))["x"]
    assert (found.datatype, found.shape) == (tensor.datatype, tensor.shape)
    assert (found.data.dtype, found.tolist()) == (tensor.data.dtype, tensor.tolist())


class ChangesOtherLists(list[Any]):
    """An inner list that removes the one before it."""

    outer: list[Any]

    def __iter__(self) -> Iterator[Any]:
        self.outer.pop(0)
        return super().__iter__()


@pytest.mark.parametrize(("item", "datatype"), [("a", "BYTES"), (1, "INT8"), (1.0, "FP32")])
def test_list_that_changes_another_one(item: Any, datatype: str) -> None:
    outer = [[item], ChangesOtherLists([item])]
    outer[1].outer = outer  # type: ignore[attr-defined]
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # it is copied before it is read
        assert tw.Tensor("x", outer, datatype=datatype).shape == (2, 1)
        return
    with pytest.raises(tw.EncodeError, match="the values were modified while they were encoded"):
        tw.Tensor("x", outer, datatype=datatype)


class BadMapping(dict[str, Any]):
    """A mapping that returns tensors of other names, and a key that it does not have."""

    def __iter__(self) -> Iterator[str]:
        yield "missing"


def test_mappings_that_lie() -> None:
    with pytest.raises(KeyError):
        tw.InferRequest(BadMapping(x=X))
    renamed = tw.InferResponse({"y": tw.Tensor("x", X, parameters={"k": 1}, binary=False)})
    assert [(t.name, t.binary, dict(t.parameters)) for t in renamed.outputs] == [
        ("y", False, {"k": 1})
    ]


# --- objects created without __init__ ---


def test_objects_created_without_init() -> None:
    with pytest.raises(TypeError):
        tw.TensorSpec.__new__(tw.TensorSpec)
    with pytest.raises(TypeError, match="is created by decode_bytes"):
        tw.BytesArray()
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Sub", (tw.BytesArray,), {})
    tensor = tw.Tensor.__new__(tw.Tensor)
    for _ in range(2):
        assert (tensor.name, tensor.datatype, tensor.shape, tensor.tolist()) == (
            "",
            "BYTES",
            (0,),
            [],
        )
        for request in (tw.InferRequest([tensor]), tw.InferRequest.__new__(tw.InferRequest)):
            assert tw.decode_request(*both(tw.encode_request(request)))[""].shape == (0,)
        with pytest.raises((tw.EncodeError, TypeError)):
            tensor.__init__("", X, parameters={"shared_memory_region": "r"})
    response = tw.InferResponse.__new__(tw.InferResponse)
    assert bytes(tw.encode_response(response)) == b'{"outputs":[]}'
    with pytest.raises(tw.EncodeError):
        response.__init__([tensor, tensor])
    assert (list(response), response.outputs) == ([], ())
    assert tw.RequestedOutput.__new__(tw.RequestedOutput).name == ""
    frame = tw.Frame.__new__(tw.Frame)
    assert (bytes(frame), frame.buffers, len(frame)) == (b"", (), 0)


CANNOT_CHANGE = "cannot be changed"


def test_objects_created_without_init_cannot_change_in_a_message() -> None:
    tensor, output = tw.Tensor.__new__(tw.Tensor), tw.RequestedOutput.__new__(tw.RequestedOutput)
    of_mapping = tw.Tensor.__new__(tw.Tensor)
    request = tw.InferRequest([tensor, tw.Tensor("u", X)], [output, "u"])
    response = tw.InferResponse({"": of_mapping})
    default = tw.InferRequest.__new__(tw.InferRequest)
    before = [bytes(tw.encode_request(request)), bytes(tw.encode_response(response))]
    for each in (tensor, of_mapping, default.inputs[0]):
        with pytest.raises(TypeError, match=CANNOT_CHANGE):
            each.__init__("u", X)
    with pytest.raises(TypeError, match=CANNOT_CHANGE):
        output.__init__("u")
    assert [bytes(tw.encode_request(request)), bytes(tw.encode_response(response))] == before
    assert tw.InferRequest.__new__(tw.InferRequest).inputs[0].name == ""


class UsesTheObject(dict[str, Any]):
    """Parameters or data that use the object that is being made."""

    def __init__(self, use: Callable[[], Any]) -> None:
        super().__init__(k=1)
        self.use = use

    def keys(self) -> Any:
        self.use()
        return super().keys()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.use()
        return X

    def __iter__(self) -> Iterator[str]:
        self.use()
        return iter(["y"])

    def __index__(self) -> int:
        self.use()
        return 0


def names_from(use: UsesTheObject) -> Iterator[str]:
    yield from use


X_TENSOR = tw.Tensor("x", X)
MAKES: dict[str, Any] = {
    "Tensor of data": (tw.Tensor, lambda made, use: made.__init__("x", use)),
    "Tensor of parameters": (tw.Tensor, lambda made, use: made.__init__("x", X, parameters=use)),
    "RequestedOutput": (tw.RequestedOutput, lambda made, use: made.__init__("y", parameters=use)),
    "InferRequest of outputs": (
        tw.InferRequest,
        lambda made, use: made.__init__([X_TENSOR], names_from(use)),
    ),
    "InferRequest of parameters": (
        tw.InferRequest,
        lambda made, use: made.__init__([X_TENSOR], parameters=use),
    ),
    "InferResponse": (
        tw.InferResponse,
        lambda made, use: made.__init__([X_TENSOR], parameters=use),
    ),
    "Frame": (tw.Frame, lambda made, use: made.__init__((b"ab",), use)),
}


@pytest.mark.parametrize("kind", MAKES)
def test_object_that_is_being_made_is_an_empty_value(kind: str) -> None:
    """Its fields are set all at once, after the last call of Python code."""
    of_class, make = MAKES[kind]
    made, empty = of_class.__new__(of_class), of_class.__new__(of_class)
    seen = []
    make(made, UsesTheObject(lambda: seen.append(state(made))))
    assert seen and all(each == state(empty) for each in seen)
    assert state(made) != state(empty)

    other = of_class.__new__(of_class)
    use = UsesTheObject(lambda: make(other, UsesTheObject(lambda: None)))
    with pytest.raises(TypeError, match=CANNOT_CHANGE):
        make(other, use)
    assert state(other) == state(made)


@pytest.mark.parametrize("is_valid", [True, False])
def test_tensor_that_is_being_made_cannot_change_in_a_message(is_valid: bool) -> None:
    tensor = tw.Tensor.__new__(tw.Tensor)
    requests: list[Any] = []
    use = UsesTheObject(lambda: requests.append(tw.InferRequest([tensor, UNUSED])))
    use["k"] = 1 if is_valid else object()
    with pytest.raises(TypeError, match=CANNOT_CHANGE if is_valid else "contains an? "):
        tensor.__init__("u", np.zeros(100_000), parameters=use)
    assert tensor.nbytes == 0
    assert tw.decode_request(*both(tw.encode_request(requests[0])))[""].shape == (0,)


UNUSED = tw.Tensor("u", X)


def state(value: Any) -> Any:
    names = (
        "name", "datatype", "shape", "nbytes", "parameters", "binary", "inputs", "outputs", "id",
        "header_length", "buffers",
    )  # fmt: skip
    data = value.tolist() if type(value) is tw.Tensor else None
    return repr([data, *(getattr(value, name, None) for name in names)])


class DeclaredLength:
    """An empty iterable that declares a length of 2^40 items."""

    def __len__(self) -> int:
        return 1 << 40

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_declared_length_of_an_iterable_allocates_nothing() -> None:
    items: Any = DeclaredLength()
    assert tw.InferRequest([tw.Tensor("x", X)], items).outputs == ()
    assert tw.InferResponse(items).outputs == ()
    assert tw.Tensor("x", [5], datatype="INT8", shape=items).shape == ()


# --- chains of objects that own each other ---

CHAINS = {
    "BYTES elements": """
n = 1_000_000
body = b"".join((4 * (n - i - 1)).to_bytes(4, "little") for i in range(n))
last = memoryview(body)
for _ in range(n):
    last = tw.decode_bytes(last, 1).element(0)
""",
    "arrays of memoryviews": """
last = np.zeros(8, np.uint8)
for _ in range(300_000):
    last = np.frombuffer(tw.encode_raw_request(last).buffers[0], np.uint8)
""",
    "decoded and encoded again": """
spec = tw.TensorSpec("x", "UINT8", [-1])
last = bytes(8)
for _ in range(200_000):
    last = tw.encode_raw_request(tw.decode_request(last, 0, raw_input=spec)["x"]).buffers[0]
""",
    "owners of other classes in between": """
class Owner:
    def __init__(self, view):
        self.view = view
        self.__array_interface__ = {
            "shape": (8,), "typestr": "|u1", "version": 3,
            "data": (np.frombuffer(view, np.uint8).ctypes.data, False),
        }
spec = tw.TensorSpec("x", "UINT8", [-1])
last = bytes(8)
for _ in range(100_000):
    last = np.asarray(Owner(tw.decode_request(last, 0, raw_input=spec)["x"].as_numpy()))
""",
    "arrays of tensors": """
last = tw.Tensor("x", np.zeros(8, np.uint8))
for _ in range(300_000):
    last = tw.Tensor("x", last.data.reshape(2, 4))
""",
    "buffers of Arrow": """
import pyarrow as pa
spec = tw.TensorSpec("x", "BYTES", [1])
last = bytes(40)
for _ in range(100_000):
    last = pa.array(tw.decode_request(last, 0, raw_input=spec)["x"].data).buffers()[2]
assert bytes(last) == bytes(40)
""",
    "numbers of Arrow": """
import pyarrow as pa
last = tw.Tensor("x", np.arange(3.0))
for i in range(100_000):
    last = tw.Tensor("x", pa.array(last) if i % 2 else last.data.reshape(3, 1))
    last = tw.Tensor("x", pa.array(last))
assert last.data.reshape(3).tolist() == [0, 1, 2]
""",
}


@pytest.mark.slow(reason="it takes long")
@pytest.mark.parametrize("chain", CHAINS)
def test_long_chains_of_owners_are_freed_without_stack_overflow(chain: str) -> None:
    if "Arrow" in chain:
        package("pyarrow")
    run(CHAINS[chain] + "del last\ngc.collect()\n")


def test_view_of_a_view_keeps_the_first_owner_alive() -> None:
    inner = reference.elements([b"abc", b"", b"de"])
    memory = bytearray(reference.elements([inner, b"x"]))
    view = tw.decode_bytes(memory).element(0)
    tensor = tw.decode_bytes(view)
    view.release()
    assert tensor.tolist() == [b"abc", b"", b"de"]
    assert not tensor.element(0).readonly
    assert tw.decode_bytes(tw.decode_bytes(bytes(memory)).element(0)).element(0).readonly
    read_only = tw.decode_bytes(tw.decode_bytes(memory).element(0).toreadonly())
    assert read_only.element(0).readonly
    with pytest.raises(BufferError):
        memory.append(0)
    del tensor, read_only
    memory.append(0)


# --- garbage collection ---


def test_owners_and_views_collected_in_one_cycle() -> None:
    """The collector may clear objects in any order, for example an owner before its views."""
    run("""
import ctypes

# If an owner were cleared before its views, the views would modify the memory after None.
header = object.__basicsize__
words_after_none = (ctypes.c_size_t * ((tw.BodyBuffer.__basicsize__ - header) // 8)).from_address(
    id(None) + header)

def changed_words(n_times, in_cycle):
    changed = set()
    for _ in range(n_times):
        before = list(words_after_none)
        body = tw.BodyBuffer(100)
        for members in (
            [body.remaining(), memoryview(body)],
            [tw.encode_raw_request(np.zeros(4)).buffers[0]],
            [tw.decode_bytes(bytearray(b"\\1\\0\\0\\0x")).element(0)],
        ):
            members.append(members if in_cycle else [])
        del body, members
        gc.collect()
        changed.update(i for i, word in enumerate(words_after_none) if word != before[i])
    return changed

# In some builds of Python, variables of its allocator are there.
variables = changed_words(300, in_cycle=False)
assert len(variables) < len(words_after_none) / 2
assert changed_words(100, in_cycle=True) <= variables
""")


# --- numbers ---


@pytest.mark.parametrize("integer", [np.uint8, np.int16, np.uint64, int])
def test_integer_arguments_of_any_integer_type(integer: Any) -> None:
    n = integer(120)
    body = tw.BodyBuffer(n, n, max_nbytes=n)
    assert (body.content_length, body.max_nbytes) == (120, 120)
    assert type(body.content_length) is type(body.max_nbytes) is int
    assert len(body.remaining()) == 120
    body.advance(n)
    assert body.complete
    assert len(list(tw.Frame((bytes(250),), None).chunks(n))) == 3
    tensor = tw.decode_bytes(reference.elements([bytes([i]) for i in range(120)]), n)
    assert tensor.element(integer(119)) == bytes([119])
    assert tensor.reshape((n, integer(1))).shape == (120, 1)
    assert tw.Limits(max_tensors=n, max_rank=integer(3)).max_tensors == 120
    assert tw.TensorSpec("x", "FP32", [n]).dims == (120,)
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", np.zeros(120), shape=(n,))]), align=n)
    assert frame.header_length is not None and frame.header_length % 120 == 0
    assert tw.decode_request(bytes(frame), np.uint16(frame.header_length))["x"].shape == (120,)


def test_narrow_integers_do_not_wrap_around() -> None:
    for length in (np.uint8(200), np.int8(100), np.uint8(255)):
        body = tw.BodyBuffer(length)
        assert len(body.remaining()) == int(length)
    tensor = tw.decode_bytes(reference.elements([b"%d" % i for i in range(300)]))
    assert tensor.element(np.uint8(255)) == b"255"
    assert tensor.element(np.int8(-1)) == b"299"


INVALID_NUMBERS: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (TypeError, "integer", lambda: tw.BodyBuffer(1.5)),
    (TypeError, "integer", lambda: tw.BodyBuffer(5, "x")),
    (TypeError, "integer", lambda: tw.BodyBuffer(5, max_nbytes=2.0)),
    (ValueError, "max_nbytes must be 0 or more, not -1", lambda: tw.BodyBuffer(max_nbytes=-1)),
    (tw.HeaderError, "for a body of more than 2\\^64", lambda: tw.BodyBuffer(10**5000)),
    (ValueError, f"{2**63} bytes cannot have arr", lambda: tw.BodyBuffer(5).advance(2**63)),
    (TypeError, "integer", lambda: tw.BodyBuffer(5).advance(1.0)),
    (TypeError, "integer", lambda: tw.Frame((b"ab",), "2")),
    (TypeError, "bytes-like", lambda: tw.Frame(("ab",), None)),
    (TypeError, "integer", lambda: tw.encode_request(REQUEST, align=1.0)),
    (TypeError, "integer", lambda: tw.encode_request(REQUEST, align=None)),
    (tw.LayoutError, "does not match its shape", lambda: tw.decode_bytes(b"", 2**70)),
    (IndexError, "out of range", lambda: tw.decode_bytes(b"").element(2**70)),
    (TypeError, "integer", lambda: tw.decode_bytes(b"").element("0")),
    (ValueError, r"negative.* \[0, -5\]", lambda: tw.decode_bytes(b"").reshape((0, -5))),
    (ValueError, "exceeds 2\\^63", lambda: tw.decode_bytes(b"").reshape((0, 2**62))),
    (ValueError, "exceeds 2\\^63", lambda: tw.decode_bytes(b"").reshape((0, 2**70))),
    (ValueError, "has 65 dimensions", lambda: tw.decode_bytes(b"").reshape((0,) * 65)),
    (TypeError, "integer", lambda: tw.decode_bytes(b"").reshape((0, 1.0))),
    (ValueError, "max_rank must be an int", lambda: tw.Limits(max_rank=np.float64(3))),
]


@pytest.mark.parametrize(("error", "message", "call"), INVALID_NUMBERS)
def test_invalid_numbers_are_rejected(error: type[Exception], message: str, call: Any) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert not isinstance(caught.value, MemoryError | OverflowError)


# --- shapes that a decoder would reject ---


@pytest.mark.parametrize("shape", [(0, 2**60), (0, 2**62), (0, 2**70), (2**62, 0, 2**62)])
def test_empty_bytes_array_rejects_shape_that_overflows(shape: tuple[int, ...]) -> None:
    empty = tw.Tensor("x", [], datatype="BYTES")
    makers: list[Any] = [
        lambda: tw.Tensor("x", [], datatype="BYTES", shape=shape),
        lambda: empty.replace(shape=shape),
    ]
    for make in makers:
        with pytest.raises(tw.EncodeError, match="'x' is too large to address: BYTES"):
            make()
    assert empty.replace(shape=(0, 2**58)).shape == (0, 2**58)


# --- subclasses of list ---


class OverridingList(list[Any]):
    """A list whose methods return other values than its items."""

    def __len__(self) -> int:
        return 99

    def __getitem__(self, index: Any) -> Any:
        return "other"


def test_subclass_of_list_is_read_by_its_items() -> None:
    expected = reference.elements([b"a", b"b"])
    assert tw.encode_bytes(OverridingList([b"a", "b"])) == expected
    assert tw.encode_bytes([OverridingList(["a"]), OverridingList(["b"])]) == expected
    tensor = tw.Tensor("x", OverridingList(["a", "b"]))
    assert (tensor.shape, tensor.as_numpy().tolist()) == ((2,), [b"a", b"b"])


# --- iterables that fail ---


class FailsToIterate:
    def __iter__(self) -> Iterator[Any]:
        raise ValueError("operation forbidden")


def released_memoryview() -> memoryview:
    view = memoryview(bytearray(8))
    view.release()
    return view


@pytest.mark.parametrize("make", [FailsToIterate, released_memoryview])
@pytest.mark.parametrize(
    "call",
    [
        lambda items: tw.TensorSpec("x", "FP32", items),
        lambda items: tw.Tensor("x", ["a"], shape=items),
        tw.InferRequest,
        lambda items: tw.InferRequest([tw.Tensor("x", X)], items),
        tw.InferResponse,
        lambda items: tw.decode_bytes(b"").reshape(items),
        lambda items: tw.dataframe_from_tensors(items, "pandas"),
        tw.header_length,
        lambda items: tw.header_length([items]),
    ],
)
def test_iterables_that_fail(call: Any, make: Any) -> None:
    """In Python 3.11, iter() of a released memoryview returns an iterator and sets an exception.

    A function that is implemented in C and ignores it raises SystemError later.
    """
    with pytest.raises(ValueError, match="operation forbidden"):
        call(make())
