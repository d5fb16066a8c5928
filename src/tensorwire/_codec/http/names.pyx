"""Names of tensors: those of recent messages are not made again."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from ..borrowed cimport str_data, str_length
from ..gil cimport FREE_THREADED
from ..json.reader cimport text_to_str
from ..json.scanner cimport Text

cdef extern from *:
    const uint64_t MULTIPLIER "0x9E3779B97F4A7C15ULL"  # 2^64 / phi, as in Fibonacci hashing

cdef enum:
    SLOT_BITS = 10
    N_SLOTS = 1 << SLOT_BITS
    MAX_CACHED_NBYTES = 32

ctypedef PyObject* CachedName  # an owned reference, or NULL in an empty slot
cdef CachedName[N_SLOTS] CACHE  # names of recent messages


cdef str cached_name(const Text* text):
    """Return a name, which is the object of an earlier message if the cache still has it.

    Servers receive the same names again and again. Neither a new str nor its hash is needed then.
    In a free-threaded Python, there is no cache, because another thread could replace a name while
    it is read.
    """
    cdef CachedName* slot
    cdef PyObject* cached
    if FREE_THREADED or not text.is_ascii or text.has_escapes or not (
        2 <= text.nbytes <= MAX_CACHED_NBYTES
    ):
        return text_to_str(text)
    slot = &CACHE[slot_of(text)]
    cached = slot[0]
    if cached == NULL or str_length(cached) != text.nbytes or (
        memcmp(str_data(cached), text.begin, text.nbytes) != 0
    ):
        name = text_to_str(text)
        Py_INCREF(name)
        slot[0] = <PyObject*>name
        Py_XDECREF(cached)
    return <str>slot[0]


cdef inline uint64_t slot_of(const Text* text) noexcept:
    """Return the index of the slot of a name, which is a hash of its bytes.

    8 bytes are read at a time. The last 8 may overlap those before them.
    """
    cdef Py_ssize_t nbytes = text.nbytes, i = 0
    cdef uint64_t word = 0, hashed = nbytes
    while i <= nbytes - 8:
        memcpy(&word, text.begin + i, 8)
        hashed = (hashed ^ word) * MULTIPLIER
        hashed ^= hashed >> 32
        i += 8
    if nbytes >= 8:
        memcpy(&word, text.begin + nbytes - 8, 8)
    else:
        memcpy(&word, text.begin, nbytes)
    return (hashed ^ word) * MULTIPLIER >> (64 - SLOT_BITS)
