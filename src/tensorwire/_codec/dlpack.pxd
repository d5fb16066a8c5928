from numpy cimport ndarray


cdef dlpack_capsule(ndarray array, str datatype, max_version, dl_device, bint copied)
cdef bint exports_dlpack(values) except -1
cdef tuple import_dlpack(producer)
