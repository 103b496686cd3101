cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcmp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from regraft.kernels.frame cimport bytes_p, cut

cdef extern from "arrays.h":
    ctypedef struct regraft_place:
        uint64_t key
        unsigned int held
    ctypedef struct regraft_table:
        regraft_place* places
        uint64_t mask
        Py_ssize_t n
        regraft_place* old
        uint64_t old_mask
        uint64_t moved
    void* regraft_grow(void* a, Py_ssize_t* room, Py_ssize_t n, size_t size) noexcept
    void regraft_free(void* a, size_t size) noexcept
    void regraft_prefetch(const void* p) noexcept
    uint64_t mix "regraft_mix"(uint64_t x) noexcept
    uint64_t regraft_hash(const unsigned char* p, Py_ssize_t n, uint64_t seed) noexcept
    int32_t regraft_find(const regraft_table* t, uint64_t key) noexcept
    int regraft_store(regraft_table* t, uint64_t key, int32_t value) noexcept
    int regraft_append(regraft_table* t, uint64_t key, int32_t value) noexcept
    void regraft_erase(regraft_table* t, uint64_t key, int32_t value) noexcept
    void regraft_free_table(regraft_table* t) noexcept
    unsigned int GONE "REGRAFT_GONE"

@cython.final
cdef class Ints:
    cdef int32_t* a
    cdef Py_ssize_t n
    cdef Py_ssize_t room
    cpdef void reserve(self, Py_ssize_t n) except *
    cpdef bint push(self, int32_t value) except -1

@cython.final
cdef class Longs:
    cdef int64_t* a
    cdef Py_ssize_t n
    cdef Py_ssize_t room
    cpdef void reserve(self, Py_ssize_t n) except *
    cpdef void push(self, int64_t value) except *

@cython.final
cdef class Reals:
    cdef double* a
    cdef Py_ssize_t n
    cdef Py_ssize_t room
    cpdef void reserve(self, Py_ssize_t n) except *
    cpdef void push(self, double value) except *

@cython.final
cdef class Table:
    cdef regraft_table t
    cdef Py_ssize_t n
    cpdef int32_t get(self, uint64_t key) noexcept
    cpdef void put(self, uint64_t key, int32_t value) except *
    cpdef void drop(self, uint64_t key) noexcept

@cython.final
cdef class Texts:
    cdef regraft_table t
    cdef readonly list texts
    cdef Ints holders
    cdef Ints free
    cdef readonly Py_ssize_t size
    cdef int32_t get(self, bytes_p p, Py_ssize_t start, Py_ssize_t end) noexcept
    cpdef int32_t number(self, bytes text) noexcept
    @cython.locals(number=int32_t, key=uint64_t)
    cpdef int32_t add(self, bytes text) except -1
    @cython.locals(text=bytes)
    cpdef bint release(self, int32_t number) except -1
    cpdef Py_ssize_t count(self) noexcept

cdef inline void grow_ints(Ints x, Py_ssize_t n) except *:
    cdef void* grown
    if n > x.room:
        grown = regraft_grow(x.a, &x.room, n, sizeof(int32_t))
        if grown == NULL:
            raise MemoryError
        x.a = <int32_t*>grown

cdef inline void grow_longs(Longs x, Py_ssize_t n) except *:
    cdef void* grown
    if n > x.room:
        grown = regraft_grow(x.a, &x.room, n, sizeof(int64_t))
        if grown == NULL:
            raise MemoryError
        x.a = <int64_t*>grown

cdef inline void grow_reals(Reals x, Py_ssize_t n) except *:
    cdef void* grown
    if n > x.room:
        grown = regraft_grow(x.a, &x.room, n, sizeof(double))
        if grown == NULL:
            raise MemoryError
        x.a = <double*>grown

cdef inline void free_ints(Ints x) noexcept:
    regraft_free(x.a, x.room * sizeof(int32_t))

cdef inline void free_longs(Longs x) noexcept:
    regraft_free(x.a, x.room * sizeof(int64_t))

cdef inline void free_reals(Reals x) noexcept:
    regraft_free(x.a, x.room * sizeof(double))

cdef inline void free_table(Table x) noexcept:
    regraft_free_table(&x.t)

cdef inline void free_texts(Texts x) noexcept:
    regraft_free_table(&x.t)

cdef inline int32_t key_find(Table table, uint64_t key) noexcept:
    return regraft_find(&table.t, key)

cdef inline void key_store(Table table, uint64_t key, int32_t value) except *:
    if regraft_store(&table.t, key, value) < 0:
        raise MemoryError
    table.n = table.t.n

cdef inline void key_erase(Table table, uint64_t key) noexcept:
    regraft_erase(&table.t, key, -1)
    table.n = table.t.n

# Hash of texts: the seed is Python's own, another one in every process.
cdef inline uint64_t hash_bytes(bytes_p p, Py_ssize_t start, Py_ssize_t end) noexcept:
    return regraft_hash(p + start, end - start, SEED)

cdef uint64_t SEED

cdef inline bytes_p pointer(bytes text) noexcept:
    return <bytes_p>PyBytes_AS_STRING(text)

cdef inline int32_t text_find(Texts texts, bytes_p p, Py_ssize_t start, Py_ssize_t end) noexcept:
    if texts.t.n == 0:
        return -1
    return text_find_by(texts, hash_bytes(p, start, end), p, start, end)

cdef inline int32_t text_find_by(Texts texts, uint64_t key, bytes_p p, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef int32_t number
    if texts.t.n == 0:
        return -1
    number = text_among(texts, texts.t.places, texts.t.mask, 0, key, p, start, end)
    if number < 0 and texts.t.old != NULL:
        number = text_among(texts, texts.t.old, texts.t.old_mask, texts.t.moved, key, p, start, end)
    return number

# Among the places of a table, of which those before `moved` are void.
cdef inline int32_t text_among(Texts texts, regraft_place* places, uint64_t mask, uint64_t moved,
                               uint64_t key, bytes_p p, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef uint64_t i = mix(key) & mask
    cdef unsigned int held
    cdef PyObject* text
    while True:
        held = places[i].held
        if held == 0:
            return -1
        if places[i].key == key and i >= moved and held != GONE:
            text = PyList_GET_ITEM(texts.texts, <int32_t>(held - 1))
            if (PyBytes_GET_SIZE(<object>text) == end - start
                    and memcmp(PyBytes_AS_STRING(<object>text), p + start, end - start) == 0):
                return <int32_t>(held - 1)
        i = (i + 1) & mask

cdef inline bint text_is(Texts texts, int32_t number, bytes_p p, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef PyObject* text
    if number < 0 or number >= PyList_GET_SIZE(texts.texts):
        return False
    text = PyList_GET_ITEM(texts.texts, number)
    return (<object>text is not None and PyBytes_GET_SIZE(<object>text) == end - start
            and memcmp(PyBytes_AS_STRING(<object>text), p + start, end - start) == 0)

cdef inline uint64_t text_hash(bytes text) noexcept:
    return hash_bytes(pointer(text), 0, PyBytes_GET_SIZE(text))

cdef inline int32_t text_seek(Texts texts, uint64_t key, bytes text) noexcept:
    return text_find_by(texts, key, pointer(text), 0, PyBytes_GET_SIZE(text))

cdef inline void text_store(Texts texts, uint64_t key, bytes text, int32_t number) except *:
    if regraft_append(&texts.t, key, number) < 0:
        raise MemoryError

cdef inline void text_erase(Texts texts, bytes text, int32_t number) noexcept:
    regraft_erase(&texts.t, hash_bytes(pointer(text), 0, PyBytes_GET_SIZE(text)), number)
