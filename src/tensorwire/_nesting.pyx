"""How deep JSON is nested, counted before a parser recurses into it on the thread's stack."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from ._limits cimport Limits

from .errors import HeaderError

cdef enum:
    WITHIN = -1
    BLOCK_NBYTES = 128  # so that a byte can count what is in it

cdef enum Kind:
    ORDINARY
    OPENING
    CLOSING  # within a string it is as ordinary as the two before it
    QUOTE
    ESCAPE
    NUL

cdef unsigned char[256] KINDS  # of each byte; ORDINARY, which is 0, unless it is said here
KINDS[c"\\"], KINDS[c'"'], KINDS[0] = ESCAPE, QUOTE, NUL
KINDS[c"["] = KINDS[c"{"] = OPENING
KINDS[c"]"] = KINDS[c"}"] = CLOSING


cpdef int check_nesting(bytes text, Limits limits) except -1:
    """Refuse JSON with more than ``limits.max_nesting`` lists and objects within each other."""
    cdef const unsigned char* data = <const unsigned char*>PyBytes_AS_STRING(text)
    cdef Py_ssize_t nbytes = PyBytes_GET_SIZE(text)
    cdef Py_ssize_t position
    # Each level takes a bracket, so that most headers are let through unread, or merely counted.
    if nbytes <= limits.max_nesting or n_openings(data, nbytes) <= limits.max_nesting:
        return 0
    position = first_beyond(data, nbytes, limits.max_nesting)
    if position != WITHIN:
        raise HeaderError(
            f"the JSON is nested too deep: level {limits.max_nesting + 1} begins at byte "
            f"{position}, at most {limits.max_nesting} are accepted",
            offset=position, expected=limits.max_nesting, actual=limits.max_nesting + 1)
    return 0


cdef Py_ssize_t n_openings(const unsigned char* text, Py_ssize_t nbytes) noexcept nogil:
    """How many bytes are ``[`` or ``{``, in strings, too: a loop that the compiler vectorises."""
    cdef Py_ssize_t found = 0
    cdef Py_ssize_t start = 0
    cdef unsigned char in_block
    cdef Py_ssize_t i
    while nbytes - start >= BLOCK_NBYTES:
        in_block = 0
        for i in range(BLOCK_NBYTES):
            in_block += text[start + i] & 0xDF == c"["  # the bit by which { differs
        found += in_block
        start += BLOCK_NBYTES
    for i in range(start, nbytes):
        found += text[i] & 0xDF == c"["
    return found


cdef Py_ssize_t first_beyond(
    const unsigned char* text, Py_ssize_t nbytes, Py_ssize_t most
) noexcept nogil:
    """Where level `most` + 1 begins, or WITHIN.

    While the text is JSON, this is the depth that a parser has; behind the outermost value, and
    from the first fault on, a parser goes no further.
    Bounds: CPython puts a NUL behind every `bytes`, at which each inner loop stops.
    """
    cdef Py_ssize_t depth = 0
    cdef Py_ssize_t i = 0
    cdef unsigned char kind
    while True:
        while KINDS[text[i]] == ORDINARY:
            i += 1
        kind = KINDS[text[i]]
        if kind == QUOTE:
            i = closing_quote(text, nbytes, i)
        elif kind == OPENING:
            depth += 1
            if depth > most:
                return i
        elif kind == CLOSING:
            depth -= 1
            if depth <= 0:
                return WITHIN
        if i >= nbytes:
            return WITHIN
        i += 1


cdef inline Py_ssize_t closing_quote(
    const unsigned char* text, Py_ssize_t nbytes, Py_ssize_t i
) noexcept nogil:
    """Where the string ends that begins at `i`; `nbytes` when it does not.

    A backslash takes the byte behind it along, but never the final NUL.
    """
    i += 1
    while True:
        while KINDS[text[i]] <= CLOSING:
            i += 1
        if KINDS[text[i]] == QUOTE or i >= nbytes:
            return i
        if KINDS[text[i]] == ESCAPE and i + 1 < nbytes:
            i += 1
        i += 1
