cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t
from regraft.kernels.checksum cimport crc32c_at, pointer_to

ctypedef const unsigned char* bytes_p
ctypedef unsigned char* writable_p

cdef inline writable_p writable(bytearray buffer) noexcept:
    return <writable_p>PyByteArray_AS_STRING(buffer)

cdef inline bytes cut(bytes_p p, Py_ssize_t start, Py_ssize_t end):
    return PyBytes_FromStringAndSize(<const char*>p + start, end - start)

cdef enum:
    HEADER = 12
    MESSAGE = 7
    TRANSFER = 8
    CONFIRMED = 17
    ORIGIN = 33
    QUESTION = 34
    REPLY = 35
    VARINT_MAX = 10

cdef inline uint32_t u32(const unsigned char* p, Py_ssize_t i) noexcept:
    return (<uint32_t>p[i] | <uint32_t>p[i + 1] << 8
            | <uint32_t>p[i + 2] << 16 | <uint32_t>p[i + 3] << 24)

cdef inline void put_u32(unsigned char* p, Py_ssize_t i, uint32_t value) noexcept:
    p[i] = value & 255
    p[i + 1] = value >> 8 & 255
    p[i + 2] = value >> 16 & 255
    p[i + 3] = value >> 24

@cython.locals(check=uint32_t)
cdef void put_header(unsigned char* p, Py_ssize_t i, unsigned char kind, Py_ssize_t payload) noexcept

cdef Py_ssize_t put_varint(unsigned char* p, Py_ssize_t at, int64_t value) noexcept
cdef Py_ssize_t put_number(unsigned char* p, Py_ssize_t at, int field, int64_t value) noexcept

@cython.locals(p=bytes_p, n=Py_ssize_t, pos=Py_ssize_t, count=Py_ssize_t, size=Py_ssize_t)
cpdef tuple count_messages(object view)

@cython.locals(p=bytes_p, n=Py_ssize_t, pos=Py_ssize_t, count=Py_ssize_t)
cpdef tuple take(object view, Py_ssize_t messages_max, Py_ssize_t bytes_max)

@cython.locals(frame=bytearray, p=writable_p, at=Py_ssize_t)
cpdef bytes confirmed(int64_t ordinal, int64_t count, int64_t takers, bint known)
