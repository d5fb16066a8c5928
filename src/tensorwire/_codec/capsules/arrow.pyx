"""The Arrow C data interface: arrays and streams of other packages in, arrays of numbers out.

`receive` takes an array or a stream over from its producer, and checks everything that can be
checked. `numbers_of` converts received numbers to a numpy array. `export_schema` and `export_array`
export an array of numbers. arrow_bytes.pyx reads and exports BYTES. Memory is shared in both
directions, except for BOOL: an Arrow array has a bit for each boolean.

A tensor with several dimensions is an array of fixed-size lists, which are nested for more than two
dimensions. Its elements are in row-major order in the buffer of the innermost array.
"""

cimport cython
cimport numpy as cnp
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from cpython.pycapsule cimport (
    PyCapsule_Destructor, PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memset

from ..capsules.arrow_abi cimport (
    N_OFFSET_BUFFERS, NULLABLE, ArrowArray, ArrowArrayStream, ArrowSchema)
from ..datatypes cimport Datatype, shape_to_send
from ..gil cimport LONG_NBYTES, count_work
from ..exports cimport exported_bytes
from ..wire cimport MAX_RANK, multiply

import numpy as np

from ..datatypes import DATATYPES

from ...errors import (
    MAX_FOREIGN_TEXT, SUBJECT, EncodeError, format_count, format_subject, format_text, format_value)

cnp.import_array()

cdef extern from "Python.h":
    int Py_IsInitialized() nogil

cdef dict FORMATS = {
    "BOOL": b"b", "INT8": b"c", "UINT8": b"C", "INT16": b"s", "UINT16": b"S", "INT32": b"i",
    "UINT32": b"I", "INT64": b"l", "UINT64": b"L", "FP16": b"e", "FP32": b"f", "FP64": b"g",
}
cdef dict BY_FORMAT = {format: DATATYPES[name] for name, format in FORMATS.items()}
cdef dict LAYOUTS = {
    b"z": OFFSETS_32, b"u": OFFSETS_32, b"Z": OFFSETS_64, b"U": OFFSETS_64, b"vz": VIEWS,
    b"vu": VIEWS,
}
# The types that have no datatype, by the first characters of their format.
cdef dict OTHER_TYPES = {
    b"n": "null", b"d:": "decimal", b"w:": "fixed-size binary", b"td": "date", b"tt": "time",
    b"ts": "timestamp", b"tD": "duration", b"ti": "interval", b"+l": "list of variable size",
    b"+L": "list of variable size", b"+vl": "list of variable size",
    b"+vL": "list of variable size", b"+s": "struct or table", b"+m": "map", b"+u": "union",
    b"+r": "run-end encoded",
}


# --- import ---

# The callbacks of a producer are called without the GIL: they may wait for other threads, which may
# need the GIL.


# The garbage collector does not track this class, because an object may be used after a cycle was
# cleared.
@cython.final
@cython.no_gc
cdef class Chunk:
    """Owns an Arrow array that was moved out of a capsule, or received from a stream."""

    def __dealloc__(self):
        if self.array.release != NULL:
            with nogil:
                self.array.release(&self.array)


@cython.final
@cython.no_gc
cdef class StreamOwner:

    cdef ArrowArrayStream stream

    def __dealloc__(self):
        if self.stream.release != NULL:
            with nogil:
                self.stream.release(&self.stream)


@cython.final
cdef class Received:
    """The type of an array or a stream, its chunks from `add_chunk`, and its shape."""


cdef Received receive(values, bint only_bytes):
    """Take over the array or stream of an object that exports one.

    The array or stream is consumed: its struct is moved out of the producer's capsule, which is
    marked as released, to a Chunk or StreamOwner. Everything that can be checked is checked. The
    structs do not contain the sizes of the buffers, except for the data buffers of views: if a
    producer declares more elements than there are, this package reads beyond the producer's memory.

    Raises EncodeError if the values have already been consumed, violate the interface or contain a
    null, or if `only_bytes` is true and they are not bytes or text. Raises TypeError if no capsules
    are exported, or for a type without a datatype.
    """
    cdef Received received = Received.__new__(Received)
    received.chunks = []
    if hasattr(values, "__arrow_c_array__"):
        receive_array(received, values, only_bytes)
    else:
        receive_stream(received, values, only_bytes)
    cdef list list_sizes = []
    for level in range(received.n_lists):
        list_sizes.append(received.list_sizes[level])
    received.shape = shape_to_send((received.n_rows, *list_sizes), received.element_type)
    if received.n_nulls > 0:
        raise null_error(received)
    return received


cdef void* pointer_of(capsule, const char* kind, method) except NULL:
    if not PyCapsule_IsValid(capsule, kind):
        raise TypeError(
            f"{method} must return an {(<bytes>kind).decode()!r} capsule, not "
            f"{type(capsule).__name__}")
    return PyCapsule_GetPointer(capsule, kind)


cdef int receive_array(Received received, values, bint only_bytes) except -1:
    cdef Chunk chunk = Chunk()
    cdef ArrowSchema* schema
    cdef ArrowArray* array
    capsules = values.__arrow_c_array__()
    if not isinstance(capsules, tuple) or len(capsules) != 2:
        raise TypeError(
            f"__arrow_c_array__ must return a tuple of two capsules, not {type(capsules).__name__}")
    schema_capsule, array_capsule = capsules
    schema = <ArrowSchema*>pointer_of(schema_capsule, "arrow_schema", "__arrow_c_array__")
    array = <ArrowArray*>pointer_of(array_capsule, "arrow_array", "__arrow_c_array__")
    read_type(received, schema, only_bytes)
    with cython.critical_section(array_capsule):
        if array.release == NULL:
            raise already_consumed_error("array")
        chunk.array = array[0]  # moved first, so that no other code can release it
        array.release = NULL
    return add_chunk(received, chunk)


cdef int receive_stream(Received received, values, bint only_bytes) except -1:
    cdef ArrowSchema schema
    cdef ArrowArrayStream* stream
    cdef Chunk chunk
    cdef int status
    cdef StreamOwner owner = StreamOwner()
    capsule = values.__arrow_c_stream__()
    stream = <ArrowArrayStream*>pointer_of(
        capsule, "arrow_array_stream", "__arrow_c_stream__")
    with cython.critical_section(capsule):
        if stream.release == NULL:
            raise already_consumed_error("stream")
        owner.stream = stream[0]
        stream.release = NULL
    stream = &owner.stream
    if stream.get_schema == NULL or stream.get_next == NULL:
        raise invalid_arrow_error("its stream has no get_schema or get_next")
    memset(&schema, 0, sizeof(ArrowSchema))
    with nogil:
        status = stream.get_schema(stream, &schema)
    if status != 0:
        raise stream_error(stream)
    try:
        read_type(received, &schema, only_bytes)
    finally:
        if schema.release != NULL:
            with nogil:
                schema.release(&schema)
    while True:
        chunk = Chunk()
        with nogil:
            status = stream.get_next(stream, &chunk.array)
        if status != 0:
            chunk.array.release = NULL  # the struct is undefined
            raise stream_error(stream)
        if chunk.array.release == NULL:  # the end of the stream
            return 0
        add_chunk(received, chunk)


cdef int read_type(Received received, const ArrowSchema* schema, bint only_bytes) except -1:
    """Set the type to the one that a schema declares. See `receive` for the errors."""
    cdef bytes format = schema_format(schema)
    while format.startswith(b"+w:") and schema.dictionary == NULL:
        if received.n_lists == MAX_RANK - 1:
            raise EncodeError(
                f"{SUBJECT} is an Arrow array with more than {MAX_RANK} dimensions")
        digits = format[3:]
        if not digits.isdigit() or len(digits) > 10 or int(digits) > INT32_MAX:
            raise invalid_arrow_error(f"its schema has the format {format_arrow_type(format)}")
        received.list_sizes[received.n_lists] = int(digits)
        received.n_lists += 1
        if schema.n_children != 1 or schema.children == NULL or schema.children[0] == NULL:
            raise invalid_arrow_error(
                f"its schema of lists has {schema.n_children} children, not 1")
        schema = schema.children[0]
        format = schema_format(schema)
    if schema.dictionary == NULL and format in LAYOUTS:
        received.element_type = DATATYPES["BYTES"]
        received.layout = LAYOUTS[format]
        return 0
    if schema.dictionary == NULL and format in BY_FORMAT and not only_bytes:
        received.element_type = BY_FORMAT[format]
        received.layout = NUMBERS
        return 0
    raise unsupported_type_error(format, schema.dictionary != NULL, only_bytes)


cdef bytes schema_format(const ArrowSchema* schema):
    if schema.release == NULL:
        raise already_consumed_error("schema")
    if schema.format == NULL:
        raise invalid_arrow_error("its schema has no format")
    return schema.format


cdef str format_arrow_type(bytes format):
    return format_value(format.decode("utf-8", "replace"))


cdef unsupported_type_error(bytes format, bint has_dictionary, bint only_bytes):
    what = "with a dictionary" if has_dictionary else f"of format {format_arrow_type(format)}"
    if only_bytes:
        return EncodeError(
            f"{SUBJECT} is an Arrow array {what}, not one of binary, large_binary, string, "
            f"large_string, binary_view or string_view")
    if has_dictionary:
        return TypeError(
            f"{SUBJECT} is an Arrow array with a dictionary: replace the indices by the values "
            f"first, for example with dictionary_decode() of pyarrow or cast() of polars")
    name = next((name for start, name in OTHER_TYPES.items() if format.startswith(start)), None)
    return TypeError(
        f"{SUBJECT} is an Arrow array {what}{f' ({name})' if name else ''}, which has no datatype: "
        f"convert it to numbers, bytes or text first")


cdef int add_chunk(Received received, Chunk chunk) except -1:
    """Add a chunk whose structs are valid. Set its `elements`, and count the nulls."""
    cdef const ArrowArray* array = &chunk.array
    # The rows of `array` that are used, without its offset: all those of the outermost array, and
    # those that belong to the used lists of any other.
    cdef uint64_t first = 0
    cdef uint64_t n_rows
    cdef uint64_t n_before = received.n_rows  # wraps only if `shape_to_send` raises an error
    cdef int level
    check_struct(array, received.layout, received.n_lists == 0)
    n_rows = array.length
    for level in range(received.n_lists):
        count_nulls(received, level, array, first, n_rows, n_before)
        first += array.offset
        n_before *= received.list_sizes[level]
        if not multiply(&first, received.list_sizes[level]) or not multiply(
                &n_rows, received.list_sizes[level]):
            raise invalid_arrow_error("its lists have more than 2^63 - 1 elements")
        if array.children == NULL or array.children[0] == NULL:
            raise invalid_arrow_error("its array of lists has no elements")
        array = array.children[0]
        if array.release == NULL:
            raise invalid_arrow_error("the elements of its lists were released")
        check_struct(array, received.layout, level == received.n_lists - 1)
        if first > <uint64_t>array.length or n_rows > <uint64_t>array.length - first:
            raise invalid_arrow_error(
                f"its lists require {first + n_rows} elements, but there are {array.length}")
    chunk.elements = array[0]
    chunk.elements.offset += first
    chunk.elements.length = n_rows
    if received.layout == NUMBERS:
        if n_rows > 0 and array.buffers[1] == NULL:
            raise invalid_arrow_error(f"it has {n_rows} elements, but its data buffer is NULL")
    count_nulls(received, received.n_lists, array, first, n_rows, n_before)
    if chunk.array.length > INT64_MAX - received.n_rows:
        raise invalid_arrow_error("its chunks have more than 2^63 - 1 elements")
    received.n_rows += chunk.array.length
    received.chunks.append(chunk)
    return 0


cdef int check_struct(const ArrowArray* array, ArrowLayout layout, bint is_innermost) except -1:
    """Check an array of elements with the layout, or an array of lists. Raises EncodeError."""
    cdef int64_t n_buffers = 1 if not is_innermost else 2 if layout == NUMBERS else N_OFFSET_BUFFERS
    cdef bint has_variadic = is_innermost and layout == VIEWS
    if array.length < 0 or array.offset < 0:
        raise invalid_arrow_error(f"its length is {array.length} and its offset is {array.offset}")
    # No address overflows: a view takes 16 bytes, and there is one offset more than elements.
    if array.length >= (INT64_MAX >> 4) - array.offset:
        raise invalid_arrow_error(
            f"its offset {array.offset} and length {array.length} add up to "
            f"{<object>array.offset + array.length} elements; the limit is {(INT64_MAX >> 4) - 1}")
    if array.null_count < -1 or array.null_count > array.length:
        raise invalid_arrow_error(
            f"its null count is {array.null_count}, but its length is {array.length}")
    if array.n_children != (0 if is_innermost else 1):
        raise invalid_arrow_error(
            f"it has {array.n_children} children, not {0 if is_innermost else 1}")
    if array.dictionary != NULL:
        raise invalid_arrow_error("it has a dictionary, but its schema has none")
    if array.n_buffers < n_buffers or (array.n_buffers > n_buffers and not has_variadic):
        raise invalid_arrow_error(f"it has {array.n_buffers} buffers, not {n_buffers}")
    if array.buffers == NULL:
        raise invalid_arrow_error(f"its list of {array.n_buffers} buffers is NULL")
    if array.buffers[0] == NULL and array.null_count > 0:
        raise invalid_arrow_error(f"it has {array.null_count} nulls, but no validity buffer")
    return 0


cdef void count_nulls(
    Received received, int level, const ArrowArray* array, int64_t first, int64_t n_rows,
    int64_t n_before,
) noexcept:
    """Count the nulls among the used rows of an array, unless an outer array has some.

    `n_before` is the number of rows of this level in the chunks before this one.
    """
    cdef const uint8_t* validity = <const uint8_t*>array.buffers[0]
    cdef int64_t start = array.offset + first
    cdef int64_t i = start, end = start + n_rows, counted = start
    if validity == NULL or array.null_count == 0 or (
            received.n_nulls > 0 and received.null_level < level):
        return
    while i < end:
        if i - counted >= LONG_NBYTES:
            count_work(i - counted)
            counted = i
        if i & 7 == 0 and end - i >= 8 and validity[i >> 3] == 0xFF:
            i += 8
            continue
        if not validity[i >> 3] >> (i & 7) & 1:
            if received.n_nulls == 0 or level < received.null_level:
                received.null_level, received.first_null = level, n_before + i - start
                received.n_nulls = 0
            received.n_nulls += 1
        i += 1


cdef null_error(Received received):
    position, level = received.first_null, received.null_level
    index = list(map(int, np.unravel_index(position, received.shape[:level + 1])))
    if level < received.n_lists:
        return EncodeError(
            f"{SUBJECT} contains {format_count('null list', received.n_nulls)}, which tensors "
            f"cannot have; the first is at {index}")
    where = f"element {position}{f' {index}' if level else ''}"
    return EncodeError(
        f"{SUBJECT} contains {format_count('null', received.n_nulls)}, which tensors cannot have; "
        f"the first is {where}", element=position)


cdef invalid_arrow_error(what):
    return EncodeError(f"{SUBJECT} is an invalid Arrow array: {what}")


cdef already_consumed_error(kind):
    return EncodeError(
        f"{SUBJECT} is an Arrow {kind} that has already been consumed: its capsule is released")


cdef stream_error(ArrowArrayStream* stream):
    cdef const char* message = NULL
    if stream.get_last_error != NULL:
        with nogil:
            message = stream.get_last_error(stream)
    text = (<bytes>message).decode("utf-8", "replace") if message != NULL else "no reason given"
    shown = format_text(text, MAX_FOREIGN_TEXT)
    return EncodeError(f"the Arrow stream of {SUBJECT} failed: {shown}")


# --- numbers ---


cdef cnp.ndarray numbers_of(Received received):
    """Return a read-only view of the producer's memory for one chunk, or else a copy."""
    cdef Chunk chunk
    parts = []
    for item in received.chunks:
        chunk = <Chunk?>item
        if chunk.elements.length > 0:
            parts.append(numbers_of_chunk(chunk, received.element_type))
    if not parts:
        return np.empty(received.shape, received.element_type.dtype)
    array = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return array.reshape(received.shape)


cdef numbers_of_chunk(Chunk chunk, Datatype element_type):
    cdef const ArrowArray* array = &chunk.elements
    cdef const char* data = <const char*>array.buffers[1]
    cdef int64_t first_bit = array.offset & 7
    if element_type.name != "BOOL":
        data += array.offset * element_type.itemsize
        memory = exported_bytes(chunk, data, array.length * element_type.itemsize)
        return np.frombuffer(memory, element_type.dtype)
    data += array.offset >> 3
    memory = exported_bytes(chunk, data, (first_bit + array.length + 7) >> 3)
    bits = np.frombuffer(memory, np.uint8)
    unpacked = np.unpackbits(bits, count=first_bit + array.length, bitorder="little")
    return unpacked[first_bit:].view(np.bool_)


# --- export ---

# Each array and schema is released on its own, because a consumer may move the child of an array
# out of it. The node of a struct is its private data.


cdef struct SchemaNode:
    char[16] format
    ArrowSchema child
    ArrowSchema* children


cdef struct ArrayNode:
    const void* buffers[2]
    ArrowArray child
    ArrowArray* children
    void* owner  # the numpy array, or NULL in an array of lists


cdef export_schema(cnp.ndarray array, Datatype element_type, str name):
    cdef int axis, rank = cnp.PyArray_NDIM(array)
    if element_type.name == "BF16":
        raise EncodeError(
            f"{format_subject('tensor', name)} is BF16, which Arrow does not support: convert it "
            f"to FP32 first", tensor=name)
    for axis in range(1, rank):
        if cnp.PyArray_DIM(array, axis) > INT32_MAX:
            raise EncodeError(
                f"{format_subject('tensor', name)} has a dimension of "
                f"{cnp.PyArray_DIM(array, axis)}; the limit for an Arrow list of fixed size is "
                f"{INT32_MAX}", tensor=name)
    return new_schema(FORMATS[element_type.name], cnp.PyArray_DIMS(array), rank)


cdef new_schema(bytes format, const cnp.npy_intp* dims, int rank):
    """Return an `arrow_schema` capsule for elements of a format. All axes but the first are lists.

    The elements of lists are nullable, as in other packages by default, so that the types are
    equal.
    """
    cdef ArrowSchema* schema = <ArrowSchema*>PyMem_RawCalloc(1, sizeof(ArrowSchema))
    cdef SchemaNode* node
    cdef int level, n_lists = max(rank - 1, 0)
    capsule = owner_of_struct(schema, "arrow_schema", free_schema)
    for level in range(n_lists + 1):
        node = <SchemaNode*>PyMem_RawCalloc(1, sizeof(SchemaNode))
        if node == NULL:
            raise MemoryError
        schema.name = b"item" if level else b""
        schema.flags = NULLABLE if level else 0
        schema.format = node.format
        schema.private_data = node
        schema.release = release_schema_node
        if level == n_lists:
            snprintf(node.format, sizeof(node.format), "%s", <const char*>format)
            break
        snprintf(node.format, sizeof(node.format), "+w:%lld", <long long>dims[level + 1])
        node.children = &node.child
        schema.n_children = 1
        schema.children = &node.children
        schema = &node.child
    return capsule


cdef void release_schema_node(ArrowSchema* schema) noexcept nogil:
    cdef SchemaNode* node = <SchemaNode*>schema.private_data
    if node.child.release != NULL:
        node.child.release(&node.child)
    PyMem_RawFree(node)
    schema.release = NULL


cdef export_array(cnp.ndarray array, Datatype element_type):
    """Return an `arrow_array` capsule of a C-contiguous array that `export_schema` accepts."""
    cdef ArrowArray* exported = NULL
    cdef ArrayNode* node
    cdef int level, n_lists = max(cnp.PyArray_NDIM(array) - 1, 0)
    cdef int64_t length = 1
    cdef cnp.ndarray owner = (
        np.packbits(array, bitorder="little") if element_type.name == "BOOL" else array)
    capsule = array_capsule(&exported)
    for level in range(n_lists + 1):
        node = <ArrayNode*>PyMem_RawCalloc(1, sizeof(ArrayNode))
        if node == NULL:
            raise MemoryError
        if cnp.PyArray_NDIM(array) > 0:
            length *= cnp.PyArray_DIM(array, level)  # numpy limits the product of all but 0
        exported.length = length
        exported.buffers = node.buffers
        exported.private_data = node
        exported.release = release_array_node
        if level == n_lists:
            exported.n_buffers = 2
            node.buffers[1] = cnp.PyArray_DATA(owner)
            node.owner = <void*>owner
            Py_INCREF(owner)  # released with the array
            break
        node.children = &node.child
        exported.n_buffers = exported.n_children = 1
        exported.children = &node.children
        exported = &node.child
    return capsule


cdef void release_array_node(ArrowArray* array) noexcept nogil:
    cdef ArrayNode* node = <ArrayNode*>array.private_data
    cdef void* owner = node.owner
    if node.child.release != NULL:
        node.child.release(&node.child)
    PyMem_RawFree(node)
    array.release = NULL
    if owner != NULL:
        drop_reference(owner)


cdef void drop_reference(void* owned) noexcept nogil:
    """Drop a reference to a Python object, in the callback that releases an exported struct.

    A consumer may call it in any thread, with or without the GIL. If the interpreter has ended, or
    is ending, there is no GIL to acquire, and the object is left alone.
    """
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object>owned)


cdef owner_of_struct(void* allocated, const char* name, PyCapsule_Destructor free):
    """Return a capsule that owns a struct. Raises MemoryError if it is NULL."""
    if allocated == NULL:
        raise MemoryError
    try:
        return PyCapsule_New(allocated, name, free)
    except MemoryError:
        PyMem_RawFree(allocated)
        raise


cdef void free_schema(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:  # no consumer has moved it out of the capsule
        schema.release(schema)
    PyMem_RawFree(schema)


cdef array_capsule(ArrowArray** array):
    """Return an `arrow_array` capsule that owns an empty struct, and set `array` to the struct."""
    array[0] = <ArrowArray*>PyMem_RawCalloc(1, sizeof(ArrowArray))
    return owner_of_struct(array[0], "arrow_array", free_array)


cdef void free_array(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    PyMem_RawFree(array)
