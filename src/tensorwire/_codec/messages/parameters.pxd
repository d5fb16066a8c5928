from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.string cimport memchr

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(str text)
    Py_ssize_t PyUnicode_FindChar(
        str text, Py_UCS4 character, Py_ssize_t start, Py_ssize_t end, int direction)
    Py_ssize_t PyUnicode_GET_LENGTH(str text)
    int PyUnicode_KIND(str text)
    int PyUnicode_1BYTE_KIND
    const void* PyUnicode_DATA(str text)


cdef inline bint has_nul(str text) noexcept:
    if PyUnicode_KIND(text) == PyUnicode_1BYTE_KIND:
        return memchr(PyUnicode_DATA(text), 0, PyUnicode_GET_LENGTH(text)) != NULL
    return PyUnicode_FindChar(text, 0, 0, PyUnicode_GET_LENGTH(text), 1) >= 0


cdef inline Py_ssize_t text_nbytes(str text) except -1:
    """Return the size of a text of a message in UTF-8."""
    cdef Py_ssize_t nbytes = 0
    if PyUnicode_IS_ASCII(text):
        return PyUnicode_GET_LENGTH(text)
    PyUnicode_AsUTF8AndSize(text, &nbytes)
    return nbytes


cdef inline str exact_str(value):
    """Return a str with the characters of `value`. No method of a subclass is called."""
    return <str>value if type(value) is str else <str>str.__str__(value)


cdef inline str exact_text(value, str what, parameter):
    """Return a text of the header as an exact `str`.

    `what` is its name for errors, or that of the parameters if it is in a `parameter`. Raises
    EncodeError for a lone surrogate.
    """
    cdef str text = exact_str(value)
    if not PyUnicode_IS_ASCII(text):
        check_surrogates(text, what, parameter)
    return text


cdef int check_surrogates(str text, str what, parameter) except -1
cdef dict own_parameters(parameters)
cdef read_only(dict parameters)
cdef str checked_name(name, str what)
cdef bint false_or_raise(value, name) except -1
cdef str text_or_raise(value, str what)


cdef inline bint checked_flag(value, name) except -1:
    return True if value is True else false_or_raise(value, name)


cdef inline str checked_text(value, str what):
    """Return a member of a message as an exact `str`, and None for None."""
    return None if value is None else text_or_raise(value, what)
