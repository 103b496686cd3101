cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from regraft.kernels.arrays cimport Ints, Longs, Table, key_find, mix, regraft_prefetch
from regraft.kernels.conjunctions cimport Conjunctions
from regraft.kernels.facts cimport Facts, ints_p, reals_p
from regraft.kernels.matrix cimport Matrix
from regraft.kernels.predicates cimport Predicates
from regraft.kernels.tree cimport (BLOCK, BY, CELL, CELLS, EQUAL, FILLED, FIRST_PART, MATRIX, NEXT,
                                   NODE, PART, PART_OF, PARTS, PIECE, PRESENT, REVIEW_WORK, ROOT,
                                   ROOT_WAYS, TOPIC, VISITS, WAY, WAYS, WORK, Tree, bits_of,
                                   child_key, part_key)

cdef enum:
    TEXT_MAX = 16384
    LIST_MAX = 6

cdef extern from *:
    """
    #define REGRAFT_LINKS INT64_MAX
    """
    const int64_t LINKS "REGRAFT_LINKS"

cdef inline void send_for_ints(int32_t* a, Py_ssize_t i) noexcept:
    regraft_prefetch(a + i)

cdef inline void send_for_reals(double* a, Py_ssize_t i) noexcept:
    regraft_prefetch(a + i)
    regraft_prefetch(a + i + 8)

cdef inline void send_for_key(Table table, uint64_t key) noexcept:
    cdef uint64_t i
    if table.t.n:
        i = mix(key) & table.t.mask
        regraft_prefetch(table.t.places + i)

@cython.final
cdef class Search:
    cdef Tree tree
    cdef Facts facts
    cdef Predicates predicates
    cdef Conjunctions all
    cdef Ints hits
    cdef Ints candidates
    cdef Ints level
    cdef Ints asked_part
    cdef Longs asked_key
    cdef Ints found
    cdef Longs found_stamp
    cdef Ints found_first
    cdef Ints found_count
    cdef Ints patterns
    cdef bint linked
    cdef bint pruning
    cdef Longs links
    cdef int64_t reached
    cdef readonly int64_t looked
    cdef readonly int64_t verified

    cdef bint run(self) except -1
    @cython.locals(tree=Tree, k=Py_ssize_t, node=int32_t, at=Py_ssize_t, n=int32_t, work=int32_t, matrix=Matrix)
    cdef bint look(self) except -1
    @cython.locals(x=reals_p, entry=ints_p, bounds=reals_p, found=ints_p, count=Py_ssize_t, i=Py_ssize_t, value=cython.double)
    cdef bint scan_bucket(self, Py_ssize_t block, Py_ssize_t n) except -1
    @cython.locals(all=Conjunctions, found=ints_p, n=Py_ssize_t, k=Py_ssize_t, number=int32_t, links=int64_t)
    cdef bint verify(self) except -1
    @cython.locals(tree=Tree, active=Ints, x=reals_p, k=Py_ssize_t, j=Py_ssize_t, node=int32_t, n=int32_t, part=int32_t, dimension=int32_t, value=cython.double)
    cdef bint ask(self) except -1
    @cython.locals(tree=Tree, ways=int32_t, way=cython.int)
    cdef void send_for_parts(self, int32_t node, int32_t dimension) noexcept
    @cython.locals(tree=Tree, first=Py_ssize_t, ways=int32_t, way=cython.int, part=int32_t)
    cdef bint enter_all(self, int32_t node, int32_t dimension) except -1
    @cython.locals(tree=Tree, k=Py_ssize_t, first=int32_t, position=int32_t, cells=int32_t, code=cython.int, size=cython.int, half=int32_t)
    cdef bint enter(self, int32_t part, int way, int32_t dimension) except -1
    @cython.locals(n=Py_ssize_t, key=uint64_t)
    cdef bint follow(self, int32_t part, int64_t value) except -1
    @cython.locals(tree=Tree, nodes=Ints, level=ints_p, asked=ints_p, n=Py_ssize_t, k=Py_ssize_t, node=int32_t, at=Py_ssize_t)
    cdef bint arrive(self) except -1
    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, first=int32_t)
    cdef void find_pieces(self, int32_t dimension) except *
