"""The functions of numpy's C API that read and write StringDType arrays."""


cdef extern from "numpy/arrayobject.h":
    ctypedef struct npy_string_allocator:
        pass

    ctypedef struct npy_packed_static_string:
        pass

    ctypedef struct npy_static_string:
        size_t size
        const char* buf

    ctypedef struct PyArray_StringDTypeObject:
        pass

    # The allocator is locked until it is released, and another thread may wait for it with the GIL.
    # To avoid a deadlock, acquire the allocator, call a function that does not need the GIL, and
    # release the allocator, all in one `with nogil` block.
    npy_string_allocator* NpyString_acquire_allocator(
        const PyArray_StringDTypeObject* descr) nogil
    void NpyString_release_allocator(npy_string_allocator* allocator) nogil
    # Returns 1 for a missing value, and -1 for an error, without setting a Python exception.
    int NpyString_load(
        npy_string_allocator* allocator, const npy_packed_static_string* packed,
        npy_static_string* unpacked) nogil
    int NpyString_pack(
        npy_string_allocator* allocator, npy_packed_static_string* packed, const char* buf,
        size_t size) nogil
