from ._limits cimport Limits

cpdef int check_nesting(bytes text, Limits limits) except -1
