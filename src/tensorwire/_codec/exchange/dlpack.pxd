from numpy cimport ndarray

from ..datatypes cimport Datatype


cdef dlpack_capsule(ndarray array, Datatype row, max_version, dl_device, bint copied)
cdef bint exports_dlpack(values) except -1
cdef tuple import_dlpack(producer)
