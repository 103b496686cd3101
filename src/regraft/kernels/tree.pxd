cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy
from regraft.kernels.arrays cimport Ints, Longs, Reals, Table, mix
from regraft.kernels.conjunctions cimport PATTERN, PREDICATE, Conjunctions, whole
from regraft.kernels.facts cimport Facts, ints_p, reals_p
from regraft.kernels.grids cimport Grids
from regraft.kernels.matrix cimport Matrix
from regraft.kernels.predicates cimport Predicates

cdef enum:
    EQUAL = 0
    PIECE = 1
    TOPIC = 2
    PRESENT = 3
    CELL = 4
    ROOT = 0
    FLAT_MAX = 16
    BUCKET_MAX = 256
    MATRIX_FROM = 1024
    MOVE = 8
    REVIEW_WORK = 65536
    REVIEWS_MAX = 1024
    TEXT_MAX = 16384

cdef extern from *:
    """
    #define REGRAFT_ROOT_SHARE 0.15
    #define REGRAFT_REVIEW_SHARE 0.02
    #define REGRAFT_LINKS INT64_MAX
    #define REGRAFT_INNER_SHARE 0.25
    #if defined(__GNUC__)
    #define regraft_prefetch(p) __builtin_prefetch(p)
    #else
    #define regraft_prefetch(p) ((void)0)
    #endif
    """
    const double ROOT_SHARE "REGRAFT_ROOT_SHARE"
    const double INNER_SHARE "REGRAFT_INNER_SHARE"
    const double REVIEW_SHARE "REGRAFT_REVIEW_SHARE"
    const int64_t LINKS "REGRAFT_LINKS"
    void regraft_prefetch(const void* p) noexcept

cdef inline void prefetch_ints(int32_t* a, Py_ssize_t i) noexcept:
    regraft_prefetch(a + i)

cdef inline void prefetch_reals(double* a, Py_ssize_t i) noexcept:
    regraft_prefetch(a + i)
    regraft_prefetch(a + i + 8)

cdef inline uint64_t part_key(int32_t node, int32_t dimension, int way) noexcept:
    return <uint64_t><unsigned int>node << 32 | <uint64_t><unsigned int>dimension << 3 | <uint64_t>way

cdef inline uint64_t child_key(int32_t part, int64_t value) noexcept:
    return mix(<uint64_t>part + 1) ^ <uint64_t>value

cdef inline int64_t bits_of(double x) noexcept:
    cdef int64_t value
    memcpy(&value, &x, 8)
    return value

