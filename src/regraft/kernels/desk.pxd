cimport cython
from libc.stdint cimport int64_t, uint64_t
from regraft.kernels.calls cimport Calls, Stepping, advance, copy_context, enter, leave
from regraft.kernels.envelope cimport Scan
from regraft.kernels.frame cimport HEADER, bytes_p, cut
from regraft.kernels.inbox cimport ReceivedMessage, part, start_of, u64
from regraft.kernels.outbox cimport Outbox
from regraft.kernels.windows cimport Copies

@cython.final
cdef class Handler:
    cdef readonly str type
    cdef readonly object function
    cdef readonly object wants
    cdef bint as_bytes
    cdef readonly bint blocking
    cdef public long long handled
    cdef public long long errors

@cython.final
cdef class Taken:
    cdef readonly long long messages
    cdef readonly long long size
    cdef long long tell_messages
    cdef long long tell_size

    cpdef bint due(self) except -1
    cpdef void add(self, long long messages, long long size) except *
    cpdef void forget(self) except *

@cython.final
cdef class Request(Stepping):
    cdef readonly Desk desk
    cdef readonly object line
    cdef readonly Taken taken
    cdef readonly ReceivedMessage message
    cdef readonly Handler handler
    cdef readonly object id
    cdef readonly bytes sender
    cdef readonly bytes workflow
    cdef readonly int priority
    cdef public int64_t until_us
    cdef readonly bint wants_reply
    cdef readonly bint counted
    cdef double arrived
    cdef public bint answered
    cdef public object about

@cython.final
cdef class Ready:
    cdef list requests
    cdef Py_ssize_t at
    cdef object wake
    cdef bint called

    cpdef void add(self, Request request) except *
    cpdef Py_ssize_t left(self) except -1
    @cython.locals(request=Request, desk=Desk, over=bint)
    cpdef Request work(self)
    cpdef list forget(self, Desk desk)

@cython.final
cdef class Desk:
    cdef readonly object service
    cdef Ready ready
    cdef object group
    cdef readonly Py_ssize_t concurrency
    cdef readonly dict handlers
    cdef readonly dict running
    cdef public Py_ssize_t waiting
    cdef public Py_ssize_t active
    cdef public bint watched
    cdef Py_ssize_t remembered
    cdef Py_ssize_t size_max
    cdef dict replies
    cdef dict replies_older
    cdef Py_ssize_t replies_size
    cdef public bytes sender
    cdef public bytes reply_topic
    cdef public Py_ssize_t flush_bytes
    cdef object base
    cdef public object variable
    cdef public object now
    cdef public object decode
    cdef public object encode
    cdef public object latencies
    cdef readonly long long handled

    @cython.locals(data=bytes, p=bytes_p, scan=Scan, seen=uint64_t, request=Request)
    cpdef Request make(self, object line, Taken taken, ReceivedMessage message, Handler handler, bint counted)
    @cython.locals(request=Request)
    cdef bint take(self, object line, Taken taken, ReceivedMessage message, object numbers, double now, int64_t wall) except -1
    cpdef void hold(self, Request request, double now) except *
    cpdef void start(self, Request request) except *
    cdef bint begin(self, Request request) except -1
    @cython.locals(handler=Handler, message=ReceivedMessage)
    cdef bint first_step(self, Request request) except -1
    @cython.locals(handler=Handler)
    cpdef void succeed(self, Request request, object result) except *
    @cython.locals(outbox=Outbox)
    cpdef void answer(self, Request request, bytes body, bytes fields) except *
    cpdef object replied(self, object id)
    cpdef void end(self, Request request) except *
    @cython.locals(taken=Taken)
    cpdef void release(self, Request request) except *

@cython.final
cdef class Taker:
    cdef object peer
    cdef Calls calls
    cdef public Desk desk
    cdef public Copies copies

    @cython.locals(rest=list, desk=Desk, copies=Copies, k=Py_ssize_t, message=ReceivedMessage, p=bytes_p)
    cdef list take(self, object line, Taken taken, list messages, object numbers, double now, int64_t wall)

@cython.final
cdef class Switch:
    cdef object owner
    cdef object now
    cdef object wall
    cdef readonly dict takers

    @cython.locals(now=double, wall=int64_t, size=Py_ssize_t, found=tuple, taker=Taker, rest=list, stirred=bint)
    cpdef bint deliver(self, object line, Taken taken, list items) except -1
