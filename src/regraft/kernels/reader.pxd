cimport cython
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from regraft.kernels.frame cimport bytes_p, cut

cdef enum:
    ATTRIBUTE = 10
    CONTEXT = 19
    TOPIC = 1
    PRIORITY = 2
    SIZE = 3

    EQUAL = 0
    UNEQUAL = 1
    BELOW = 2
    UP_TO = 3
    ABOVE = 4
    FROM = 5
    IN = 6
    IS_NULL = 7
    IS_NOT_NULL = 8
    STARTS_WITH = 9

    EXCLAMATION = 0x21
    DOUBLE_QUOTE = 0x22
    DOLLAR = 0x24
    PERCENT = 0x25
    QUOTE = 0x27
    OPEN = 0x28
    CLOSE = 0x29
    PLUS = 0x2B
    COMMA = 0x2C
    MINUS = 0x2D
    POINT = 0x2E
    ZERO = 0x30
    LESS = 0x3C
    EQUALS = 0x3D
    GREATER = 0x3E
    SMALL_E = 0x65
    SMALL_L = 0x6C

    NESTING_MAX = 16
    TERMS_MAX = 256
    DIGITS_MAX = 30
    INT_DIGITS = 18

cdef Py_ssize_t SELECTOR_BYTES_MAX
cdef Py_ssize_t NAME_BYTES_MAX
cdef Py_ssize_t SELECTOR_IN_MAX
cdef Py_ssize_t TOPIC_BYTES_MAX
cdef Py_ssize_t TOPIC_LEVELS_MAX
cdef frozenset KEYWORDS
cdef dict HEADERS
cdef tuple RELATIONS

# Python puts a zero byte behind the bytes of an object.
cdef inline bytes_p pointer(bytes data) noexcept:
    return <bytes_p>PyBytes_AS_STRING(data)

cdef inline str string(bytes_p p, Py_ssize_t start, Py_ssize_t end):
    return PyUnicode_DecodeUTF8(<const char*>p + start, end - start, NULL)

cdef inline bytes glued(bytes a, bytes b, bytes c):
    cdef Py_ssize_t i = PyBytes_GET_SIZE(a)
    cdef Py_ssize_t j = i + PyBytes_GET_SIZE(b)
    cdef bytes whole = PyBytes_FromStringAndSize(NULL, j + PyBytes_GET_SIZE(c))
    cdef char* w = PyBytes_AS_STRING(whole)
    memcpy(w, PyBytes_AS_STRING(a), i)
    memcpy(w + i, PyBytes_AS_STRING(b), j - i)
    memcpy(w + j, PyBytes_AS_STRING(c), PyBytes_GET_SIZE(c))
    return whole

cdef inline bint is_blank(unsigned char c) noexcept:
    return c == 0x20 or c == 0x09 or c == 0x0A or c == 0x0D or c == 0x0C

cdef inline bint is_digit(unsigned char c) noexcept:
    return 0x30 <= c <= 0x39

cdef inline bint is_word(unsigned char c) noexcept:
    return (0x61 <= (c | 0x20) <= 0x7A or 0x30 <= c <= 0x39 or c == 0x5F or c == 0x24
            or c >= 0x80)

@cython.final
cdef class Reader:
    cdef bytes data
    cdef bytes_p p
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef dict found
    cdef int where
    cdef bytes name
    cdef bytes name_text
    cdef bint plain
    cdef bint bare
    cdef object value
    cdef bytes value_text
    cdef Py_ssize_t inner
    cdef Py_ssize_t inner_end
    cdef bint doubled

    cdef void add(self, int relation) except *
    cdef unsigned char peek(self) noexcept
    cdef bint sign(self, unsigned char c) noexcept
    @cython.locals(at=Py_ssize_t, n=Py_ssize_t, k=Py_ssize_t, w=bytes_p)
    cdef bint keyword(self, bytes word) noexcept
    @cython.locals(at=Py_ssize_t)
    cdef bint word(self) except -1
    @cython.locals(k=Py_ssize_t)
    cdef bint is_plain(self, Py_ssize_t start, Py_ssize_t end) noexcept
    @cython.locals(at=Py_ssize_t)
    cdef bint quoted(self, unsigned char quote) noexcept

    @cython.locals(c=cython.uchar)
    cdef bint read_name(self) except -1
    cdef bint read_quoted_name(self) except -1
    @cython.locals(taken=bint)
    cdef bint keep_name(self, int where) except -1
    cdef bint read_string(self) except -1
    cdef void keep_string(self, Py_ssize_t end) except *
    @cython.locals(c=cython.uchar)
    cdef bint read_literal(self) except -1
    @cython.locals(
        negative=bint, whole=bint, at=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t,
        digits=Py_ssize_t)
    cdef bint read_number(self) except -1
    cdef Py_ssize_t skip_digits(self, Py_ssize_t at) noexcept
    cdef bint keep_int(self, bint negative, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(value=object)
    cdef void keep_float(self, bint negative, Py_ssize_t start, Py_ssize_t end) except *

    @cython.locals(depth=cython.int)
    cdef bint whole(self) except -1
    @cython.locals(c=cython.uchar, relation=cython.int)
    cdef bint condition(self) except -1
    @cython.locals(c=cython.uchar, second=cython.uchar)
    cdef int operator(self) noexcept
    @cython.locals(relation=cython.int)
    cdef bint turned(self) except -1
    cdef bint between(self) except -1
    @cython.locals(values=dict, texts=list, text=bytes, count=Py_ssize_t)
    cdef bint among(self) except -1
    @cython.locals(negated=bint, text=bytes)
    cdef bint null(self) except -1
    @cython.locals(end=Py_ssize_t)
    cdef bint like(self) except -1
    @cython.locals(text=bytes)
    cdef void starts_with(self) except *
    @cython.locals(name=bytes, topic=bytes)
    cdef bint function(self) except -1

cdef bint is_reserved(bytes name) except -1
cdef bint is_jms(bytes name) except -1

@cython.locals(data=bytes, reader=Reader, texts=list, plain=bytes)
cpdef object read_conjunction(str text, Py_ssize_t bytes_max=*)
