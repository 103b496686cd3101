cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy
from regraft.kernels.checksum cimport pointer_to
from regraft.kernels.frame cimport HEADER, bytes_p, cut, u32

cdef enum:
    TRUNCATED = 1
    OVERFLOW = 2
    FIELD_ZERO = 3
    GROUP = 4
    WRONG_WIRE_TYPE = 5
    TWICE = 6
    NOT_UTF8 = 7
    BAD_NAME = 8
    NOT_ONE_VALUE = 9
    SAME_NAME = 10
    TOO_MANY = 11
    NO_TOPIC = 12
    BAD_VALUE = 13
    NAMES_MAX = 512
    FIELDS = 27
    TEXTS = 0x407820C
    REPEATED = 0x80400

cdef extern from *:
    """
    static const unsigned char regraft_envelope_wire[27] = {
        9, 1, 2, 2, 0, 2, 1, 1, 2, 2, 2, 0, 0, 1, 0, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 1, 2};
    static const unsigned char regraft_attribute_wire[8] = {9, 2, 0, 0, 1, 2, 2, 1};
    """
    const unsigned char ENVELOPE_WIRE "regraft_envelope_wire"[27]
    const unsigned char ATTRIBUTE_WIRE "regraft_attribute_wire"[8]

cdef inline uint64_t maximum(uint64_t number) noexcept:
    if number == 14 or number == 21 or number == 22 or number == 24:
        return 1
    if number == 12:
        return 9
    if number == 11:
        return <uint64_t>-1
    return 0xFFFFFFFF

cdef inline bint same(const unsigned char* p, Py_ssize_t a, Py_ssize_t b, size_t length) noexcept:
    return memcmp(p + a, p + b, length) == 0

cdef inline int64_t i64(const unsigned char* p, Py_ssize_t i) noexcept:
    # The protocol and every machine this compiles for are little-endian; setup.py checks.
    cdef int64_t value
    memcpy(&value, p + i, 8)
    return value

cdef inline bint all_ascii(const unsigned char* p, Py_ssize_t i) noexcept:
    return <uint64_t>i64(p, i) & <uint64_t>0x8080808080808080 == 0

@cython.locals(c=cython.uint, low=cython.uint, high=cython.uint, more=Py_ssize_t)
cdef bint is_utf8(const unsigned char* p, Py_ssize_t i, Py_ssize_t end) noexcept

@cython.final
cdef class Scan:
    cdef public int fault
    cdef uint64_t value
    cdef int names
    cdef Py_ssize_t name_at[512]
    cdef Py_ssize_t name_length[512]
    cdef int name_field[512]
    cdef int value_kind[513]
    cdef uint64_t value_raw[513]
    cdef Py_ssize_t value_end[513]
    cdef uint64_t seen
    cdef uint64_t field_raw[27]
    cdef Py_ssize_t field_end[27]
    cdef readonly int priority
    cdef public Py_ssize_t topic_at
    cdef public Py_ssize_t topic_end
    cdef public Py_ssize_t body_at
    cdef public Py_ssize_t body_end
    cdef public int64_t expiration
    cdef public int64_t deliver_at
    cdef public int special

    @cython.locals(shift=cython.uint, value=uint64_t, c=uint64_t)
    cdef Py_ssize_t varint(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t end) noexcept

    @cython.locals(start=Py_ssize_t)
    cdef Py_ssize_t short_varint(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t end) noexcept

    cdef Py_ssize_t skip(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t end, unsigned int wire) noexcept

    cdef Py_ssize_t tag(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t end) noexcept

    @cython.locals(name_at=Py_ssize_t, name_end=Py_ssize_t, values=cython.int, tag=uint64_t, number=uint64_t, wire=cython.uint)
    cdef bint attribute(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t end, int field) noexcept

    @cython.locals(length=Py_ssize_t, n=cython.int, k=cython.int, alike=cython.int)
    cdef bint name(self, const unsigned char* p, Py_ssize_t at, Py_ssize_t end, int field) noexcept

    @cython.locals(seen=uint64_t, tag=uint64_t, number=uint64_t, wire=cython.uint, at=Py_ssize_t, bit=uint64_t)
    cdef int scan(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t end) noexcept

@cython.locals(scan=Scan, p=bytes_p, n=Py_ssize_t, left=Py_ssize_t, expired=Py_ssize_t, earliest=int64_t, pos=Py_ssize_t, end=Py_ssize_t)
cpdef tuple unexpired(object run, int64_t now_us)

@cython.locals(scan=Scan, p=bytes_p, n=Py_ssize_t, i=Py_ssize_t, start=Py_ssize_t, number=uint64_t, wire=cython.uint, found=list)
cpdef list fields_of(object data)

@cython.locals(scan=Scan, p=bytes_p, n=Py_ssize_t, i=Py_ssize_t, found=list)
cpdef list read_varints(object data)

@cython.locals(scan=Scan, fault=cython.int)
cpdef tuple examine(object data)
