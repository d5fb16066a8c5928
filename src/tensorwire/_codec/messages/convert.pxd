cdef tuple convert(data, datatype, shape, bint binary)
cdef tuple convert_data(data, datatype, bint binary)
cdef iterator_of(items, str what, str expected)
cdef source_of_arrow(values)
