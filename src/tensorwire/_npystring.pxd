"""The part of numpy's C API that reads and fills StringDType arrays."""

from numpy cimport dtype


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

    # The allocator is locked until it is released. Whoever waits for it may hold the GIL, so no
    # Python object may be touched and the GIL may not be waited for in between: acquire it, call a
    # function without the GIL, release it, all in one `with nogil`.
    npy_string_allocator* NpyString_acquire_allocator(
        const PyArray_StringDTypeObject* descr) nogil
    void NpyString_release_allocator(npy_string_allocator* allocator) nogil
    # 1: the value is missing; -1: an error, without a Python exception
    int NpyString_load(
        npy_string_allocator* allocator, const npy_packed_static_string* packed,
        npy_static_string* unpacked) nogil
    int NpyString_pack(
        npy_string_allocator* allocator, npy_packed_static_string* packed, const char* buf,
        size_t size) nogil
