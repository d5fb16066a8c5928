"""Wrong and hostile arguments of the public API, beyond those of test_api_state_machine.py.

Most of these tests are for errors that happened, or check the text of an error.
"""

from __future__ import annotations

import itertools
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import tensorwire
import tensorwire.grpc
from support import hostile, reference
from support.requirements import package
from support.scripts import run_script
from tensorwire._codec.grpc.writer import append_fields
from tensorwire._codec.messages.decoding import view_tensor

tw: Any = tensorwire  # untyped, because most calls here violate the types

X = np.arange(4, dtype=np.float32)
X_TENSOR = tw.Tensor("x", X)
REQUEST = tw.InferRequest(
    [
        tw.Tensor("x", np.arange(6.0).reshape(2, 3), parameters={"k": 1}),
        tw.Tensor("words", ["a", "b"], binary=False),
        tw.Tensor("flags", [True, False], datatype="BOOL"),
    ],
    [tw.RequestedOutput("y", parameters={"k": 1})],
    id="7",
    parameters={"p": "q"},
)
EMPTY = tw.decode_bytes(b"")
WORDS = tw.decode_bytes(bytes(24)).reshape((2, 3))

uses_hostile_objects = pytest.mark.thread_unsafe(reason="it sets what hostile objects do")


@pytest.fixture
def connect() -> Iterator[Callable[..., None]]:
    """Return the function that sets what hostile objects do until the end of the test."""
    yield hostile.connect
    hostile.connect()


def sent(*tensors: Any) -> Any:
    """Return the first tensor of a request with these tensors, as a receiver decodes it."""
    frame = tw.encode_request(tw.InferRequest(list(tensors)))
    return tw.decode_request(bytes(frame), frame.header_length).inputs[0]


# --- arguments of wrong types and values ---


class FailsToIterate:
    def __iter__(self) -> Iterator[Any]:
        raise ValueError("operation forbidden")


def nested(depth: int, item: Any) -> Any:
    for _ in range(depth):
        item = [item]
    return item


NOT_TENSORS = "must be a mapping or an iterable of tensors, not"
NOT_INTS = "the shape of tensor 'x' must be a sequence of ints, not"
NOT_NAMES = "outputs must be an iterable of names or RequestedOutput"
DEEP = nested(5_000, [])
decoded = tw.grpc.decode_request(tw.grpc.encode_request(REQUEST))
STRIDED = np.zeros(8, np.uint8)[::2]
RELEASED = memoryview(b"abc")
RELEASED.release()
DECODERS = (
    *(tw.decode_request, tw.decode_response, tw.grpc.decode_request, tw.grpc.decode_response),
    tw.grpc.decode_stream_response,
)

