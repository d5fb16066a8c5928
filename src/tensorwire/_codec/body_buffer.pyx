"""BodyBuffer: the memory of a body while it is being received."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport uintptr_t
from libc.string cimport memmove

from .exports cimport export_bytes
from .gil cimport (
    READ_NBYTES, count_or_release_gil, count_work, free_memory, release_gil_if_long, take_gil)

from operator import index

from .signatures import ReadableBuffer, constructor_signature

from ..errors import BodyTooLargeError, LayoutError, format_count, format_number

cdef enum:
    ALIGNMENT = 64  # of the first binary tensor in a BodyBuffer
    HUGE_NBYTES = 2 << 20  # a huge page
    HUGE_FROM_NBYTES = 4 << 20  # a smaller block could waste most of a page
    FIRST_CAPACITY = 64 << 10
    # A copy of 1 GiB would block an event loop for more than a second. On Linux, the pages of such
    # a block are moved.
    MAPPED_FROM_NBYTES = 32 << 20

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
    /* Maps a new block, or moves the pages of one to more address space. Returns NULL on failure:
       then the old block is as before. */
    static char *map_block(char *old, size_t n_old, size_t nbytes) {
    #ifdef __linux__
        void *block;
        if (old != NULL)
            block = mremap(old, n_old, nbytes, MREMAP_MAYMOVE);
        else
            block = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED)
            return NULL;
    #ifdef MADV_NOHUGEPAGE
        if (old == NULL)  /* until `count_arrived`, also if the system prefers huge pages */
            madvise(block, nbytes, MADV_NOHUGEPAGE);
    #endif
        return (char *)block;
    #else
        (void)old; (void)n_old; (void)nbytes;
        return NULL;
    #endif
    }
    static void unmap_block(char *block, size_t nbytes) {
    #ifdef __linux__
        munmap(block, nbytes);
    #else
        (void)block; (void)nbytes;
    #endif
    }
    #ifdef __linux__
    #define CAN_MAP 1
    #else
    #define CAN_MAP 0
    #endif
    """
    const bint CAN_MAP
    void advise_huge_pages(char* memory, size_t nbytes) nogil
    char* map_block(char* old, size_t n_old, size_t nbytes) nogil
    void unmap_block(char* block, size_t nbytes) nogil


cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX


cdef void free_block(char* memory, Py_ssize_t n_mapped, Py_ssize_t n_used) noexcept:
    """Free a block. It takes long if many of its bytes have been used."""
    if n_mapped == 0:
        free_memory(memory, n_used)
        return
    released = count_or_release_gil(n_used // READ_NBYTES)
    unmap_block(memory, n_mapped)
    take_gil(released)


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
    LayoutError
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
            raise LayoutError(
                f"Content-Length is negative: {format_number(content_length)}",
                expected=0, actual=content_length)
        self.check_limit(content_length)
        self.allocate(content_length)

    def __dealloc__(self):
        free_block(self.memory, self.n_mapped, self.nbytes)

    cdef int check_limit(self, nbytes) except -1:
        if self.max_nbytes is not None and nbytes > self.max_nbytes:
            raise BodyTooLargeError(
                f"the body is {format_number(nbytes)} bytes long; the limit is "
                f"{format_number(self.max_nbytes)}", expected=self.max_nbytes, actual=nbytes)
        return 0

    cdef int allocate(self, nbytes) except -1:
        """Provide aligned memory for `nbytes` bytes, and move the bytes that have arrived there."""
        cdef Py_ssize_t n_allocated, n_mapped = 0, n_copied = self.nbytes
        cdef char* memory = NULL
        if nbytes < 2 ** 62:
            n_allocated = nbytes + ALIGNMENT
            if CAN_MAP and nbytes >= MAPPED_FROM_NBYTES:
                # With another size, the pages would be split when they are moved.
                n_allocated += HUGE_NBYTES - n_allocated % HUGE_NBYTES
                n_mapped = n_allocated
                memory = map_block(self.memory if self.n_mapped else NULL, self.n_mapped, n_mapped)
            else:
                memory = <char*>PyMem_RawMalloc(n_allocated)
        if memory == NULL:
            raise BodyTooLargeError(
                f"there is no memory for a body of {format_number(nbytes)} bytes",
                actual=nbytes, status=503 if nbytes < 2 ** 62 else 413)
        if nbytes >= HUGE_FROM_NBYTES and n_copied >= HUGE_NBYTES:
            advise_huge_pages(memory, n_allocated)
        if n_copied > 0 and not self.n_mapped:
            self.copy_in(self.aligned(memory), self.data, n_copied)
            # Without the GIL, another thread may have exported the old memory or appended to it.
            if self.n_exports > 0 or self.nbytes != n_copied:
                free_block(memory, n_mapped, 0)
                raise BufferError(VIEWS_EXPORTED)
        if not self.n_mapped:
            PyMem_RawFree(self.memory)
        self.memory, self.data, self.n_mapped = memory, self.aligned(memory), n_mapped
        self.capacity = nbytes
        return 0

    cdef char* aligned(self, char* memory) noexcept:
        """Return where the body begins in `memory`: less than ALIGNMENT bytes after its start."""
        return memory + (-(<uintptr_t>memory + self.header_remainder)) % ALIGNMENT

    cdef void copy_in(self, char* target, const void* source, Py_ssize_t nbytes) noexcept:
        """Copy to the memory of the body, without the GIL if that takes long.

        The memory is not moved meanwhile. `source` may be a view of the same memory.
        """
        self.n_exports += 1
        # `append` counts the work, so that other threads do not run during a short copy.
        released = release_gil_if_long(nbytes)
        memmove(target, source, nbytes)
        take_gil(released)
        self.n_exports -= 1

    cdef void count_arrived(self, Py_ssize_t nbytes) noexcept:
        """Count bytes that arrive. A large block gets huge pages after the first bytes.

        The first byte of a huge page takes the memory of all of it, and a client may send no more.
        """
        cdef Py_ssize_t n_before = self.nbytes
        self.nbytes += nbytes
        if n_before < HUGE_NBYTES <= self.nbytes and self.capacity >= HUGE_FROM_NBYTES:
            advise_huge_pages(self.memory, self.n_mapped or self.capacity + ALIGNMENT)

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
            self.count_arrived(nbytes)  # first, so that another thread appends after these bytes
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
            self.count_arrived(n_arrived)

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
