"""Docstrings of the attributes of compiled classes, for `help` and editors."""

import re

cdef extern from "Python.h":
    ctypedef struct PyGetSetDef:
        const char* doc

    ctypedef struct PyGetSetDescrObject:
        PyGetSetDef* d_getset

# An entry of the sections Parameters and Attributes: names, a type, and an indented description.
ENTRY = re.compile(r"^    (\w+(?:, \w+)*) : .*\n((?:        .*\n)+)", re.MULTILINE)

cdef list kept = []  # the texts that descriptors refer to


def document_attributes(kind):
    """Give each attribute of a class its description in the docstring of the class.

    Cython creates a descriptor without a docstring for an attribute that is declared with `public`
    or `readonly`. A property with a docstring would make each access slower.
    """
    cdef bytes text
    for match in ENTRY.finditer(kind.__doc__):  # a later section overrides an earlier one
        for name in match[1].split(", "):
            descriptor = vars(kind).get(name)
            if type(descriptor).__name__ == "getset_descriptor":
                text = re.sub(r"\s+", " ", match[2]).strip().encode()
                kept.append(text)
                (<PyGetSetDescrObject*>descriptor).d_getset.doc = text
