cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(str text)


cdef inline str exact_str(value):
    """Return a str with the characters of `value`, a str or an instance of a subclass.

    No method of the subclass is called.
    """
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
cdef frozen(dict parameters)
