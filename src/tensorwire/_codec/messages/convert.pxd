cdef tuple convert_data(data, datatype, shape, bint binary)
cdef iterator_of(items, str what, str expected)
