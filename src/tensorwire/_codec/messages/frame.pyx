"""Encoded messages."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.tuple cimport PyTuple_New

from ..exports cimport exported_bytes
from ..gil cimport write_memory
from ..held_buffer cimport HeldBuffer
from ..messages.tensor cimport Tensor, make_once, copy_data
from ..new_objects cimport set_item

from collections.abc import Iterator
from operator import index
from pickle import PickleBuffer

from ..messages.frame_iterator import one_by_one
from ..signatures import constructor_signature

from ...errors import MAX_FOREIGN_TEXT, format_number, format_text
from ...http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE

Buffer = bytes | memoryview  # for the signature


@cython.final
@cython.freelist(8)
cdef class Frame:
    """An encoded message: the buffers of its body, and its HTTP headers.

    ``len(frame)`` is the size of the body in bytes, and ``bytes(frame)`` is a copy of the body.
    Iterating over the frame returns the buffers, for ``writelines``, WSGI and httpx.
    Pass the frame itself to requests, aiohttp and ``http.client``, and ``aiter(frame)`` to
    ``httpx.AsyncClient``. Frames compare by identity; ``bytes(one) == bytes(other)`` compares the
    bodies.

    The encoders return frames. Use the constructor for a body from other code.

    Parameters
    ----------
    buffers : tuple of buffers
        The parts of the body, which must be contiguous. They are not copied.
    header_length : int or None
        Size of the JSON header in bytes. 0 and None have the meanings described below.

    Attributes
    ----------
    buffers : tuple of bytes or memoryview
        The JSON header, and the memory of each binary tensor that is not empty as a flat
        memoryview. The memory of the tensors is not copied, and must not change until it is sent.
    header_length : int or None
        Size of the JSON header in bytes; 0 for a raw binary request; None if the whole message is
        JSON.

    Raises
    ------
    ValueError
        ``header_length`` is negative or larger than the body.
    BufferError
        A buffer is not contiguous.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorwire as tw
    >>> frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", np.zeros(4))]))
    >>> len(frame) - frame.header_length, len(frame.buffers)
    (32, 2)
    """

    __signature__ = constructor_signature(
        "buffers: tuple[Buffer, ...], header_length: int | None"
    )

    def __cinit__(self):
        self.tensors = ()

    def __init__(self, tuple buffers not None, header_length):
        make_once(self, &self.is_made)
        cdef list parts = []
        cdef HeldBuffer part
        cdef Py_ssize_t nbytes = 0
        for buffer in buffers:
            part = held_buffer(buffer)
            parts.append(part)
            nbytes += part.nbytes
        if header_length is not None and type(header_length) is not int:
            header_length = index(header_length)
        if header_length is not None and not 0 <= header_length <= nbytes:
            raise ValueError(
                f"header_length must be 0 to {nbytes}, the size of the frame, not "
                f"{format_number(header_length)}")
        self.parts = tuple(parts)
        self.header_length = header_length
        self.nbytes = nbytes

    @property
    def buffers(self):
        # New memoryviews, which the caller may release, and which no other thread has: CPython
        # counts the views of a memoryview without a lock.
        cdef HeldBuffer part
        if self.parts is None:
            return buffers_of(self)
        buffers = []
        for part in self.parts:
            buffers.append(part.buffer.obj if part.is_bytes() else PyMemoryView_FromObject(part))
        return tuple(buffers)

    @property
    def headers(self):
        """The HTTP headers as a new dict (WIRE.md 1).

        They are Content-Type, Content-Length and, unless ``header_length`` is None,
        Inference-Header-Content-Length.
        """
        if self.header_length is None:
            return {"Content-Type": JSON_TYPE, "Content-Length": str(self.nbytes)}
        return {
            "Content-Type": BINARY_TYPE,
            HEADER_LENGTH: str(self.header_length),
            "Content-Length": str(self.nbytes),
        }

    def __len__(self):
        return self.nbytes

    def __bool__(self):
        return True  # also if the body is empty, as in a raw request without elements

    def __iter__(self):
        return iter(self.buffers)

    def __aiter__(self):
        return one_by_one(self.buffers)

    def chunks(self, max_nbytes: int) -> Iterator[memoryview]:
        """Iterate over the body as memoryviews of limited size. The body is not copied.

        Parameters
        ----------
        max_nbytes : int
            Maximum size of a memoryview in bytes.

        Returns
        -------
        iterator of memoryview
            Views of the buffers, in order. None of them is empty.

        Raises
        ------
        ValueError
            ``max_nbytes`` is less than 1.
        TypeError
            ``max_nbytes`` is not an integer.

        Examples
        --------
        >>> import tensorwire as tw
        >>> [bytes(chunk) for chunk in tw.encode_raw_request(b"abcde").chunks(2)]
        [b'ab', b'cd', b'e']
        """
        size = index(max_nbytes)
        if size < 1:
            raise ValueError(f"max_nbytes must be 1 or more, not {format_number(size)}")
        views = list(map(memoryview, self.buffers))
        return (view[start:start + size] for view in views for start in range(0, len(view), size))

    def __bytes__(self):
        cdef Tensor tensor
        cdef HeldBuffer part
        cdef bytes copy = PyBytes_FromStringAndSize(NULL, self.nbytes)
        cdef unsigned char* target = <unsigned char*>PyBytes_AS_STRING(copy)
        for part in self.parts or ():
            target = write_memory(target, part.data, part.nbytes)
        if self.header is not None:
            target = write_memory(target, PyBytes_AS_STRING(self.header), len(self.header))
        for tensor in self.tensors:
            target = copy_data(target, tensor)
        return copy

    def __copy__(self):
        return self

    def __reduce_ex__(self, protocol):
        buffers = []
        for buffer in self.buffers:
            buffers.append(PickleBuffer(HeldBuffer(buffer)) if protocol >= 5 else bytes(buffer))
        return Frame, (tuple(buffers), self.header_length)

    def __repr__(self):
        return (
            f"<Frame of {self.nbytes} bytes in {len(self.buffers)} buffers, "
            f"header_length={self.header_length}>"
        )


cdef Frame new_frame(bytes header, tuple tensors, header_length, Py_ssize_t nbytes):
    cdef Frame frame = Frame.__new__(Frame)
    frame.is_made = True
    frame.header = header
    frame.tensors = tensors
    frame.header_length = header_length
    frame.nbytes = nbytes
    return frame


cdef tuple buffers_of(Frame frame):
    cdef Tensor tensor
    cdef Py_ssize_t n_set = 0 if frame.header is None else 1
    cdef tuple buffers = PyTuple_New(n_set + len(frame.tensors))
    if n_set == 1:
        set_item(buffers, 0, frame.header)
    for tensor in frame.tensors:
        if tensor.bytes_array is None:
            buffer = PyMemoryView_FromObject(
                exported_bytes(tensor.owner, tensor.memory, tensor.nbytes))
        else:
            buffer = tensor.bytes_array.wire
        set_item(buffers, n_set, buffer)
        n_set += 1
    return buffers


cdef HeldBuffer held_buffer(buffer):
    """Return the memory of a buffer. Raises BufferError if it is not contiguous."""
    if type(buffer) is bytes:
        return HeldBuffer(buffer)
    view = memoryview(buffer)
    if view.nbytes == 0:
        return HeldBuffer(b"")
    try:
        return HeldBuffer(view.cast("B"))
    except (TypeError, ValueError) as error:
        shown = format_text(error, MAX_FOREIGN_TEXT)
        raise BufferError(f"a buffer of a frame cannot be sent as bytes: {shown}") from None
