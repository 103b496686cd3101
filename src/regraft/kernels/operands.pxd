cimport cython
from libc.math cimport asin, cos, sin, sqrt
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from regraft.kernels.envelope cimport Scan, i64
from regraft.kernels.frame cimport bytes_p

cdef enum:
    NOTHING = 0
    BOOL = 2
    INT = 3
    FLOAT = 4
    STRING = 5
    BYTES = 6
    TIMESTAMP = 7

    LITERAL = 0
    SENDER = 2
    TYPE = 4
    SIZE = 5
    SENT = 6
    TOPIC = 9
    ATTRIBUTE = 10
    PRIORITY = 12
    EXPIRATION = 13
    DELIVERY_MODE = 14
    REPLY_TO = 16
    CORRELATION = 17
    TYPE_NAME = 18
    CONTEXT = 19
    NEGATE = 30
    ADD = 31
    SUBTRACT = 32
    MULTIPLY = 33
    DIVIDE = 34
    DISTANCE = 35

    UNLIKE = 2

cdef inline double as_double(uint64_t raw) noexcept:
    cdef double value
    memcpy(&value, &raw, 8)
    return value

cdef inline int64_t as_signed(uint64_t raw) noexcept:
    return <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)

cdef inline bytes_p pointer(bytes text) noexcept:
    return <bytes_p>PyBytes_AS_STRING(text)

cdef inline int order_ints(int64_t a, int64_t b) noexcept:
    return (a > b) - (a < b)

cdef inline int order_floats(double a, double b) noexcept:
    if a != a or b != b:
        return UNLIKE
    return (a > b) - (a < b)

cdef inline int order_int_float(int64_t a, double b) noexcept:
    # Exact: a 64-bit integer may have no double of its own.
    cdef int64_t whole
    if b != b:
        return UNLIKE
    if b >= 9223372036854775808.0:
        return -1
    if b < -9223372036854775808.0:
        return 1
    whole = <int64_t>b  # towards zero
    if a != whole:
        return 1 if a > whole else -1
    return order_floats(<double>whole, b)

cdef inline int order_bytes(bytes_p p, Py_ssize_t at, Py_ssize_t end,
                            bytes_p q, Py_ssize_t start, Py_ssize_t stop) noexcept:
    cdef Py_ssize_t n = end - at
    cdef Py_ssize_t m = stop - start
    cdef int order = memcmp(p + at, q + start, n if n < m else m)
    if order != 0:
        return 1 if order > 0 else -1
    return (n > m) - (n < m)

cdef inline bint same_name(bytes_p p, Py_ssize_t start, Py_ssize_t length, bytes name) noexcept:
    return (length == PyBytes_GET_SIZE(name)
            and memcmp(p + start, PyBytes_AS_STRING(name), length) == 0)

# In unsigned numbers, which may overflow: then a result has the wrong sign.
cdef inline bint sum_fits(int64_t a, int64_t b) noexcept:
    cdef int64_t c = <int64_t>(<uint64_t>a + <uint64_t>b)
    return ((a ^ c) & (b ^ c)) >= 0

cdef inline bint difference_fits(int64_t a, int64_t b) noexcept:
    cdef int64_t c = <int64_t>(<uint64_t>a - <uint64_t>b)
    return ((a ^ b) & (a ^ c)) >= 0

cdef inline bint is_smallest(int64_t a) noexcept:
    return <uint64_t>a == <uint64_t>1 << 63

@cython.cdivision(True)
cdef inline bint product_fits(int64_t a, int64_t b) noexcept:
    if a == 0 or b == 0:
        return True
    if a == -1:
        return not is_smallest(b)
    if b == -1:
        return not is_smallest(a)
    return <int64_t>(<uint64_t>a * <uint64_t>b) // a == b

@cython.cdivision(True)
cdef inline int64_t quotient(int64_t a, int64_t b) noexcept:
    return a // b  # towards zero

# Each product is stored: some processors would otherwise leave out a rounding.
cdef inline double metres(double latitude, double longitude,
                          double latitude2, double longitude2, double radius) noexcept:
    cdef double degree = 3.141592653589793 / 180.0
    cdef volatile double lat = latitude * degree
    cdef volatile double lon = longitude * degree
    cdef volatile double lat2 = latitude2 * degree
    cdef volatile double lon2 = longitude2 * degree
    cdef double across = sin((lat2 - lat) / 2)
    cdef double along = sin((lon2 - lon) / 2)
    cdef volatile double first = across * across
    cdef volatile double second = along * along
    cdef volatile double both = cos(lat) * cos(lat2)
    second = both * second
    cdef double half_chord = first + second
    return 2 * radius * asin(sqrt(half_chord if half_chord < 1.0 else 1.0))

@cython.final
cdef class Operand:
    cdef public int op
    cdef public int kind
    cdef public bytes text
    cdef public int64_t number
    cdef public double real
    cdef public Operand left
    cdef public Operand right
    cdef public list points
    cdef double degrees[4]
    cdef bytes_p p
    cdef Py_ssize_t at
    cdef Py_ssize_t end

    @cython.locals(op=cython.int)
    cdef int value(self, Scan scan, bytes_p p) noexcept
    cpdef void show(self) noexcept
    @cython.locals(where=cython.int, k=cython.int)
    cdef int find(self, Scan scan, bytes_p p) noexcept
    @cython.locals(kind=cython.int, raw=uint64_t)
    cdef int take(self, Scan scan, bytes_p p, int k) noexcept
    @cython.locals(op=cython.int)
    cdef int header(self, Scan scan, bytes_p p) noexcept
    cdef int text_field(self, Scan scan, bytes_p p, int number) noexcept
    cdef int moment(self, Scan scan, bytes_p p, int number) noexcept
    @cython.locals(left=Operand, right=Operand)
    cdef int calculate(self, Scan scan, bytes_p p) noexcept
    @cython.locals(op=cython.int)
    cdef int integers(self, int64_t a, int64_t b) noexcept
    @cython.locals(op=cython.int)
    cdef int reals(self, double a, double b) noexcept
    @cython.locals(inner=Operand)
    cdef int negative(self, Scan scan, bytes_p p) noexcept
    @cython.locals(k=Py_ssize_t, point=Operand, x=cython.double)
    cdef int distance(self, Scan scan, bytes_p p) noexcept
    @cython.locals(kind=cython.int, order=cython.int)
    cdef int order(self, Operand other) noexcept

cdef double RADIUS
