cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from regraft.kernels.checksum cimport pointer_to
from regraft.kernels.envelope cimport Scan
from regraft.kernels.frame cimport HEADER, MESSAGE, bytes_p, cut, u32, writable, writable_p
from regraft.kernels.outlet cimport is_topic

cpdef enum:
    NEW = 0
    KNOWN = 1
    TOO_OLD = 2
    WINDOW = 65536

cdef enum:
    RING_BYTES = 8192
    RECENT = 256

cdef inline Py_ssize_t recent_place(bytes_p p, Py_ssize_t start, Py_ssize_t end) noexcept:
    if end - start < 4:
        return 0
    return <uint32_t>(u32(p, end - 4) * <uint32_t>0x9E3779B1) >> 24

@cython.final
cdef class Window:
    cdef readonly int64_t highest
    cdef int64_t start
    cdef bint sparse
    cdef bytearray ring

    cpdef int accept(self, uint64_t sequence) except -1
    cdef int take(self, int64_t sequence) except -1
    cpdef void forget(self, uint64_t sequence) except *
    @cython.locals(ring=writable_p)
    cdef void clear(self, int64_t sequence) except *
    @cython.locals(ring=writable_p, at=Py_ssize_t, bit=cython.int)
    cdef int mark(self, int64_t sequence) noexcept
    @cython.locals(ring=writable_p, at=int64_t)
    cdef void advance(self, int64_t sequence) noexcept
    @cython.locals(ring=writable_p, at=int64_t)
    cdef bint spread(self) except -1
    @cython.locals(ring=writable_p, at=int64_t, lowest=int64_t, start=int64_t)
    cdef bint condense(self) noexcept
    cpdef bytes state(self)
    @cython.locals(rest=bytes)
    cdef void restore(self, bytes state) except *

@cython.final
cdef class Copies:
    cdef readonly Py_ssize_t senders_max
    cdef readonly dict windows
    cdef dict older
    cdef list recent_senders
    cdef list recent_windows

    cdef void clear_recent(self) except *
    cpdef bint is_new(self, bytes sender, uint64_t sequence) except -1
    @cython.locals(at=Py_ssize_t, sender=bytes, window=Window)
    cdef bint is_new_at(self, bytes_p p, Py_ssize_t start, Py_ssize_t end, uint64_t sequence) except -1
    @cython.locals(window=Window)
    cdef Window window_of(self, bytes sender)

@cython.locals(scan=Scan, p=bytes_p, size=Py_ssize_t)
cpdef list sequences(object view, Py_ssize_t start, Py_ssize_t end)
