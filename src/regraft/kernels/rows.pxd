cimport cython
from libc.stdint cimport int64_t, uint64_t
from regraft.kernels.checksum cimport pointer_to
from regraft.kernels.envelope cimport i64
from regraft.kernels.frame cimport HEADER, MESSAGE, bytes_p, put_header, u32, writable, writable_p
from regraft.kernels.outbox cimport mix, put_u64, zigzag
from regraft.kernels.outlet cimport copy, copy_bytes

cpdef enum:
    BOOL = 0x10
    INT = 0x18
    FLOAT = 0x21
    STRING = 0x2A
    BYTES = 0x32
    TIME = 0x39

cpdef enum:
    ATTRIBUTES_MAX = 256
    NAME_BYTES_MAX = 255

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t varint_size(uint64_t value) noexcept

@cython.final
cdef class Cells:
    cdef int kind
    cdef Py_ssize_t first
    cdef object kept
    cdef bint all_there
    cdef bytes_p valid
    cdef bytes_p offsets
    cdef bytes_p data
    cdef bytes name

    cdef bint there(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t start(self, Py_ssize_t row) noexcept
    cdef int64_t number(self, Py_ssize_t row) noexcept
    cdef bint is_true(self, Py_ssize_t row) noexcept
    @cython.locals(length=Py_ssize_t)
    cdef Py_ssize_t size(self, Py_ssize_t row) noexcept

@cython.final
cdef class Entries:
    cdef Cells maps
    cdef Cells names
    cdef Cells values
    cdef list kinds

@cython.final
cdef class Rows:
    cdef Py_ssize_t frame_bytes_max
    cdef uint64_t counter
    cdef readonly int64_t sequence
    cdef bytearray buffer
    cdef readonly Py_ssize_t used
    cdef Py_ssize_t at

    cdef bint reserve(self, Py_ssize_t size) except -1
    @cython.locals(p=writable_p, i=Py_ssize_t)
    cdef void varint(self, uint64_t value) noexcept
    @cython.locals(p=writable_p)
    cdef void fixed(self, unsigned char tag, uint64_t value) noexcept
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t)
    cdef bint text(self, unsigned int tag, Cells cells, Py_ssize_t row) except -1
    cdef bint value(self, Cells cells, Py_ssize_t row) except -1
    @cython.locals(size=Py_ssize_t)
    cdef bint attribute(self, Cells cells, Py_ssize_t row) except -1
    @cython.locals(names=Cells, cells=Cells, start=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t,
                   i=Py_ssize_t, k=Py_ssize_t)
    cdef bint entries(self, Entries entries, Py_ssize_t row) except -1
    @cython.locals(row=Py_ssize_t, begun=Py_ssize_t, cells=Cells, k=Py_ssize_t)
    cpdef Py_ssize_t put(self, Py_ssize_t start, Py_ssize_t end, bytes topic, Cells topics,
                         Cells bodies, Cells times, list plain, Entries entries) except -1
    @cython.locals(size=Py_ssize_t)
    cdef bint finish(self, Py_ssize_t begun) except -1
    cpdef bytes take(self)
