cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcmp
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from regraft.kernels.frame cimport bytes_p

cdef enum:
    SLASH = 47
    PLUS = 43
    HASH = 35
    DOLLAR = 36

ctypedef const uint64_t* words_p
ctypedef uint64_t* states_p

cdef inline bytes_p table(bytes data) noexcept:
    return <bytes_p>PyBytes_AS_STRING(data)

cdef inline words_p words_of(bytes data) noexcept:
    return <words_p>PyBytes_AS_STRING(data)

cdef inline states_p states_of(bytearray data) noexcept:
    return <states_p>PyByteArray_AS_STRING(data)

cdef inline uint64_t moved(uint64_t states) noexcept:
    return states << 1

cdef inline bint begins(bytes_p p, Py_ssize_t start, Py_ssize_t end, bytes text) noexcept:
    cdef Py_ssize_t m = PyBytes_GET_SIZE(text)
    return end - start >= m and memcmp(p + start, PyBytes_AS_STRING(text), m) == 0

cdef inline bint ends(bytes_p p, Py_ssize_t start, Py_ssize_t end, bytes text) noexcept:
    cdef Py_ssize_t m = PyBytes_GET_SIZE(text)
    return end - start >= m and memcmp(p + end - m, PyBytes_AS_STRING(text), m) == 0

# By the first byte and the last one: at its worst, m compared at once for each of n.
cdef inline Py_ssize_t find(bytes_p p, Py_ssize_t start, Py_ssize_t end, bytes text) noexcept:
    cdef Py_ssize_t m = PyBytes_GET_SIZE(text)
    cdef bytes_p q = <bytes_p>PyBytes_AS_STRING(text)
    cdef bytes_p at
    if m == 0:
        return start
    while end - start >= m:
        at = <bytes_p>memchr(p + start, q[0], end - start - m + 1)
        if at == NULL:
            return -1
        if at[m - 1] == q[m - 1] and memcmp(at, q, m) == 0:
            return at - p
        start = at - p + 1
    return -1

@cython.locals(n=Py_ssize_t, i=Py_ssize_t, j=Py_ssize_t, q=bytes_p)
cdef bint fits_topic(bytes_p p, Py_ssize_t at, Py_ssize_t end, bytes pattern) noexcept

@cython.final
cdef class Like:
    cdef bint whole
    cdef bint open_end
    cdef bytes first
    cdef bytes last
    cdef list pieces
    cdef Py_ssize_t shortest
    cdef Py_ssize_t words
    cdef bytes classes
    cdef bytes steps
    cdef bytes stays
    cdef bytearray states
    cdef uint64_t goal

    @cython.locals(k=Py_ssize_t, piece=bytes)
    cdef bint fits(self, bytes_p p, Py_ssize_t at, Py_ssize_t end) noexcept
    @cython.locals(classes=bytes_p, steps=words_p, stays=words_p, states=uint64_t, goal=uint64_t,
                   i=Py_ssize_t, k=Py_ssize_t, open_end=cython.bint)
    cdef bint run(self, bytes_p p, Py_ssize_t at, Py_ssize_t end) noexcept
    @cython.locals(classes=bytes_p, steps=words_p, stays=words_p, states=states_p, goal=uint64_t,
                   i=Py_ssize_t, k=Py_ssize_t, w=Py_ssize_t, words=Py_ssize_t, led=uint64_t,
                   carried=uint64_t, before=uint64_t, alive=uint64_t, open_end=cython.bint)
    cdef bint run_long(self, bytes_p p, Py_ssize_t at, Py_ssize_t end) noexcept
