cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy
from regraft.kernels.checksum cimport pointer_to
from regraft.kernels.envelope cimport Scan, i64
from regraft.kernels.frame cimport HEADER, bytes_p, cut, put_u32, u32, writable, writable_p
from regraft.kernels.outlet cimport copy, copy_bytes, is_topic
from regraft.kernels.records cimport BAD, FOUND, INDEX, MESSAGES, SHORT, TAKER, Walk, put_i64, whole_frames
from regraft.kernels.replay cimport CLOSED
from regraft.kernels.selection cimport TRUE, Test

cpdef enum:
    WIDE = 8
    NARROW = 4
    BITS = 1
    TEXT = 0
    MAP = 16

cpdef enum:
    STREAM = 100
    PARTITION = 101
    SEQUENCE = 102
    TIME = 103
    SIZE = 104
    MODE = 105
    ATTRIBUTE = 106
    CONTENT = 107

cdef enum:
    PART = 5

cdef inline void put_real(writable_p p, Py_ssize_t at, int64_t value) noexcept:
    cdef double real = <double>value
    memcpy(p + at, &real, 8)

cdef inline int64_t unzigzag(uint64_t raw) noexcept:
    return <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)

cdef inline int64_t signed(uint64_t raw) noexcept:
    return <int64_t>raw

@cython.final
cdef class Column:
    cdef int source
    cdef int layout
    cdef bytes name
    cdef int value
    cdef Py_ssize_t rows_room
    cdef Entries entries
    cdef Py_ssize_t n
    cdef Py_ssize_t nulls
    cdef Py_ssize_t used
    cdef bytearray valid
    cdef bytearray offsets
    cdef bytearray data

    cdef void clear(self) except *
    cdef bint grow(self) except -1
    @cython.locals(row=Py_ssize_t, p=writable_p)
    cdef Py_ssize_t next_row(self, bint there) except -1
    @cython.locals(row=Py_ssize_t)
    cdef bint put_null(self) except -1
    @cython.locals(row=Py_ssize_t, p=writable_p)
    cdef bint put_number(self, int64_t value) except -1
    @cython.locals(row=Py_ssize_t)
    cdef bint put_text(self, bytes_p p, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(row=Py_ssize_t)
    cdef bint put_bytes(self, bytes text) except -1
    @cython.locals(need=Py_ssize_t)
    cdef bint reserve(self, Py_ssize_t size) except -1
    @cython.locals(kind=cython.int, raw=uint64_t, row=Py_ssize_t)
    cdef bint put_value(self, Scan scan, bytes_p p, int k) except -1
    @cython.locals(n=Py_ssize_t, bits=Py_ssize_t)
    cdef void describe(self, list nodes, list buffers) except *

@cython.final
cdef class Entries:
    cdef Column names
    cdef Column bools
    cdef Column ints
    cdef Column floats
    cdef Column strings
    cdef Column bytes
    cdef Column times

    cdef void clear(self) except *
    @cython.locals(kind=cython.int)
    cdef bint put(self, Scan scan, bytes_p p, int k) except -1
    @cython.locals(n=Py_ssize_t)
    cdef void describe(self, list nodes, list buffers) except *

@cython.final
cdef class Table:
    cdef int64_t number
    cdef bytes stream
    cdef Test test
    cdef int64_t rows_max
    cdef int64_t bytes_max
    cdef object inflate
    cdef list columns
    cdef Walk walk
    cdef Scan scan
    cdef public int64_t base
    cdef public int64_t since_us
    cdef readonly int status
    cdef public int64_t next_sequence
    cdef readonly int64_t scanned
    cdef readonly int64_t rows
    cdef readonly int64_t size

    @cython.locals(p=bytes_p, n=Py_ssize_t, begun=Py_ssize_t, epoch=int64_t, walk=Walk,
                   status=cython.int)
    cpdef Py_ssize_t fill(self, object view, Py_ssize_t at, Py_ssize_t end, int64_t first,
                          int64_t until) except? -1
    @cython.locals(walk=Walk, meta=Py_ssize_t, sequence=int64_t, scan=Scan, test=Test,
                   pos=Py_ssize_t, end=Py_ssize_t)
    cdef int read(self, bytes_p p, int64_t until) except -1
    @cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
    cdef int64_t find(self, bytes_p p, Py_ssize_t at, Py_ssize_t takers) noexcept
    @cython.locals(scan=Scan, k=Py_ssize_t, column=Column, source=cython.int)
    cdef bint put(self, bytes_p p, int64_t sequence) except -1
    @cython.locals(scan=Scan, name=bytes, length=Py_ssize_t, k=cython.int)
    cdef bint put_attribute(self, Column column, bytes_p p) except -1
    @cython.locals(scan=Scan, entries=Entries, row=Py_ssize_t, k=cython.int)
    cdef bint put_map(self, Column column, bytes_p p) except -1
    @cython.locals(scan=Scan)
    cdef bint put_body(self, Column column, bytes_p p) except -1
    @cython.locals(scan=Scan, source=cython.int, there=bint, end=Py_ssize_t)
    cdef bint put_field(self, Column column, bytes_p p) except -1
    @cython.locals(column=Column, k=Py_ssize_t)
    cpdef tuple take(self)
