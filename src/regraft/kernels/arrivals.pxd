cimport cython
from libc.stdint cimport int64_t
from regraft.kernels.arrays cimport Ints
from regraft.kernels.checksum cimport crc32c_at, pointer_to
from regraft.kernels.envelope cimport Scan
from regraft.kernels.frame cimport HEADER, MESSAGE, bytes_p, cut, u32
from regraft.kernels.keeper cimport Keeper
from regraft.kernels.lane cimport Lane, Source
from regraft.kernels.outlet cimport Route, is_topic
from regraft.kernels.takers cimport Choice

@cython.final
cdef class Arrivals:
    cdef Lane lane
    cdef Keeper keeper
    cdef readonly Source source
    cdef readonly int slot
    cdef Scan scan
    cdef dict ways
    cdef Ints nowhere
    cdef long long generation
    cdef readonly Py_ssize_t taken
    cdef Ints fixed

    @cython.locals(p=bytes_p, n=Py_ssize_t, pos=Py_ssize_t, count=Py_ssize_t, size=Py_ssize_t)
    cpdef Py_ssize_t check(self, object view) except -1
    @cython.locals(p=bytes_p, n=Py_ssize_t, pos=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t, count=Py_ssize_t, priority=cython.int, slots=Ints, way=Ints)
    cpdef Py_ssize_t take(self, object view, Py_ssize_t skip, int64_t now_us) except -1
    @cython.locals(p=bytes_p, n=Py_ssize_t, pos=Py_ssize_t, end=Py_ssize_t, keeper=Keeper, kept=Route, slots=Ints, k=Py_ssize_t, slot=Py_ssize_t)
    cpdef Py_ssize_t full(self, object view, bint all, int64_t until_us) except -2
    @cython.locals(p=bytes_p, n=Py_ssize_t, pos=Py_ssize_t, end=Py_ssize_t, found=set, kept=Route, last=Route, slots=Ints, k=Py_ssize_t)
    cpdef set takers(self, object view)
    cdef void renew(self)
    @cython.locals(source=Source, lane=Lane, scan=Scan, route=Route, found=Route, choice=Choice, topic=bytes)
    cdef Route kept(self, bytes_p p, Py_ssize_t pos, Py_ssize_t end)
    @cython.locals(kept=Route, slots=Ints, here=Ints, k=Py_ssize_t)
    cdef Ints way(self, bytes_p p, Py_ssize_t pos, Py_ssize_t end)
    @cython.locals(keeper=Keeper)
    cdef bint record(self, bytes_p p, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, Ints slots, int64_t now_us, int priority) except -1
