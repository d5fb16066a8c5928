"""The parameters of messages and tensors, and other text in the JSON header.

What a caller passes is checked and copied once, when a message is made. The copy consists of exact
`dict`, `list`, `str`, `int`, `float` and `bool` objects that nothing else refers to. Subclasses are
converted, because they may override comparison and hashing. It is exposed as a read-only mapping of
another copy.
"""

from cpython.dict cimport PyDictProxy_New
from cpython.float cimport PyFloat_AS_DOUBLE

from itertools import islice

from ..gil cimport ITEM_COST, count_work
from ..json.reader cimport MAX_INTEGER_DIGITS
from ..limits cimport MAX_NESTING

from collections.abc import Mapping

import numpy as np

from ...errors import SUBJECT, EncodeError, format_value

# Larger integers have more digits than decoders read.
cdef object MAX_INTEGER = pow(10, <object>MAX_INTEGER_DIGITS) - 1
cdef object MIN_INTEGER = -MAX_INTEGER
PARAMETERS_OF_SUBJECT = f"the parameters of {SUBJECT}"

cdef int check_surrogates(str text, str what, parameter) except -1:
    """Raise EncodeError for a lone surrogate. See `exact_text`."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if parameter is not None:
            what = f"parameter {format_value(parameter)} of {SUBJECT}"
        raise EncodeError(
            f"{what} has a lone surrogate at character {error.start}, which UTF-8 cannot "
            f"represent: {format_value(text)}") from None
    return 0


cdef dict own_parameters(parameters):
    """Return a checked copy of the parameters of a message or tensor; None if there are none.

    The errors have SUBJECT in place of the name of the message or tensor.
    """
    if parameters is None:
        return None
    if type(parameters) is not dict and not isinstance(parameters, Mapping):
        raise TypeError(
            f"the parameters of {SUBJECT} must be a mapping, not {type(parameters).__name__}")
    return own_members(parameters, None, 0) or None


cdef dict own_members(members, parameter, int depth):
    """Return a checked copy of a mapping: of parameters, or of an object in a parameter."""
    # No other thread can change a copy while its items are read.
    cdef dict own = (<dict>members).copy() if type(members) is dict else dict(members)
    for key in own:
        if type(key) is not str:
            own = with_exact_keys(own, parameter)
            break
    for key, value in own.items():
        exact_text(key, PARAMETERS_OF_SUBJECT, parameter)
        checked = own_value(value, key if parameter is None else parameter, depth + 1)
        if checked is not value:
            own[key] = checked  # the key exists, so that the iteration can continue
    return own


cdef dict with_exact_keys(dict members, parameter):
    cdef dict own = {}
    for key, value in members.items():
        if not isinstance(key, str):
            if parameter is None:
                raise TypeError(
                    f"the names of the parameters of {SUBJECT} must be str, not "
                    f"{type(key).__name__}")
            raise TypeError(
                f"the keys in parameter {format_value(parameter)} of {SUBJECT} must be str, not "
                f"{type(key).__name__}")
        name = exact_str(key)
        if name in own:
            raise EncodeError(
                f"the key {format_value(name)} appears twice in {PARAMETERS_OF_SUBJECT}")
        own[name] = value
    return own


cdef own_value(value, parameter, int depth):
    """Return a checked copy of a value, which is part of a parameter and has `depth` parents."""
    count_work(ITEM_COST)
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value
    if isinstance(value, str):
        return exact_text(value, PARAMETERS_OF_SUBJECT, parameter)
    if isinstance(value, int):
        if kind is not int:
            value = int.__pos__(value)
        if not MIN_INTEGER <= value <= MAX_INTEGER:
            raise EncodeError(
                f"parameter {format_value(parameter)} of {SUBJECT} contains an integer of "
                f"{value.bit_length()} bits; the limit is {MAX_INTEGER_DIGITS} digits")
        return value
    if isinstance(value, float):
        return PyFloat_AS_DOUBLE(value)
    # A timedelta64 is an np.integer, but no number.
    if (isinstance(value, np.bool_ | np.integer | np.float16 | np.float32)
            and not isinstance(value, np.timedelta64)):
        return np.generic.item(value)
    if not isinstance(value, (Mapping, list, tuple)):
        raise TypeError(
            f"parameter {format_value(parameter)} of {SUBJECT} contains an object of type "
            f"{kind.__name__}, which JSON cannot represent")
    if depth > MAX_NESTING:
        raise EncodeError(
            f"parameter {format_value(parameter)} of {SUBJECT} is nested too deeply; the limit is "
            f"{MAX_NESTING} levels", expected=MAX_NESTING, actual=depth)
    if isinstance(value, Mapping):
        return own_members(value, parameter, depth)
    items = []
    for item in islice(value, len(value)):  # and not what other threads append meanwhile
        items.append(own_value(item, parameter, depth + 1))
    return items


cdef read_only(dict parameters):
    """Return a read-only mapping of a new dict with what `own_parameters` returned.

    The dict is new, because `==` of a read-only mapping passes it to the other object.
    """
    return PyDictProxy_New({} if parameters is None else copy_value(parameters))


cdef copy_value(value):
    """Return a value of `own_parameters` with new lists and dicts."""
    cdef list items
    cdef dict members
    if type(value) is dict:
        members = (<dict>value).copy()
        for key, item in members.items():
            count_work(ITEM_COST)
            if type(item) is dict or type(item) is list:
                members[key] = copy_value(item)  # the key exists, so the iteration can continue
        return members
    if type(value) is not list:
        return value
    items = []
    for item in <list>value:
        count_work(ITEM_COST)
        items.append(copy_value(item))
    return items


# --- other arguments ---


cdef str checked_name(name, str what):
    cdef str checked
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}")
    checked = exact_text(name, what, None)
    if has_nul(checked):
        raise EncodeError(f"{what} contains a NUL: {format_value(name)}")
    return checked


cdef bint false_or_raise(value, name) except -1:
    if value is not False:
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return False


cdef str text_or_raise(value, str what):
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str or None, not {type(value).__name__}")
    return exact_text(value, what, None)