@cython.final
cdef class Tree:
    cdef Facts facts
    cdef Predicates predicates
    cdef Conjunctions all
    cdef Ints entry
    cdef Reals entry_range
    cdef list free_blocks
    cdef Ints block
    cdef Ints filled
    cdef Ints room
    cdef Ints limit
    cdef Ints part_of
    cdef Longs value
    cdef Ints first_part
    cdef Ints parts
    cdef Ints open
    cdef Ints matrix
    cdef Ints node_ways
    cdef Ints work
    cdef Ints visits
    cdef Ints visits_then
    cdef Longs then
    cdef Ints free_nodes
    cdef readonly Py_ssize_t nodes
    cdef readonly list matrices
    cdef Ints owner
    cdef Ints by
    cdef Ints way
    cdef Ints children
    cdef Ints cells
    cdef Ints next_part
    cdef Ints last_part
    cdef Ints free_parts
    cdef Table part_table
    cdef Table child_table
    cdef Ints ways
    cdef Grids grids
    cdef Ints candidates
    cdef Ints hits
    cdef Ints found
    cdef Longs found_stamp
    cdef Ints found_first
    cdef Ints found_count
    cdef Ints patterns
    cdef bint linked
    cdef Longs links
    cdef int64_t reached
    cdef readonly int64_t looked
    cdef readonly int64_t verified
    cdef Ints review
    cdef Reals review_share
    cdef int32_t review_at
    cdef readonly int64_t reviewed
    cdef readonly int64_t moved
    cdef int way_kind
    cdef int32_t way_dimension
    cdef int64_t way_value
    cdef int32_t way_cells

    @cython.locals(node=int32_t)
    cdef int32_t make_node(self, int32_t part, int64_t value) except -1
    @cython.locals(part=int32_t, after=int32_t)
    cdef int32_t make_part(self, int32_t node, int32_t dimension, int way) except -1
    @cython.locals(number=int32_t, matrix=Matrix, part=int32_t)
    cdef void prune(self, int32_t node) except *
    @cython.locals(before=int32_t, after=int32_t)
    cdef void remove_part(self, int32_t node, int32_t part) except *
    @cython.locals(node=int32_t)
    cdef int32_t child(self, int32_t part, int64_t value) noexcept
    @cython.locals(part=int32_t, child=int32_t, key=uint64_t)
    cdef int32_t child_to_be(self, int32_t node) except -2
    @cython.locals(free=Ints, block=int32_t)
    cdef int32_t take_block(self, int exponent) except -1
    @cython.locals(free=Ints)
    cdef void give_block(self, int32_t block, int exponent) except *
    @cython.locals(n=int32_t, exponent=cython.int, block=int32_t, old=int32_t, k=int32_t, all=Conjunctions, at=int32_t, part=int32_t)
    cdef void push(self, int32_t node, int32_t number) except *
    @cython.locals(number=int32_t)
    cdef void copy_entry(self, int32_t target, int32_t source) noexcept
    @cython.locals(n=int32_t, last=int32_t, exponent=cython.int, block=int32_t, old=int32_t, k=int32_t)
    cdef void pull(self, int32_t node, int32_t at) except *
    @cython.locals(all=Conjunctions, used=int64_t, share=cython.double, chosen=cython.int, done=bint, child=int32_t, at=int32_t, other=int32_t)
    cdef void place(self, int32_t number, int32_t node) except *
    @cython.locals(one=int64_t)
    cdef int64_t bit(self, int k) noexcept
    @cython.locals(all=Conjunctions, node=int32_t, at=int32_t, matrix=Matrix, first=int32_t)
    cdef void remove(self, int32_t number) except *
    @cython.locals(block=int32_t, n=int32_t, exponent=cython.int, k=int32_t, number=int32_t)
    cdef void split(self, int32_t node) except *
    @cython.locals(all=Conjunctions, matrix=Matrix, first=int32_t, n=int32_t, k=int32_t, dimension=int32_t, bounds=Reals, slot=int32_t)
    cdef void put_in_matrix(self, int32_t node, int32_t number) except *
    @cython.locals(terms=reals_p, dimension=int32_t, low=cython.double, number=int32_t, part=int32_t)
    cdef bint way_of(self, int32_t i, int32_t node) except -1
    @cython.locals(matrix=Matrix, number=int32_t)
    cdef void forget(self, int32_t dimension) except *
    @cython.locals(n=int32_t, work=int32_t, matrix=Matrix, active=Ints, x=reals_p, part=int32_t, value=cython.double, k=Py_ssize_t)
    cdef bint search(self, int32_t node) except -1
    @cython.locals(ways=int32_t, way=cython.int, part=int32_t)
    cdef bint enter_all(self, int32_t node, int32_t dimension) except -1
    @cython.locals(x=reals_p, entry=ints_p, bounds=reals_p, candidates=Ints, found=ints_p, count=Py_ssize_t, i=Py_ssize_t, value=cython.double)
    cdef bint scan_bucket(self, Py_ssize_t block, Py_ssize_t n) except -1
    @cython.locals(all=Conjunctions, found=ints_p, n=Py_ssize_t, k=Py_ssize_t, number=int32_t, links=int64_t)
    cdef bint verify(self) except -1
    @cython.locals(way=cython.int, dimension=int32_t, k=Py_ssize_t, first=int32_t, position=int32_t, cells=int32_t, code=cython.int, size=cython.int, half=int32_t)
    cdef bint enter(self, int32_t part) except -1
    @cython.locals(node=int32_t)
    cdef bint follow(self, int32_t part, int64_t value) except -1
    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, first=int32_t)
    cdef void find_pieces(self, int32_t dimension) except *
    @cython.locals(visits=int32_t, events=int64_t, share=cython.double)
    cdef void propose(self, int32_t node) except *
    @cython.locals(all=Conjunctions, node=int32_t, at=int32_t, number=int32_t)
    cpdef void tend(self, int budget) except *
    @cython.locals(all=Conjunctions, best=cython.double, part=int32_t)
    cdef bint better_elsewhere(self, int32_t number, double share) except -1
