"""The public API called with arguments and attributes of wrong types or values.

Each call must return or raise a documented exception. Calls that could crash or hang run in a
process of their own with a timeout of one minute.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorwire
from support import reference
from support.requirements import package

tw: Any = tensorwire  # untyped, because most calls here violate the types

X = np.arange(4, dtype=np.float32)
REGION = {"shared_memory_region": "r"}


def run(code: str) -> None:
    """Run the code in a new interpreter, and fail after a crash or a deadlock of one minute."""
    watched = (
        "import faulthandler; faulthandler.enable()\n"
        "faulthandler.dump_traceback_later(60, exit=True)\n"
        "import gc, threading\n"
        "import numpy as np\n"
        "import tensorwire as tw\n"
        f"{code}\n"
        "print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", watched], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


# --- locks ---


@pytest.mark.parametrize(
    ("failing", "meanwhile"),
    [
        ("tw.encode_bytes(missing)", "missing[0]"),
        ("tw.encode_bytes(changing)", "changing.__setitem__(25, 'x' * next(lengths))"),
    ],
    ids=["missing value", "array changed by another thread"],
)
def test_errors_release_the_stringdtype_lock(failing: str, meanwhile: str) -> None:
    """Raising an exception runs Python code, while another thread may wait for the lock with the
    GIL.
    """
    run(f"""
import itertools, sys, time
TEXT = np.dtypes.StringDType()
missing = np.array(["x"] * 50 + [np.nan], np.dtypes.StringDType(na_object=np.nan))
changing = np.array(["x"] * 50, TEXT)
lengths = itertools.cycle(range(300))
end = time.monotonic() + 3

def fail():
    while time.monotonic() < end:
        try:
            {failing}
        except tw.EncodeError:
            pass

def work():
    while time.monotonic() < end:
        for _ in range(100):
            {meanwhile}

