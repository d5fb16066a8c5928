"""DLPack capsules: arrays to capsules, and the capsules of other packages to arrays.

The memory is shared. numpy makes the exported capsules, which own references to the arrays. An
imported array owns the producer's struct, and calls its deleter when it is released. A consumer
renames a capsule when it takes the struct over, so that the struct is deleted once.

Errors have SUBJECT in place of the name of the tensor.
"""

cimport cython
cimport numpy as cnp
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT64_MAX, int64_t, uint64_t, uintptr_t

from ..datatypes cimport Datatype, Layout, dims_as_tuple, set_counts, too_large_error
from ..capsules.dlpack_abi cimport (
    CODE_BFLOAT, CODE_BOOL, CODE_FLOAT, CODE_INT, CODE_UINT, CPU, CUDA_HOST, MAJOR_VERSION,
    READ_ONLY, ROCM_HOST, DLDataType, DLManagedTensor, DLManagedTensorVersioned, DLTensor)
from ..limits cimport ENCODING, check_rank
from ..wire cimport MAX_RANK, multiply

from ..datatypes import BY_DTYPE, DATATYPES, RAW_BF16, bf16_dtype

from ...errors import MAX_FOREIGN_TEXT, SUBJECT, EncodeError, format_text

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(
        PyTypeObject* subtype, cnp.dtype descr, int nd, const cnp.npy_intp* dims,
        const cnp.npy_intp* strides, void* data, int flags, PyObject* obj)

cdef const char* UNVERSIONED = "dltensor"
cdef const char* VERSIONED = "dltensor_versioned"
cdef const char* USED_UNVERSIONED = "used_dltensor"
cdef const char* USED_VERSIONED = "used_dltensor_versioned"

cdef dict CODE_OF_KIND = {"b": CODE_BOOL, "i": CODE_INT, "u": CODE_UINT, "f": CODE_FLOAT}
cdef dict CODE_OF_DATATYPE = {
    each.name: CODE_OF_KIND[dtype.kind] for dtype, each in BY_DTYPE.items()
}
CODE_OF_DATATYPE["BF16"] = CODE_BFLOAT
cdef dict BY_DLTYPE = {
    (code, 8 * DATATYPES[name].itemsize): DATATYPES[name]
    for name, code in CODE_OF_DATATYPE.items()
}
TYPE_NAMES = ("int", "uint", "float", "opaque", "bfloat", "complex", "bool")
# The number of bits is a part of these names, which follow those above.
SMALL_FLOAT_NAMES = (
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn"),
    "float4_e2m1fn",
)
HOST_DEVICES = (CPU, CUDA_HOST, ROCM_HOST)
DEVICE_NAMES = {
    **{2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 10: "ROCm", 12: "extension"},
    **{13: "CUDA managed", 14: "oneAPI", 15: "WebGPU", 16: "Hexagon", 17: "MAIA", 18: "Trainium"},
}


# --- export ---


cdef dlpack_capsule(cnp.ndarray array, Datatype element_type, max_version, dl_device, bint copy):
    """Return a capsule of DLPack 0.x or 1.0 with an array, which is C-contiguous and little-endian.

    The arguments after `element_type` are those of `__dlpack__`. Raises BufferError.
    """
    cdef bint is_versioned
    cdef DLTensor* tensor
    if dl_device is not None and tuple(dl_device) != (CPU, 0):
        raise BufferError(f"{SUBJECT} can only be exported to DLPack device (1, 0), the CPU")
    is_versioned = max_version is not None and max_version[0] >= MAJOR_VERSION
    if not (is_versioned or copy or cnp.PyArray_ISWRITEABLE(array)):
        raise BufferError(
            f"{SUBJECT} is read-only, but the consumer requested a capsule of DLPack 0.x, which "
            "cannot say so: decode from a bytearray or a BodyBuffer, which make the tensors "
            "writable, or export a copy (copy=True)")
    source = array.view(RAW_BF16) if element_type.name == "BF16" else array
    capsule = source.__dlpack__(
        max_version=(MAJOR_VERSION, 0) if is_versioned else None, copy=copy or None)
    if is_versioned:
        tensor = &(<DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)).dl_tensor
    else:
        tensor = &(<DLManagedTensor*>PyCapsule_GetPointer(capsule, UNVERSIONED)).dl_tensor
    tensor.device.device_type = CPU  # even if numpy imported the memory as pinned
    tensor.device.device_id = 0
    tensor.dtype.code = CODE_OF_DATATYPE[element_type.name]  # numpy has no code for bfloat16
    if cnp.PyArray_SIZE(array) == 0:
        tensor.data = NULL  # as the specification says
    return capsule


