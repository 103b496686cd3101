cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from regraft.kernels.arrays cimport Ints, Longs, Texts, pointer
from regraft.kernels.conjunctions cimport Conjunctions, whole
from regraft.kernels.envelope cimport Scan
from regraft.kernels.facts cimport BYTES, CONTEXT, STRING, Facts, ints_p, reals_p
from regraft.kernels.frame cimport bytes_p, cut
from regraft.kernels.predicates cimport AMONG, Predicates
from regraft.kernels.operands cimport as_double
from regraft.kernels.topics cimport Topics
from regraft.kernels.search cimport Search
from regraft.kernels.tree cimport (BY, CELL, EQUAL, FILLED, NODE, OWNER, PART, PART_OF, PARTS, PIECE,
                                   PRESENT, ROOT, TOPIC, VISITS, WAY, Tree)

cdef enum:
    ANYWHERE = -1
    NO_TOPIC = -2
    TEND = 16
    EXPAND_MAX = 16
    DOLLAR = 36

cdef extern from *:
    """
    #define REGRAFT_EXPAND_SHARE 0.05
    #define REGRAFT_HERE INT64_MIN
    """
    const double EXPAND_SHARE "REGRAFT_EXPAND_SHARE"
    const int64_t HERE "REGRAFT_HERE"

@cython.final
cdef class Index:
    cdef readonly Facts facts
    cdef readonly Predicates predicates
    cdef readonly Conjunctions all
    cdef readonly Tree tree
    cdef readonly Search search
    cdef readonly Topics topics
    cdef Texts keys
    cdef Ints first
    cdef Ints pattern
    cdef Longs stamp
    cdef Ints by_pattern
    cdef Ints searched
    cdef readonly Py_ssize_t searched_anywhere
    cdef readonly int64_t topic_changes
    cdef Ints hits
    cdef Scan scan
    cdef Ints patterns

    @cython.locals(number=int32_t, filter=int32_t, several=bint, key=bytes, text=str)
    cpdef int32_t add(self, object plan, bytes pattern=*, bint exact=*) except -1
    @cython.locals(number=int32_t)
    cdef int32_t hold_pattern(self, object plan, bytes pattern, bint exact) except -9
    cdef void make(self, int32_t filter, int32_t pattern) except *
    @cython.locals(number=int32_t, term=tuple)
    cdef void add_conjunction(self, int32_t filter, list wanted, int32_t pattern, bint several, bint expand) except *
    @cython.locals(first=int32_t, n=int32_t, terms=reals_p, k=Py_ssize_t)
    cdef void note_bounds(self, int32_t number) except *
    @cython.locals(number=int32_t, after=int32_t, pattern=int32_t)
    cpdef bint release(self, int32_t filter) except -1
    @cython.locals(count=Py_ssize_t)
    cdef void count_searched(self, int32_t pattern, int more) noexcept
    cpdef object text(self, int32_t filter)
    @cython.locals(pattern=int32_t)
    cpdef tuple topic_of(self, int32_t filter)
    @cython.locals(gone=Ints)
    cdef void forget_gone(self) except *
    cpdef void set_links(self, int32_t filter, int64_t links) except *
    @cython.locals(search=Search, now=int64_t, k=Py_ssize_t, records=ints_p, dollar=bint, number=int32_t, filter=int32_t)
    cdef void find(self, Scan scan, bytes_p p, Py_ssize_t start, Py_ssize_t end, Ints patterns, int64_t reached) except *
    @cython.locals(scan=Scan, p=bytes_p, end=Py_ssize_t, fault=cython.int, n=Py_ssize_t, found=Ints, fixed=list, patterns=Ints, k=Py_ssize_t, number=int32_t)
    cpdef list match(self, bytes envelope)
    @cython.locals(tree=Tree, node=int32_t, at=Py_ssize_t, visits=int32_t, filled=int32_t)
    cpdef list hottest(self, Py_ssize_t count)
    @cython.locals(tree=Tree, part=int32_t)
    cdef str describe(self, int32_t node)
    @cython.locals(tree=Tree, way=cython.int, dimension=int32_t, size=cython.int)
    cdef str describe_step(self, int32_t part, int64_t value)
    @cython.locals(x=cython.double)
    cdef str describe_value(self, int32_t dimension, int64_t bits)
