from ..json.scanner cimport Text


cdef str cached_name(const Text* text)