threads = [threading.Thread(target=target, daemon=True) for target in (fail, fail, work)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""")


# --- lists and attributes of messages ---


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("tw.encode_request(request)", "inputs"),
        ("tw.encode_response(response)", "outputs"),
        (
            "tw.encode_response(response, tw.InferRequest([], [tw.RequestedOutput('x')]))",
            "outputs",
        ),
        ("request['zz']", "inputs"),
        ("'zz' in response", "outputs"),
        ("tw.encode_response(tw.InferResponse([tensor]), asking)", "the request's outputs"),
        ("tw.encode_request(asking)", "outputs"),
        ("tw.InferRequest(request.inputs)", "inputs"),
        ("tw.InferRequest([tensor], asking.outputs)", "outputs"),
        ("tw.InferResponse(response.outputs)", "outputs"),
    ],
)
def test_message_lists_reject_items_of_wrong_types(call: str, name: str) -> None:
    run(f"""
tensor = tw.Tensor("x", np.zeros(1))
for item in (None, "x", np.zeros(1), tw.RequestedOutput("y"), tw.InferRequest([])):
    request = tw.InferRequest([tensor])
    request.inputs.append(item)
    response = tw.InferResponse([tensor])
    response.outputs.append(item)
    asking = tw.InferRequest([tensor], [tw.RequestedOutput("x")])
    asking.outputs.append(tensor if isinstance(item, tw.RequestedOutput) else item)
    try:
        {call}
    except TypeError as error:
        assert str(error).startswith({f"{name}[1] is "!r}), error
    else:
        raise SystemExit("no error")
""")


def test_wrong_items_are_reported_by_index() -> None:
    request = tw.InferRequest([tw.Tensor("x", X), tw.Tensor("y", X)])
    request.inputs.insert(0, None)
    with pytest.raises(TypeError, match=r"inputs\[0\] is None, not a Tensor"):
        request["zz"]
    with pytest.raises(TypeError, match=r"inputs\[1\] is of type int, not a Tensor"):
        tw.InferRequest([tw.Tensor("x", X), 5])
    with pytest.raises(TypeError, match=r"outputs\[0\] is None, not a RequestedOutput"):
        tw.InferRequest([], [None])


@pytest.mark.parametrize("make", [tw.InferRequest, tw.InferResponse])
def test_inputs_or_outputs_set_to_none_are_rejected(make: Any) -> None:
    message = make([tw.Tensor("x", X)])
    attribute = "inputs" if make is tw.InferRequest else "outputs"
    encode: Any = tw.encode_request if make is tw.InferRequest else tw.encode_response
    for broken in (message, make.__new__(make)):
        setattr(broken, attribute, None)
        for use in (encode, list, lambda m: m["x"], lambda m: "x" in m):
            with pytest.raises(TypeError, match=f"{attribute} must be a list, not None"):
                use(broken)
        assert "None" in repr(broken)


class ComparesAs4:
    """Compares equal to 4, but converts to the integer 5."""

    def __eq__(self, other: object) -> bool:
        return bool(other == 4)

    def __hash__(self) -> int:
        return hash(4)

    def __index__(self) -> int:
        return 5


TENSOR_ATTRIBUTES: list[tuple[str, Any, type[Exception], str]] = [
    ("name", None, tw.EncodeError, "no name"),
    ("datatype", None, tw.EncodeError, "unknown datatype: None"),
    ("datatype", "FP23", tw.EncodeError, "unknown datatype: 'FP23'"),
    ("datatype", "BYTES", tw.EncodeError, "created as BYTES, its data is now float32"),
    ("shape", None, TypeError, "the shape of (tensor|input|output) 'x' is None"),
    ("shape", (None,), TypeError, "the shape of (tensor|input|output) 'x' is not a tuple of ints"),
    ("shape", (-4, "4"), TypeError, "the shape of (tensor|input|output) 'x' is not a tuple of int"),
    ("shape", (2**70, None), TypeError, "the shape of (tensor|input|output) 'x' is not a tuple o"),
    ("shape", (4.0,), TypeError, "the shape of (tensor|input|output) 'x' is not a tuple of ints"),
    ("shape", ("4",), TypeError, "the shape of (tensor|input|output) 'x' is not a tuple of ints"),
    (
        "shape",
        (ComparesAs4(),),
        tw.EncodeError,
        r"created with shape \[5\], its data now has shape \[4\]",
    ),
    ("shape", (5,), tw.EncodeError, r"created with shape \[5\], its data now has shape \[4\]"),
    ("shape", (-4,), tw.EncodeError, r"negative dimension: \[-4\]"),
    ("shape", (2**70,), tw.EncodeError, "too large to address"),
    ("shape", (1,) * 65, tw.EncodeError, "65 dimensions, numpy supports at most 64"),
    ("data", "text", TypeError, "is now str"),
    ("data", [1.0] * 4, TypeError, "is now list"),
    ("data", np.float32(1), TypeError, "is now float32"),
    ("data", np.ma.masked_equal(X, 2), tw.EncodeError, "is now a masked array"),
    ("data", tw.decode_bytes(b""), tw.EncodeError, "is now BYTES"),
    ("data", None, tw.EncodeError, "no shared_memory_region|is in shared memory"),
]


@pytest.mark.parametrize(("attribute", "value", "error", "message"), TENSOR_ATTRIBUTES)
@pytest.mark.parametrize("binary", [True, False, "raw"])
def test_encoding_rejects_invalid_tensor_attributes(
    attribute: str, value: Any, error: type[Exception], message: str, binary: Any
) -> None:
    tensor = tw.Tensor("x", X, binary=bool(binary))
    setattr(tensor, attribute, value)
    repr(tensor)
    if binary == "raw":
        if attribute == "name":
            return  # the attribute is not sent
        with pytest.raises(error, match=message):
            tw.encode_raw_request(tensor)
        return
    with pytest.raises(error, match=message):
        tw.encode_request(tw.InferRequest([tensor]))
    with pytest.raises(error, match=message):
        tw.encode_response(tw.InferResponse([tensor]))


@pytest.mark.parametrize("shape", [(np.int8(4),), (np.uint64(4),)])
def test_dimensions_may_be_numpy_integers(shape: Any) -> None:
    tensor = tw.Tensor("x", X)
    tensor.shape = shape
    assert tw.decode_request(*both(tw.encode_request(tw.InferRequest([tensor]))))["x"].shape == (4,)


def both(frame: tensorwire.Frame) -> tuple[bytes, int | None]:
    return bytes(frame), frame.header_length


def test_parameters_may_be_none() -> None:
    tensor = tw.Tensor("x", X)
    request = tw.InferRequest([tensor])
    tensor.parameters = request.parameters = None
    assert tw.decode_request(*both(tw.encode_request(request)))["x"].parameters == {}


def test_assigning_attributes_of_wrong_types_raises() -> None:
    tensor, request = tw.Tensor("x", X), tw.InferRequest([])
    for thing, attribute, value in (
        (tensor, "name", 5),
        (tensor, "shape", [4]),
        (tensor, "parameters", []),
        (request, "inputs", ()),
        (request, "id", 7),
    ):
        with pytest.raises(TypeError):
            setattr(thing, attribute, value)


def test_as_numpy_rejects_data_that_is_not_an_array() -> None:
    tensor = tw.Tensor("x", X)
    tensor.data = "text"
    with pytest.raises(TypeError, match="the data of tensor 'x' is now str"):
        tensor.as_numpy(aligned=True)


class WrongAttributes(np.ndarray[Any, Any]):
    """An array whose Python attributes differ from its memory."""

    shape = property(lambda self: (1000,))
    dtype = property(lambda self: np.dtype("f8"))

    def reshape(self, *shape: Any, **options: Any) -> Any:
        return np.zeros(1000)


@pytest.mark.parametrize("binary", [True, False])
def test_subclass_of_ndarray_is_encoded_from_its_memory(binary: bool) -> None:
    tensor = tw.Tensor("x", X, binary=binary)
    tensor.data = X.view(WrongAttributes)
    found = tw.decode_request(*both(tw.encode_request(tw.InferRequest([tensor]))))["x"]
    assert found.as_numpy().tolist() == X.tolist()


@pytest.mark.parametrize("binary", ["yes", 1, [], object()])
def test_requested_output_rejects_binary_of_wrong_type(binary: Any) -> None:
    request = tw.InferRequest([tw.Tensor("x", X)], [tw.RequestedOutput("x")])
    assert request.outputs is not None
    request.outputs[0].binary = binary
    with pytest.raises(
        TypeError, match="binary of requested output 'x' must be True, False or None"
    ):
        tw.encode_request(request)
    with pytest.raises(
        TypeError, match="binary of requested output 'x' must be True, False or None"
    ):
        tw.encode_response(tw.InferResponse([tw.Tensor("x", X)]), request)


def test_requested_output_without_name_is_rejected() -> None:
    request = tw.InferRequest([tw.Tensor("x", X)], [tw.RequestedOutput("x")])
    assert request.outputs is not None
    request.outputs[0].name = None
    with pytest.raises(tw.EncodeError, match="has no name"):
        tw.encode_response(tw.InferResponse([tw.Tensor("x", X)]), request)


class Reassigning(str):
    """A key that changes the tensor while the encoder looks it up."""

    tensor: Any

    def __hash__(self) -> int:
        return hash("binary_data_size")

    def __eq__(self, other: object) -> bool:
        self.tensor.name = self.tensor.shape = self.tensor.data = None
        return False


def test_parameter_key_that_changes_the_tensor() -> None:
    key = Reassigning("k")
    tensor = tw.Tensor("x", X, parameters={key: 1})
    key.tensor = tensor
    assert tw.decode_request(*both(tw.encode_request(tw.InferRequest([tensor]))))["x"].shape == (4,)


# --- objects created without __init__ ---


def test_objects_created_without_init() -> None:
    with pytest.raises(TypeError):
        tw.TensorSpec.__new__(tw.TensorSpec)
    with pytest.raises(TypeError, match="is created by decode_bytes"):
        tw.BytesTensor()
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Sub", (tw.BytesTensor,), {})
    tensor = tw.Tensor.__new__(tw.Tensor)
    with pytest.raises(tw.EncodeError, match="no name"):
        tw.encode_request(tw.InferRequest([tensor]))
    with pytest.raises(tw.TensorwireError):
        tensor.as_numpy()
    with pytest.raises(tw.EncodeError):
        tw.encode_raw_request(tensor)
    assert "None" in repr(tensor)


class DeclaredLength:
    """An empty iterable that declares a length of 2^40 items."""

    def __len__(self) -> int:
        return 1 << 40

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_declared_length_of_an_iterable_allocates_nothing() -> None:
    items: Any = DeclaredLength()
    assert tw.InferRequest(items, items).inputs == []
    assert tw.InferResponse(items).outputs == []
    assert tw.Tensor("x", [5], datatype="INT8", shape=items).shape == ()


# --- chains of objects that own each other ---

CHAINS = {
    "BYTES elements": """
n = 100_000
body = b"".join((4 * (n - i - 1)).to_bytes(4, "little") for i in range(n))
last = memoryview(body)
for _ in range(n):
    last = tw.decode_bytes(last, 1).view(0)
""",
    "1,000,000 BYTES elements": """
n = 1_000_000
body = b"".join((4 * (n - i - 1)).to_bytes(4, "little") for i in range(n))
last = memoryview(body)
for _ in range(n):
    last = tw.decode_bytes(last, 1).view(0)
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
    "tensors": """
last = None
for _ in range(1_000_000):
    tensor = tw.Tensor.__new__(tw.Tensor)
    tensor.data = last
    last = tensor
del tensor
""",
    "requested outputs": """
last = None
for _ in range(1_000_000):
    output = tw.RequestedOutput("x")
    output.binary = last
    last = output
del output
""",
}


