cimport cython


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


# Another thread may set an attribute while it is read. In a free-threaded Python, code outside of a
# critical section could then read an object that has just been released. Attributes of messages are
# therefore copied to variables in a critical section, which does nothing if there is a GIL. The
# properties that Cython generates for Python code have critical sections, too.

cdef inline object data_of(Tensor tensor):
    with cython.critical_section(tensor):
        return tensor.data


cdef inline str name_of(Tensor tensor):
    with cython.critical_section(tensor):
        return tensor.name


cdef inline str datatype_name(Tensor tensor):
    with cython.critical_section(tensor):
        return tensor.datatype


cdef inline tuple shape_of_tensor(Tensor tensor):
    with cython.critical_section(tensor):
        return tensor.shape


cdef inline bint has_name(Tensor tensor, str name) except -1:
    with cython.critical_section(tensor):
        return tensor.name == name


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


# Users can set a list of a message to None, and put any object into it, and Cython accepts None for
# typed variables. Lists and items are therefore read by these functions, which raise TypeError. The
# error for an item has SUBJECT in place of the name of the list. The caller replaces SUBJECT.

cdef list tensors_of(message)


cdef inline Tensor tensor_at(list tensors, Py_ssize_t i):
    item = tensors[i]
    if type(item) is not Tensor:  # a final class
        raise wrong_item(item, i, "Tensor")
    return <Tensor>item


cdef inline RequestedOutput output_at(list outputs, Py_ssize_t i):
    item = outputs[i]
    if type(item) is not RequestedOutput:
        raise wrong_item(item, i, "RequestedOutput")
    return <RequestedOutput>item


cdef wrong_item(item, i, kind)


cdef class Frame:
    cdef readonly tuple buffers
    cdef readonly object header_length  # int or None
    cdef Py_ssize_t nbytes

    cdef tuple separate_buffers(self)


cdef Frame new_frame(tuple buffers, header_length, Py_ssize_t nbytes)
