cimport cython
from libc.stdint cimport int32_t, int64_t
from regraft.kernels.arrays cimport Ints, Reals
from regraft.kernels.facts cimport Facts, reals_p

cdef enum:
    GRIDS = 3
    SIZES = 16

@cython.final
cdef class Grids:
    cdef Facts facts
    cdef Ints number
    cdef list edges
    cdef Ints free
    cdef int64_t cell
    cdef int32_t size_bit

    @cython.locals(k=cython.int, first=int32_t, last=int32_t, size=cython.int, half=int32_t)
    cdef int find(self, int32_t dimension, double low, double high, bint hurry) except -1
    @cython.locals(grid=Reals, a=reals_p, low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
    cdef int32_t position(self, int32_t dimension, int k, double x) except -1
    @cython.locals(k=cython.int, cells=int32_t)
    cdef void divide(self, int32_t dimension, bint hurry) except *
    @cython.locals(bounds=Reals, grid=Reals, j=Py_ssize_t, step=Py_ssize_t, edge=cython.double, number=int32_t)
    cdef void make(self, int32_t dimension, int k, int32_t cells) except *
    @cython.locals(k=cython.int, number=int32_t)
    cdef void forget(self, int32_t dimension) except *
