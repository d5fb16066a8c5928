"""DLPack and __array__: tensors to capsules and arrays, and tensors from other packages' capsules.

`interop/inside_torch.py` and `interop/inside_jax.py` have the same with torch and JAX.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import weakref
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.array_samples import DTYPES, decoded, sample
from support.dlpack_structs import (
    IS_COPIED,
    READ_ONLY,
    UNVERSIONED,
    USED,
    VERSIONED,
    Consumed,
    Producer,
    values_of,
)
from support.lifetimes import Owned
from support.memory import address
from support.requirements import package

# The type code and the number of bits, from the specification of DLPack.
DLTYPES = {
    **{"BOOL": (6, 8), "UINT8": (1, 8), "UINT16": (1, 16), "UINT32": (1, 32), "UINT64": (1, 64)},
    **{"INT8": (0, 8), "INT16": (0, 16), "INT32": (0, 32), "INT64": (0, 64)},
    **{"FP16": (2, 16), "BF16": (4, 16), "FP32": (2, 32), "FP64": (2, 64)},
}
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (2, 3, 4), (2, 0, 3), (1, 3, 1)]


# --- tensors to capsules ---


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 7), (2, 0)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("datatype", DTYPES)
def test_struct_of_a_capsule(
    datatype: str, shape: tuple[int, ...], max_version: tuple[int, int] | None
) -> None:
    array = sample(datatype, shape)
    tensor = decoded(array)
    consumed = Consumed(tensor.__dlpack__(max_version=max_version, dl_device=(1, 0)))
    struct = consumed.tensor
    assert (struct.code, struct.bits, struct.lanes) == (*DLTYPES[datatype], 1)
    assert (struct.device_type, struct.device_id) == (1, 0) == tensor.__dlpack_device__()
    assert (consumed.shape, struct.byte_offset) == (shape, 0)
    if array.size:
        assert consumed.strides in (None, tuple(n // array.itemsize for n in array.strides))
        assert struct.data == address(tensor.as_numpy())
    else:
        assert struct.data is None  # as the specification says
    assert np.array_equal(values_of(consumed, array.dtype), array)
    if max_version is not None and max_version >= (1, 0):
        managed = consumed.managed
        assert (managed.major, managed.minor, managed.flags) == (1, 0, 0)
    consumed.delete()


def test_bf16_is_bfloat_from_an_array_of_uint16() -> None:
    words = sample("BF16").view(np.uint16)
    consumed = Consumed(tw.Tensor("x", words, datatype="BF16").__dlpack__(max_version=(1, 0)))
    assert (consumed.tensor.code, consumed.tensor.bits) == (4, 16)
    assert np.array_equal(values_of(consumed, np.uint16), words)
    consumed.delete()


def test_pinned_memory_is_exported_as_that_of_the_cpu() -> None:
    """numpy says that it is pinned, which not every consumer accepts."""
    array = np.from_dlpack(Producer(sample("FP32"), device_type=3))
    assert array.__dlpack_device__() == (3, 0)
    consumed = Consumed(tw.Tensor("x", array).__dlpack__(max_version=(1, 0)))
    assert (consumed.tensor.device_type, consumed.tensor.device_id) == (1, 0)
    consumed.delete()


@pytest.mark.parametrize("max_version", [None, (1, 0)])
@pytest.mark.parametrize("readonly", [False, True])
def test_copy(readonly: bool, max_version: tuple[int, int] | None) -> None:
    tensor = decoded(sample("FP64"), readonly=readonly, offset=3)
    consumed = Consumed(tensor.__dlpack__(copy=True, max_version=max_version))
    assert consumed.tensor.data != address(tensor.as_numpy())
    assert consumed.tensor.data % 8 == 0
    if max_version is not None:
        assert consumed.managed.flags == IS_COPIED
    assert np.array_equal(values_of(consumed, np.float64), sample("FP64"))
    consumed.delete()


@pytest.mark.parametrize("readonly", [False, True])
def test_versions_that_say_whether_a_tensor_is_read_only(readonly: bool) -> None:
    tensor = decoded(sample("FP32"), readonly=readonly)
    consumed = Consumed(tensor.__dlpack__(copy=False, max_version=(1, 0)))
    assert consumed.tensor.data == address(tensor.as_numpy())
    assert consumed.managed.flags == (READ_ONLY if readonly else 0)
    consumed.delete()
    for max_version in (None, (0, 8)):
        if not readonly:
            consumed = Consumed(tensor.__dlpack__(copy=False, max_version=max_version))
            assert consumed.tensor.data == address(tensor.as_numpy())
            consumed.delete()
            continue
        with pytest.raises(BufferError) as caught:
            tensor.__dlpack__(max_version=max_version)
        assert str(caught.value) == (
            "tensor 'x' is read-only, but the consumer requested a capsule of DLPack 0.x, which "
            "cannot say so: decode from a bytearray or a BodyBuffer, which make the tensors "
            "writable, or export a copy (copy=True)"
        )


REGION = {"shared_memory_region": "r"}
IN_SHARED_MEMORY = tw.Tensor("x", None, datatype="FP32", shape=[1], parameters=REGION)
NOT_EXPORTED = "tensor 'x' cannot be exported: DLPack supports arrays of numbers, not "
OTHER_DEVICE = "tensor 'x' can only be exported to DLPack device (1, 0), the CPU"
OTHER_STREAM = "stream must be None for a tensor in the memory of the CPU"
UNSUITABLE: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (tw.Tensor("x", ["a"]), {}, BufferError, NOT_EXPORTED + "BYTES"),
    (IN_SHARED_MEMORY, {}, BufferError, NOT_EXPORTED + "shared memory"),
    (tw.Tensor("x", np.zeros(4)), {"dl_device": (2, 1)}, BufferError, OTHER_DEVICE),
    (tw.Tensor("x", np.zeros(4)), {"stream": 1}, ValueError, OTHER_STREAM),
]


@pytest.mark.parametrize("tensor, options, kind, message", UNSUITABLE)
def test_unsuitable_tensor(
    tensor: tw.Tensor, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        tensor.__dlpack__(**options)
    assert str(caught.value) == message


# --- the lifetime of exported memory ---


def test_deleter_in_another_thread() -> None:
    """In threads of the operating system that Python does not know."""
    frame = tw.encode_response(tw.InferResponse([tw.Tensor("x", sample("FP32"))]))
    body = Owned(bytes(frame))
    weak_reference = weakref.ref(body)
    tensor = tw.decode_response(body, frame.header_length)["x"]
    structs = [Consumed(tensor.__dlpack__()) for _ in range(50)]
    del body, tensor
    libc = ctypes.CDLL(None)
    handles = [ctypes.c_ulong() for _ in structs]
    for handle, struct in zip(handles, structs, strict=True):
        deleter, argument = map(ctypes.c_void_p, (struct.managed.deleter, struct.address))
        libc.pthread_create(ctypes.byref(handle), None, deleter, argument)
    for handle in handles:
        libc.pthread_join(handle, None)  # without the GIL
    gc.collect()
    assert weak_reference() is None


# --- tensors from capsules ---


@pytest.mark.parametrize("is_versioned", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("datatype", DTYPES)
def test_contiguous_tensor_is_not_copied(
    datatype: str, shape: tuple[int, ...], is_versioned: bool
) -> None:
    array = sample(datatype, shape)
    producer = Producer(array, is_versioned=is_versioned)
    tensor = tw.Tensor("x", producer)
    assert (tensor.datatype, tensor.shape) == (datatype, shape)
    made = tensor.as_numpy()
    assert made.dtype == array.dtype
    assert np.array_equal(made, array)
    assert made.flags.writeable is is_versioned  # an unversioned capsule does not say
    if array.size:
        assert address(made) == address(array)
    assert made.flags.c_contiguous
    assert made.strides == (array.strides if array.size else made.strides)
    assert producer.n_deleted == 0
    del tensor, made
    assert producer.n_deleted == 1


def test_producer_is_released_after_the_frame() -> None:
    producer = Producer(sample("INT64"))
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", producer)]))
    gc.collect()
    assert producer.n_deleted == 0
    assert bytes(frame).endswith(producer.array.tobytes())
    del frame
    assert producer.n_deleted == 1


@pytest.mark.parametrize("readonly", [False, True])
def test_read_only_flag(readonly: bool) -> None:
    array = sample("FP32")
    array.flags.writeable = not readonly
    assert tw.Tensor("x", Producer(array)).as_numpy().flags.writeable is not readonly
    assert tw.Tensor("x", Producer(array)).as_numpy(writable=True).flags.writeable


STRIDED: dict[str, Any] = {
    "transposed": sample("INT32").T,
    "every second": sample("FP64", (9,))[::2],
    "reversed": sample("INT16", (4, 3))[::-1],
    "broadcast": np.broadcast_to(sample("UINT8", (3,)), (2, 3)),
    "overlapping": np.lib.stride_tricks.sliding_window_view(sample("INT32", (4,)), 3),
    "every second of a dimension of one": np.arange(12, dtype=np.float32)[::2].reshape(1, 6),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strided_tensor_is_copied_once(name: str) -> None:
    producer = Producer(STRIDED[name])
    tensor = tw.Tensor("x", producer)
    assert producer.n_deleted == 1  # nothing refers to the producer's memory
    assert tensor.as_numpy().flags.c_contiguous
    assert np.array_equal(tensor.as_numpy(), STRIDED[name])


@pytest.mark.parametrize("stride", [0, 7, -1, 2**62, -(2**63), 2**63 - 1])
def test_stride_of_a_dimension_of_one_or_of_no_elements_has_no_meaning(stride: int) -> None:
    array = np.arange(12, dtype=np.float32)[::2]
    for shape in ((0, 3), (3, 0)):
        empty = Producer(np.zeros(shape, np.float32), strides=(stride, stride))
        assert tw.Tensor("x", empty).shape == shape
    for shape, strides in (((1, 6), (stride, 2)), ((6, 1), (2, stride))):
        producer = Producer(array.reshape(shape), strides=strides)
        assert tw.Tensor("x", producer).as_numpy().tolist() == array.reshape(shape).tolist()


ROW = sample("FP32", (1, 3))
AT_AN_ODD_ADDRESS = np.arange(33, dtype=np.uint8)[1:].view(np.int64)
# The array, the changes of its struct, and how many elements of the array are before the data.
NOT_COPIED: dict[str, tuple[Any, dict[str, Any], int]] = {
    "no strides": (ROW, {"strides": None}, 0),
    "a stride without a meaning": (ROW, {"strides": (77, 1)}, 0),
    "byte offset": (sample("INT32", (6,)), {"byte_offset": 8, "shape": (4,)}, 2),
    "misaligned": (AT_AN_ODD_ADDRESS, {}, 0),
    "pinned memory of CUDA": (ROW, {"device_type": 3}, 0),
    "pinned memory of ROCm": (ROW, {"device_type": 11}, 0),
    "no deleter": (ROW, {"deleter": None}, 0),
}


@pytest.mark.parametrize("case", NOT_COPIED)
def test_memory_that_is_used_as_it_is(case: str) -> None:
    array, changes, first = NOT_COPIED[case]
    found = tw.Tensor("x", Producer(array, **changes)).as_numpy()
    flat = array.reshape(-1)[first:]
    assert (found.reshape(-1).tolist(), address(found)) == (flat.tolist(), address(flat))
    assert found.flags.c_contiguous


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_empty_tensor_without_data(shape: tuple[int, ...]) -> None:
    producer = Producer(sample("FP32", shape), data=None, byte_offset=8)
    tensor = tw.Tensor("x", producer)
    assert tensor.as_numpy().shape == shape
    del tensor
    assert producer.n_deleted == 1


def test_datatype_argument() -> None:
    raw = Producer(sample("BF16").view(np.uint16))
    assert tw.Tensor("x", raw, datatype="BF16").datatype == "BF16"
    with pytest.raises(tw.EncodeError, match="tensor 'x' has datatype FP32, but its data is FP64"):
        tw.Tensor("x", Producer(sample("FP64")), datatype="FP32")
    assert tw.Tensor("x", Producer(sample("FP64")), shape=[3, 2]).shape == (3, 2)


def test_bf16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("tensorwire._codec.capsules.dlpack")
    monkeypatch.setattr(module, "bf16_dtype", lambda: None)
    tensor = tw.Tensor("x", Producer(sample("BF16")))
    assert tensor.datatype == "BF16"
    assert tensor.as_numpy().dtype == np.uint16
    assert np.array_equal(tensor.as_numpy(), sample("BF16").view(np.uint16))


def test_producer_of_dlpack_0_without_max_version() -> None:
    class OldProducer(Producer):
        def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
            return super().__dlpack__()

    producer = OldProducer(sample("FP32"), is_versioned=False)
    assert address(tw.Tensor("x", producer).as_numpy()) == address(producer.array)


class Failing(Producer):
    requires_grad = False

    def __dlpack__(self, **_options: Any) -> Any:
        raise BufferError("something about gradients")


class RequiresGrad(Failing):
    requires_grad = True


class Negated(Producer):
    def is_neg(self) -> bool:
        return True


X = sample("FP32")
CONSUMED = "is a DLPack tensor that has already been consumed: its capsule is marked as used"
NO_CAPSULE = "__dlpack__ of tensor 'x' must return a 'dltensor' or 'dltensor_versioned' capsule,"
DEVICE = "is on DLPack device {}:1: copy it to the memory of the CPU first, for example with "
DEVICE += "tensor.cpu()"
# The end of the message, and the producer or the changes of its struct.
INVALID: dict[str, Any] = {
    DEVICE.format("CUDA"): {"device_type": 2, "device_id": 1},
    DEVICE.format("Metal"): {"device_type": 8, "device_id": 1},
    DEVICE.format("ROCm"): {"device_type": 10, "device_id": 1},
    DEVICE.format("of type 99"): {"device_type": 99, "device_id": 1},
    "requires gradients, which cannot be sent: pass tensor.detach()": RequiresGrad(X),
    "cannot be exported by Failing: something about gradients": Failing(X),
    "is a view that negates its memory: pass tensor.resolve_neg()": Negated(X),
    "is exported as DLPack 2.0, but only version 1 is supported": {"major": 2},
    "has 65 dimensions; the limit is 64": {"ndim": 65},
    "has 2147483647 dimensions; the limit is 64": {"ndim": 2**31 - 1},
    f"is too large to address: FP32 [{2**62}, 3] exceeds 2^63 - 1 bytes": {"shape": (2**62, 3)},
}
NOT_VALID: dict[str, dict[str, Any]] = {
    "it has -1 dimensions": {"ndim": -1},
    "it has no shape": {"shape": None},
    "its dimension 1 is -3": {"shape": (2, -3)},
    "its dimension 0 is -1": {"shape": (-1, 3)},
    "it has elements, but its data pointer is NULL": {"data": None},
    "its byte_offset is 18446744073709551608": {"byte_offset": 2**64 - 8},
    **{f"its stride 0 is {n}": {"strides": (n, 1)} for n in (2**61, -(2**61), 2**63 - 1, -(2**63))},
    # Each stride is possible, but not both.
    f"its stride 1 is {2**59}": {"strides": (2**60, 2**59)},
    f"its stride 1 is {-(2**59)}": {"strides": (-(2**60), -(2**59))},
}
NO_DATATYPE = "tensor 'x' has elements of the DLPack type {}, which has no datatype"
WITHOUT_DATATYPE = (  # code, bits, lanes
    *((5, 64, 1, "complex64"), (2, 128, 1, "float128"), (0, 4, 1, "int4"), (6, 1, 1, "bool1")),
    *((3, 64, 1, "opaque64"), (4, 32, 1, "bfloat32"), (10, 8, 1, "float8_e4m3fn")),
    *((17, 4, 1, "float4_e2m1fn"), (2, 32, 4, "float32x4"), (2, 32, 0, "float32x0")),
    *((18, 8, 1, "with code 18 and 8 bits"), (255, 255, 1, "with code 255 and 255 bits")),
    (2, 0, 1, "float0"),
)
REJECTED: dict[str, Any] = {
    **{f"tensor 'x' {end}": changes for end, changes in INVALID.items()},
    **{f"tensor 'x' is not a valid DLPack tensor: {end}": row for end, row in NOT_VALID.items()},
    **{
        NO_DATATYPE.format(name): dict(zip(("code", "bits", "lanes"), numbers, strict=True))
        for *numbers, name in WITHOUT_DATATYPE
    },
    f"tensor 'x' {CONSUMED}": {"name": USED[VERSIONED]},
    f"{NO_CAPSULE} not PyCapsule": {"name": b"arrow_array"},
}


def rejected(message: str) -> Producer:
    changes = REJECTED[message]
    return changes if isinstance(changes, Producer) else Producer(X, is_cached=True, **changes)


@pytest.mark.parametrize("message", REJECTED)
def test_invalid_producer(message: str) -> None:
    is_of_type = "has no datatype" in message or NO_CAPSULE in message
    producer = rejected(message)
    with pytest.raises(TypeError if is_of_type else tw.EncodeError) as caught:
        tw.Tensor("x", producer)
    assert str(caught.value) == message
    if isinstance(caught.value, tw.EncodeError):
        assert caught.value.tensor == "x"
    # The capsule is not used: its destructor releases the struct.
    assert producer.n_deleted == 0
    assert producer.capsule is None or producer.capsule_name == producer.name


@pytest.mark.parametrize("is_versioned", [False, True])
def test_capsule_is_consumed_once(is_versioned: bool) -> None:
    producer = Producer(sample("FP32"), is_versioned=is_versioned, is_cached=True)
    first = tw.Tensor("x", producer)
    assert producer.capsule_name == USED[VERSIONED if is_versioned else UNVERSIONED]
    with pytest.raises(tw.EncodeError, match=f"^tensor 'y' {CONSUMED}$"):
        tw.Tensor("y", producer)
    assert producer.n_deleted == 0
    del first
    assert producer.n_deleted == 1


# --- which protocol is used ---


class OfNumpy(Producer):
    """Has __array__, with other values than its DLPack tensor."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array([1, 2, 3])


