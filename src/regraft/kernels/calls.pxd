cimport cython
from libc.stdint cimport uint64_t
from regraft.kernels.inbox cimport ReceivedMessage
from regraft.kernels.windows cimport Copies

cdef extern from "Python.h":
    object copy_context "PyContext_CopyCurrent"()
    int enter "PyContext_Enter"(object) except -1
    int leave "PyContext_Exit"(object) except -1

@cython.final
cdef class Call:
    cdef public object future
    cdef public object by
    cdef public int phase
    cdef public double due
    cdef public bint received
    cdef public object failure
    cdef public bytes failed_by
    cdef public object unasked
    cdef public object found

    cpdef void done(self, object result) except *

@cython.final
cdef class Calls:
    cdef readonly dict waiting
    cdef public double next_due
    cdef Py_ssize_t remembered
    cdef dict newer
    cdef dict older

    @cython.locals(k=Py_ssize_t, rest=list, message=ReceivedMessage, call=Call)
    cpdef list take(self, list messages)
    cpdef void answered(self, object id, bytes sender) except *
    cpdef object answered_by(self, object id)
    @cython.locals(least=double, call=Call)
    cpdef double expire(self, double now) except? -1

@cython.locals(k=Py_ssize_t, rest=list, message=ReceivedMessage, sender=bytes)
cpdef list first_copies(list messages, Copies copies)

@cython.final
cdef class Request:
    cdef readonly object service
    cdef readonly object line
    cdef readonly object link
    cdef readonly ReceivedMessage message
    cdef public tuple head
    cdef readonly object handler
    cdef readonly str type
    cdef readonly bint counted
    cdef readonly double arrived
    cdef public bint answered

@cython.final
cdef class Stepping:
    cdef object coroutine
    cdef object context
    cdef readonly object result
    cdef object waits_for
    cdef bint told
    cdef bint over

    cpdef bint begin(self) except -1
    cdef void step(self, object error) except *
    cdef object run(self, object function, object argument)
    cdef object next_wait(self)
