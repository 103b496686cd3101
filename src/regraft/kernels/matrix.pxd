cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free
from regraft.kernels.arrays cimport Ints, Reals, grow_ints, regraft_free, regraft_grow

cdef extern from "matrix.h":
    uint64_t span "regraft_span"(int first, int last) noexcept
    int64_t whole "regraft_whole"(double x) noexcept
    void* regraft_rows(Py_ssize_t height) noexcept
    void regraft_bar(void* p, int slot, uint64_t rows) noexcept
    int regraft_take(uint64_t* used, uint64_t* clean) noexcept
    bint regraft_used(const uint64_t* used, int slot) noexcept
    void regraft_leave(uint64_t* used, int slot) noexcept
    void regraft_wash(void* p, Py_ssize_t height, const uint64_t* used) noexcept
    bint regraft_meet(uint64_t* left, const uint64_t* used, void** rows, const int32_t* dimensions,
                      const int32_t* at, Py_ssize_t n) noexcept
    Py_ssize_t regraft_owners(const uint64_t* left, const int32_t* owners, int32_t* out) noexcept

cdef enum:
    BITS = 12
    SLOTS = 4096
    EDGES = 32
    LAST = 9
    USERS_MIN = 32
    USERS_KEPT = 8
    SOILED_MAX = 64

    ANY = 0
    BOOLEAN = 1
    NUMBER = 2
    STRING = 3
    BYTES = 4
    TIMESTAMP = 5

@cython.final
cdef class Block:
    cdef uint64_t used[64]
    cdef uint64_t clean[64]
    cdef Ints owners
    cdef Ints firsts
    cdef Ints lengths
    cdef Ints users
    cdef Ints places
    cdef Ints dimensions
    cdef void** rows
    cdef Py_ssize_t room
    cdef Py_ssize_t held

cdef inline Py_ssize_t dimension_of(Reals terms, Py_ssize_t k) noexcept:
    return <Py_ssize_t>terms.a[3 * k]

cdef inline int take(Block block) noexcept:
    return regraft_take(block.used, block.clean)

cdef inline bint is_used(Block block, int slot) noexcept:
    return regraft_used(block.used, slot)

cdef inline void leave(Block block, int slot) noexcept:
    regraft_leave(block.used, slot)

cdef inline bint rows_added(Block block, Py_ssize_t height) except -1:
    cdef void* grown
    if block.held >= block.room:
        grown = regraft_grow(block.rows, &block.room, block.held + 1, sizeof(void*))
        if grown == NULL:
            return False
        block.rows = <void**>grown
    block.rows[block.held] = regraft_rows(height)
    if block.rows[block.held] == NULL:
        return False
    block.held += 1
    return True

cdef inline void rows_dropped(Block block, Py_ssize_t place) noexcept:
    block.held -= 1
    free(block.rows[place])
    block.rows[place] = block.rows[block.held]

cdef inline void rows_freed(Block block) noexcept:
    cdef Py_ssize_t place
    for place in range(block.held):
        free(block.rows[place])
    regraft_free(block.rows, block.room * sizeof(void*))

cdef inline void bar(Block block, Py_ssize_t place, int slot, uint64_t rows) noexcept:
    regraft_bar(block.rows[place], slot, rows)

cdef inline void all_clean(Block block) noexcept:
    cdef int i
    for i in range(64):
        block.clean[i] = ~block.used[i]

cdef inline void wash(Block block, Py_ssize_t place, Py_ssize_t height) noexcept:
    regraft_wash(block.rows[place], height, block.used)

cdef inline void meet(Block block, Ints at, Ints out) except *:
    cdef uint64_t left[64]
    if regraft_meet(left, block.used, block.rows, block.dimensions.a, at.a, block.held):
        grow_ints(out, out.n + SLOTS)
        out.n += regraft_owners(left, block.owners.a, out.a + out.n)

@cython.final
cdef class Matrix:
    cdef readonly Py_ssize_t count
    cdef Reals terms
    cdef list blocks
    cdef Ints counts
    cdef Ints cleans
    cdef Py_ssize_t lowest
    cdef Ints sorts
    cdef Ints heights
    cdef Reals edges
    cdef Ints built
    cdef Ints ranks
    cdef Ints active
    cdef Ints at

    cpdef bint knows(self, Py_ssize_t dimension) noexcept
    cpdef void forget(self, Py_ssize_t dimension) noexcept
    @cython.locals(k=Py_ssize_t, block=Block)
    cpdef void learn(self, Py_ssize_t dimension, int sort, Reals bounds, Py_ssize_t n) except *
    @cython.locals(block=Block, at=Py_ssize_t, k=Py_ssize_t, d=Py_ssize_t, slot=cython.int,
                   place=Py_ssize_t)
    cpdef Py_ssize_t add(self, int32_t owner, Py_ssize_t first, Py_ssize_t n) except -1
    @cython.locals(block=Block, at=Py_ssize_t, k=Py_ssize_t, d=Py_ssize_t, bit=cython.int,
                   first=Py_ssize_t, place=Py_ssize_t)
    cpdef void remove(self, Py_ssize_t slot) except *
    @cython.locals(block=Block, k=Py_ssize_t, d=Py_ssize_t)
    cpdef void find(self, Reals x, Ints out) except *
    @cython.locals(block=Block, k=Py_ssize_t, total=Py_ssize_t)
    cpdef Py_ssize_t size(self) except -1

    @cython.locals(block=Block)
    cdef Block opened(self)
    cdef bint is_full(self, Py_ssize_t at) noexcept
    @cython.locals(place=Py_ssize_t)
    cdef void clean_up(self, Block block) except *
    @cython.locals(k=Py_ssize_t, d=Py_ssize_t, top=Py_ssize_t)
    cdef void make_room(self, Block block, Py_ssize_t first, Py_ssize_t n) except *
    @cython.locals(place=Py_ssize_t, k=Py_ssize_t, slot=cython.int, first=Py_ssize_t)
    cdef void build(self, Block block, Py_ssize_t dimension) except *
    @cython.locals(place=Py_ssize_t, last=Py_ssize_t, moved=Py_ssize_t)
    cdef void demolish(self, Block block, Py_ssize_t dimension) except *
    @cython.locals(row=cython.int, k=Py_ssize_t, base=Py_ssize_t, edges=Reals)
    cdef int row(self, Py_ssize_t dimension, double x) noexcept
    @cython.locals(low=double, high=double, every=uint64_t, held=uint64_t, first=int64_t,
                   last=int64_t, k=int64_t)
    cdef uint64_t barred(self, Py_ssize_t dimension, Py_ssize_t term) noexcept
