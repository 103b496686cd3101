cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.list cimport PyList_GET_ITEM
from cpython.object cimport PyObject
from regraft.kernels.arrays cimport Ints, Longs, Table, Texts, key_find, pointer
from regraft.kernels.frame cimport bytes_p, u32

cdef enum:
    PREFIX = 0
    LITERAL = 1

    TEXT = 0
    WHERE = 1
    HOLDERS = 2
    LENGTH = 3
    OFFSET = 4
    STAMP = 5
    NEXT = 6
    AFTER = 7
    BEFORE = 8
    GUARD = 9
    ROW = 10

    NONE = -1
    SPANNED = -2

    PREFIXES = 1
    LITERALS = 2
    SPANS = 3
    COUNTS = 4

    GRAM = 4
    CROWD = 8
    MANY = 16
    BITS_PER_MARK = 8
    DIMENSIONS = 1 << 24
    STAMP_MAX = 2147483647

cdef inline uint64_t piece_key(int32_t where, int32_t text) noexcept:
    return <uint64_t>where << 32 | <uint64_t>text

cdef inline uint64_t gram_key(int32_t dimension, int length, uint32_t gram) noexcept:
    return <uint64_t>dimension << 35 | <uint64_t>length << 32 | gram

cdef inline uint32_t gram_at(bytes_p p, Py_ssize_t i, int length) noexcept:
    if length == 4:
        return u32(p, i)
    if length == 3:
        return <uint32_t>p[i] | <uint32_t>p[i + 1] << 8 | <uint32_t>p[i + 2] << 16
    if length == 2:
        return <uint32_t>p[i] | <uint32_t>p[i + 1] << 8
    return p[i]

cdef inline uint32_t spot(uint32_t gram, int length, int shift) noexcept:
    # The upper bits of a product depend on all bits of the gram.
    return ((gram + <uint32_t>length * <uint32_t>0x85EBCA77U) * <uint32_t>0x9E3779B1U) >> shift

cdef inline bint has_bit(Longs bits, uint32_t i) noexcept:
    return (<uint64_t>bits.a[i >> 6] >> (i & 63)) & 1

cdef inline void set_bit(Longs bits, uint32_t i) noexcept:
    bits.a[i >> 6] |= <int64_t>(<uint64_t>1 << (i & 63))

cdef inline uint32_t ends_at(bytes_p p, Py_ssize_t start, Py_ssize_t stop) noexcept:
    return u32(p, start) * <uint32_t>0xC2B2AE3DU + u32(p, stop - GRAM)

cdef inline Py_ssize_t guard_offset(Py_ssize_t offset, Py_ssize_t length) noexcept:
    return 0 if offset * 2 + GRAM > length else length - GRAM

cdef inline bint stands_at(Texts texts, Ints rows, Py_ssize_t row, bytes_p p,
                           Py_ssize_t at) noexcept:
    cdef Py_ssize_t length = rows.a[row + LENGTH]
    cdef Py_ssize_t guard = guard_offset(rows.a[row + OFFSET], length)
    cdef PyObject* text
    if u32(p, at + guard) != <uint32_t>rows.a[row + GUARD]:
        return False
    text = PyList_GET_ITEM(texts.texts, rows.a[row + TEXT])
    return memcmp(PyBytes_AS_STRING(<object>text), p + at, length) == 0

@cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, k=Py_ssize_t, j=Py_ssize_t,
               count=int32_t)
cdef int32_t count_length(Ints lengths, Py_ssize_t length, int column, int by) except -1

@cython.final
cdef class Field:
    cdef int32_t dimension
    cdef int32_t first
    cdef Py_ssize_t prefixes
    cdef Py_ssize_t literals
    cdef Py_ssize_t spanned
    cdef Py_ssize_t marks
    cdef int32_t uses[5]
    cdef int shift
    cdef Ints lengths
    cdef Longs bits