# --- import ---

cdef unsigned char no_data = 0  # empty arrays point here, because their producers may give NULL


# There is no tp_clear, because an array may be used after a cycle was cleared. The trashcan limits
# the use of the C stack if imported and exported arrays own each other. It needs an attribute that
# the garbage collector tracks.
@cython.final
@cython.no_gc_clear
@cython.trashcan(True)
cdef class ImportedTensor:
    """Owns the struct of a capsule. It is the base of the array over the struct's memory."""

    cdef object capsule
    cdef DLManagedTensorVersioned* versioned  # or NULL
    cdef DLManagedTensor* unversioned  # or NULL

    def __dealloc__(self):
        # A deleter may wait for other threads, which may need the GIL.
        if self.versioned != NULL and self.versioned.deleter != NULL:
            with nogil:
                self.versioned.deleter(self.versioned)
        if self.unversioned != NULL and self.unversioned.deleter != NULL:
            with nogil:
                self.unversioned.deleter(self.unversioned)


cdef bint exports_dlpack(values) except -1:
    return hasattr(values, "__dlpack__") and hasattr(values, "__dlpack_device__")


cdef tuple import_dlpack(producer):
    """Return the Datatype of a DLPack tensor in host memory, and an array over its memory.

    The array may be strided, and is read-only if the producer does not say that it is writable. The
    sizes of the memory cannot be checked, because the struct does not contain them. Everything else
    is checked. Raises EncodeError, or TypeError if its type has no datatype or there is no capsule.
    """
    # The struct has the device, too. Some producers need microseconds for __dlpack_device__.
    try:
        try:
            capsule = producer.__dlpack__(max_version=(MAJOR_VERSION, 0))
        except TypeError:  # the producer does not have the argument; the capsule is unversioned
            capsule = producer.__dlpack__()
    except (BufferError, RuntimeError, ValueError) as error:
        if getattr(producer, "requires_grad", None) is True:
            raise EncodeError(
                f"{SUBJECT} requires gradients, which cannot be sent: pass tensor.detach()"
            ) from error
        raise EncodeError(
            f"{SUBJECT} cannot be exported by {type(producer).__name__}: "
            f"{format_text(error, MAX_FOREIGN_TEXT)}") from error
    if hasattr(producer, "is_neg") and producer.is_neg() is True:
        # torch exports the memory, which has the numbers with the opposite sign.
        raise EncodeError(
            f"{SUBJECT} is a view that negates its memory: pass tensor.resolve_neg()")
    return import_capsule(capsule)


cdef tuple import_capsule(capsule):
    cdef DLManagedTensorVersioned* versioned = NULL
    cdef DLManagedTensor* unversioned = NULL
    cdef DLTensor* tensor
    cdef Datatype element_type
    cdef Layout layout
    cdef cnp.npy_intp[MAX_RANK] strides
    cdef bint is_strided
    cdef cnp.dtype dtype
    cdef cnp.ndarray array
    cdef ImportedTensor owner = ImportedTensor.__new__(ImportedTensor)
    cdef void* data
    cdef int flags = 0
    if PyCapsule_IsValid(capsule, VERSIONED):
        versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        if versioned.version.major != MAJOR_VERSION:
            raise EncodeError(
                f"{SUBJECT} is exported as DLPack {versioned.version.major}."
                f"{versioned.version.minor}, but only version {MAJOR_VERSION} is supported")
        tensor = &versioned.dl_tensor
        if not versioned.flags & READ_ONLY:
            flags = cnp.NPY_ARRAY_WRITEABLE
    elif PyCapsule_IsValid(capsule, UNVERSIONED):
        # It cannot say whether the memory is read-only. That of JAX is.
        unversioned = <DLManagedTensor*>PyCapsule_GetPointer(capsule, UNVERSIONED)
        tensor = &unversioned.dl_tensor
    else:
        raise not_a_capsule_error(capsule)
    if tensor.device.device_type not in HOST_DEVICES:
        name = DEVICE_NAMES.get(
            tensor.device.device_type, f"of type {tensor.device.device_type}")
        raise EncodeError(
            f"{SUBJECT} is on DLPack device {name}:{tensor.device.device_id}: copy it to the "
            f"memory of the CPU first, for example with tensor.cpu()")
    element_type = datatype_of_dltype(tensor.dtype)
    dtype = element_type.dtype or bf16_dtype() or RAW_BF16
    # A garbage collection may have run another consumer. From here on, no Python code runs.
    if not PyCapsule_IsValid(capsule, VERSIONED if unversioned == NULL else UNVERSIONED):
        raise not_a_capsule_error(capsule)
    read_shape(tensor, element_type, &layout)
    is_strided = tensor.strides != NULL and layout.n_elements > 0
    if is_strided:
        read_strides(tensor, element_type, &layout, strides)
    data = &no_data if layout.n_elements == 0 else checked_address(tensor)
    # From here on, the owner deletes the struct.
    PyCapsule_SetName(capsule, USED_VERSIONED if unversioned == NULL else USED_UNVERSIONED)
    owner.versioned, owner.unversioned = versioned, unversioned
    owner.capsule = capsule
    Py_INCREF(dtype)  # PyArray_NewFromDescr steals one reference
    array = PyArray_NewFromDescr(
        <PyTypeObject*>cnp.ndarray, dtype, layout.rank, layout.dims,
        strides if is_strided else NULL, data, flags, NULL)
    cnp.set_array_base(array, owner)
    return element_type, array


