cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t
from regraft.kernels.arrays cimport Ints, Longs, Reals
from regraft.kernels.facts cimport BYTES, STRING, Facts, ints_p, reals_p
from regraft.kernels.predicates cimport Predicates

cdef enum:
    RANGE = 0
    TEXT = 1
    ON_TOPIC = 2
    PREDICATE = -1
    PATTERN = -2
    TERMS_MAX = 60

cdef extern from *:
    """
    #define REGRAFT_PIECE_SHARE 0.02
    """
    const double PIECE_SHARE "REGRAFT_PIECE_SHARE"

cdef inline int32_t whole(double x) noexcept:
    return <int32_t>x

@cython.final
cdef class Conjunctions:
    cdef Facts facts
    cdef Predicates predicates
    cdef Reals terms
    cdef list free_terms
    cdef Ints records
    cdef Ints node
    cdef Longs used
    cdef Ints next
    cdef Ints free
    cdef readonly Py_ssize_t count
    cdef int32_t top
    cdef Longs pattern_stamp
    cdef Reals pattern_share
    cdef Ints gone
    cdef int chosen
    cdef bint tested
    cdef Reals shares
    cdef int32_t quick_dimension
    cdef double quick_low
    cdef double quick_high
    cdef Reals draft

    @cython.locals(possible=bint, n=int32_t, k=int32_t, first=int32_t)
    cdef int32_t make(self, int32_t filter, list wanted, int32_t pattern, bint multiple) except -2
    @cython.locals(number=int32_t, records=ints_p)
    cdef int32_t record(self, int32_t first, int32_t n, int32_t filter) except -1
    @cython.locals(free=Ints, first=int32_t)
    cdef int32_t take_terms(self, int32_t n) except -1
    @cython.locals(kind=cython.int, where=cython.int, name=bytes, sort=cython.int, low=cython.double,
                   high=cython.double, text=bytes, dimension=int32_t, number=cython.double)
    cdef bint gather(self, tuple term) except -1
    @cython.locals(draft=reals_p, sort=cython.int, k=Py_ssize_t)
    cdef bint narrow(self, int32_t dimension, double low, double high) except -1
    cdef void put(self, double dimension, double low, double high) except *
    @cython.locals(first=int32_t, n=int32_t, terms=reals_p, k=int32_t, i=int32_t, free=Ints)
    cdef void drop(self, int32_t number) except *
    @cython.locals(number=int32_t, sort=cython.int, given=int32_t)
    cdef void give_back(self, double dimension, double low, double high) except *
    cdef void let_go(self, int32_t dimension) except *
    @cython.locals(i=int32_t, end=int32_t, x=reals_p, terms=reals_p, dimension=int32_t, low=cython.double, value=cython.double)
    cdef bint verify(self, int32_t number) except -1
    @cython.locals(dimension=int32_t, low=cython.double, number=int32_t, share=cython.double)
    cdef double share_of(self, int32_t i) except -1
    @cython.locals(first=int32_t, n=int32_t, k=int32_t)
    cdef void weigh(self, int32_t number) except *
    @cython.locals(n=int32_t, best=cython.double, k=int32_t, share=cython.double)
    cdef double choose(self, int32_t number, int64_t used) except -1
    @cython.locals(first=int32_t, n=int32_t, terms=reals_p, best=cython.double, k=int32_t, i=int32_t, dimension=int32_t, low=cython.double, share=cython.double)
    cdef void look_first(self, int32_t number, int64_t used, int32_t given) except *
