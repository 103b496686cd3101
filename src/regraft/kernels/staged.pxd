cimport cython
from libc.stdint cimport int64_t, uint64_t
from regraft.kernels.checksum cimport crc32c_at, pointer_to
from regraft.kernels.envelope cimport Scan
from regraft.kernels.frame cimport HEADER, MESSAGE, bytes_p, cut, u32
from regraft.kernels.outlet cimport is_topic

@cython.final
cdef class Inspection:
    cdef int64_t frame_bytes_max
    cdef object topics
    cdef set good
    cdef bytes topic
    cdef readonly int64_t sequence
    cdef readonly int64_t messages
    cdef Scan scan

    @cython.locals(p=bytes_p, n=Py_ssize_t, pos=Py_ssize_t, size=Py_ssize_t)
    cpdef Py_ssize_t check(self, object view) except -1
    @cython.locals(scan=Scan, fault=cython.int, sequence=uint64_t)
    cdef bint look(self, bytes_p p, Py_ssize_t pos, Py_ssize_t end) except -1
