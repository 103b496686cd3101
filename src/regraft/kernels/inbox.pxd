cimport cython
from libc.stdint cimport int64_t
from regraft.kernels.checksum cimport crc32c_at, pointer_to
from regraft.kernels.envelope cimport Scan
from regraft.kernels.frame cimport HEADER, MESSAGE, TRANSFER, bytes_p, cut, u32, writable
from regraft.kernels.outlet cimport is_topic
from regraft.kernels.windows cimport Copies
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void*)
    bint PyMemoryView_Check(object)
    Py_buffer* PyMemoryView_GET_BUFFER(object)
    bint PyBuffer_IsContiguous(Py_buffer*, char)

cdef inline bytes_p start_of(bytes data) noexcept:
    return <bytes_p>PyBytes_AS_STRING(data)

cdef inline bytes_p start_of_any(object data) except? NULL:
    # The place of a view is known, without asking for it and giving it back for every read.
    if isinstance(data, bytes):
        return <bytes_p>PyBytes_AS_STRING(data)
    if not PyMemoryView_Check(data):
        raise TypeError("neither bytes nor a view")
    cdef Py_buffer* view = PyMemoryView_GET_BUFFER(data)
    if view.itemsize != 1 or not PyBuffer_IsContiguous(view, b"C"):
        raise TypeError("a view that is not of bytes, one behind the other")
    return <bytes_p>view.buf

cdef inline uint64_t u64(bytes_p p, Py_ssize_t i) noexcept:
    cdef uint64_t value
    memcpy(&value, p + i, 8)
    return value

cdef inline bytes part(bytes data, Py_ssize_t start, Py_ssize_t end):
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + start, end - start)

cdef inline void untrack(object message) noexcept:
    PyObject_GC_UnTrack(<void*>message)

cdef class ReceivedMessage:
    cdef readonly bytes envelope
    cdef readonly str topic
    cdef Py_ssize_t body_at
    cdef Py_ssize_t body_end
    cdef Py_ssize_t sender_at
    cdef Py_ssize_t sender_end
    cdef readonly uint64_t references
    cdef readonly unsigned int number
    cdef bint packed
    cdef uint64_t copy
    cdef readonly tuple subscriptions
    cdef readonly int64_t sequence
    cdef readonly int attempts
    cdef public int64_t question
    cdef object settler
    cdef object whole

    @cython.locals(seen=uint64_t)
    cdef void note(self, Scan scan, bytes_p p, Py_ssize_t start) noexcept
    @cython.locals(data=bytes, p=bytes_p, scan=Scan, seen=uint64_t)
    cpdef tuple head(self)

@cython.final
cdef class Inbox:
    cdef public Py_ssize_t frame_bytes_max
    cdef object transfer
    cdef dict known
    cdef bytes ids
    cdef tuple ids_subscriptions
    cdef bytearray tail
    cdef list run
    cdef long long run_from
    cdef Scan scan
    cdef bytes topic
    cdef str topic_text
    cdef public object settler
    cdef int64_t sequence
    cdef int attempts
    cdef int64_t question
    cdef readonly long long left
    cdef tuple subscriptions
    cdef readonly long long messages
    cdef readonly long long size
    cdef public Copies copies
    cdef readonly long long repeated
    cdef readonly long long repeated_size

    @cython.locals(items=list, n=Py_ssize_t, p=bytes_p, pos=Py_ssize_t, tail=bytearray)
    cpdef list feed(self, object data)
    @cython.locals(tail=bytearray, at=Py_ssize_t, size=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t complete(self, bytes_p p, Py_ssize_t n) except -2
    @cython.locals(message=ReceivedMessage, run=list, end=Py_ssize_t, kind=cython.int)
    cdef Py_ssize_t walk(self, bytes_p p, Py_ssize_t pos, Py_ssize_t n, list items) except -1
    cdef void check_size(self, Py_ssize_t size) except *
    @cython.locals(ids=bytes)
    cdef void open_run(self, bytes_p p, Py_ssize_t at, Py_ssize_t end) except *
    cdef void open_other(self, bytes payload) except *
    @cython.locals(n=Py_ssize_t, at=Py_ssize_t, value=int64_t, septet=int64_t, shift=cython.int,
                   attempts=cython.int, count=int64_t)
    cdef bint open_sequenced(self, bytes payload) except -1
    @cython.locals(scan=Scan, fault=cython.int, start=Py_ssize_t, message=ReceivedMessage, copies=Copies, at=Py_ssize_t)
    cdef ReceivedMessage message(self, bytes_p p, Py_ssize_t pos, Py_ssize_t end)
