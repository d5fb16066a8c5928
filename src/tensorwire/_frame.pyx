"""Frame: an encoded message, as the buffers that go on the wire one after another."""

cimport cython
from cpython.buffer cimport Py_buffer

from operator import index

from .errors import number_text
from .http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE


cdef extern from "Python.h":
    Py_ssize_t PyObject_Size(object container) except -1
    Py_buffer* PyMemoryView_GET_BUFFER(object view)


@cython.final
@cython.freelist(8)
cdef class Frame:
    """A message ready to be sent: ``buffers``, and what the HTTP headers must say of them.

    ``buffers``: the JSON header as ``bytes``, then each non-empty binary tensor's own memory as a
    flat read-only memoryview; nothing is joined, and the tensors' memory is held and must not
    change until it is sent. ``header_length``: bytes of JSON, 0 for a raw binary request, None when
    the message is all JSON.
    """

    def __init__(self, tuple buffers not None, header_length):
        cdef Py_ssize_t nbytes = 0
        cdef bint is_flat = True
        for buffer in buffers:
            if not is_bytes(buffer):
                is_flat = False
                break
            nbytes += PyObject_Size(buffer)
        if not is_flat:
            buffers = tuple([as_bytes(buffer) for buffer in buffers])
            nbytes = sum([len(buffer) for buffer in buffers])
        if header_length is not None and type(header_length) is not int:
            header_length = int(index(header_length))
        if header_length is not None and not 0 <= header_length <= nbytes:
            raise ValueError(
                f"header_length is 0 to the {nbytes} bytes of the frame, not "
                f"{number_text(header_length)}")
        self.buffers = buffers
        self.header_length = header_length
        self.nbytes = nbytes

    @property
    def headers(self):
        """``Content-Type``, ``Content-Length`` and, unless all is JSON, the header length."""
        if self.header_length is None:
            return {"Content-Type": JSON_TYPE, "Content-Length": str(self.nbytes)}
        return {
            "Content-Type": BINARY_TYPE,
            HEADER_LENGTH: str(self.header_length),
            "Content-Length": str(self.nbytes),
        }

    def __len__(self):
        """Bytes of the whole body."""
        return self.nbytes

    def __bool__(self):
        """True, even for the empty body of a raw request with no elements."""
        return True

    def __iter__(self):
        """The buffers, for ``writelines``, ``sendmsg``, WSGI and httpx.

        Give requests and ``http.client`` the frame itself, whose length they ask for.
        """
        return iter(self.buffers)

    def pieces(self, most):
        """The buffers as memoryviews of at most ``most`` bytes, in order; nothing is copied.

        Raises ValueError when ``most`` is less than 1.
        """
        most = int(index(most))
        if most < 1:
            raise ValueError(f"pieces have 1 byte or more, not {number_text(most)}")
        views = [memoryview(buffer) for buffer in self.buffers]
        return (view[start:start + most] for view in views for start in range(0, len(view), most))

    def __bytes__(self):
        """The whole body joined: one copy."""
        return b"".join(self.buffers)

    def __repr__(self):
        return (
            f"<Frame of {self.nbytes} bytes in {len(self.buffers)} buffers, "
            f"header_length={self.header_length}>"
        )


cdef Frame new_frame(tuple buffers, header_length, Py_ssize_t nbytes):
    """A frame of buffers that have `nbytes` bytes together."""
    cdef Frame frame = Frame.__new__(Frame)
    frame.buffers = buffers
    frame.header_length = header_length
    frame.nbytes = nbytes
    return frame

cdef bint is_bytes(buffer) noexcept:
    """Whether it is a run of single bytes already, whose len() is its number of bytes."""
    cdef Py_buffer* view
    if type(buffer) is memoryview:
        view = PyMemoryView_GET_BUFFER(buffer)
        return (
            view.ndim == 1 and view.itemsize == 1
            and (view.len <= 1 or view.strides == NULL or view.strides[0] == 1)
        )
    return type(buffer) is bytes or type(buffer) is bytearray


cdef as_bytes(buffer):
    """The same memory as flat bytes. Raises BufferError when it is not contiguous."""
    if is_bytes(buffer):
        return buffer
    view = memoryview(buffer)
    if view.nbytes == 0:
        return b""
    try:
        return view.cast("B")
    except (TypeError, ValueError) as error:
        raise BufferError(f"a buffer of a frame cannot be sent as bytes: {error}") from None