@pytest.mark.parametrize("chain", CHAINS)
def test_long_chains_of_owners_are_freed_without_stack_overflow(chain: str) -> None:
    run(CHAINS[chain] + "del last\ngc.collect()\n")


def test_arrow_round_trip_100_000_times() -> None:
    """Each array refers to the buffer of the previous one."""
    package("pyarrow")
    run("""
import pyarrow as pa
spec = tw.TensorSpec("x", "BYTES", [1])
last = bytes(40)
for _ in range(100_000):
    last = pa.array(tw.decode_request(last, 0, raw_input=spec)["x"].data).buffers()[2]
assert bytes(last) == bytes(40)
del last
""")


def test_arrow_numbers_are_passed_on_100_000_times() -> None:
    """Each tensor owns the array that was made from the previous one."""
    package("pyarrow")
    run("""
import pyarrow as pa
last = tw.Tensor("x", np.arange(3.0))
for i in range(100_000):
    last = tw.Tensor("x", pa.array(last) if i % 2 else last.data.reshape(3, 1))
    last = tw.Tensor("x", pa.array(last))
assert last.data.tolist() == [[0], [1], [2]] or last.data.tolist() == [0, 1, 2]
del last
""")


def test_view_of_a_view_keeps_the_first_owner_alive() -> None:
    inner = reference.elements([b"abc", b"", b"de"])
    memory = bytearray(reference.elements([inner, b"x"]))
    view = tw.decode_bytes(memory).view(0)
    tensor = tw.decode_bytes(view)
    view.release()
    assert tensor.tolist() == [b"abc", b"", b"de"]
    assert not tensor.view(0).readonly
    assert tw.decode_bytes(tw.decode_bytes(bytes(memory)).view(0)).view(0).readonly
    read_only = tw.decode_bytes(tw.decode_bytes(memory).view(0).toreadonly())
    assert read_only.view(0).readonly
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
            [tw.decode_bytes(bytearray(b"\\1\\0\\0\\0x")).view(0)],
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
    assert tensor.view(integer(119)) == bytes([119])
    assert tensor.reshape((n, integer(1))).shape == (120, 1)
    assert tensor.reshape((integer(1), n)).view((integer(0), integer(119))) == bytes([119])
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
    assert tensor.view(np.uint8(255)) == b"255"
    assert tensor.view(np.int8(-1)) == b"299"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tw.BodyBuffer(1.5), TypeError, "integer"),
        (lambda: tw.BodyBuffer(5, "x"), TypeError, "integer"),
        (lambda: tw.BodyBuffer(5, max_nbytes=2.0), TypeError, "integer"),
        (lambda: tw.BodyBuffer(max_nbytes=-1), ValueError, "max_nbytes must be 0 or more, not -1"),
        (lambda: tw.BodyBuffer(10**5000), tw.HeaderError, "no memory for more than 2\\^64"),
        (lambda: tw.BodyBuffer(5).advance(2**63), ValueError, f"{2**63} bytes cannot have arrived"),
        (lambda: tw.BodyBuffer(5).advance(1.0), TypeError, "integer"),
        (lambda: tw.Frame((b"ab",), None).chunks(-1), ValueError, "must be 1 or more, not -1"),
        (lambda: tw.Frame((b"ab",), None).chunks(0), ValueError, "must be 1 or more, not 0"),
        (lambda: tw.Frame((b"ab",), 3), ValueError, "must be 0 to 2, the size of the frame, not 3"),
        (lambda: tw.Frame((b"ab",), "2"), TypeError, "integer"),
        (lambda: tw.Frame(("ab",), None), TypeError, "bytes-like"),
        (lambda: encode(align=2**62), ValueError, f"must be 1 to 16777216, not {2**62}"),
        (lambda: encode(align=2**64), ValueError, "must be 1 to 16777216"),
        (lambda: encode(align=-(2**70)), ValueError, "align must be 1 to"),
        (lambda: encode(align=1.0), TypeError, "integer"),
        (lambda: encode(align=None), TypeError, "integer"),
        (lambda: tw.decode_bytes(b"", 2**70), tw.LayoutError, "does not match its shape"),
        (lambda: tw.decode_bytes(b"").view(2**70), IndexError, "out of range"),
        (lambda: tw.decode_bytes(b"").view("0"), TypeError, "integer"),
        (lambda: tw.decode_bytes(b"").reshape((0, -5)), ValueError, r"negative.* \[0, -5\]"),
        (lambda: tw.decode_bytes(b"").reshape((0, 2**62)), ValueError, "exceeds 2\\^63"),
        (lambda: tw.decode_bytes(b"").reshape((0, 2**70)), ValueError, "exceeds 2\\^63"),
        (lambda: tw.decode_bytes(b"").reshape((0,) * 65), ValueError, "64 dimensions, not 65"),
        (lambda: tw.decode_bytes(b"").reshape((0, 1.0)), TypeError, "integer"),
        (lambda: tw.Limits(max_rank=np.float64(3)), ValueError, "max_rank must be an int"),
    ],
)
def test_invalid_numbers_are_rejected(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert not isinstance(caught.value, MemoryError | OverflowError)


def encode(**options: Any) -> Any:
    return tw.encode_request(tw.InferRequest([tw.Tensor("x", X)]), **options)


def test_largest_alignment() -> None:
    frame = encode(align=1 << 24)
    assert frame.header_length == 1 << 24
    assert tw.decode_request(bytes(frame), frame.header_length)["x"].shape == (4,)


# --- shapes that a decoder would reject ---


@pytest.mark.parametrize("shape", [(0, 2**60), (0, 2**62), (0, 2**70), (2**62, 0, 2**62)])
def test_empty_bytes_tensor_rejects_shape_that_overflows(shape: tuple[int, ...]) -> None:
    with pytest.raises(tw.EncodeError, match="'x' is too large to address: BYTES"):
        tw.Tensor("x", [], datatype="BYTES", shape=shape)
    tensor = tw.Tensor("x", [], datatype="BYTES")
    tensor.shape = shape
    with pytest.raises(tw.EncodeError, match="'x' is too large to address: BYTES"):
        tw.encode_request(tw.InferRequest([tensor]))
    assert tw.Tensor("x", [], datatype="BYTES", shape=(0, 2**58)).shape == (0, 2**58)


@pytest.mark.parametrize(
    ("datatype", "shape"),
    [("FP32", (2**62, 2**62)), ("FP32", (2**61,)), ("INT8", (2**63,)), ("BYTES", (2**59,))],
)
def test_shared_memory_tensor_rejects_shape_that_overflows(
    datatype: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(tw.EncodeError, match=f"'x' is too large to address: {datatype}"):
        tw.Tensor("x", None, datatype=datatype, shape=shape, parameters=REGION)
    tensor = tw.Tensor("x", None, datatype=datatype, shape=[1], parameters=REGION)
    tensor.shape = shape
    with pytest.raises(tw.EncodeError, match=f"'x' is too large to address: {datatype}"):
        tw.encode_request(tw.InferRequest([tensor]))


@pytest.mark.parametrize(
    ("datatype", "shape"), [("FP32", (2**61 - 1,)), ("INT8", (2**63 - 1,)), ("FP32", (0, 2**60))]
)
def test_shared_memory_tensor_of_largest_shape(datatype: str, shape: tuple[int, ...]) -> None:
    tensor = tw.Tensor("x", None, datatype=datatype, shape=shape, parameters=REGION)
    request = tw.decode_request(*both(tw.encode_request(tw.InferRequest([tensor]))))
    assert request["x"].shape == shape


# --- masks, frames, comparisons ---


@pytest.mark.parametrize("values", [[1.0, 2.0], ["a", "b"], [b"a", b"b"]])
def test_masked_arrays_are_rejected(values: Any) -> None:
    masked = np.ma.array(values, mask=[False, True])
    with pytest.raises(tw.EncodeError, match="'x' is a masked array"):
        tw.Tensor("x", masked)
    if masked.dtype.kind != "f":
        with pytest.raises(tw.EncodeError, match="masked array"):
            tw.encode_bytes(masked)


def test_frame_length_is_in_bytes() -> None:
    items = np.arange(10, dtype=np.int32)
    for buffer in (items.data, items.reshape(2, 5).data, items):
        frame = tw.Frame((b"{}", buffer), 2)
        assert len(frame) == 42
        assert frame.headers["Content-Length"] == "42"
        assert bytes(frame) == b"{}" + items.tobytes() == b"".join(frame.chunks(3))
        assert sum(map(len, frame)) == 42
    for strided in (items.data[::2], memoryview(b"abcd")[::2], items[::2]):
        with pytest.raises(BufferError, match="cannot be sent as bytes"):
            tw.Frame((strided,), None)
    assert len(tw.Frame((np.zeros((0, 4), np.int32).data,), None)) == 0


def test_empty_bytes_tensors_are_equal() -> None:
    one, other = tw.decode_bytes(tw.BodyBuffer()), tw.decode_bytes(tw.BodyBuffer())
    assert one == other
    assert one == tw.decode_bytes(b"")


class OverridingList(list[Any]):
    """A list whose methods return other values than its items."""

    def __len__(self) -> int:
        return 99

    def __getitem__(self, index: Any) -> Any:
        return "other"


def test_subclass_of_list_is_read_by_its_items() -> None:
    assert tw.encode_bytes(OverridingList([b"a", "b"])) == reference.elements([b"a", b"b"])
    assert tw.encode_bytes([OverridingList(["a"]), OverridingList(["b"])]) == reference.elements(
        [b"a", b"b"]
    )
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
        lambda items: tw.InferRequest([], items),
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