WRONG: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (TypeError, f"inputs {NOT_TENSORS} a Tensor$", lambda: tw.InferRequest(X_TENSOR)),
    (TypeError, f"outputs {NOT_TENSORS} a Tensor$", lambda: tw.InferResponse(X_TENSOR)),
    (TypeError, f"inputs {NOT_TENSORS} NoneType$", lambda: tw.InferRequest(None)),
    *(
        (TypeError, rf"inputs\[1\] must be a Tensor, not {shown}$",
         lambda item=item: tw.InferRequest([X_TENSOR, item]))
        for item, shown in ((None, "None"), ("x", "str"), (X, "ndarray"), (5, "int"))
    ),
    (TypeError, r"outputs\[0\] must be a Tensor, not None$", lambda: tw.InferResponse([None])),
    *(
        (TypeError, rf"outputs\[1\] must be a RequestedOutput or a str, not {shown}$",
         lambda item=item: tw.InferRequest([X_TENSOR], ["y", item]))
        for item, shown in ((None, "None"), (5, "int"), (X_TENSOR, "Tensor"))
    ),
    *(
        (TypeError, NOT_NAMES, lambda items=items: tw.InferRequest([X_TENSOR], items))
        for items in ("abc", {"y": 1}, MappingProxyType({"y": 1}), 5, tw.RequestedOutput("y"))
    ),
    (TypeError, "the name of a tensor must be a str, not int", lambda: tw.InferResponse({5: X})),
    (TypeError, f"{NOT_INTS} int$", lambda: tw.Tensor("x", X, shape=5)),
    (TypeError, f"{NOT_INTS} int64$", lambda: tw.Tensor("x", X, shape=np.int64(5))),
    (TypeError, f"{NOT_INTS} ndarray$", lambda: tw.Tensor("x", X, shape=np.array(3))),
    (TypeError, "dims must be an iterable of ints, not int", lambda: tw.TensorSpec("x", "FP32", 5)),
    (TypeError, "the datatype of tensor 'x' must be a str, not list",
     lambda: tw.Tensor("x", X, datatype=[])),
    (TypeError, "datatype must be a str, not list", lambda: tw.TensorSpec("x", [], [1])),
    (TypeError, "True or False, not list", lambda: tw.RequestedOutput("y", binary=DEEP)),
    (TypeError, "BYTES can be converted to object", lambda: EMPTY.as_numpy("i4")),
    # numpy formats the list for its own message, which is empty in some Pythons.
    (TypeError, r"is not a dtype|^Field elements must be|^$", lambda: EMPTY.as_numpy(DEEP)),
    *(
        (tw.EncodeError, message,
         lambda value=value: tw.InferRequest(
             [X_TENSOR], parameters={"binary_data_output": value}))
        for value, message in ((DEEP, "of the message is nested too"), ([1], "False, not list"))
    ),
    *(
        (tw.TensorNotFoundError, f"no tensor {shown}: there are", lambda name=name: REQUEST[name])
        for name, shown in ((5, "5"), (None, "None"), (b"x", "bytes"), (DEEP, "list"))
    ),
    (KeyError, "missing", lambda: tw.InferRequest(BadMapping(x=X))),
    # bytes
    (BufferError, "contiguous",
     lambda: tw.BodyBuffer(50).write(np.zeros((4, 4), np.uint8)[:, ::2].data)),
    (TypeError, "count must be an int, not bool", lambda: tw.decode_bytes(b"", True)),
    (ValueError, "count must be 0 or more", lambda: tw.decode_bytes(b"", -1)),
    (BufferError, "1 byte long", lambda: tw.decode_bytes(np.zeros(4, np.int32))),
    # numbers
    (ValueError, "max_nbytes must be 0 or more, not -1", lambda: tw.BodyBuffer(max_nbytes=-1)),
    (tw.BodyTooLargeError, "for a body of more than 2\\^64", lambda: tw.BodyBuffer(10**5000)),
    (ValueError, f"{2**63} bytes cannot have arr", lambda: tw.BodyBuffer(5).advance(2**63)),
    (ValueError, "max_rank must be an int", lambda: tw.Limits(max_rank=np.float64(3))),
    (tw.LayoutError, "does not match its shape", lambda: tw.decode_bytes(b"", 2**70)),
    (IndexError, "out of range", lambda: EMPTY.element(2**70)),
    (ValueError, r"negative.* \[0, -5\]", lambda: EMPTY.reshape((0, -5))),
    (ValueError, "exceeds 2\\^63", lambda: EMPTY.reshape((0, 2**62))),
    (ValueError, "exceeds 2\\^63", lambda: EMPTY.reshape((0, 2**70))),
    (ValueError, "has 65 dimensions", lambda: EMPTY.reshape((0,) * 65)),
    (TypeError, "integer", lambda: EMPTY.reshape((0, 1.0))),
    *(
        (tw.EncodeError, "'x' is too large to address: BYTES",
         lambda shape=shape: tw.Tensor("x", [], datatype="BYTES", shape=shape))
        for shape in ((0, 2**60), (0, 2**62), (0, 2**70), (2**62, 0, 2**62))
    ),
    # limits, specifications, options and data
    *(
        (ValueError, "max_", lambda bounds=bounds: tw.Limits(**bounds))
        for bounds in (
            *({"max_rank": 65}, {"max_rank": -1}, {"max_tensors": 1.5}, {"max_nesting": 1001}),
            *({"max_header_nbytes": True}, {"max_elements": 2**63}, {"max_name_nbytes": None}),
        )
    ),
    *(
        (error, message, lambda datatype=datatype, dims=dims: tw.TensorSpec("x", datatype, dims))
        for datatype, dims, error, message in (
            ("FP32", [None], TypeError, "dims must be ints, not None"),
            ("FLOAT", [1], ValueError, "unknown datatype 'FLOAT'"),
            ("FP32", [-2], ValueError, "dims must be 0 or more, or -1"),
            ("FP32", itertools.repeat(1), ValueError, "dims must have at most 64 dimensions"),
            ("FP32", [1] * 65, ValueError, "at most 64 dimensions"),
        )
    ),
    (ValueError, "nonfinite must be", lambda: tw.encode_request(REQUEST, nonfinite="zero")),
    (ValueError, "nonfinite must be",
     lambda: tw.encode_response(tw.InferResponse([X_TENSOR]), nonfinite=None)),
    *(
        (ValueError, "header_length must be 0 to 2, the size of the frame",
         lambda length=length: tw.Frame((b"ab",), length))
        for length in (-1, 3, 2**64)
    ),
    *(
        (TypeError, f"must be an array, a list or a BytesArray, not {type(data).__name__}{advice}$",
         lambda data=data: tw.Tensor("x", data))
        for advice, others in {
            r": pass \[value\]": ("text", b"bytes", bytearray(b"bytes"), 5, 0.5),
            "": (object(), {1: 2}),
        }.items()
        for data in others
    ),
    # BYTES of the shape [2, 3]
    *(
        (IndexError, ".", lambda index=index: WORDS[index])
        for index in (2, (0, 3), (0, 0, 0), 1.5, "x", 2**70, (0, -(2**70)))
    ),
    *(
        (ValueError, "shape|dimension|exceeds",
         lambda shape=shape, words=words: words.reshape(shape))
        for words in (WORDS, EMPTY)
        for shape in (
            *((5,), (7,), (), (-1,), (-1, -6), (-2, -3), (2, -1), (1,) * 63 + (2, 3)),
            *((0, 2**62), (2**60, 0), (0, -5), (0,) * 65),
        )
    ),
    (ValueError, "shape", lambda: WORDS.reshape((0,))),
    # bodies in one or several buffers
    *(
        (error, message,
         lambda decode=decode, arguments=arguments, options=options: decode(*arguments, **options))
        for decode in (tw.decode_request, tw.decode_response)
        for arguments, options, error, message in (
            *(((body,), {}, BufferError, "1 byte long|cannot be read|contiguous") for body in (
                np.zeros(8, "u2"), STRIDED.data, np.zeros((2, 4), np.uint8).T, RELEASED)),
            *(((b"{}", length), {}, TypeError, "header length")
              for length in (True, 1.0, [1], ["1"], object())),
            *(((b"{}", length), {"data": b""}, TypeError, "header_length and data exclude each ot")
              for length in (2, 0, "1")),
            *(((b"{}",), {"data": data}, TypeError, message) for data, message in (
                (5, "^data must be a bytes-like object or an iterable of them, not int$"),
                ([b"", None], r"^data\[1\] must be a bytes-like object, not NoneType$"),
                ([5], r"^data\[0\] must be a bytes-like object, not int$"),
                ("text", r"^data\[0\] must be a bytes-like object, not str$"),
                ([b"", [b""]], r"^data\[1\] must be a bytes-like object, not list$"))),
            *(((b"{}",), {"data": data}, BufferError, message)
              for part, message in ((X, "^the items of {} must be 1 byte long, "),
                                    (STRIDED, "^{} cannot be read: "))
              for data, message in ((part, message.format("data")),
                                    ([b"", part], message.format(r"data\[1\]")))),
        )
    ),
    *((TypeError, ".", lambda wrong=wrong: tw.header_length(wrong))
      for wrong in ({1: "x"}, {"Content-Type": 5}, None, 5)),
    *((TypeError, ".", lambda wrong=wrong: append_fields(b"", 7, wrong))
      for wrong in (None, ["text"], [None])),
    *((TypeError, ".", lambda dim=dim: tw.TensorSpec("x", "FP32", [dim])) for dim in (2.7, "2")),
    *((TypeError, ".", lambda dims=dims: tw.Tensor("x", X, shape=dims)) for dims in ([4.0], "4")),
    *(
        (BufferError, ".", lambda function=function, wrong=wrong: function(wrong))
        for wrong in (np.zeros(8, np.uint8)[::2], np.zeros(4, np.int32))
        for function in (*DECODERS, lambda content: append_fields(b"", 7, [content]))
    ),
    *((TypeError, ".", lambda decode=decode: decode(b"", tw.Limits())) for decode in DECODERS),
    *(
        (TypeError, f"{type(made).__name__} objects cannot be changed",
         lambda made=made, arguments=arguments: made.__init__(*arguments))
        for made, *arguments in (
            *((X_TENSOR, "y", X), (REQUEST.outputs[0], "v"), (REQUEST, [X_TENSOR])),
            *((tw.InferResponse([X_TENSOR]), []), (tw.encode_request(REQUEST), (), 0)),
            *((decoded, [X_TENSOR]), (decoded["x"], "y", X), (decoded.outputs[0], "v")),
        )
    ),
    # numpy's flat iterator supports at most 32 dimensions.
    (tw.EncodeError, r"element 0 .* is out of range for FP16",
     lambda: tw.Tensor("x", nested(64, 1e10), datatype="FP16")),
]  # fmt: skip