class OfArrow(OfNumpy):
    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return package("pyarrow").array([1, 2, 3]).__arrow_c_array__()


class Subclass(np.ndarray[Any, Any]):
    def __dlpack__(self, **_options: Any) -> Any:
        raise NotImplementedError


def test_protocol_that_is_used() -> None:
    assert tw.Tensor("x", OfNumpy(np.zeros(2))).shape == (2,)
    assert tw.Tensor("x", OfArrow(np.zeros(2))).as_numpy().tolist() == [1, 2, 3]
    array = np.zeros(3).view(Subclass)
    assert address(tw.Tensor("x", array).as_numpy()) == address(array)


# --- __array__ ---


def test_asarray_returns_the_array() -> None:
    tensor = decoded(sample("INT32"))
    assert (np.asarray(tensor) + 1).tolist() == (sample("INT32") + 1).tolist()
    assert np.asarray(tensor, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.asarray(tensor, np.float64, copy=False)
    views: list[Any] = [np.asarray(tensor), np.asarray(tensor, np.int32)]
    views.append(np.array(tensor, copy=False))
    for arguments in ((), (None,), (np.int32,), (None, None), (None, False)):  # of numpy 1 and 2
        views.append(tensor.__array__(*arguments))
    assert {address(view) for view in views} == {address(tensor.as_numpy())}
    for copied in (np.array(tensor), tensor.__array__(None, True)):
        assert address(copied) != address(tensor.as_numpy())


def test_array_of_bytes() -> None:
    tensor = tw.Tensor("x", [["a", "bc"]])
    assert np.asarray(tensor).tolist() == [[b"a", b"bc"]]
    assert np.asarray(tensor).dtype == object
    assert np.asarray(tensor, "S").dtype == np.dtype("S2")
    with pytest.raises(ValueError, match="without copying"):
        np.array(tensor, copy=False)


# --- length and iteration, for packages such as pandas ---


def test_length_and_iteration() -> None:
    tensor = decoded(sample("INT32", (3, 2)))
    assert len(tensor) == 3
    assert [row.tolist() for row in tensor] == [[0, 1], [2, 3], [4, 5]]
    words = tw.Tensor("words", ["a", "bc"])
    assert (len(words), list(words)) == (2, [b"a", b"bc"])
    scalar = decoded(sample("INT32", ()))
    with pytest.raises(TypeError, match="tensor 'x' has no dimensions, and therefore no length"):
        len(scalar)
    with pytest.raises(TypeError):
        iter(scalar)
    assert scalar and decoded(sample("INT32", (0,)))  # a tensor is true


# --- a Tensor as data ---


def test_tensor_of_a_tensor_has_the_same_memory() -> None:
    source = decoded(sample("FP32"))
    tensor = tw.Tensor("y", source)
    assert np.shares_memory(tensor.data, source.data)
    assert (tensor.name, tensor.datatype, tensor.shape) == ("y", "FP32", (2, 3))
    assert tw.Tensor("y", source, shape=[6]).shape == (6,)
    words = tw.Tensor("words", ["a"])
    assert tw.Tensor("y", words).data is words.data
    words_of_16_bits = tw.Tensor("x", np.zeros(3, np.uint16), datatype="BF16")
    assert tw.Tensor("y", words_of_16_bits).datatype == "BF16"


def test_tensors_that_are_not_data() -> None:
    bf16 = tw.Tensor("x", np.zeros(3, np.uint16), datatype="BF16")
    datatype: Any
    for data, datatype, message in (
        (IN_SHARED_MEMORY, None, "tensor 'y' is made from tensor 'x', which is in shared memory"),
        (bf16, "FP32", "tensor 'y' has datatype FP32, but its data is UINT16"),
        ([bf16, bf16], "FP32", "item 0 of tensor 'y' has datatype FP32, but its data is UINT16"),
        ([IN_SHARED_MEMORY], None, "item 0 of tensor 'y' is made from tensor 'x', which is in sh"),
    ):
        with pytest.raises(tw.EncodeError, match=message):
            tw.Tensor("y", data, datatype=datatype)
