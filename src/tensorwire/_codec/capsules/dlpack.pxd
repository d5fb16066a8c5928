from numpy cimport ndarray

from ..datatypes cimport Datatype


cdef dlpack_capsule(ndarray array, Datatype element_type, max_version, dl_device, bint copy)
cdef bint exports_dlpack(values) except -1
cdef tuple import_dlpack(producer)