class BadMapping(dict[str, Any]):
    """A mapping with a key that it does not have."""

    def __iter__(self) -> Iterator[str]:
        yield "missing"


@pytest.mark.parametrize(("error", "message", "call"), WRONG)
def test_wrong_arguments(error: type[Exception], message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert not isinstance(caught.value, MemoryError | OverflowError)


NONE, MEMORY = type(None), (bytes, bytearray, np.ndarray)
# What arguments may be, and what the error says if they are something else.
TYPES: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    *((tw.InferRequest, "InferRequest", each)
      for each in (tw.encode_request, tw.grpc.encode_request)),
    *((tw.InferResponse, "InferResponse", each)
      for each in (tw.encode_response, tw.grpc.encode_response, tw.grpc.encode_stream_response)),
    *(((tw.InferRequest, tw.ResponseOptions, NONE), "InferRequest",
       lambda x, encode=encode: encode(tw.InferResponse([X_TENSOR]), x))
      for encode in (tw.encode_response, tw.grpc.encode_response)),
    *((MEMORY, "bytes-like", each)
      for each in (*DECODERS, tw.decode_bytes, lambda x: tw.BodyBuffer().write(x))),
    (MEMORY, "bytes-like", lambda x: tw.Frame((x,), None)),
    *(((tw.Limits, NONE), "Limits", lambda x, decode=decode: decode(b"{}", limits=x))
      for decode in DECODERS),
    ((tw.TensorSpec, NONE), "raw_input", lambda x: tw.decode_request(b"", 0, raw_input=x)),
    ((list, tuple, np.ndarray, tw.BytesArray, tw.Tensor), "must be a list or", tw.encode_bytes),
    *(((int, NONE), "integer", each) for each in (
        tw.BodyBuffer, lambda x: tw.BodyBuffer(5, x), lambda x: tw.BodyBuffer(5, max_nbytes=x))),
    *((int, "integer", each) for each in (
        tw.BodyBuffer(5).advance, EMPTY.element, lambda x: tw.encode_request(REQUEST, align=x))),
    ((int, NONE), "integer", lambda x: tw.decode_bytes(b"", x)),
    ((int, NONE), "integer", lambda x: tw.Frame((b"ab",), x)),
    *((bool, "True or False", lambda x, name=name: tw.Limits(**{name: x}))
      for name in ("check_bool", "bf16_as_uint16")),
    *(((bool, NONE), "True or False", each) for each in (
        lambda x: tw.Tensor("x", X, binary=x), lambda x: tw.RequestedOutput("o", binary=x))),
    (bool, "True or False|bool", lambda x: tw.TensorSpec("x", "FP32", [2], batching=x)),
    (bool, "True or False|bool", lambda x: tw.ResponseOptions(binary=x)),
    *((str, "must be a str", each) for each in (
        lambda x: tw.Tensor(x, X), tw.RequestedOutput, lambda x: tw.TensorSpec(x, "FP32", []))),
    *(((str, NONE), "must be a str", each) for each in (
        lambda x: tw.InferRequest([X_TENSOR], id=x), lambda x: tw.ResponseOptions(id=x))),
    ((Mapping, NONE), "mapping", lambda x: tw.Tensor("x", X, parameters=x)),
)  # fmt: skip
VALUES = (
    *(None, True, 5, 0.5, "text", b"bytes", bytearray(5), [b"a"], (b"a",), {"a": 1}, object(), int),
    *(np.zeros(2, np.uint8), X_TENSOR, REQUEST, tw.InferResponse([X_TENSOR]), EMPTY, tw.Limits()),
    *(tw.RequestedOutput("y"), tw.ResponseOptions(), tw.TensorSpec("x", "FP32", [1])),
)


