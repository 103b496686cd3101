cimport cython
from libc.math cimport NAN
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy
from regraft.kernels.arrays cimport Ints, Longs, Reals, Table, key_find, key_store, pointer, text_is
from regraft.kernels.conjunctions cimport PREDICATE, Conjunctions, whole
from regraft.kernels.facts cimport (BOOL, BYTES, CLASSES, NUMBER, STRING as TEXT, TIMESTAMP, TOPIC,
                                    Facts, ints_p, reals_p)
from regraft.kernels.frame cimport bytes_p, u32
from regraft.kernels.grids cimport GRIDS, Grids
from regraft.kernels.matching cimport Index
from regraft.kernels.matrix cimport Matrix
from regraft.kernels.predicates cimport Predicates
from regraft.kernels.rows cimport (BOOL as BITS, BYTES as BLOBS, FLOAT, INT, STRING, Cells, Entries)
from regraft.kernels.search cimport send_for_ints, send_for_reals
from regraft.kernels.tally cimport Tally
from regraft.kernels.tree cimport (BLOCK, BY, CELL, CELLS, EQUAL, FILLED, FIRST_PART, MATRIX, NEXT,
                                   NODE, PART, PART_OF, PRESENT, REVIEW_WORK, ROOT, VISITS, WAY, WORK, Tree, bits_of,
                                   child_key)

cdef enum:
    CELLS_MAX = 1048576
    ROWS_MIN = 64
    USUAL_MAX = 256
    FOUND_MAX = 4096
    LISTED = 3

ctypedef int64_t* longs_p

cdef inline double real_of(int64_t bits) noexcept:
    cdef double value
    memcpy(&value, &bits, 8)
    return value

cdef inline uint64_t pair(int32_t filter, int32_t row) noexcept:
    return <uint64_t><unsigned int>filter << 32 | <unsigned int>row

