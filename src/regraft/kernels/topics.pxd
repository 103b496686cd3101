cimport cython
from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memchr
from regraft.kernels.arrays cimport (
    Ints, Table, Texts, grow_ints, key_erase, key_find, key_store, mix, pointer, text_find
)
from regraft.kernels.frame cimport bytes_p, cut

ctypedef int32_t* ints_p

cdef enum:
    SLASH = 47
    PLUS_SIGN = 43
    HASH_SIGN = 35
    DOLLAR = 36

    SHIFT = 3
    FIELDS = 8  # of a node; the first four say where the walk goes on, and what it has found

    PLUS = 0    # the child by '+', or -1
    MORE = 1    # how many children by name stand in the table
    HERE = 2    # the pattern that ends here exactly, or -1
    BELOW = 3   # the pattern that ends here or anywhere below, or -1
    NAME = 4    # the name of the child that stands in the node, or -1
    CHILD = 5   # that child
    PARENT = 6
    EDGE = 7    # the name that leads here; -1 is '+'

cdef inline Py_ssize_t level_end(bytes_p p, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef const void* found = memchr(p + start, SLASH, end - start)
    return end if found == NULL else <bytes_p>found - p

cdef inline uint64_t edge_key(Py_ssize_t node, int32_t name) noexcept:
    return <uint64_t>node << 32 | <uint64_t>name

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define regraft_fetch(p) __builtin_prefetch(p)
    #else
    #define regraft_fetch(p) ((void)(p))
    #endif
    """
    void regraft_fetch(const void* p) noexcept

cdef inline void fetch_node(ints_p a, Py_ssize_t node) noexcept:
    regraft_fetch(a + node * FIELDS)
    regraft_fetch(a + node * FIELDS + EDGE)  # a node may reach into the next line

cdef inline void fetch_edge(Table table, uint64_t key) noexcept:
    cdef uint64_t i
    if table.t.n > 0:
        i = mix(key) & table.t.mask
        regraft_fetch(table.t.places + i)

@cython.final
cdef class Topics:
    cdef Ints nodes
    cdef Ints free_nodes
    cdef Table edges
    cdef Texts names
    cdef Ints places
    cdef Ints holders
    cdef Ints free
    cdef Ints visited
    cdef readonly Ints hits

    @cython.locals(p=bytes_p, start=Py_ssize_t, stop=Py_ssize_t, end=Py_ssize_t, node=Py_ssize_t,
                   field=Py_ssize_t, number=int32_t, whole=bint)
    cpdef int32_t add(self, bytes pattern, bint exact) except -1
    @cython.locals(place=int32_t)
    cpdef bint release(self, int32_t number) except -1
    @cython.locals(visited=Ints, wild=bint, first=Py_ssize_t, stop=Py_ssize_t, name=int32_t)
    cdef Py_ssize_t match(self, bytes_p p, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(a=ints_p, visited=ints_p, end=Py_ssize_t, n=Py_ssize_t, k=Py_ssize_t,
                   node=Py_ssize_t, at=Py_ssize_t, child=int32_t)
    cdef Py_ssize_t descend(self, Py_ssize_t first, int32_t name, bint wild) noexcept
    @cython.locals(a=ints_p, visited=ints_p, hits=ints_p, found=Py_ssize_t, n=Py_ssize_t,
                   k=Py_ssize_t, node=Py_ssize_t, at=Py_ssize_t)
    cdef void keep(self, Py_ssize_t first, int32_t name) noexcept
    @cython.locals(a=ints_p, visited=ints_p, hits=ints_p, found=Py_ssize_t, k=Py_ssize_t,
                   at=Py_ssize_t)
    cdef void finish(self, Py_ssize_t first) noexcept
    @cython.locals(n=Py_ssize_t, k=Py_ssize_t)
    cpdef list find(self, bytes topic)
    @cython.locals(place=int32_t, node=Py_ssize_t, edge=int32_t, levels=list)
    cpdef tuple pattern(self, int32_t number)
    cpdef Py_ssize_t count(self) noexcept
    @cython.locals(fields=Py_ssize_t, names=Py_ssize_t)
    cpdef Py_ssize_t size(self) noexcept
    cdef int32_t place(self, int32_t number) except -1
    @cython.locals(number=int32_t)
    cdef int32_t take(self, int32_t place) except -1
    @cython.locals(at=Py_ssize_t, name=int32_t, child=int32_t)
    cdef int32_t below(self, Py_ssize_t node, bytes_p p, Py_ssize_t start,
                       Py_ssize_t end) except -1
    @cython.locals(a=ints_p, node=int32_t, at=Py_ssize_t)
    cdef int32_t make(self, int32_t parent, int32_t edge) except -1
    @cython.locals(a=ints_p, at=Py_ssize_t, edge=int32_t)
    cdef void prune(self, Py_ssize_t node) except *