@pytest.mark.parametrize(("types", "message", "call"), TYPES)
def test_only_values_of_these_types_are_accepted(types: Any, message: str, call: Any) -> None:
    for value in VALUES:
        if not isinstance(value, types):
            with pytest.raises(TypeError, match=message):
                call(value)


@pytest.mark.parametrize("make", [FailsToIterate, lambda: RELEASED])
@pytest.mark.parametrize(
    "call",
    [
        lambda items: tw.TensorSpec("x", "FP32", items),
        lambda items: tw.Tensor("x", ["a"], shape=items),
        tw.InferRequest,
        lambda items: tw.InferRequest([X_TENSOR], items),
        tw.InferResponse,
        EMPTY.reshape,
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


@uses_hostile_objects
def test_declared_length_of_an_iterable_allocates_nothing(connect: Any) -> None:
    items = hostile.Iterates()
    connect(answer=lambda value: 1 << 40 if value == 2 else "y")
    assert len(items) == 1 << 40
    calls = (
        *(tw.InferResponse, lambda items: tw.InferRequest([X_TENSOR], items)),
        lambda items: tw.Tensor("x", X, shape=items),
    )
    for call in calls:
        with pytest.raises((TypeError, tw.EncodeError)):
            call(items)


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
    tensor = tw.decode_bytes(reference.elements([b"%d" % i for i in range(300)]))
    assert (tensor.element(np.uint8(255)), tensor.element(np.int8(-1))) == (b"255", b"299")


# --- objects that lie, and objects that change while they are used or afterwards ---


@pytest.mark.parametrize("dtype", ["O", "S3", "U3", np.dtypes.StringDType(), np.float32])
def test_array_subclass_with_its_own_conversions(dtype: Any) -> None:
    """The memory is sent, not what methods and attributes of the subclass return."""
    plain = np.arange(2, dtype="f4") if dtype is np.float32 else np.array(["a", "bc"], dtype)
    array = plain.view(hostile.Array)
    for tensor in (tw.Tensor("x", array), tw.InferRequest({"x": array})["x"]):
        assert tensor.tolist() == sent(tensor).tolist() == tw.Tensor("x", plain).tolist()


def test_str_and_list_are_read_from_their_memory() -> None:
    with pytest.raises(tw.EncodeError, match=r"character 1 is a lone surrogate, U\+D800"):
        tw.encode_bytes([hostile.Str("a\ud800")])
    words = hostile.List(["a", "b"])
    assert tw.encode_bytes(words) == reference.elements([b"a", b"b"])
    assert tw.encode_bytes([hostile.List("a"), hostile.List("b")]) == tw.encode_bytes(words)
    assert tw.Tensor("x", words).tolist() == [b"a", b"b"]


def test_dimension_is_converted_once() -> None:
    tensor = view_tensor(b"\1\2", "x", "INT8", (hostile.Index(2),), tw.Limits())  # type: ignore[arg-type]
    assert tensor.as_numpy().shape == (2,)


@uses_hostile_objects
@pytest.mark.parametrize(("item", "datatype"), [("a", "BYTES"), (1, "INT8"), (1.0, "FP32")])
def test_list_that_changes_another_one(item: Any, datatype: str, connect: Any) -> None:
    outer = [[item], hostile.List([item])]
    connect(lambda: outer.pop(0))
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # it is copied before it is read
        assert tw.Tensor("x", outer, datatype=datatype).shape == (2, 1)
        return
    with pytest.raises(tw.EncodeError, match="the values were modified while they were encoded"):
        tw.Tensor("x", outer, datatype=datatype)


def test_number_that_changes_its_list() -> None:
    class Clears(np.float32):
        def item(self) -> float:  # type: ignore[override]
            numbers.clear()
            return 1.5

    numbers = [Clears(1), 2.5]
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # it is copied before it is read
        assert tw.Tensor("x", numbers, datatype="FP32").as_numpy().tolist() == [1.5, 2.5]
        return
    with pytest.raises(tw.EncodeError, match="the values were modified while they were encoded"):
        tw.Tensor("x", numbers, datatype="FP32")


# --- programs that could crash: owners of memory, large bodies ---

WATCHED = """
import ctypes, faulthandler, gc, mmap, pickle, threading
faulthandler.enable()
faulthandler.dump_traceback_later(60, exit=True)
import numpy as np
import tensorwire as tw
from support import reference
"""


def run(program: str) -> None:
    """Run a program in a separate process, and fail after a crash or a deadlock of one minute."""
    done = run_script(WATCHED + textwrap.dedent(program) + "\nprint('done')", timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-4000:]


CHAIN = """
n = 125_000
body = b"".join((4 * (n - i - 1)).to_bytes(4, "little") for i in range(n))
numbers, text = tw.TensorSpec("x", "UINT8", [-1]), tw.TensorSpec("x", "BYTES", [1])

class Owner:
    def __init__(self, view):
        self.view, address = view, np.frombuffer(view, np.uint8).ctypes.data
        described = {"shape": (8,), "typestr": "|u1", "version": 3, "data": (address, False)}
        self.__array_interface__ = described

class Exporter:
    def __init__(self, tensor):
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

decoded = lambda body, spec: tw.decode_request(body, 0, raw_input=spec)["x"]
"""
# The first object, the one that owns the object before it, and the number of objects.
CHAINS = [
    ("memoryview(body)", "tw.decode_bytes(last, 1).element(0)", 125_000),
    (
        "np.zeros(8, np.uint8)",
        "np.frombuffer(tw.encode_raw_request(last).buffers[0], np.uint8)",
        37_500,
    ),
    ("bytes(8)", "tw.encode_raw_request(decoded(last, numbers)).buffers[0]", 25_000),
    ("bytes(8)", "np.asarray(Owner(decoded(last, numbers).as_numpy()))", 12_500),
    ("tw.Tensor('x', np.zeros(8))", "tw.Tensor('x', last.data.reshape(2, 4))", 37_500),
    ("tw.Tensor('x', np.zeros(8))", "tw.Tensor('x', Exporter(last))", 12_500),
    ("bytes(40)", "pa.array(decoded(last, text).data).buffers()[2]", 12_500),
    (
        "tw.Tensor('x', np.arange(3.0))",
        "tw.Tensor('x', pa.array(tw.Tensor('x', pa.array(last)).data.reshape(3)))",
        12_500,
    ),
]


@pytest.mark.slow(reason="it takes long")
@pytest.mark.parametrize(("first", "following", "n"), CHAINS)
def test_long_chains_of_owners_are_freed_without_stack_overflow(
    first: str, following: str, n: int
) -> None:
    if "pa." in following:
        package("pyarrow")
    imports = "import pyarrow as pa\n" if "pa." in following else ""
    run(
        imports
        + CHAIN
        + f"""
def run():
    last = {first}
    for _ in range({n}):
        last = {following}
    del last
    gc.collect()

threading.stack_size(1 << 20)  # an eighth of the usual one, so that fewer objects are enough
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
    )


def test_owners_and_views_collected_in_one_cycle() -> None:
    """The collector may clear objects in any order, for example an owner before its views.

    Then the views would modify the memory after that of the object None.
    """
    run("""
        gc.freeze()  # collections are faster
        header = object.__basicsize__
        n_words = (tw.BodyBuffer.__basicsize__ - header) // 8
        words_after_none = (ctypes.c_size_t * n_words).from_address(id(None) + header)

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
                changed.update(i for i in range(n_words) if words_after_none[i] != before[i])
            return changed

        # In some builds of Python, variables of its allocator are there.
        variables = changed_words(300, in_cycle=False)
        assert len(variables) < n_words / 2
        assert changed_words(100, in_cycle=True) <= variables
        """)


def test_cycle_with_a_memoryview_is_collected() -> None:
    """CPython crashes if it collects an exported memoryview. Objects tracked first are cleared
    first.
    """
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", [b"a", b"bc"])]))
    run(f"""
        class Node:
            def __init__(self):
                self.itself = self

        for wrap in (memoryview, lambda b: pickle.PickleBuffer(memoryview(b))):
            for is_first in (False, True):
                node = Node()
                memory = bytearray({bytes(frame)!r})
                view = wrap(memory)
                if not is_first:
                    node = Node()
                node.request = tw.decode_request(view, {frame.header_length})
                if is_first:
                    node.members = [node.request["x"], memoryview(node.request["x"].data.wire)]
                del view, node
                gc.collect()
                memory.append(0)  # raises BufferError if any view of it remains
        """)


LARGE = """
nbytes = 2**31 + 8
memory = mmap.mmap(-1, nbytes + 200)  # anonymous: pages that are not written take no memory
header = b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[%d],' % nbytes
header = (header + b'"parameters":{"binary_data_size":%d}}]}' % nbytes).ljust(200)
memory[:200] = header
memory[-1:] = b"z"
request = tw.decode_request(memory, 200)
array = request["x"].as_numpy()
assert array.shape == (nbytes,) and array[-1] == ord("z")
frame = tw.encode_request(request)
assert len(frame) - frame.header_length == nbytes
assert frame.headers["Content-Length"] == str(len(frame))
assert sum(map(len, frame.chunks(2**30))) == len(frame)
raw = tw.encode_raw_request(array)
spec = tw.TensorSpec("x", "UINT8", [-1])
assert tw.decode_request(raw.buffers[0], 0, raw_input=spec)["x"].shape == (nbytes,)
try:
    tw.decode_request(memoryview(memory)[:-1], 200)
except tw.LayoutError as error:
    assert (error.expected, error.actual) == (nbytes, nbytes - 1)
    error.__traceback__ = None
else:
    raise AssertionError
del request, array, frame, raw  # before the memory is used for other objects

memory[:4] = (nbytes).to_bytes(4, "little")
memory[4 + nbytes : 8 + nbytes] = (192).to_bytes(4, "little")
words = tw.decode_bytes(memory)
assert (words.shape, len(words.element(0)), len(words.element(1))) == ((2,), nbytes, 192)
assert len(words[1:].wire) == 196
"""


@pytest.mark.slow(reason="it takes seconds")
@pytest.mark.thread_unsafe(reason="it starts a process")
def test_body_of_2_gib() -> None:
    run(LARGE)
