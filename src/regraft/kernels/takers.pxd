cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp
from regraft.kernels.arrays cimport Ints, Longs
from regraft.kernels.envelope cimport Scan
from regraft.kernels.facts cimport ints_p
from regraft.kernels.frame cimport bytes_p
from regraft.kernels.matching cimport HERE, Index
from regraft.kernels.outlet cimport Outlet, Route

cdef inline bint same(Ints a, Ints b) noexcept:
    return a.n == b.n and (a.n == 0 or memcmp(a.a, b.a, a.n * sizeof(int32_t)) == 0)

cdef inline bytes as_bytes(Ints a):
    return PyBytes_FromStringAndSize(<const char*>a.a, a.n * sizeof(int32_t))

@cython.final
cdef class Takers:
    cdef readonly Index index
    cdef list outlets
    cdef list free_outlets
    cdef Ints first
    cdef Ints records
    cdef Longs ids
    cdef Ints free
    cdef readonly Py_ssize_t count
    cdef readonly int64_t generation
    cdef Longs stamp
    cdef Ints place
    cdef int64_t round
    cdef readonly dict encoded
    cdef dict routes
    cdef int64_t routes_generation

    cpdef int32_t admit(self, Outlet outlet) except -1
    @cython.locals(other=Outlet, used=int64_t, one=int64_t)
    cpdef bint link(self, Outlet outlet) except -1
    @cython.locals(bits=int64_t, number=int32_t, outlet=Outlet)
    cpdef int64_t links_of(self, int32_t filter) except? -1
    @cython.locals(bits=int64_t, number=int32_t, outlet=Outlet)
    cdef int64_t bits_of(self, int32_t filter) except? -1
    @cython.locals(outlet=Outlet)
    cpdef void silence(self, int32_t number) except *
    cpdef void dismiss(self, int32_t number) except *
    @cython.locals(number=int32_t, after=int32_t, records=ints_p)
    cpdef int32_t add(self, int32_t filter, int32_t outlet, int64_t id) except -1
    @cython.locals(records=ints_p, filter=int32_t, after=int32_t, before=int32_t)
    cpdef int32_t remove(self, int32_t number) except -1
    cpdef int32_t filter_of(self, int32_t number) noexcept
    @cython.locals(number=int32_t, outlet=Outlet, left_out=Py_ssize_t)
    cpdef tuple having(self, int32_t filter, Py_ssize_t most)
    @cython.locals(k=Py_ssize_t, outlet=Outlet, route=Route)
    cdef Route route(self, Ints fixed, Ints hits)
    @cython.locals(route=Route)
    cdef Route once(self, list passing, list kept, list slots, list groups)
    @cython.locals(route=Route, slot=cython.int)
    cdef Route kept(self, list takers, list slots)
    @cython.locals(records=ints_p, k=Py_ssize_t, number=int32_t, outlet=int32_t, taker=Outlet)
    cdef void collect(self, Ints filters, list outlets, list ids) except *
    @cython.locals(key=tuple)
    cdef bytes encode(self, list ids)

@cython.final
cdef class Choice:
    cdef Takers takers
    cdef Index index
    cdef Ints fixed
    cdef Ints patterns
    cdef readonly Py_ssize_t variants_max
    cdef readonly dict variants
    cdef int64_t reached
    cdef int64_t generation
    cdef Ints last
    cdef Route last_route

    cpdef Route route(self)
    cdef Route decide(self, Scan scan, bytes_p p, Py_ssize_t start, Py_ssize_t end, int64_t reached)
    @cython.locals(k=Py_ssize_t)
    cdef bint refresh(self) except -1
    @cython.locals(key=bytes, route=Route, k=Py_ssize_t)
    cdef Route look_up(self, Ints hits)
