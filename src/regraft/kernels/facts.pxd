cimport cython
from libc.math cimport INFINITY, NAN
from libc.stdint cimport int32_t, int64_t, uint64_t
from regraft.kernels.arrays cimport Ints, Longs, Reals, Texts, regraft_prefetch, text_is
from regraft.kernels.envelope cimport NAMES_MAX, Scan
from regraft.kernels.frame cimport bytes_p
from regraft.kernels.operands cimport as_double, as_signed

cdef enum:
    ANY = 0
    BOOL = 1
    NUMBER = 2
    STRING = 3
    BYTES = 4
    TIMESTAMP = 5
    CLASSES = 6
    ATTRIBUTE = 10
    CONTEXT = 19
    HEADERS = 10
    TOPIC = 1
    PRIORITY = 2
    SIZE = 3
    TYPE = 4
    SENDER = 5
    CORRELATION = 6
    REPLY_TO = 7
    SAMPLES = 64
    SAMPLE_EVERY = 8
    EPOCH = 512
    BOUNDS = 4096

cdef extern from *:
    """
    #define REGRAFT_WIDE_SHARE 0.05
    """
    const double WIDE_SHARE "REGRAFT_WIDE_SHARE"

ctypedef int32_t* ints_p
ctypedef double* reals_p

cdef inline int64_t as_moment(uint64_t raw) noexcept:
    return <int64_t>raw

cdef inline void send_for_samples(double* a, Py_ssize_t first) noexcept:
    cdef Py_ssize_t k
    for k in range(first, first + SAMPLES, 8):
        regraft_prefetch(a + k)

@cython.final
cdef class Facts:
    cdef Texts names
    cdef Texts contexts
    cdef readonly Texts texts
    cdef Ints by_slot
    cdef Ints by_header
    cdef int headers
    cdef readonly int count
    cdef int top
    cdef Ints free
    cdef Longs made
    cdef Ints held
    cdef Ints slot
    cdef Ints texts_held
    cdef Reals x
    cdef Longs at
    cdef Longs end
    cdef Ints seen
    cdef Ints seen_epoch
    cdef Reals samples
    cdef Ints sample_count
    cdef list bounds
    cdef Ints bounds_count
    cdef Ints usual
    cdef Ints active
    cdef readonly int64_t now
    cdef readonly int sampled
    cdef int epoch

    @cython.locals(texts=Texts, number=int32_t, slot=int32_t, found=int32_t)
    cpdef int32_t dimension(self, int where, bytes name, int kind) except -1
    @cython.locals(dimension=int32_t)
    cdef int32_t make(self, int32_t slot) except -1
    cdef void grow(self, Py_ssize_t n) except *
    @cython.locals(slot=int32_t, number=int32_t, texts=Texts)
    cpdef bint release(self, int32_t dimension) except -1
    @cython.locals(slot=int32_t)
    cdef int kind(self, int32_t dimension) noexcept
    cpdef int32_t hold_text(self, int32_t dimension, bytes text) except -1
    cpdef void release_text(self, int32_t dimension, int32_t number) except *
    @cython.locals(by_slot=ints_p, k=cython.int, field=cython.int, at=Py_ssize_t, number=int32_t,
                   slot=int32_t, dimension=int32_t, kind=cython.int, raw=uint64_t, end=Py_ssize_t)
    cdef void load(self, Scan scan, bytes_p p) except *
    cdef void load_headers(self, Scan scan, bytes_p p) except *
    @cython.locals(end=Py_ssize_t)
    cdef bint header_field(self, int code, Scan scan, bytes_p p, int field) except -1
    @cython.locals(dimension=int32_t)
    cdef void header_text(self, int code, bytes_p p, Py_ssize_t at, Py_ssize_t end) except *
    @cython.locals(dimension=int32_t)
    cdef void header_number(self, int code, Py_ssize_t value) except *
    @cython.locals(dimension=int32_t)
    cdef void header_any(self, int code) except *
    cdef void text(self, int32_t dimension, bytes_p p, Py_ssize_t at, Py_ssize_t end) noexcept
    @cython.locals(x=reals_p, k=Py_ssize_t)
    cdef void clear(self) noexcept
    @cython.locals(k=Py_ssize_t, dimension=int32_t, count=int32_t)
    cdef void observe(self) noexcept
    @cython.locals(behind=cython.int)
    cdef void age(self, int32_t dimension) noexcept
    @cython.locals(bounds=Reals, value=cython.double, count=int32_t)
    cdef void note_bounds(self, int32_t dimension, double low, double high) except *
    @cython.locals(sampled=int64_t, since=int64_t)
    cdef double presence(self, int32_t dimension) noexcept
    @cython.locals(present=cython.double, guess=cython.double, n=cython.int, within=cython.int, samples=reals_p,
                   first=Py_ssize_t, k=Py_ssize_t)
    cdef double share(self, int32_t dimension, double low, double high) except -1
    @cython.locals(bounds=Reals, some=reals_p, within=cython.int, n=Py_ssize_t, k=Py_ssize_t)
    cdef double guess(self, int32_t dimension, double low, double high) except -1
    @cython.locals(bounds=Reals)
    cdef void send_for(self, int32_t dimension) noexcept
