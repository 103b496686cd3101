cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy
from regraft.kernels.arrays cimport Ints
from regraft.kernels.frame cimport HEADER, ORIGIN, TRANSFER, bytes_p, cut, put_header, put_u32, writable, writable_p

cdef enum:
    SLICE_BYTES = 2048
    STREAM_BYTES = 18

cdef inline void put_u64(writable_p p, Py_ssize_t i, uint64_t value) noexcept:
    memcpy(p + i, &value, 8)

cdef inline void copy(writable_p target, Py_ssize_t at, bytes_p p, Py_ssize_t start, Py_ssize_t end) noexcept:
    memcpy(target + at, p + start, end - start)

cdef inline void copy_bytes(writable_p target, Py_ssize_t at, bytes data) noexcept:
    memcpy(target + at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

cdef inline bint is_topic(bytes topic, bytes_p p, Py_ssize_t start, Py_ssize_t end) noexcept:
    return (PyBytes_GET_SIZE(topic) == end - start
            and memcmp(PyBytes_AS_STRING(topic), p + start, end - start) == 0)

@cython.final
cdef class Outlet:
    cdef readonly object key
    cdef readonly int slot
    cdef public object group
    cdef public int64_t in_flight
    cdef public int64_t in_flight_max
    cdef public bint link
    cdef public int64_t bit
    cdef public bint gone
    cdef public bint muted
    cdef public bint slow
    cdef bint dirty
    cdef readonly Py_ssize_t messages
    cdef readonly Py_ssize_t size
    cdef public list waiting
    cdef list pieces
    cdef bytearray scratch
    cdef Py_ssize_t used
    cdef Py_ssize_t run_at
    cdef Py_ssize_t run_count
    cdef bytes run_ids
    cdef int64_t run_next

    cdef void reserve(self, Py_ssize_t size) except *
    @cython.locals(target=writable_p, at=Py_ssize_t)
    cdef void open_run(self, bytes ids) except *
    @cython.locals(target=writable_p)
    cdef void close_run(self) noexcept
    @cython.locals(target=writable_p, at=Py_ssize_t)
    cdef void put_origin(self, bytes stream, int64_t first) except *
    @cython.locals(size=Py_ssize_t)
    cdef void append(self, object view, bytes_p p, Py_ssize_t start, Py_ssize_t end,
                    bytes ids, Py_ssize_t count, int64_t expiration, int64_t first) except *
    cdef void spill(self) except *
    cpdef list gather(self, bint last)
    cpdef void clear(self) except *

@cython.final
cdef class Route:
    cdef readonly list outlets
    cdef readonly list subscriptions
    cdef readonly int refusal
    cdef readonly object choice
    cdef public Ints slots
    cdef public bint waits
    cdef public bint persists
    cdef public Route kept
    cdef public list groups
    cdef dict picks
    cdef public bint reports

    cpdef bint is_empty(self) except -1
    @cython.locals(route=Route)
    cpdef Route with_members(self, list members)
    @cython.locals(route=Route)
    cpdef Route persisting(self)
