"""Bytes objects and tuples that are being filled, to which nothing else refers."""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** text, Py_ssize_t nbytes) except -1
    char* address_of "PyBytes_AS_STRING"(PyObject* text)
    void Py_SET_SIZE(PyObject* text, Py_ssize_t nbytes)


cdef inline int shrink(PyObject** new_bytes, Py_ssize_t nbytes) except -1:
    """Set the size of a bytes object. It is NULL after an error.

    Up to a third of its memory is not returned. glibc keeps memory of the size that was freed last
    for the next object, but gets a larger amount from the kernel each time, and touching new pages
    takes several times as long as writing a text. So what is freed has to be what was allocated.
    """
    cdef Py_ssize_t capacity = PyBytes_GET_SIZE(<object>new_bytes[0])
    if capacity - nbytes > capacity // 3:
        return _PyBytes_Resize(new_bytes, nbytes)
    Py_SET_SIZE(new_bytes[0], nbytes)
    address_of(new_bytes[0])[nbytes] = 0
    return 0


cdef inline void set_item(tuple items, Py_ssize_t i, item) noexcept:
    """Set an item of a tuple of PyTuple_New for the first time."""
    Py_INCREF(item)  # PyTuple_SET_ITEM steals one reference
    PyTuple_SET_ITEM(items, i, item)
