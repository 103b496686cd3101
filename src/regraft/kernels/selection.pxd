cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING
from regraft.kernels.checksum cimport pointer_to
from regraft.kernels.envelope cimport Scan
from regraft.kernels.frame cimport bytes_p, cut

cdef enum:
    FALSE = 0
    TRUE = 1
    UNKNOWN = 2

    AND = 1
    OR = 2
    NOT = 3
    COMPARE = 4
    IN = 5
    IS_NULL = 6
    STARTS_WITH = 7
    CONSTANT = 8
    WHOLE = 9

    ATTRIBUTE = 10
    CONTEXT = 19
    TOPIC = 1
    PRIORITY = 2
    SIZE = 3

    BOOL = 2
    INT = 3
    FLOAT = 4
    STRING = 5
    BYTES = 6
    TIMESTAMP = 7

cdef inline double as_double(uint64_t raw) noexcept:
    cdef double value
    memcpy(&value, &raw, 8)
    return value

cdef inline int64_t as_signed(uint64_t raw) noexcept:
    return <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)

cdef inline int order_ints(int64_t a, int64_t b) noexcept:
    return (a > b) - (a < b)

cdef inline int order_floats(double a, double b) noexcept:
    if a != a or b != b:
        return 2
    return (a > b) - (a < b)

cdef inline int order_int_float(int64_t a, double b) noexcept:
    # Exact: a 64-bit integer may have no double of its own.
    cdef int64_t whole
    if b != b:
        return 2
    if b >= 9223372036854775808.0:
        return -1
    if b < -9223372036854775808.0:
        return 1
    whole = <int64_t>b  # towards zero
    if a != whole:
        return 1 if a > whole else -1
    return order_floats(<double>whole, b)

cdef inline int order_bytes(bytes_p p, Py_ssize_t start, Py_ssize_t end, bytes text) noexcept:
    cdef Py_ssize_t n = end - start
    cdef Py_ssize_t m = PyBytes_GET_SIZE(text)
    cdef int order = memcmp(p + start, PyBytes_AS_STRING(text), n if n < m else m)
    if order != 0:
        return 1 if order > 0 else -1
    return (n > m) - (n < m)

cdef inline bint begins(bytes_p p, Py_ssize_t start, Py_ssize_t end, bytes text) noexcept:
    cdef Py_ssize_t m = PyBytes_GET_SIZE(text)
    return end - start >= m and memcmp(p + start, PyBytes_AS_STRING(text), m) == 0

cdef inline bint same_name(bytes_p p, Py_ssize_t start, Py_ssize_t length, bytes name) noexcept:
    return (length == PyBytes_GET_SIZE(name)
            and memcmp(p + start, PyBytes_AS_STRING(name), length) == 0)

@cython.final
cdef class Test:
    cdef public int op
    cdef public list terms
    cdef public int where
    cdef public bytes name
    cdef public int relation
    cdef public int kind
    cdef public int64_t number
    cdef public double real
    cdef public bytes text
    cdef public object selector
    cdef int found_kind
    cdef int64_t found_number
    cdef double found_real
    cdef Py_ssize_t found_at
    cdef Py_ssize_t found_end

    @cython.locals(op=cython.int, value=cython.int, term=Test)
    cdef int evaluate(self, Scan scan, bytes_p p, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(decisive=cython.int, result=cython.int, k=Py_ssize_t, value=cython.int, term=Test)
    cdef int connect(self, Scan scan, bytes_p p, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(where=cython.int, k=cython.int)
    cdef bint find(self, Scan scan, bytes_p p) noexcept
    @cython.locals(kind=cython.int, raw=uint64_t)
    cdef void take(self, Scan scan, int k) noexcept
    @cython.locals(kind=cython.int, order=cython.int)
    cdef int order(self, bytes_p p) noexcept
    @cython.locals(order=cython.int, relation=cython.int)
    cdef int holds(self, bytes_p p) noexcept
    @cython.locals(k=Py_ssize_t, term=Test)
    cdef int among(self, Scan scan, bytes_p p) noexcept
    cdef int whole(self, bytes envelope) except -1

@cython.locals(scan=Scan, p=bytes_p, fault=cython.int, value=cython.int)
cpdef object examine_selector(Test test, bytes envelope)

@cython.final
cdef class Choice:
    cdef readonly list tests
    cdef Py_ssize_t variants_max
    cdef object build
    cdef dict variants
    cdef bytearray truths
    cdef uint64_t last
    cdef object last_route

    @cython.locals(n=Py_ssize_t, k=Py_ssize_t, test=Test, truths=uint64_t, bit=uint64_t)
    cdef object decide(self, Scan scan, bytes_p p, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(k=Py_ssize_t, test=Test, key=bytes)
    cdef object decide_many(self, Scan scan, bytes_p p, Py_ssize_t start, Py_ssize_t end)
    cdef object variant(self, object key, list true)
