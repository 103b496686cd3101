cimport cython
from libc.stdint cimport int64_t
from regraft.kernels.checksum cimport crc32c_at, pointer_to
from regraft.kernels.envelope cimport Scan
from regraft.kernels.frame cimport HEADER, MESSAGE, bytes_p, cut, u32
from regraft.kernels.outlet cimport is_topic

@cython.final
cdef class Bundle:
    cdef Py_ssize_t frame_bytes_max
    cdef bytes topic
    cdef readonly set topics
    cdef readonly int64_t messages
    cdef readonly int64_t delayed
    cdef readonly int64_t addressed
    cdef readonly int64_t sequenced
    cdef Scan scan

    @cython.locals(p=bytes_p, n=Py_ssize_t, pos=Py_ssize_t, size=Py_ssize_t, before=int64_t)
    cpdef Py_ssize_t check(self, object view, bint persistent, int64_t now_us) except -1
    @cython.locals(scan=Scan, fault=cython.int)
    cdef bint look(self, bytes_p p, Py_ssize_t pos, Py_ssize_t end, bint persistent, int64_t now_us) except -1
