"""The buffer protocol for objects that export flat bytes, and memory of tensors as such objects."""

cimport cython
from cpython.buffer cimport Py_buffer


@cython.final
@cython.freelist(8)
@cython.no_gc_clear  # memoryviews and arrays may use the memory after a cycle was cleared
@cython.trashcan(True)  # the owner may be a view of another ExportedBytes, and so on
cdef class ExportedBytes:
    """Memory as flat, read-only bytes. It keeps a reference to the owner of the memory."""

    cdef object owner
    cdef const char* data
    cdef Py_ssize_t nbytes

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        export_bytes(buffer, self, self.data, self.nbytes, True, flags)


cdef exported_bytes(object owner, const char* data, Py_ssize_t nbytes):
    cdef ExportedBytes exported = ExportedBytes.__new__(ExportedBytes)
    exported.owner = owner
    exported.data = data
    exported.nbytes = nbytes
    return exported
