"""Arrow to BYTES: arrays of bytes or text from any library that exports them, as a Source."""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport UINT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ._arrow_abi cimport INLINE_NBYTES, ArrowArray, ArrowArrayStream, ArrowSchema, View
from ._pack cimport Source, Writer, begin_element, place, too_long
from ._wire cimport PREFIX_NBYTES

from .errors import EncodeError, subject

cdef enum Layout:
    OTHER
    OFFSETS_32
    OFFSETS_64
    VIEWS


cdef struct Span:
    const char* data
    int64_t nbytes


@cython.final
cdef class Chunk:
    """One array, and what keeps it: the producer's capsule, or its release callback."""

    cdef ArrowArray* array
    cdef ArrowArray own  # of a stream: `array` points here, and it is released by us
    cdef object capsule

    def __dealloc__(self):
        if self.own.release != NULL:
            self.own.release(&self.own)


@cython.final
cdef class ArrowSource(Source):
    """Chunks of binary, large binary, string, large string, binary view or string view arrays.

    The producer's offsets are taken as the format promises them, except that a length is never
    negative and a view never leaves its buffer.
    """

    cdef Layout layout

    cdef uint64_t measure(self) except? 0:
        return self.walk(NULL)

    cdef int fill(self, Writer* writer) except -1:
        self.walk(writer)
        return 0

    cdef uint64_t walk(self, Writer* writer) except? 0:
        """Wire bytes of all elements; they are written, too, when there is a writer."""
        cdef Chunk chunk
        cdef Span span
        cdef uint64_t total = 0
        cdef int64_t i, element = 0
        for chunk in self.values:
            for i in range(chunk.array.offset, chunk.array.offset + chunk.array.length):
                if is_null(chunk.array, i):
                    raise EncodeError(
                        f"{place(element, self.shape, self.name)} is null, and BYTES has no "
                        f"missing values",
                        tensor=self.name, element=element)
                locate(&span, chunk.array, self.layout, i)
                if span.nbytes < 0:
                    raise EncodeError(
                        f"{place(element, self.shape, self.name)} lies outside its Arrow buffer",
                        tensor=self.name, element=element)
                if span.nbytes > <int64_t>UINT32_MAX:
                    raise too_long(span.nbytes, element, self.shape, self.name)
                total += PREFIX_NBYTES + <uint64_t>span.nbytes
                if writer != NULL:
                    memcpy(begin_element(writer, span.nbytes), span.data, span.nbytes)
                element += 1
        return total


cdef inline bint is_null(const ArrowArray* array, int64_t i) noexcept nogil:
    cdef const uint8_t* validity = <const uint8_t*>array.buffers[0]
    if validity == NULL or array.null_count == 0:
        return False
    return not validity[i >> 3] >> (i & 7) & 1


cdef inline void locate(
    Span* span, const ArrowArray* array, Layout layout, int64_t i
) noexcept nogil:
    """Where element `i` stands; a negative size when that is nowhere."""
    cdef const int32_t* offsets_32
    cdef const int64_t* offsets_64
    if layout == VIEWS:
        locate_view(span, array, <const View*>array.buffers[1] + i)
    elif layout == OFFSETS_32:
        offsets_32 = <const int32_t*>array.buffers[1]
        span.data = <const char*>array.buffers[2] + offsets_32[i]
        span.nbytes = <int64_t>offsets_32[i + 1] - offsets_32[i]
    else:
        offsets_64 = <const int64_t*>array.buffers[1]
        span.data = <const char*>array.buffers[2] + offsets_64[i]
        span.nbytes = offsets_64[i + 1] - offsets_64[i]


cdef inline void locate_view(Span* span, const ArrowArray* array, const View* view) noexcept nogil:
    cdef int64_t n_data = array.n_buffers - 3
    cdef const int64_t* data_nbytes = <const int64_t*>array.buffers[array.n_buffers - 1]
    cdef int64_t buffer, offset
    span.nbytes = view.nbytes
    if view.nbytes <= INLINE_NBYTES:
        span.data = <const char*>&view.payload.inline[0]
        return
    buffer, offset = view.payload.elsewhere.buffer, view.payload.elsewhere.offset
    if not 0 <= buffer < n_data or offset < 0 or view.nbytes > data_nbytes[buffer] - offset:
        span.nbytes = -1
        return
    span.data = <const char*>array.buffers[2 + buffer] + offset


def source(values, name):
    """A Source of `values`, an exporter of an Arrow array or stream, and its shape [n_elements].

    Raises EncodeError when it is of another type than bytes or text.
    """
    cdef Chunk chunk
    cdef int64_t n_elements = 0
    if hasattr(values, "__arrow_c_array__"):
        layout, chunks = from_array(values, name)
    else:
        layout, chunks = from_stream(values, name)
    for chunk in chunks:
        n_elements += chunk.array.length
    cdef ArrowSource made = ArrowSource(chunks, (n_elements,), name)
    made.layout = layout
    return made, (n_elements,)


cdef tuple from_array(values, name):
    cdef Chunk chunk = Chunk()
    schema, chunk.capsule = values.__arrow_c_array__()
    layout = layout_of(<const ArrowSchema*>PyCapsule_GetPointer(schema, "arrow_schema"), name)
    chunk.array = <ArrowArray*>PyCapsule_GetPointer(chunk.capsule, "arrow_array")
    return layout, [chunk]


cdef tuple from_stream(values, name):
    cdef ArrowSchema schema
    cdef Chunk chunk
    capsule = values.__arrow_c_stream__()
    stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.get_schema(stream, &schema) != 0:
        raise stream_error(stream, name)
    try:
        layout = layout_of(&schema, name)
    finally:
        schema.release(&schema)
    chunks = []
    while True:
        chunk = Chunk()
        if stream.get_next(stream, &chunk.own) != 0:
            raise stream_error(stream, name)
        if chunk.own.release == NULL:  # the end
            return layout, chunks
        chunk.array = &chunk.own
        chunks.append(chunk)


cdef stream_error(ArrowArrayStream* stream, name):
    said = stream.get_last_error(stream)
    text = (<bytes>said).decode("utf-8", "replace") if said != NULL else "no reason given"
    return EncodeError(f"{subject('Arrow stream', name)} failed: {text}", tensor=name)


cdef Layout layout_of(const ArrowSchema* schema, name) except *:
    cdef bytes format = schema.format
    if schema.dictionary == NULL:
        if format in (b"z", b"u"):
            return OFFSETS_32
        if format in (b"Z", b"U"):
            return OFFSETS_64
        if format in (b"vz", b"vu"):
            return VIEWS
    what = "dictionary-encoded" if schema.dictionary != NULL else f"of format {format.decode()!r}"
    raise EncodeError(
        f"{subject('Arrow array', name)} is {what}, not binary, large_binary, string, "
        f"large_string, binary_view or string_view",
        tensor=name)
