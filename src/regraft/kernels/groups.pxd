cimport cython
from libc.stdint cimport int64_t
from regraft.kernels.frame cimport bytes_p, cut
from regraft.kernels.outlet cimport Outlet, Route

@cython.final
cdef class Group:
    cdef readonly object key
    cdef readonly bint any
    cdef readonly bint shared
    cdef readonly list outlets
    cdef list ids
    cdef list members
    cdef Py_ssize_t turn
    cdef readonly int64_t picked
    cdef public int64_t unplaced
    cdef public object screen

    cpdef void add(self, Outlet outlet, bytes ids) except *
    @cython.locals(k=Py_ssize_t)
    cpdef void remove(self, Outlet outlet, bytes ids) except *
    @cython.locals(n=Py_ssize_t, best=Py_ssize_t, least=int64_t, k=Py_ssize_t, outlet=Outlet, load=int64_t, chosen=Outlet)
    cpdef Py_ssize_t pick(self) except? -3

@cython.final
cdef class Screening:
    cdef bytes envelope

    @cython.locals(outlet=Outlet, k=Py_ssize_t)
    cdef Py_ssize_t ask(self, Group group, Outlet source, Route route, list members, bytes_p p, Py_ssize_t at, Py_ssize_t end) except? -4
