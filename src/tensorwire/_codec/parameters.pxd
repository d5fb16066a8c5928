cdef inline str exact_str(value):
    """Return a str with the characters of `value`, a str or an instance of a subclass.

    No method of the subclass is called.
    """
    return <str>value if type(value) is str else <str>str.__str__(value)


cdef str exact_text(value, str what, parameter=*)
cdef dict own_parameters(parameters)
cdef frozen(dict parameters)
