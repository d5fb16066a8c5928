"""The structs of DLPack 1.x, and the one of the versions before it."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef enum:
    MAJOR_VERSION = 1  # another major version has other structs
    READ_ONLY = 1  # a bit of `flags`


cdef enum DLDeviceType:
    CPU = 1
    CUDA_HOST = 3  # host memory that is pinned for CUDA
    ROCM_HOST = 11  # host memory that is pinned for ROCm


cdef enum DLTypeCode:
    CODE_INT = 0
    CODE_UINT = 1
    CODE_FLOAT = 2
    CODE_BFLOAT = 4
    CODE_BOOL = 6


cdef struct DLDevice:
    int32_t device_type
    int32_t device_id


cdef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes  # elements per vector; 1 for scalars


cdef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides  # in elements; NULL for a C-contiguous tensor in versions before 1.2
    uint64_t byte_offset  # of the first element from `data`


# The struct of an unversioned capsule, with the name "dltensor".
cdef struct DLManagedTensor:
    DLTensor dl_tensor
    void* manager_ctx
    void (*deleter)(DLManagedTensor*) noexcept nogil


cdef struct DLVersion:
    uint32_t major
    uint32_t minor


# The struct of a versioned capsule, with the name "dltensor_versioned". The fields up to `deleter`
# are the same in all major versions.
cdef struct DLManagedTensorVersioned:
    DLVersion version
    void* manager_ctx
    void (*deleter)(DLManagedTensorVersioned*) noexcept nogil
    uint64_t flags
    DLTensor dl_tensor
