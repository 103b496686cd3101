cimport cython
from libc.stdint cimport int32_t, int64_t
from cpython.bytes cimport PyBytes_FromStringAndSize
from regraft.kernels.arrays cimport Ints, pointer
from regraft.kernels.envelope cimport Scan
from regraft.kernels.frame cimport HEADER, bytes_p, u32
from regraft.kernels.matching cimport Index

cdef inline bytes as_bytes(Ints numbers, Py_ssize_t count):
    return PyBytes_FromStringAndSize(<const char*>numbers.a, count * 4)

@cython.final
cdef class Tally:
    cdef Index index
    cdef readonly Py_ssize_t filters
    cdef Py_ssize_t slots
    cdef int64_t every
    cdef readonly int64_t seen
    cdef readonly int64_t matches
    cdef Scan scan
    cdef Ints patterns
    cdef Ints counts
    cdef Ints kept_rows
    cdef Ints kept_filters

    @cython.locals(p=bytes_p, slot=bytes_p, rows=Py_ssize_t, end=Py_ssize_t, at=Py_ssize_t,
                   row=Py_ssize_t, size=Py_ssize_t)
    cpdef Py_ssize_t run(self, bytes frames, bytes slots) except -1
    @cython.locals(index=Index, scan=Scan, fault=cython.int, keep=bint, base=Py_ssize_t,
                   n=Py_ssize_t, found=Ints, patterns=Ints, k=Py_ssize_t, number=int32_t)
    cdef bint one(self, bytes_p p, Py_ssize_t start, Py_ssize_t end, Py_ssize_t slot) except -1
    cdef bint count(self, Py_ssize_t base, Py_ssize_t filter, bint keep) except -1
    cpdef bytes counted(self)
    cpdef tuple kept(self)
