cdef tuple convert_data(data, datatype, shape, bint binary)
