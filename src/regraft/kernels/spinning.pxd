cimport cython

cpdef enum:
    CROWDED_NS = 200000
    CROWDED_FIRST_NS = 1000000
    CROWDED_FOR_NS = 128000000
    QUICK_YIELDS = 256
    TRIED_AGAIN = 32

@cython.final
cdef class Spin:
    cdef public long long reads
    cdef readonly bint active
    cdef object call_soon
    cdef long long ns
    cdef object clock_ns
    cdef object give_way
    cdef long long seen
    cdef long long until_ns
    cdef bint fruitless
    cdef long long crowded_until_ns
    cdef long long crowded_for_ns
    cdef long long quick

    @cython.locals(now_ns=cython.longlong)
    cpdef void read(self) except *
    @cython.locals(now_ns=cython.longlong)
    cpdef void look(self) except *
