"""Bytes and str objects through borrowed references, which Cython would otherwise count.

Without the GIL, too: the objects do not change while somebody owns them.
"""

from cpython.object cimport PyObject

cdef extern from "Python.h":
    bint is_bytes "PyBytes_Check"(PyObject* value) noexcept nogil
    bint is_exact_bytes "PyBytes_CheckExact"(PyObject* value) noexcept nogil
    char* bytes_data "PyBytes_AS_STRING"(PyObject* value) noexcept nogil
    Py_ssize_t bytes_nbytes "PyBytes_GET_SIZE"(PyObject* value) noexcept nogil
    bint is_str "PyUnicode_Check"(PyObject* value) noexcept nogil
    bint is_exact_str "PyUnicode_CheckExact"(PyObject* value) noexcept nogil
    bint is_ascii_str "PyUnicode_IS_ASCII"(PyObject* value) noexcept nogil
    int str_kind "PyUnicode_KIND"(PyObject* value) noexcept nogil
    void* str_data "PyUnicode_DATA"(PyObject* value) noexcept nogil
    Py_ssize_t str_length "PyUnicode_GET_LENGTH"(PyObject* value) noexcept nogil
