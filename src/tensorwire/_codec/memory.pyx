"""Memory: received bodies, read-only views of tensors for transports, and BodyBuffer.

A tensor or array over a body keeps a reference to the `Body`, and the `Body` keeps a reference to
the object that exports the memory. Nothing is copied.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcmp, memmove
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

import sys
from operator import index
from typing import Any

from numpy.typing import NDArray

from .signatures import constructor_signature

from ..errors import (
    MAX_FOREIGN_TEXT, SUBJECT, BodyTooLargeError, ElementError, HeaderError, LayoutError,
    format_count, format_number, format_text)

try:
    from collections.abc import Buffer
except ImportError:  # before Python 3.12
    Buffer = Any

# For annotations. numpy declares the buffer protocol for its arrays only from Python 3.12 on.
ReadableBuffer = Buffer | NDArray[Any]

cdef enum:
    ALIGNMENT = 64  # of the first binary tensor in a BodyBuffer
    HUGE_FROM_NBYTES = 4 << 20  # a smaller body could waste most of a page of 2 MiB
    FIRST_CAPACITY = 64 << 10
    WORK_PER_TURN = 1_000_000  # after which the clock is read: see `count_work`
    CHECKED_PER_WORK = 8  # bytes of BOOL that are checked at a cost of 1
    FREED_PER_WORK = 5  # bytes whose pages the kernel gets back
    CHECK_NBYTES = 32 << 10  # size of the blocks in which BOOL elements are checked

cdef double INTERVALS_PER_TURN = 1.2  # see `count_work`

VIEWS_EXPORTED = "the body cannot grow while views of it exist"


cdef extern from *:
    """
    #include <stdint.h>
    #ifdef __linux__
    #include <sys/mman.h>
    #include <unistd.h>
    #endif
    static void advise_huge_pages(char *memory, size_t nbytes) {
    #ifdef MADV_HUGEPAGE
        uintptr_t page_mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;  /* 4 KiB to 64 KiB, less 1 */
        char *first = (char *)(((uintptr_t)memory + page_mask) & ~page_mask);
        madvise(first, nbytes - (size_t)(first - memory), MADV_HUGEPAGE);
    #else
        (void)memory; (void)nbytes;
    #endif
    }
    """
    void advise_huge_pages(char* memory, size_t nbytes) nogil


cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    int Py_IsInitialized() nogil


# --- work with the GIL held ---

cdef extern from *:
    """
    static __thread long long work_of_this_turn;
    static __thread double turn_began;
    """
    long long work_of_this_turn
    double turn_began  # in seconds of the monotonic clock

# A variable of C. At the end of the interpreter, the names of modules become None before the last
# objects are freed, which counts as work.
cdef object switch_interval = sys.getswitchinterval


cdef double monotonic_seconds() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + 1e-9 * now.tv_nsec


cdef void count_work(Py_ssize_t cost) noexcept:
    """Count work that this thread does with the GIL held. Release the GIL briefly now and then.

    It may be called before or after the work. Other threads may run during the call.

    A thread that waits for the GIL asks for it when it has waited for the switch interval, and
    CPython hands it over only then. But each release makes it wait from the beginning, so the time
    between two releases must be longer than this interval.
    """
    global work_of_this_turn, turn_began
    work_of_this_turn += cost
    if work_of_this_turn >= WORK_PER_TURN:
        work_of_this_turn = 0
        if monotonic_seconds() - turn_began >= INTERVALS_PER_TURN * switch_interval():
            with nogil:
                pass
            turn_began = monotonic_seconds()


cdef bint keeps_gil(Py_ssize_t cost) noexcept:
    """Return whether an operation is short, or else the caller should release the GIL for it.

    The work of a short operation is counted, so that other threads may run during the call.
    """
    if cost >= WORK_PER_TURN:
        return False
    count_work(cost)
    return True


cdef Py_ssize_t end_of_batch(Py_ssize_t begin, Py_ssize_t n, Py_ssize_t cost) noexcept:
    """Return where a batch of the elements from `begin` up to `n` ends, and count its work.

    `cost` is that of one element. Other threads may run during the call, but not during the batch.
    """
    cdef Py_ssize_t n_elements = min(n - begin, WORK_PER_BATCH // cost + 1)
    count_work(n_elements * cost)
    return begin + n_elements


cdef bytes copied_bytes(const void* data, Py_ssize_t nbytes):
    copy = PyBytes_FromStringAndSize(NULL, nbytes)
    write_memory(<unsigned char*>PyBytes_AS_STRING(copy), data, nbytes)
    return copy


# --- references that other languages hold ---


cdef void drop_reference(void* owned) noexcept nogil:
    """Drop a reference to a Python object, in the callback that releases an exported struct.

    A consumer may call it in any thread, with or without the GIL. If the interpreter has ended, or
    is ending, there is no GIL to acquire, and the object is left alone.
    """
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object>owned)


# --- received bodies ---

cdef unsigned char no_data = 0  # an empty body points here, so that no pointer is NULL


# There is no tp_clear, because views of the memory may be used after a cycle was cleared. The
# trashcan limits the use of the C stack if bodies own each other through memoryviews, for example.
@cython.final
@cython.freelist(8)
@cython.no_gc_clear
@cython.trashcan(True)
cdef class Body:
    """The memory of a C-contiguous buffer of bytes, which is not copied.

    The buffer is exported until the last view of this object is released, because arrays over the
    memory have this object as their base. A `bytearray` cannot be resized until then.

    Raises TypeError if `source` has no buffer, and BufferError if the buffer is not contiguous or
    has items of several bytes. `name` is its name in error messages; None for "the body".
    """

    def __cinit__(self, source, str name=None):
        self.name = name
        if not PyObject_CheckBuffer(source):
            raise TypeError(
                f"{self.subject()} must be a bytes-like object, not {type(source).__name__}")
        try:
            PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
        except ValueError as error:  # from numpy and released memoryviews, instead of BufferError
            raise BufferError(
                f"{self.subject()} cannot be read: {format_text(error, MAX_FOREIGN_TEXT)}"
            ) from None
        if self.buffer.itemsize != 1:
            raise BufferError(
                f"the items of {self.subject()} must be 1 byte long, not {self.buffer.itemsize}: "
                f"pass memoryview(...).cast('B')")
        announced = source.content_length if type(source) is BodyBuffer else None
        if announced is not None and self.buffer.len != announced:
            raise LayoutError(
                f"{self.subject()} is incomplete: {self.buffer.len} of {announced} bytes have "
                f"arrived",
                expected=announced, actual=self.buffer.len)
        self.data = <const unsigned char*>self.buffer.buf if self.buffer.len > 0 else &no_data
        self.nbytes = self.buffer.len
        self.readonly = self.buffer.readonly
        if <PyObject*>self.buffer.obj != NULL and type(self.buffer.obj) is memoryview:
            # CPython crashes if its garbage collector clears a memoryview that is exported: the
            # view is released a second time with the export. A new view needs no export.
            self.memory = PyMemoryView_FromObject(self.buffer.obj)
            PyBuffer_Release(&self.buffer)

    def __dealloc__(self):
        # Does nothing if there is no export, because buffer.obj is NULL then.
        PyBuffer_Release(&self.buffer)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        export_bytes(buffer, self, self.data, self.nbytes, self.readonly, flags)

    def __len__(self):
        return self.nbytes

    cdef str subject(self):
        return "the body" if self.name is None else self.name

    cdef str format_position(self, Py_ssize_t offset):
        return f"({'body' if self.name is None else self.name} byte {offset})"

    cdef bytes immutable_bytes(self, Py_ssize_t nbytes):
        """Return at least the first `nbytes` bytes, in a copy if others may write to them."""
        return <bytes>self.buffer.obj if self.is_bytes() else copied_bytes(self.data, nbytes)

    cdef bint is_bytes(self) noexcept:
        """Return whether the body is a `bytes` object, which nothing can write to."""
        cdef PyObject* exporter = <PyObject*>self.buffer.obj  # NULL for a memoryview
        return exporter != NULL and PyBytes_CheckExact(<object>exporter) and (
            <const unsigned char*>PyBytes_AS_STRING(<object>exporter) == self.data)

    def view(self, Py_ssize_t offset, Py_ssize_t nbytes):
        """Return a flat memoryview of `nbytes` bytes from `offset`. The caller has checked both."""
        assert 0 <= offset <= self.nbytes and 0 <= nbytes <= self.nbytes - offset
        return PyMemoryView_FromObject(self)[offset:offset + nbytes]

    cdef int check_bool(self, Py_ssize_t offset, uint64_t nbytes) except -1:
        """Raise ElementError if any of the `nbytes` bytes from `offset` is neither 0 nor 1."""
        cdef const unsigned char* data = self.data + offset
        cdef unsigned char value = 0  # set if there is one, which gcc does not see
        cdef uint64_t i
        if keeps_gil(nbytes // CHECKED_PER_WORK):
            i = find_invalid_bool(data, nbytes, &value)
        else:
            with nogil:
                i = find_invalid_bool(data, nbytes, &value)
        if i < nbytes:
            raise ElementError(
                f"element {i} of {SUBJECT} must be 0 or 1 (BOOL), not {value} "
                f"{self.format_position(offset + i)}",
                element=i, offset=offset + i, expected=1, actual=value)
        return 0

    cdef int check_range(self, Py_ssize_t offset, Py_ssize_t nbytes) except -1:
        """Raise LayoutError unless the body has `nbytes` (0 or more) bytes from `offset`."""
        if nbytes > self.nbytes - offset:
            remaining = self.nbytes - offset
            raise LayoutError(
                f"{self.subject()} ends inside {SUBJECT}: it requires "
                f"{format_count('byte', nbytes)}, but {remaining} remain "
                f"{self.format_position(offset)}",
                offset=offset, expected=nbytes, actual=remaining)
        return 0


cdef bint same_bytes(first, second) except -1:
    """Return whether two buffers have the same bytes. `==` of memoryviews would compare items."""
    cdef Body one = Body(first)
    cdef Body other = Body(second)
    cdef int difference
    if one.nbytes != other.nbytes:
        return False
    if keeps_gil(one.nbytes):
        difference = memcmp(one.data, other.data, one.nbytes)
    else:
        with nogil:
            difference = memcmp(one.data, other.data, one.nbytes)
    return difference == 0


cdef unsigned char all_bits(const unsigned char* data, uint64_t nbytes) noexcept nogil:
    cdef unsigned char bits = 0
    cdef uint64_t i
    for i in range(nbytes):  # compilers vectorise this loop
        bits |= data[i]
    return bits


cdef uint64_t find_invalid_bool(
    const unsigned char* data, uint64_t nbytes, unsigned char* value
) noexcept nogil:
    """Return the index of the first byte above 1, or `nbytes`, and set `value` to that byte.

    It is loaded once, because another thread may write to the memory.
    """
    cdef uint64_t begin = 0, end, i
    while begin < nbytes:
        end = min(begin + CHECK_NBYTES, nbytes)
        if all_bits(data + begin, end - begin) > 1:
            for i in range(begin, end):
                value[0] = data[i]
                if value[0] > 1:
                    return i
        begin = end
    return nbytes


# --- the memory of tensors, for writers ---


@cython.final
@cython.freelist(8)
@cython.no_gc_clear  # memoryviews and arrays may use the memory after a cycle was cleared
@cython.trashcan(True)  # the owner may be a view of another ExportedBytes, and so on
cdef class ExportedBytes:
    """Memory as flat, read-only bytes. It keeps a reference to the owner of the memory."""

    cdef object owner
    cdef const char* data
    cdef Py_ssize_t nbytes

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        export_bytes(buffer, self, self.data, self.nbytes, True, flags)


cdef exported_bytes(object owner, const char* data, Py_ssize_t nbytes):
    cdef ExportedBytes exported = ExportedBytes.__new__(ExportedBytes)
    exported.owner = owner
    exported.data = data
    exported.nbytes = nbytes
    return exported


# --- bodies that are being received ---

# The garbage collector does not track this class. Its objects refer only to ints, and they must be
# intact if the collector clears memoryviews of them later.
#
# The critical sections protect the fields in free-threaded builds of Python, and do nothing in
# others. Like the GIL, a critical section is suspended during `with nogil`.
@cython.final
@cython.no_gc
cdef class BodyBuffer:
    """A buffer for the body of an HTTP message while it is being received.

    The body has one block of memory, in which the first binary tensor is aligned to 64 bytes. Pass
    this object to ``decode_request`` or ``decode_response`` when it is ``complete``. The arrays
    then refer to the memory, and keep a reference to this object. As a buffer, it is writable and
    contains the bytes that have arrived so far. Only one thread at a time may write to it. If two
    threads write at once, no memory is corrupted, but the order of their bytes is undefined.

    Parameters
    ----------
    content_length : int, optional
        Size of the body in bytes, from the Content-Length header. A large block only reserves
        address space until bytes arrive. If it is None, the memory grows.
    header_length : int, optional
        Size of the JSON header in bytes. The first binary tensor begins there.
    max_nbytes : int, optional
        Maximum size of the body in bytes. By default, there is no limit.

    Attributes
    ----------
    nbytes : int
        Number of bytes that have arrived; also ``len(buffer)``.
    capacity : int
        Number of bytes for which there is memory, with those that have arrived.
    content_length, max_nbytes : int or None

    Raises
    ------
    HeaderError
        ``content_length`` is negative.
    BodyTooLargeError
        ``content_length`` exceeds ``max_nbytes`` or the available memory.
    ValueError
        ``max_nbytes`` is negative.
    TypeError
        An argument is not an integer.

    Examples
    --------
    >>> import tensorwire as tw
    >>> body = b'{"outputs":[{"name":"y","shape":[1],"datatype":"INT8","data":[5]}]}'
    >>> buffer = tw.BodyBuffer(content_length=len(body))
    >>> for chunk in (body[:20], body[20:]):
    ...     buffer.write(chunk)
    >>> buffer.complete
    True
    >>> tw.decode_response(buffer)["y"].as_numpy()
    array([5], dtype=int8)
    """

    __signature__ = constructor_signature(
        "content_length: int | None = None, header_length: int | None = None, *, "
        "max_nbytes: int | None = None"
    )

    cdef char* memory  # the allocated block
    cdef char* data  # the start of the body in the block
    cdef readonly Py_ssize_t capacity  # number of bytes from `data` on that the body may use
    cdef Py_ssize_t header_remainder  # header length modulo ALIGNMENT
    cdef Py_ssize_t n_exports
    cdef readonly Py_ssize_t nbytes
    cdef readonly object content_length
    cdef readonly object max_nbytes

    def __cinit__(self, content_length=None, header_length=None, *, max_nbytes=None):
        # Other integer types are converted, because a narrow numpy integer could overflow below.
        header_length = as_int(header_length)
        self.content_length = content_length = as_int(content_length)
        self.max_nbytes = as_int(max_nbytes)
        if header_length is not None and header_length > 0:
            self.header_remainder = header_length % ALIGNMENT
        if self.max_nbytes is not None and self.max_nbytes < 0:
            raise ValueError(f"max_nbytes must be 0 or more, not {format_number(self.max_nbytes)}")
        if content_length is None:
            return
        if content_length < 0:
            raise HeaderError(
                f"Content-Length is negative: {format_number(content_length)}",
                expected=0, actual=content_length)
        self.check_limit(content_length)
        self.allocate(content_length)

    def __dealloc__(self):
        if keeps_gil(self.nbytes // FREED_PER_WORK):
            PyMem_RawFree(self.memory)
        else:
            with nogil:
                PyMem_RawFree(self.memory)

    cdef int check_limit(self, nbytes) except -1:
        if self.max_nbytes is not None and nbytes > self.max_nbytes:
            raise BodyTooLargeError(
                f"the body is {format_number(nbytes)} bytes long; the limit is "
                f"{format_number(self.max_nbytes)}", expected=self.max_nbytes, actual=nbytes)
        return 0

    cdef int allocate(self, nbytes) except -1:
        """Provide aligned memory for `nbytes` bytes, and move the bytes that have arrived there."""
        cdef Py_ssize_t n_allocated, n_copied = self.nbytes
        cdef char* memory = NULL
        if nbytes < 2 ** 62:
            n_allocated = nbytes + ALIGNMENT
            memory = <char*>PyMem_RawMalloc(n_allocated)
        if memory == NULL:
            raise BodyTooLargeError(
                f"there is no memory for a body of {format_number(nbytes)} bytes",
                actual=nbytes, status=503 if nbytes < 2 ** 62 else 413)
        if n_allocated >= HUGE_FROM_NBYTES:
            advise_huge_pages(memory, n_allocated)
        if n_copied > 0:
            self.copy_in(self.aligned(memory), self.data, n_copied)
            # Without the GIL, another thread may have exported the old memory or appended to it.
            if self.n_exports > 0 or self.nbytes != n_copied:
                PyMem_RawFree(memory)
                raise BufferError(VIEWS_EXPORTED)
        PyMem_RawFree(self.memory)
        self.memory, self.data = memory, self.aligned(memory)
        self.capacity = nbytes
        return 0

    cdef char* aligned(self, char* memory) noexcept:
        """Return where the body begins in `memory`: less than ALIGNMENT bytes after its start."""
        return memory + (-(<uintptr_t>memory + self.header_remainder)) % ALIGNMENT

    cdef void copy_in(self, char* target, const void* source, Py_ssize_t nbytes) noexcept:
        """Copy to the memory of the body, without the GIL if that takes long.

        The memory is not moved meanwhile. `source` may be a view of the same memory.
        """
        if nbytes < WORK_PER_TURN:  # as in `write_memory`; `append` counts the work
            memmove(target, source, nbytes)
            return
        self.n_exports += 1
        with nogil:
            memmove(target, source, nbytes)
        self.n_exports -= 1

    cdef int make_room(self, Py_ssize_t n_more) except -1:
        """Provide memory for `n_more` bytes after those that have arrived, or raise an error."""
        if n_more <= self.capacity - self.nbytes:
            return 0
        needed = self.nbytes + n_more
        self.check_growth(needed)
        # Large memory only uses address space until bytes arrive. It therefore grows by a larger
        # factor.
        grown = max(needed, (2 if needed < HUGE_FROM_NBYTES else 4) * self.capacity, FIRST_CAPACITY)
        if self.max_nbytes is not None:
            grown = max(needed, min(grown, self.max_nbytes + 1))  # see `remaining`
        self.allocate(grown)
        return 0

    cdef int check_growth(self, nbytes) except -1:
        """Raise an error if there may not be memory for this number of bytes, which is larger."""
        if self.content_length is not None:
            raise LayoutError(
                f"the body exceeds Content-Length: {nbytes} bytes have arrived, but "
                f"Content-Length is {self.content_length}",
                offset=self.capacity, expected=self.content_length, actual=nbytes)
        if self.n_exports > 0:
            raise BufferError(VIEWS_EXPORTED)
        return 0

    @property
    def complete(self):
        """Whether ``content_length`` bytes have arrived; always True if that is None."""
        with cython.critical_section(self):
            return self.content_length is None or self.nbytes == self.capacity

    def __len__(self):
        return self.nbytes

    def write(self, chunk: ReadableBuffer) -> None:
        """Append a copy of a chunk of the body.

        If an error is raised, nothing was appended.

        Parameters
        ----------
        chunk : buffer
            A C-contiguous buffer, which may be a view of this BodyBuffer.

        Raises
        ------
        LayoutError
            The body would exceed ``content_length``.
        BodyTooLargeError
            The body would exceed ``max_nbytes``, or there is not enough memory.
        BufferError
            The memory would have to grow while views of it exist, or ``chunk`` is not contiguous.
        TypeError
            ``chunk`` is not a buffer.

        Examples
        --------
        >>> import tensorwire as tw
        >>> buffer = tw.BodyBuffer()
        >>> buffer.write(b"abc")
        >>> bytes(buffer)
        b'abc'
        """
        cdef Py_buffer view
        PyObject_GetBuffer(chunk, &view, PyBUF_SIMPLE)
        try:
            self.append(view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    @cython.critical_section
    cdef int append(self, const void* source, Py_ssize_t nbytes) except -1:
        if nbytes > PY_SSIZE_T_MAX - self.nbytes:  # a ctypes array may declare any size
            raise BodyTooLargeError(
                f"there is no memory for {nbytes} more bytes of the body after "
                f"{self.nbytes} bytes", actual=nbytes)
        if self.content_length is None:
            self.check_limit(self.nbytes + nbytes)
        self.make_room(nbytes)
        if nbytes > 0:  # the address of an empty buffer may be NULL
            self.nbytes += nbytes  # first, so that another thread appends after these bytes
            self.copy_in(self.data + self.nbytes - nbytes, source, nbytes)
        count_work(nbytes)  # at the end: other threads may use the body
        return 0

    def reserve(self, nbytes: int) -> None:
        """Provide memory for a number of bytes, with those that have arrived.

        ``write`` and ``remaining`` provide memory themselves. This method is for programs that
        decide how much a body of unknown length may have.

        Parameters
        ----------
        nbytes : int
            Number of bytes. If there is memory for as many already, nothing changes.

        Raises
        ------
        LayoutError
            The body would exceed ``content_length``.
        BodyTooLargeError
            There is not enough memory.
        BufferError
            The memory would have to grow while views of it exist.
        TypeError
            ``nbytes`` is not an integer.

        Examples
        --------
        >>> import tensorwire as tw
        >>> buffer = tw.BodyBuffer()
        >>> buffer.reserve(100_000)
        >>> buffer.capacity
        100000
        """
        number = index(nbytes)
        with cython.critical_section(self):
            if number <= self.capacity:
                return
            self.check_growth(number)
            self.allocate(number)

    def remaining(self) -> memoryview:
        """Return the free memory as a memoryview, for ``recv_into``.

        Call ``advance`` with the number of bytes received.

        Returns
        -------
        memoryview
            A writable view of the memory after the bytes that have arrived. If ``content_length``
            is None, it is never empty, not even at ``max_nbytes``: the end of such a body is only
            known after trying to receive another byte. Release the view before the memory grows.

        Raises
        ------
        BufferError
            The memory would have to grow while views of it exist.
        BodyTooLargeError
            There is not enough memory.

        Examples
        --------
        >>> import tensorwire as tw
        >>> buffer = tw.BodyBuffer(content_length=5)
        >>> with buffer.remaining() as view:
        ...     view[:3] = b"abc"
        >>> buffer.advance(3)
        >>> bytes(buffer)
        b'abc'
        """
        with cython.critical_section(self):
            if self.content_length is None and self.capacity == self.nbytes:
                n_more = max(FIRST_CAPACITY, self.nbytes)
                if self.max_nbytes is not None:
                    n_more = min(n_more, self.max_nbytes + 1 - self.nbytes)
                self.make_room(n_more)
            free = FreeMemory(self)
        return PyMemoryView_FromObject(free)

    def advance(self, nbytes: int) -> None:
        """Count bytes that were written to ``remaining()`` as received.

        Parameters
        ----------
        nbytes : int
            Number of bytes.

        Raises
        ------
        BodyTooLargeError
            The body would exceed ``max_nbytes``.
        ValueError
            ``nbytes`` is negative, or exceeds the free memory.
        TypeError
            ``nbytes`` is not an integer.

        Examples
        --------
        See ``remaining``.
        """
        cdef Py_ssize_t n_arrived
        number = index(nbytes)
        with cython.critical_section(self):
            if not 0 <= number <= self.capacity - self.nbytes:
                raise ValueError(
                    f"{format_number(number)} bytes cannot have arrived: there is memory for "
                    f"{format_count('byte', self.capacity - self.nbytes)}")
            n_arrived = number
            if self.content_length is None:
                self.check_limit(self.nbytes + n_arrived)
            self.nbytes += n_arrived

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        with cython.critical_section(self):
            export_bytes(buffer, self, self.data, self.nbytes, False, flags)
            self.n_exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        with cython.critical_section(self):
            self.n_exports -= 1

    def __repr__(self):
        announced = "" if self.content_length is None else f" of {self.content_length}"
        return f"<BodyBuffer with {len(self)}{announced} bytes>"


cdef as_int(number):
    return None if number is None else index(number)


@cython.final
@cython.no_gc  # see BodyBuffer
cdef class FreeMemory:
    """The memory that was free when this object was created."""

    cdef BodyBuffer body
    cdef Py_ssize_t position
    cdef Py_ssize_t nbytes

    def __cinit__(self, BodyBuffer body not None):
        self.body = body
        self.position = body.nbytes
        self.nbytes = body.capacity - body.nbytes

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        with cython.critical_section(self.body):
            # The body may have been moved since, but it never shrinks.
            export_bytes(buffer, self, self.body.data + self.position, self.nbytes, False, flags)
            self.body.n_exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        with cython.critical_section(self.body):
            self.body.n_exports -= 1
