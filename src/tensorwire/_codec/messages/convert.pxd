cdef tuple convert_data(data, leaf, datatype, shape, bint binary)
cdef bint is_array(value) except -1
cdef first_leaf(data)
cdef tuple flatten(values, int depth)
cdef iterator_of(items, str what, str expected)
