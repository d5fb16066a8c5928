"""BodyBuffer: memory for a body that is about to arrive, aligned for the tensors in it."""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    Py_buffer,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport uintptr_t
from libc.string cimport memmove

from ._body cimport export_bytes

from operator import index

from .errors import HeaderError, LayoutError, number_text

cdef extern from *:
    """
    #include <stdint.h>
    #ifdef __linux__
    #include <sys/mman.h>
    #endif
    static void ask_for_huge_pages(char *memory, size_t nbytes) {
    #ifdef MADV_HUGEPAGE
        char *first = (char *)(((uintptr_t)memory + 4095) & ~(uintptr_t)4095);
        madvise(first, nbytes - (size_t)(first - memory), MADV_HUGEPAGE);
    #else
        (void)memory; (void)nbytes;
    #endif
    }
    """
    void ask_for_huge_pages(char* memory, size_t nbytes) nogil

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    ALIGNMENT = 64
    HUGE_FROM = 4 << 20  # smaller bodies would take whole pages of 2 MiB for a part
    FIRST_CAPACITY = 64 << 10
    RELEASE_GIL_FROM = 1 << 20  # bytes: up to 1 ms of copying, where the kernel has to find pages

VIEWS_HELD = "the body cannot grow: views of it are held"


# No garbage collection: it refers to nothing but ints, and the memoryviews of it, which the
# collector may clear after it, need it as it is.
@cython.final
@cython.no_gc
cdef class BodyBuffer:
    """A body under way: one allocation, whose byte `header_length` lies at a multiple of 64.

    ``content_length``: bytes that are announced, or None for an unknown number; then the memory
    grows. ``header_length``: where the first binary tensor begins, if it is known.
    ``max_nbytes``: HeaderError with status 413 when more is announced, or arrives.
    All three are integers of any type, and are kept as ``int``. Raises ValueError for a negative
    ``max_nbytes``, TypeError for what is no integer.

    What is announced costs address space only; memory is taken as bytes arrive. As a buffer it is
    the bytes that have arrived so far, writable: give it to ``decode_request`` when it is
    ``complete``, and the views keep it. It is not for use by several threads at once.
    """

    cdef char* memory  # as it was allocated
    cdef char* data  # the aligned start of the body within
    cdef Py_ssize_t capacity
    cdef Py_ssize_t header_length
    cdef Py_ssize_t n_exports
    cdef readonly Py_ssize_t nbytes
    cdef readonly object content_length
    cdef readonly object max_nbytes

    def __cinit__(self, content_length=None, header_length=None, *, max_nbytes=None):
        # As Python ints first: a narrow numpy integer would wrap around in what follows.
        header_length = as_int(header_length)
        self.content_length = content_length = as_int(content_length)
        self.max_nbytes = as_int(max_nbytes)
        if header_length is not None and header_length > 0:
            self.header_length = header_length % ALIGNMENT
        if self.max_nbytes is not None and self.max_nbytes < 0:
            raise ValueError(f"max_nbytes is 0 or more, not {number_text(self.max_nbytes)}")
        if content_length is None:
            return
        if content_length < 0:
            raise HeaderError(
                f"Content-Length is negative: {number_text(content_length)}",
                expected=0, actual=content_length)
        self.check_limit(content_length)
        self.allocate(content_length)

    def __dealloc__(self):
        PyMem_RawFree(self.memory)

    cdef int check_limit(self, nbytes) except -1:
        if self.max_nbytes is not None and nbytes > self.max_nbytes:
            raise HeaderError(
                f"the body is too long: {digits(nbytes)} bytes, at most "
                f"{digits(self.max_nbytes)} are accepted",
                expected=self.max_nbytes, actual=nbytes, status=413)
        return 0

    cdef int allocate(self, nbytes) except -1:
        """Room for `nbytes` at the right alignment, with what has arrived in it."""
        cdef Py_ssize_t n_allocated = 0
        if nbytes < 2 ** 62:
            n_allocated = nbytes + ALIGNMENT
            if self.resize(n_allocated) if n_allocated < HUGE_FROM else self.replace(n_allocated):
                return 0
        raise HeaderError(
            f"the body is too long: there is no memory for {digits(nbytes)} bytes",
            actual=nbytes, status=413)

    cdef char* aligned(self, char* memory) noexcept:
        """Where in it the body begins: less than ALIGNMENT behind its start."""
        return memory + (-(<uintptr_t>memory + self.header_length)) % ALIGNMENT

    cdef bint resize(self, Py_ssize_t n_allocated) noexcept:
        """Let the allocator extend small memory, mostly in place. False: there is none."""
        cdef Py_ssize_t start = self.data - self.memory
        cdef char* memory = <char*>PyMem_RawRealloc(self.memory, n_allocated)
        if memory == NULL:
            return False
        self.memory, self.data = memory, self.aligned(memory)
        self.capacity = n_allocated - ALIGNMENT
        if self.nbytes > 0 and self.data != memory + start:
            memmove(self.data, memory + start, self.nbytes)
        return True

    cdef int replace(self, Py_ssize_t n_allocated) except -1:
        """Move to new memory of huge pages, which would be lost in a resize. 0: there is none."""
        cdef Py_ssize_t n_copied = self.nbytes
        cdef char* memory = <char*>PyMem_RawMalloc(n_allocated)
        if memory == NULL:
            return False
        ask_for_huge_pages(memory, n_allocated)
        if n_copied > 0:
            self.copy_in(self.aligned(memory), self.data, n_copied)
            # Another thread has exported the old memory meanwhile, or appended to it.
            if self.n_exports > 0 or self.nbytes != n_copied:
                PyMem_RawFree(memory)
                raise BufferError(VIEWS_HELD)
        PyMem_RawFree(self.memory)
        self.memory, self.data = memory, self.aligned(memory)
        self.capacity = n_allocated - ALIGNMENT
        return True

    cdef void copy_in(self, char* target, const void* source, Py_ssize_t nbytes) noexcept:
        """Copy to memory of the body, without the GIL when it takes long; it stays meanwhile.

        The two may overlap: `source` may be a view of the body's own memory.
        """
        if nbytes < RELEASE_GIL_FROM:
            memmove(target, source, nbytes)
            return
        self.n_exports += 1
        with nogil:
            memmove(target, source, nbytes)
        self.n_exports -= 1

    cdef int make_room(self, Py_ssize_t n_more) except -1:
        """Make sure that `n_more` bytes fit behind those that have arrived, or refuse them."""
        if n_more <= self.capacity - self.nbytes:
            return 0
        if self.content_length is not None:
            raise LayoutError(
                f"the body is longer than announced: {self.nbytes + n_more} bytes, Content-Length "
                f"is {self.content_length}",
                offset=self.capacity, expected=self.content_length, actual=self.nbytes + n_more)
        if self.n_exports > 0:
            raise BufferError(VIEWS_HELD)
        needed = self.nbytes + n_more
        # Large memory is copied to grow, and costs address space only until bytes arrive.
        grown = max(needed, (2 if needed < HUGE_FROM else 4) * self.capacity, FIRST_CAPACITY)
        if self.max_nbytes is not None:
            grown = max(needed, min(grown, self.max_nbytes + 1))  # see `remaining`
        self.allocate(grown)
        return 0

    @property
    def complete(self):
        """Whether all that was announced has arrived; always, when nothing was."""
        return self.content_length is None or self.nbytes == self.capacity

    def __len__(self):
        return self.nbytes

    def write(self, chunk):
        """Append a copy of ``chunk``, any C-contiguous buffer, also a view of this BodyBuffer.

        Raises LayoutError when it passes the announced length, HeaderError (413) when it passes
        ``max_nbytes``, and then takes none of it; BufferError when it must grow while views are
        held.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(chunk, &view, PyBUF_SIMPLE)
        try:
            if view.len > PY_SSIZE_T_MAX - self.nbytes:  # a ctypes array may claim any size
                raise HeaderError(
                    f"the body is too long: {self.nbytes} bytes have arrived, there is no memory "
                    f"for {view.len} more", actual=view.len, status=413)
            if self.content_length is None:
                self.check_limit(self.nbytes + view.len)
            self.make_room(view.len)
            if view.len > 0:  # nothing may be at no address
                self.nbytes += view.len  # first: what another thread writes comes behind it
                self.copy_in(self.data + self.nbytes - view.len, view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    def remaining(self):
        """A writable memoryview of the room behind what has arrived, for ``recv_into``.

        Tell ``advance`` how many bytes were received. For an unknown length there is always room,
        at the limit for one byte more: the end of a body is seen only by asking for what follows.
        """
        if self.content_length is None and self.capacity == self.nbytes:
            n_more = max(FIRST_CAPACITY, self.nbytes)
            if self.max_nbytes is not None:
                n_more = min(n_more, self.max_nbytes + 1 - self.nbytes)
            self.make_room(n_more)
        return PyMemoryView_FromObject(Tail(self))

    def advance(self, nbytes):
        """Take ``nbytes`` that were written to ``remaining()`` as arrived.

        Raises HeaderError (413) when they pass ``max_nbytes``, ValueError when they had no room.
        """
        cdef Py_ssize_t n_arrived
        nbytes = as_int(index(nbytes))
        if not 0 <= nbytes <= self.capacity - self.nbytes:
            raise ValueError(
                f"{number_text(nbytes)} bytes cannot have arrived: there is room for "
                f"{self.capacity - self.nbytes}")
        n_arrived = nbytes
        if self.content_length is None:
            self.check_limit(self.nbytes + n_arrived)
        self.nbytes += n_arrived

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        export_bytes(buffer, self, self.data, self.nbytes, False, flags)
        self.n_exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self.n_exports -= 1

    def __repr__(self):
        announced = "" if self.content_length is None else f" of {self.content_length}"
        return f"<BodyBuffer with {self.nbytes}{announced} bytes>"


cdef as_int(number):
    """None, or the integer as exactly `int`. Raises TypeError for anything else."""
    return number if number is None or type(number) is int else int(index(number))


cdef digits(number):
    """An announced length as it was sent, unless Python refuses to print it."""
    return str(number) if number.bit_length() <= 256 else number_text(number)


@cython.final
@cython.no_gc  # see BodyBuffer: it is asked to release its buffers by whoever is cleared later
cdef class Tail:
    """The room behind what has arrived, as it was when this was made."""

    cdef BodyBuffer body
    cdef Py_ssize_t position
    cdef Py_ssize_t nbytes

    def __cinit__(self, BodyBuffer body not None):
        self.body = body
        self.position = body.nbytes
        self.nbytes = body.capacity - body.nbytes

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        # The body may have moved since, but never shrinks.
        export_bytes(buffer, self, self.body.data + self.position, self.nbytes, False, flags)
        self.body.n_exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self.body.n_exports -= 1