@cython.final
cdef class Sweep:
    cdef Tally tally
    cdef Index index
    cdef Facts facts
    cdef Tree tree
    cdef Conjunctions all
    cdef Predicates predicates
    cdef Longs base
    cdef Ints keep
    cdef Py_ssize_t n
    cdef Reals x
    cdef Ints usual
    cdef Ints node
    cdef Ints row
    cdef Ints next_node
    cdef Ints next_row
    cdef Ints heads
    cdef bint parted
    cdef Ints part_heads
    cdef Ints part_nodes
    cdef Ints cell_heads
    cdef Ints cell_nodes
    cdef Ints low
    cdef Ints high
    cdef int64_t visit
    cdef Longs gathered
    cdef Ints place
    cdef Reals values
    cdef Py_ssize_t at
    cdef Py_ssize_t rows
    cdef Ints found
    cdef Ints owners
    cdef Ints met
    cdef Table matched

    @cython.locals(most=Py_ssize_t, at=Py_ssize_t, stop=Py_ssize_t)
    cpdef Py_ssize_t run(self, Py_ssize_t start, Py_ssize_t end, Cells topics, Entries entries,
                         bytes slots) except -1
    @cython.locals(tally=Tally, n=Py_ssize_t, k=Py_ssize_t, i=Py_ssize_t, slot=Py_ssize_t, kept=bint,
                   size=Py_ssize_t, x=reals_p, named=int32_t, worded=int32_t)
    cdef bint load(self, Py_ssize_t start, Py_ssize_t end, Cells topics, Entries entries,
                   bytes_p slots) except -1
    @cython.locals(names=Cells, start=Py_ssize_t, i=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t,
                   place=Py_ssize_t, number=int32_t, slot=Py_ssize_t, j=Py_ssize_t, cells=Cells)
    cdef bint load_row(self, Entries entries, Py_ssize_t row, Py_ssize_t k) except -1
    @cython.locals(by_slot=ints_p, x=reals_p, dimension=int32_t, sort=cython.int, value=cython.double)
    cdef bint load_value(self, Cells cells, Py_ssize_t i, Py_ssize_t slot, Py_ssize_t k) except -1
    cdef double text(self, int32_t dimension, Cells cells, Py_ssize_t i) noexcept
    @cython.locals(k=Py_ssize_t, at=Py_ssize_t, node=int32_t, end=Py_ssize_t)
    cdef bint descend(self) except -1
    @cython.locals(n=Py_ssize_t, nodes=Py_ssize_t, heads=ints_p, k=Py_ssize_t, node=int32_t, i=int32_t)
    cdef bint arrange(self) except -1
    @cython.locals(tree=Tree, found=ints_p, first=Py_ssize_t, filled=Py_ssize_t, bounds=reals_p, i=Py_ssize_t,
                   start=Py_ssize_t, values=reals_p, low=cython.double, high=cython.double,
                   count=Py_ssize_t, k=Py_ssize_t, matrix=Matrix)
    cdef bint look(self, int32_t node, Py_ssize_t at, Py_ssize_t n) except -1
    @cython.locals(tree=Tree, work=Py_ssize_t)
    cdef bint note(self, int32_t node, Py_ssize_t n, Py_ssize_t filled) except -1
    @cython.locals(records=ints_p, k=Py_ssize_t, start=Py_ssize_t)
    cdef bint verify_all(self) except -1
    @cython.locals(start=Py_ssize_t, values=reals_p, x=reals_p, rows=ints_p, base=Py_ssize_t, k=Py_ssize_t)
    cdef Py_ssize_t gather(self, int32_t dimension) except -1
    @cython.locals(records=ints_p, terms=reals_p, found=ints_p, values=reals_p, first=Py_ssize_t,
                   i=Py_ssize_t, dimension=int32_t, low=cython.double, high=cython.double,
                   left=Py_ssize_t, base=Py_ssize_t, k=Py_ssize_t, value=cython.double)
    cdef bint verify(self, int32_t number, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(tally=Tally, counts=ints_p, k=Py_ssize_t, row=int32_t, key=uint64_t)
    cdef bint count(self, int32_t filter, Py_ssize_t start, Py_ssize_t end, bint several) except -1
    @cython.locals(x=reals_p, dimension=Py_ssize_t)
    cdef void recall(self, int32_t row) noexcept
    @cython.locals(x=reals_p, dimension=Py_ssize_t)
    cdef void forget(self) noexcept
    @cython.locals(tree=Tree, part=int32_t, dimension=int32_t, way=cython.int)
    cdef bint ask(self, int32_t node, Py_ssize_t at, Py_ssize_t n) except -1
    @cython.locals(node=int32_t)
    cdef int32_t child(self, int32_t part, int64_t value) noexcept
    @cython.locals(x=reals_p, base=Py_ssize_t, count=Py_ssize_t, k=Py_ssize_t, row=int32_t,
                   value=cython.double, node=int32_t)
    cdef bint by_value(self, int32_t part, int32_t dimension, Py_ssize_t at, Py_ssize_t n) except -1
    @cython.locals(x=reals_p, base=Py_ssize_t, count=Py_ssize_t, k=Py_ssize_t, row=int32_t,
                   value=cython.double, node=int32_t)
    cdef bint by_presence(self, int32_t part, int32_t dimension, Py_ssize_t at, Py_ssize_t n) except -1
    @cython.locals(grids=Grids, edges=Reals, listed=bint, x=reals_p, base=Py_ssize_t, k=Py_ssize_t,
                   row=int32_t, value=cython.double, position=int32_t, left=int32_t, half=int32_t)
    cdef bint by_cell(self, int32_t part, int32_t dimension, int grid, Py_ssize_t at, Py_ssize_t n) except -1
    @cython.locals(count=Py_ssize_t, cells=int32_t, code=cython.int, size=cython.int, half=int32_t,
                   node=int32_t)
    cdef bint to_cells(self, int32_t part, int32_t position, int32_t row) except -1
    @cython.locals(start=int32_t, end=int32_t, count=Py_ssize_t, i=int32_t)
    cdef bint to_listed(self, int32_t position, int32_t row) except -1
    @cython.locals(first=int32_t, last=int32_t, heads=ints_p, k=int32_t, i=int32_t, value=int64_t,
                   size=cython.int, low=int32_t, high=int32_t)
    cdef bint list_cells(self, int32_t part, int32_t positions) except -1
    @cython.locals(tree=Tree, parts=Py_ssize_t, heads=ints_p, k=Py_ssize_t, node=int32_t, part=int32_t)
    cdef bint list_children(self) except -1
