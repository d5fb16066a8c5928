"""Arrow to BYTES: arrays of bytes or text from any library that exports them, as a Source.

An array or stream is taken over: its struct is moved out of the producer's capsule, which is left
released as the interface prescribes, and released once by the Chunk or Stream that owns it.

What the structs claim is checked as far as it can be. A consumer cannot know how long the validity,
offset and view buffers are, nor the data buffer of an offset layout: a producer that claims more
elements or bytes than it has makes this module read memory that is not there.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport INT64_MAX, UINT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from ._arrow_abi cimport INLINE_NBYTES, ArrowArray, ArrowArrayStream, ArrowSchema, View
from ._pack cimport Source, Writer, begin_element, changed, overlap, place, too_long
from ._wire cimport PREFIX_NBYTES

from .errors import EncodeError, subject

cdef enum Layout:
    OTHER
    OFFSETS_32
    OFFSETS_64
    VIEWS


cdef enum:
    N_OFFSET_BUFFERS = 3  # validity, offsets, data
    N_VIEW_BUFFERS = 3  # validity, views, and the sizes of the data buffers, which come in between


cdef struct Span:
    const char* data
    int64_t nbytes


# No tp_clear, after which the struct would be gone while the object can still be used.
@cython.final
@cython.no_gc
cdef class Chunk:
    """One array, which is owned: moved from a capsule, or received from a stream."""

    cdef ArrowArray array
    # Where the offsets begin and end in the data; what lies between is taken to be there.
    cdef int64_t first
    cdef int64_t last

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)


@cython.final
@cython.no_gc
cdef class Stream:
    """A stream, which is owned: moved from a capsule."""

    cdef ArrowArrayStream stream

    def __dealloc__(self):
        if self.stream.release != NULL:
            self.stream.release(&self.stream)


@cython.final
cdef class ArrowSource(Source):
    """Chunks of binary, large binary, string, large string, binary view or string view arrays.

    The chunks have passed `check`. Each element is checked when it is walked: offsets do not
    decrease and stay within those of the chunk's ends, and a view stays within its buffer.
    """

    cdef Layout layout

    cdef uint64_t measure(self) except? 0:
        return self.walk(NULL)

    cdef int fill(self, Writer* writer) except -1:
        self.walk(writer)
        return 0

    cdef bint overlaps(self, const void* begin, const void* end) except -1:
        for chunk in self.values:
            if chunk_overlaps(<Chunk?>chunk, self.layout, begin, end):
                return True
        return False

    cdef uint64_t walk(self, Writer* writer) except? 0:
        """Wire bytes of all elements; they are written, too, when there is a writer."""
        cdef Chunk chunk
        cdef Span span
        cdef unsigned char* target
        cdef uint64_t total = 0
        cdef int64_t i, element = 0
        for item in self.values:
            chunk = <Chunk?>item
            for i in range(chunk.array.offset, chunk.array.offset + chunk.array.length):
                if is_null(&chunk.array, i):
                    raise EncodeError(
                        f"{place(element, self.shape, self.name)} is null, and BYTES has no "
                        f"missing values",
                        tensor=self.name, element=element)
                locate(&span, chunk, self.layout, i)
                if span.nbytes < 0:
                    raise EncodeError(
                        f"{place(element, self.shape, self.name)} lies outside its Arrow buffer",
                        tensor=self.name, element=element)
                if span.nbytes > <int64_t>UINT32_MAX:
                    raise too_long(span.nbytes, element, self.shape, self.name)
                total += PREFIX_NBYTES + <uint64_t>span.nbytes
                if writer != NULL:
                    target = begin_element(writer, span.nbytes)
                    if target == NULL:
                        raise changed()
                    if span.nbytes > 0:
                        memcpy(target, span.data, span.nbytes)
                element += 1
        return total


cdef inline bint is_null(const ArrowArray* array, int64_t i) noexcept nogil:
    cdef const uint8_t* validity = <const uint8_t*>array.buffers[0]
    if validity == NULL or array.null_count == 0:
        return False
    return not validity[i >> 3] >> (i & 7) & 1


cdef inline int64_t offset_at(const void* offsets, Layout layout, int64_t i) noexcept nogil:
    # memcpy, because the interface only recommends that buffers are aligned; it is one load.
    cdef int32_t narrow
    cdef int64_t wide
    if layout == OFFSETS_32:
        memcpy(&narrow, <const int32_t*>offsets + i, sizeof(int32_t))
        return narrow
    memcpy(&wide, <const int64_t*>offsets + i, sizeof(int64_t))
    return wide


cdef inline void locate(Span* span, Chunk chunk, Layout layout, int64_t i) noexcept:
    """Where element `i` stands; a negative size when that is nowhere."""
    cdef const void** buffers = chunk.array.buffers
    cdef int64_t begin, end
    if layout == VIEWS:
        locate_view(span, &chunk.array, <const char*>buffers[1] + i * <int64_t>sizeof(View))
        return
    begin = offset_at(buffers[1], layout, i)
    end = offset_at(buffers[1], layout, i + 1)
    # Both within the chunk's own ends, also when another thread writes to the offsets.
    if not chunk.first <= begin <= end <= chunk.last:
        span.nbytes = -1
        return
    span.data = <const char*>buffers[2] + begin
    span.nbytes = end - begin


cdef inline void locate_view(Span* span, const ArrowArray* array, const char* at) noexcept nogil:
    cdef int64_t n_data = array.n_buffers - N_VIEW_BUFFERS
    cdef int64_t data_nbytes, buffer, offset
    cdef View view
    memcpy(&view, at, sizeof(View))
    span.nbytes = view.nbytes
    if view.nbytes <= INLINE_NBYTES:
        span.data = at + (<const char*>&view.payload - <const char*>&view)
        return
    buffer, offset = view.payload.elsewhere.buffer, view.payload.elsewhere.offset
    if not 0 <= buffer < n_data or offset < 0 or array.buffers[2 + buffer] == NULL:
        span.nbytes = -1
        return
    data_nbytes = size_of_data(array, buffer)
    if data_nbytes < 0 or view.nbytes > data_nbytes - offset:
        span.nbytes = -1
        return
    span.data = <const char*>array.buffers[2 + buffer] + offset


cdef inline int64_t size_of_data(const ArrowArray* array, int64_t buffer) noexcept nogil:
    """Of a view array: the size that it claims for a data buffer."""
    cdef int64_t nbytes
    memcpy(&nbytes, <const int64_t*>array.buffers[array.n_buffers - 1] + buffer, sizeof(int64_t))
    return nbytes


cdef bint chunk_overlaps(
    Chunk chunk, Layout layout, const void* begin, const void* end
) except -1:
    """Whether anything that is read of a chunk lies between `begin` and `end`."""
    cdef const ArrowArray* array = &chunk.array
    cdef int64_t width = sizeof(View), n_items = array.length, i
    cdef const void** buffers = array.buffers
    if array.length == 0:
        return False
    if buffers[0] != NULL and overlap(
            <const char*>buffers[0] + (array.offset >> 3), (array.length >> 3) + 2, begin, end):
        return True
    if layout != VIEWS:
        width = sizeof(int32_t) if layout == OFFSETS_32 else sizeof(int64_t)
        n_items += 1
        if overlap(<const char*>buffers[2] + chunk.first, chunk.last - chunk.first, begin, end):
            return True
    elif array.n_buffers > N_VIEW_BUFFERS:
        for i in range(array.n_buffers - N_VIEW_BUFFERS):
            if overlap(buffers[2 + i], max(size_of_data(array, i), 0), begin, end):
                return True
        if overlap(buffers[array.n_buffers - 1],
                   (array.n_buffers - N_VIEW_BUFFERS) * sizeof(int64_t), begin, end):
            return True
    return overlap(<const char*>buffers[1] + array.offset * width, n_items * width, begin, end)


def source(values, name):
    """A Source of `values`, an exporter of an Arrow array or stream, and its shape [n_elements].

    Raises EncodeError when it is of another type than bytes or text, when it has been consumed, or
    when its struct breaks a rule of the interface; TypeError when it exports no capsules.
    """
    cdef int64_t n_elements = 0
    cdef Chunk chunk
    if hasattr(values, "__arrow_c_array__"):
        layout, chunks = from_array(values, name)
    else:
        layout, chunks = from_stream(values, name)
    for item in chunks:
        chunk = <Chunk?>item
        if chunk.array.length > INT64_MAX - n_elements:
            raise invalid("the chunks have more than 2^63 - 1 elements", name)
        n_elements += chunk.array.length
    cdef ArrowSource made = ArrowSource(chunks, (n_elements,), name)
    made.layout = layout
    return made, (n_elements,)


cdef void* pointer_of(capsule, const char* kind, method) except NULL:
    """What a capsule of the right kind points to; TypeError for anything else."""
    if not PyCapsule_IsValid(capsule, kind):
        raise TypeError(
            f"{method} has not returned an {(<bytes>kind).decode()!r} capsule but "
            f"{type(capsule).__name__}")
    return PyCapsule_GetPointer(capsule, kind)


cdef tuple from_array(values, name):
    cdef Chunk chunk = Chunk()
    cdef Layout layout
    cdef ArrowSchema* schema
    cdef ArrowArray* array
    capsules = values.__arrow_c_array__()
    if not isinstance(capsules, tuple) or len(capsules) != 2:
        raise TypeError(
            f"__arrow_c_array__ has not returned a tuple of two capsules but "
            f"{type(capsules).__name__}")
    schema_capsule, array_capsule = capsules
    schema = <ArrowSchema*>pointer_of(schema_capsule, "arrow_schema", "__arrow_c_array__")
    array = <ArrowArray*>pointer_of(array_capsule, "arrow_array", "__arrow_c_array__")
    layout = layout_of(schema, name)
    if array.release == NULL:
        raise consumed("array", name)
    chunk.array = array[0]  # moved, so that nobody else can release it meanwhile
    array.release = NULL
    check(chunk, layout, name)
    return layout, [chunk]


cdef tuple from_stream(values, name):
    cdef ArrowSchema schema
    cdef ArrowArrayStream* stream
    cdef Chunk chunk
    cdef Layout layout
    cdef int status
    cdef Stream owner = Stream()
    capsule = values.__arrow_c_stream__()
    stream = <ArrowArrayStream*>pointer_of(capsule, "arrow_array_stream", "__arrow_c_stream__")
    if stream.release == NULL:
        raise consumed("stream", name)
    owner.stream = stream[0]
    stream.release = NULL
    stream = &owner.stream
    if stream.get_schema == NULL or stream.get_next == NULL:
        raise invalid("its stream has no get_schema or get_next", name)
    memset(&schema, 0, sizeof(ArrowSchema))
    with nogil:  # the producer may wait for threads of its own, which may need the GIL
        status = stream.get_schema(stream, &schema)
    if status != 0:
        raise stream_error(stream, name)
    try:
        layout = layout_of(&schema, name)
    finally:
        if schema.release != NULL:
            schema.release(&schema)
    chunks = []
    while True:
        chunk = Chunk()
        with nogil:
            status = stream.get_next(stream, &chunk.array)
        if status != 0:
            chunk.array.release = NULL  # it says nothing
            raise stream_error(stream, name)
        if chunk.array.release == NULL:  # the end
            return layout, chunks
        check(chunk, layout, name)
        chunks.append(chunk)


cdef int check(Chunk chunk, Layout layout, name) except -1:
    """Check what an array claims of itself, and fill in the ends of its data."""
    cdef const ArrowArray* array = &chunk.array
    if array.length < 0 or array.offset < 0:
        raise invalid(f"its length is {array.length}, its offset {array.offset}", name)
    # One more for the last offset; and 16 bytes an element, so that no address wraps around.
    if array.length >= (INT64_MAX >> 4) - array.offset:
        raise invalid(
            f"its offset {array.offset} and length {array.length} are more than memory has", name)
    if array.null_count < -1 or array.null_count > array.length:
        raise invalid(f"its null count is {array.null_count}, its length {array.length}", name)
    if array.n_children != 0 or array.dictionary != NULL:
        raise invalid(f"it has {array.n_children} children, or a dictionary", name)
    if array.n_buffers < 3 or (layout != VIEWS and array.n_buffers != N_OFFSET_BUFFERS):
        raise invalid(f"it has {array.n_buffers} buffers, not {N_OFFSET_BUFFERS}", name)
    if array.buffers == NULL:
        raise invalid(f"its list of {array.n_buffers} buffers is NULL", name)
    if array.buffers[0] == NULL and array.null_count > 0:
        raise invalid(f"it has {array.null_count} nulls and no validity buffer", name)
    if array.length == 0:
        return 0
    if array.buffers[1] == NULL:
        raise invalid(f"it has {array.length} elements and no buffer that says where", name)
    if layout == VIEWS:
        if array.n_buffers > N_VIEW_BUFFERS and array.buffers[array.n_buffers - 1] == NULL:
            raise invalid("its data buffers have no sizes", name)
        return 0
    chunk.first = offset_at(array.buffers[1], layout, array.offset)
    chunk.last = offset_at(array.buffers[1], layout, array.offset + array.length)
    if not 0 <= chunk.first <= chunk.last:
        raise invalid(f"its data begins at {chunk.first} and ends at {chunk.last}", name)
    if chunk.first < chunk.last and array.buffers[2] == NULL:
        raise invalid(f"its data ends at {chunk.last}, and its data buffer is NULL", name)
    return 0


cdef invalid(what, name):
    return EncodeError(f"{subject('Arrow array', name)} is invalid: {what}", tensor=name)


cdef consumed(kind, name):
    return EncodeError(
        f"{subject(f'Arrow {kind}', name)} has been consumed: its capsule is released", tensor=name)


cdef stream_error(ArrowArrayStream* stream, name):
    said = stream.get_last_error(stream) if stream.get_last_error != NULL else NULL
    text = (<bytes>said).decode("utf-8", "replace") if said != NULL else "no reason given"
    return EncodeError(f"{subject('Arrow stream', name)} failed: {text}", tensor=name)


cdef Layout layout_of(const ArrowSchema* schema, name) except *:
    cdef bytes format
    if schema.release == NULL:
        raise consumed("schema", name)
    if schema.format == NULL:
        raise invalid("its schema has no format", name)
    format = schema.format
    if schema.dictionary == NULL:
        if format in (b"z", b"u"):
            return OFFSETS_32
        if format in (b"Z", b"U"):
            return OFFSETS_64
        if format in (b"vz", b"vu"):
            return VIEWS
    what = f"of format {format.decode('utf-8', 'replace')!r:.40}"
    if schema.dictionary != NULL:
        what = "dictionary-encoded"
    raise EncodeError(
        f"{subject('Arrow array', name)} is {what}, not binary, large_binary, string, "
        f"large_string, binary_view or string_view",
        tensor=name)
