cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy
from regraft.kernels.frame cimport HEADER, MESSAGE, cut, put_header, writable, writable_p
from regraft.kernels.outlet cimport copy_bytes

cdef inline void put_u64(writable_p p, Py_ssize_t i, uint64_t value) noexcept:
    memcpy(p + i, &value, 8)

cdef inline void put_double(writable_p p, Py_ssize_t i, double value) noexcept:
    memcpy(p + i, &value, 8)

cdef inline uint64_t mix(uint64_t value) noexcept:
    value *= <uint64_t>0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t>0x94D049BB133111EB
    return value ^ (value >> 31)

cdef inline uint64_t zigzag(int64_t value) noexcept:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)

@cython.final
cdef class Outbox:
    cdef public Py_ssize_t frame_bytes_max
    cdef uint64_t counter
    cdef bytearray buffer
    cdef readonly Py_ssize_t used
    cdef Py_ssize_t at
    cdef public bint persistent
    cdef public int64_t sequence
    cdef readonly list runs
    cdef readonly long long sent_messages
    cdef readonly long long sent_bytes
    cdef public long long granted_messages
    cdef public long long granted_bytes

    cdef void reserve(self, Py_ssize_t size) except *
    @cython.locals(p=writable_p, i=Py_ssize_t)
    cdef void varint(self, uint64_t value) noexcept
    cdef void field(self, unsigned int tag, bytes data) except *
    @cython.locals(p=writable_p)
    cdef void fixed(self, unsigned char tag, uint64_t value) except *
    @cython.locals(p=writable_p)
    cdef void value(self, str name, object value) except *
    @cython.locals(encoded=bytes, start=Py_ssize_t, size=Py_ssize_t, shift=Py_ssize_t, p=writable_p, i=Py_ssize_t)
    cdef void attribute(self, str name, object value) except *
    @cython.locals(start=Py_ssize_t, size=Py_ssize_t)
    cpdef int64_t put(self, bytes topic, bytes body, object attributes, int64_t timestamp_us, bint with_id, bytes rest) except -1
    cdef void raw(self, bytes data) except *
    @cython.locals(size=Py_ssize_t)
    cdef void finish(self, Py_ssize_t start) except *
    @cython.locals(start=Py_ssize_t)
    cpdef void put_request(self, bytes topic, bytes body, uint64_t id, int64_t until_us, bytes asking, bytes rest) except *
    @cython.locals(start=Py_ssize_t)
    cpdef void put_answer(self, bytes topic, bytes body, uint64_t references, bytes to, bytes sender, bytes rest) except *
    cpdef void put_again(self, bytes frame, int64_t sequence) except *
    @cython.locals(ordinal=int64_t, sequence=int64_t, count=int64_t)
    cdef bint note_run(self) except -1
    @cython.locals(n=Py_ssize_t)
    cpdef Py_ssize_t put_many(self, bytes topic, list bodies, Py_ssize_t start, object attributes, int64_t timestamp_us, bint with_id, bytes rest, Py_ssize_t used_max) except -1
    cpdef bytes take(self)
