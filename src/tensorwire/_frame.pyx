"""Frame: an encoded message, as the buffers that go on the wire one after another."""

cimport cython

from .http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE


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
        self.buffers = buffers
        self.header_length = header_length
        self.nbytes = 0
        for buffer in buffers:
            self.nbytes += len(buffer)

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

    def pieces(self, Py_ssize_t most):
        """The buffers as memoryviews of at most ``most`` bytes, in order; nothing is copied."""
        for buffer in self.buffers:
            view = memoryview(buffer)
            for start in range(0, len(view), most):
                yield view[start:start + most]

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
