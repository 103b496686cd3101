cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy
from regraft.kernels.arrays cimport Ints, Longs, Reals, Table, key_find, mix
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
    PART_OF = 0
    FILLED = 1
    BLOCK = 2
    PARTS = 3
    FIRST_PART = 4
    MATRIX = 5
    WORK = 6
    VISITS = 7
    ROOM = 8
    LIMIT = 9
    OPEN = 10
    WAYS = 11
    VISITS_THEN = 12
    NODE = 13
    OWNER = 0
    BY = 1
    WAY = 2
    CHILDREN = 3
    CELLS = 4
    NEXT = 5
    LAST = 6
    PART = 7
    ROOT = 0
    ROOT_WAYS = 4
    FLAT_MAX = 16
    BUCKET_MAX = 256
    MATRIX_FROM = 1024
    MOVE = 8
    REVIEW_WORK = 65536
    REVIEWS_MAX = 1024

cdef extern from *:
    """
    #define REGRAFT_ROOT_SHARE 0.15
    #define REGRAFT_REVIEW_SHARE 0.02
    #define REGRAFT_INNER_SHARE 0.25
    """
    const double ROOT_SHARE "REGRAFT_ROOT_SHARE"
    const double INNER_SHARE "REGRAFT_INNER_SHARE"
    const double REVIEW_SHARE "REGRAFT_REVIEW_SHARE"

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
    cdef Ints node
    cdef Longs value
    cdef Longs then
    cdef Ints free_nodes
    cdef readonly Py_ssize_t nodes
    cdef readonly list matrices
    cdef Ints part
    cdef Ints free_parts
    cdef Table part_table
    cdef Table child_table
    cdef Ints root_parts
    cdef Ints ways
    cdef Grids grids
    cdef Ints review
    cdef Reals review_share
    cdef int32_t review_at
    cdef readonly int64_t reviewed
    cdef readonly int64_t moved
    cdef readonly int64_t placed
    cdef bint tending
    cdef Ints full
    cdef int way_kind
    cdef int32_t way_dimension
    cdef int64_t way_value
    cdef int32_t way_cells

    @cython.locals(node=int32_t, at=Py_ssize_t, k=Py_ssize_t)
    cdef int32_t make_node(self, int32_t part, int64_t value) except -1
    @cython.locals(part=int32_t, after=int32_t, at=Py_ssize_t)
    cdef int32_t make_part(self, int32_t node, int32_t dimension, int way) except -1
    @cython.locals(number=int32_t, matrix=Matrix, part=int32_t)
    cdef void prune(self, int32_t node) except *
    @cython.locals(before=int32_t, after=int32_t, dimension=int32_t, way=cython.int)
    cdef void remove_part(self, int32_t node, int32_t part) except *
    cdef int32_t part_for(self, int32_t node, int32_t dimension, int way) except -2
    @cython.locals(part=int32_t, child=int32_t, key=uint64_t)
    cdef int32_t child_to_be(self, int32_t node) except -2
    @cython.locals(free=Ints, block=int32_t)
    cdef int32_t take_block(self, int exponent) except -1
    @cython.locals(free=Ints)
    cdef void give_block(self, int32_t block, int exponent) except *
    @cython.locals(n=int32_t, exponent=cython.int, block=int32_t, old=int32_t, k=int32_t, all=Conjunctions, at=int32_t, part=int32_t, given=int32_t)
    cdef void push(self, int32_t node, int32_t number) except *
    @cython.locals(number=int32_t)
    cdef void copy_entry(self, int32_t target, int32_t source) noexcept
    @cython.locals(n=int32_t, last=int32_t, exponent=cython.int, block=int32_t, old=int32_t, k=int32_t)
    cdef void pull(self, int32_t node, int32_t at) except *
    @cython.locals(all=Conjunctions, used=int64_t, share=cython.double, chosen=cython.int, done=bint, child=int32_t, at=int32_t, other=int32_t)
    cdef void place(self, int32_t number, int32_t node) except *
    @cython.locals(all=Conjunctions, part=int32_t, dimension=int32_t, first=int32_t, k=cython.int)
    cdef int own_range(self, int32_t number, int64_t used, int32_t node) except -1
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
    @cython.locals(at=Py_ssize_t)
    cdef bint leads_by_presence(self, int32_t part, int32_t dimension) noexcept
    @cython.locals(matrix=Matrix, number=int32_t)
    cdef void forget(self, int32_t dimension) except *
    @cython.locals(visits=int32_t, events=int64_t, share=cython.double)
    cdef void propose(self, int32_t node) except *
    @cython.locals(all=Conjunctions, node=int32_t, at=int32_t, number=int32_t)
    cpdef void tend(self, int budget) except *
    @cython.locals(all=Conjunctions, best=cython.double, part=int32_t)
    cdef bint better_elsewhere(self, int32_t number, double share) except -1