@cython.final
cdef class Pieces:
    cdef readonly Texts texts
    cdef Table known
    cdef Table grams
    cdef Ints rows
    cdef Ints free
    cdef Ints places
    cdef list fields
    cdef Ints free_fields
    cdef int32_t stamp
    cdef Py_ssize_t letters
    cdef Py_ssize_t words

    cpdef int32_t hold_prefix(self, int32_t dimension, bytes text) except -1
    cpdef int32_t hold_literal(self, int32_t dimension, bytes text) except -1
    @cython.locals(where=int32_t, known=int32_t, number=Py_ssize_t, row=Py_ssize_t, field=Field)
    cdef int32_t hold(self, int32_t dimension, int sort, bytes text) except -1
    @cython.locals(row=Py_ssize_t, field=Field, text=bytes)
    cpdef bint release(self, int32_t number) except -1
    cpdef bint any_of(self, int32_t dimension) noexcept
    @cython.locals(field=Field, size=cython.int)
    cdef void find(self, int32_t dimension, bytes_p p, Py_ssize_t start, Py_ssize_t end,
                   Ints found) except *
    @cython.locals(found=Ints)
    cpdef list examine(self, int32_t dimension, bytes text)
    cpdef bytes text(self, int32_t number)
    cpdef Py_ssize_t count(self) noexcept
    cpdef Py_ssize_t size(self) noexcept

    cdef Py_ssize_t row_of(self, Py_ssize_t number) except -1
    @cython.locals(text=bytes)
    cdef bytes text_of(self, Py_ssize_t row)
    @cython.locals(_=cython.int)
    cdef int32_t new_row(self) except -1
    @cython.locals(field=Field)
    cdef Field field_of(self, int32_t dimension)
    cdef void drop_field(self, Field field) except *

    @cython.locals(p=bytes_p, length=Py_ssize_t, size=cython.int, row=Py_ssize_t,
                   many=cython.bint, offset=Py_ssize_t, key=uint64_t, after=Py_ssize_t)
    cdef void link(self, Field field, Py_ssize_t number, bytes text) except *
    @cython.locals(length=Py_ssize_t, size=cython.int, row=Py_ssize_t, gram=uint32_t,
                   after=Py_ssize_t, before=Py_ssize_t)
    cdef void unlink(self, Field field, Py_ssize_t number, bytes text) except *
    @cython.locals(after=int32_t, first=Py_ssize_t)
    cdef void unchain(self, uint64_t key, Py_ssize_t number) except *
    @cython.locals(best=Py_ssize_t, least=cython.int, users=cython.int, offset=Py_ssize_t,
                   gram=uint32_t, number=Py_ssize_t)
    cdef Py_ssize_t choose(self, Field field, bytes_p p, Py_ssize_t length, bint many) noexcept
    @cython.locals(length=Py_ssize_t, size=cython.int, gram=uint32_t)
    cdef void mark(self, Field field, Py_ssize_t row, bytes_p p) noexcept
    @cython.locals(words=Py_ssize_t, marks=Py_ssize_t, number=Py_ssize_t)
    cdef void mark_all(self, Field field) except *

    @cython.locals(lengths=Ints, k=Py_ssize_t, stop=Py_ssize_t, text=int32_t, number=int32_t)
    cdef void find_prefixes(self, Field field, bytes_p p, Py_ssize_t start, Py_ssize_t end,
                            Ints found) except *
    @cython.locals(i=Py_ssize_t, gram=uint32_t, bits=Longs, shift=cython.int, number=int32_t)
    cdef void scan(self, Field field, int size, bytes_p p, Py_ssize_t start, Py_ssize_t end,
                   Ints found) except *
    cdef void take(self, Py_ssize_t number, Ints found) except *
    @cython.locals(rows=Ints, row=Py_ssize_t, at=Py_ssize_t)
    cdef void walk(self, Py_ssize_t number, bytes_p p, Py_ssize_t start, Py_ssize_t i,
                   Py_ssize_t end, Ints found) except *
    @cython.locals(lengths=Ints, k=Py_ssize_t, stop=Py_ssize_t, text=int32_t, number=int32_t)
    cdef void find_spans(self, Field field, bytes_p p, Py_ssize_t i, Py_ssize_t end,
                         Ints found) except *
    @cython.locals(number=Py_ssize_t)
    cdef void forget_stamps(self) noexcept
