cimport cython
from libc.stdint cimport int32_t, int64_t
from regraft.kernels.arrays cimport Ints, Longs, Reals, Texts
from regraft.kernels.envelope cimport Scan
from regraft.kernels.facts cimport ANY, BYTES, STRING, Facts
from regraft.kernels.frame cimport bytes_p
from regraft.kernels.pieces cimport Pieces
from regraft.kernels.patterns cimport begins
from regraft.kernels.selection cimport Test

cdef enum:
    PREFIX = 3
    AMONG = 4
    TEST = 5

@cython.final
cdef class Predicates:
    cdef Facts facts
    cdef readonly Pieces pieces
    cdef readonly Texts keys
    cdef Ints kind
    cdef Longs stamp
    cdef Ints truth
    cdef Ints dimension
    cdef Ints piece
    cdef Ints wanted
    cdef Ints price
    cdef readonly list objects
    cdef readonly int64_t cost
    cdef readonly int64_t evaluated
    cdef bytes_p p
    cdef Py_ssize_t start
    cdef Py_ssize_t end
    cdef Scan scan

    @cython.locals(key=bytes, known=int32_t, number=int32_t, n=Py_ssize_t)
    cdef int32_t hold(self, tuple term) except -1
    @cython.locals(kind=cython.int, dimension=int32_t)
    cdef void fill(self, int32_t number, tuple term) except *
    cdef void fill_among(self, int32_t number, int where, bytes name, list items) except *
    @cython.locals(k=Py_ssize_t, i=Py_ssize_t, dimension=int32_t, values=Reals, sort=cython.int)
    cdef list release(self, int32_t number)
    cdef void begin(self, Scan scan, bytes_p p, Py_ssize_t start, Py_ssize_t end) except *
    @cython.locals(now=int64_t)
    cdef bint holds(self, int32_t number) except -1
    @cython.locals(dimension=int32_t, x=cython.double, kind=cython.int, test=Test, at=Py_ssize_t)
    cdef bint evaluate(self, int32_t number) except -1
    @cython.locals(k=Py_ssize_t, dimension=int32_t, values=Reals, x=cython.double, low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
    cdef bint among(self, list parts) except -1
