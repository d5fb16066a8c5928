cdef extern from "Python.h":
    Py_ssize_t PyUnicode_FindChar(
        str text, Py_UCS4 character, Py_ssize_t start, Py_ssize_t end, int direction)
    Py_ssize_t PyUnicode_GET_LENGTH(str text)


cdef inline bint has_nul(str text):
    return PyUnicode_FindChar(text, 0, 0, PyUnicode_GET_LENGTH(text), 1) >= 0


cdef class Tensor:
    cdef object __weakref__
    cdef public str name
    cdef public str datatype
    cdef public tuple shape
    cdef dict _parameters  # None until the first access, which creates a dict
    cdef public bint binary
    cdef public object data


cdef class RequestedOutput:
    cdef public str name
    cdef public object binary  # True, False or None
    cdef dict _parameters  # None until the first access, which creates a dict


cdef class InferRequest:
    cdef object __weakref__
    cdef Py_ssize_t next_index  # probable index of the tensor that is accessed next
    cdef public list inputs
    cdef public list outputs  # or None
    cdef public str id
    cdef public str model_name
    cdef public str model_version
    cdef dict _parameters  # None until the first access, which creates a dict


cdef class InferResponse:
    cdef object __weakref__
    cdef Py_ssize_t next_index  # probable index of the tensor that is accessed next
    cdef public list outputs
    cdef public str model_name
    cdef public str model_version
    cdef public str id
    cdef dict _parameters  # None until the first access, which creates a dict


cdef class TensorSpec:
    cdef readonly str name
    cdef readonly str datatype
    cdef readonly tuple dims
    cdef readonly bint batching


cdef Tensor make_tensor(
    str name, str datatype, tuple shape, data, dict parameters, bint binary)


# Users can put any object into the lists of a message, and Cython accepts None for typed variables.
# Items are therefore read by these functions, which raise TypeError with the list and the index.

cdef inline list checked_list(list items, str attribute):
    if items is None:
        raise TypeError(f"{attribute} must be a list, not None")
    return items


cdef inline Tensor tensor_at(list tensors, Py_ssize_t i, str attribute):
    item = tensors[i]
    if type(item) is not Tensor:  # a final class
        raise wrong_item(item, i, attribute, "Tensor")
    return <Tensor>item


cdef inline RequestedOutput output_at(list outputs, Py_ssize_t i, str attribute):
    item = outputs[i]
    if type(item) is not RequestedOutput:
        raise wrong_item(item, i, attribute, "RequestedOutput")
    return <RequestedOutput>item


cdef wrong_item(item, i, attribute, kind)


cdef class Frame:
    cdef readonly tuple buffers
    cdef readonly object header_length  # int or None
    cdef Py_ssize_t nbytes


cdef Frame new_frame(tuple buffers, header_length, Py_ssize_t nbytes)
