"""Tuples that are filled while Python code may run.

Until all items are set, the garbage collector does not know the tuple: it would show it to callers
of `gc.get_objects()`, which crash if they read an item that is not set.
"""

from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM

cdef extern from "Python.h":
    void PyObject_GC_Track(tuple items)
    void PyObject_GC_UnTrack(tuple items)


cdef inline tuple new_tuple(Py_ssize_t n_items):
    """Return a tuple of one or more items, which are not set."""
    cdef tuple items = PyTuple_New(n_items)
    PyObject_GC_UnTrack(items)
    return items


cdef inline void set_item(tuple items, Py_ssize_t i, item) noexcept:
    """Set an item for the first time."""
    Py_INCREF(item)  # PyTuple_SET_ITEM steals one reference
    PyTuple_SET_ITEM(items, i, item)


cdef inline tuple finished_tuple(tuple items):
    """Return the tuple, whose items are all set."""
    PyObject_GC_Track(items)
    return items
