cimport cython
from libc.stdint cimport int64_t, uint64_t
from regraft.kernels.arrays cimport Longs
from regraft.kernels.frame cimport bytes_p
from regraft.kernels.inbox cimport ReceivedMessage, start_of
from regraft.kernels.outbox cimport Outbox
from regraft.kernels.outlet cimport is_topic
from regraft.kernels.windows cimport Copies
from cpython.ref cimport Py_DECREF, PyObject

cdef extern from "Python.h":
    object copy_context "PyContext_CopyCurrent"()
    int enter "PyContext_Enter"(object) except -1
    int leave "PyContext_Exit"(object) except -1
    int PyIter_Send(object, object, PyObject**) except -1

@cython.final
cdef class Call:
    cdef readonly object id
    cdef public object future
    cdef public object by
    cdef public int phase
    cdef public bint sent
    cdef public double until
    cdef readonly int64_t until_us
    cdef public double due
    cdef public bint received
    cdef public object failure
    cdef public bytes failed_by
    cdef public object unasked
    cdef public object found

    cpdef void done(self, object result) except *

@cython.locals(call=Call)
cdef Call new_call(object future, object by, object id)

@cython.final
cdef class Calls:
    cdef readonly dict waiting
    cdef public double next_due
    cdef Py_ssize_t remembered
    cdef Longs over
    cdef list answerers
    cdef Py_ssize_t turn
    cdef public uint64_t counter
    cdef bytes last_sender
    cdef public bytes asking
    cdef public double share
    cdef public Py_ssize_t flush_bytes
    cdef public object create_future
    cdef public object now
    cdef public object wall
    cdef public object wake_at
    cdef readonly long long asked
    cdef readonly long long ended

    @cython.locals(call=Call, now=double, wall=double)
    cpdef Call ask(self, object line, bytes topic, bytes body, bytes rest, double seconds)
    @cython.locals(outbox=Outbox)
    cpdef bint put(self, object line, bytes topic, bytes body, Call call, bytes rest) except -1
    cpdef object new_id(self)
    @cython.locals(call=Call)
    cpdef bint end(self, ReceivedMessage message) except -1
    @cython.locals(k=Py_ssize_t, rest=list, message=ReceivedMessage)
    cpdef list take(self, list messages)
    cpdef void answered(self, uint64_t id, bytes sender) except *
    @cython.locals(k=Py_ssize_t, wanted=int64_t)
    cpdef object answered_by(self, object id)
    @cython.locals(least=double, call=Call)
    cpdef double expire(self, double now) except? -1

@cython.locals(k=Py_ssize_t, rest=list, message=ReceivedMessage, p=bytes_p)
cpdef list first_copies(list messages, Copies copies)

cdef class Stepping:
    cdef object coroutine
    cdef object context
    cdef readonly object result
    cdef object waits_for
    cdef bint told
    cdef bint over

    cpdef bint begin(self) except -1
    cdef void step(self, object error) except *
    cdef void move(self, object error) except *
    cdef object next_wait(self)

cdef inline int advance(Stepping steps) except -1:
    cdef PyObject* given = NULL
    cdef int how = PyIter_Send(steps.coroutine, None, &given)
    value = <object>given
    Py_DECREF(value)
    if how == 0:  # PYGEN_RETURN
        steps.over = True
        steps.waits_for = None
        steps.result = value
    else:
        steps.waits_for = value
    return 0