cdef not_a_capsule_error(capsule):
    for name in (USED_VERSIONED, USED_UNVERSIONED):
        if PyCapsule_IsValid(capsule, name):
            return EncodeError(
                f"{SUBJECT} is a DLPack tensor that has already been consumed: its capsule is "
                f"marked as used")
    return TypeError(
        f"__dlpack__ of {SUBJECT} must return a 'dltensor' or 'dltensor_versioned' capsule, not "
        f"{type(capsule).__name__}")


cdef Datatype datatype_of_dltype(DLDataType dtype):
    element_type = BY_DLTYPE.get((dtype.code, dtype.bits)) if dtype.lanes == 1 else None
    if element_type is None:
        raise TypeError(
            f"{SUBJECT} has elements of the DLPack type {format_type(dtype)}, which has no "
            f"datatype")
    return element_type


cdef format_type(DLDataType dtype):
    """Return a name such as complex64, float8_e5m2 or float32x4."""
    cdef Py_ssize_t i = dtype.code - len(TYPE_NAMES)
    if i < 0:
        name = f"{TYPE_NAMES[dtype.code]}{dtype.bits}"
    elif i < len(SMALL_FLOAT_NAMES):
        name = SMALL_FLOAT_NAMES[i]
    else:
        name = f"with code {dtype.code} and {dtype.bits} bits"
    return name if dtype.lanes == 1 else f"{name}x{dtype.lanes}"


cdef int read_shape(DLTensor* tensor, Datatype element_type, Layout* layout) except -1:
    cdef int axis
    if tensor.ndim < 0:
        raise invalid_tensor_error(f"it has {tensor.ndim} dimensions")
    check_rank(tensor.ndim, MAX_RANK, ENCODING)
    if tensor.ndim > 0 and tensor.shape == NULL:
        raise invalid_tensor_error("it has no shape")
    layout.rank = tensor.ndim
    for axis in range(tensor.ndim):
        layout.dims[axis] = tensor.shape[axis]
        if layout.dims[axis] < 0:
            raise invalid_tensor_error(f"its dimension {axis} is {layout.dims[axis]}")
    if not set_counts(layout, element_type.itemsize):
        raise too_large_error(ENCODING, dims_as_tuple(layout.dims, layout.rank), element_type)
    return 0


cdef int read_strides(
    DLTensor* tensor, Datatype element_type, Layout* layout, cnp.npy_intp* strides
) except -1:
    """Fill `strides`, in bytes, from those of a producer, in elements. Raises EncodeError."""
    cdef int64_t stride
    # The number of bytes between the first and the last element.
    cdef uint64_t extent, total = element_type.itemsize
    cdef int axis
    for axis in range(layout.rank):
        stride = tensor.strides[axis]
        if layout.dims[axis] == 1:
            stride = 0  # it has no meaning, and may be any number
        extent = <uint64_t>element_type.itemsize
        if not multiply(&extent, <uint64_t>stride if stride >= 0 else 0 - <uint64_t>stride) or (
                not multiply(&extent, <uint64_t>layout.dims[axis] - 1)
                or extent > <uint64_t>INT64_MAX - total):
            raise invalid_tensor_error(f"its stride {axis} is {stride}")
        total += extent
        strides[axis] = stride * element_type.itemsize
    return 0


cdef void* checked_address(DLTensor* tensor) except NULL:
    if tensor.data == NULL:
        raise invalid_tensor_error("it has elements, but its data pointer is NULL")
    if tensor.byte_offset > <uint64_t>INT64_MAX - <uintptr_t>tensor.data:
        raise invalid_tensor_error(f"its byte_offset is {tensor.byte_offset}")
    return <char*>tensor.data + tensor.byte_offset


cdef invalid_tensor_error(what):
    return EncodeError(f"{SUBJECT} is not a valid DLPack tensor: {what}")
