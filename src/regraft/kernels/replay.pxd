cimport cython
from libc.stdint cimport int64_t, uint64_t
from regraft.kernels.arrays cimport Longs
from regraft.kernels.checksum cimport pointer_to
from regraft.kernels.envelope cimport Scan, i64
from regraft.kernels.frame cimport HEADER, MESSAGE, TRANSFER, VARINT_MAX, bytes_p, cut, put_header, put_u32, put_varint, u32, writable, writable_p
from regraft.kernels.outlet cimport copy, copy_bytes, is_topic
from regraft.kernels.records cimport BAD, FOUND, INDEX, MESSAGES, RECORD, SHORT, TAKER, Walk, padded, whole_frames
from regraft.kernels.selection cimport TRUE, Test

cpdef enum:
    CLOSED = 4
    LATER = 6

cdef enum:
    PART = 5
    NO = 0
    YES = 1
    MALFORMED = 2
    SLICE_BYTES = 4096
    EXPIRATION = 0x69

@cython.locals(p=bytes_p, n=Py_ssize_t, length=Py_ssize_t)
cpdef Py_ssize_t whole_until(object view, Py_ssize_t at, int64_t position)

@cython.locals(scan=Scan, p=bytes_p, n=Py_ssize_t, pos=Py_ssize_t, end=Py_ssize_t, at=Py_ssize_t,
               last=Py_ssize_t, k=cython.int, kind=cython.int)
cpdef list keyed(object data, bytes name)

@cython.final
cdef class Reader:
    cdef Longs streams
    cdef Test test
    cdef object topics
    cdef dict verdicts
    cdef bytes topic
    cdef bint verdict
    cdef public int64_t base
    cdef public int64_t delivery_count
    cdef public int64_t since_us
    cdef public int priority
    cdef public int64_t until_us
    cdef public list skip
    cdef public bytes bits
    cdef public int64_t bits_from
    cdef Py_ssize_t skip_next
    cdef int64_t skip_first
    cdef int64_t skip_last
    cdef Walk walk
    cdef Scan scan
    cdef readonly int status
    cdef readonly int64_t next_sequence
    cdef int64_t until
    cdef readonly int64_t time_us
    cdef readonly int64_t scanned
    cdef readonly int64_t expired
    cdef readonly int64_t messages
    cdef readonly int64_t size
    cdef readonly list runs
    cdef readonly list lost
    cdef readonly list gone
    cdef int64_t messages_left
    cdef int64_t bytes_left
    cdef bytes ids
    cdef object view
    cdef list slices
    cdef bytearray output
    cdef Py_ssize_t used
    cdef bint fresh
    cdef Py_ssize_t run_at
    cdef Py_ssize_t run_size
    cdef int64_t run_stream
    cdef int64_t run_first
    cdef int64_t run_count

    @cython.locals(p=bytes_p, n=Py_ssize_t, walk=Walk, begun=Py_ssize_t, epoch=int64_t,
                   status=cython.int)
    cpdef Py_ssize_t fill(self, object view, Py_ssize_t at, Py_ssize_t end, int64_t first,
                          int64_t next_sequence, int64_t until_sequence, int64_t messages_max,
                          int64_t bytes_max, bytes ids, int64_t now_us) except -1
    cpdef void distrust(self, bint sure=*) except *
    cdef void begin(self, int64_t next_sequence, int64_t until, int64_t messages_max,
                    int64_t bytes_max, bytes ids) except *
    @cython.locals(walk=Walk, meta=Py_ssize_t, taker=Py_ssize_t, stream=int64_t, sequence=int64_t,
                   count=int64_t, done=int64_t, pos=Py_ssize_t, start=Py_ssize_t, number=int64_t,
                   status=cython.int, i=int64_t, end=Py_ssize_t, answer=cython.int,
                   missing=int64_t)
    cdef int read(self, bytes_p p, int64_t now_us) except -1
    @cython.locals(k=Py_ssize_t, stream=int64_t, low=Py_ssize_t, high=Py_ssize_t,
                   middle=Py_ssize_t)
    cdef Py_ssize_t find(self, bytes_p p, Py_ssize_t at, Py_ssize_t takers) noexcept
    @cython.locals(scan=Scan, k=int64_t)
    cdef int wants(self, bytes_p p, Py_ssize_t pos, Py_ssize_t end, int64_t sequence,
                   int64_t now_us) except -1
    cdef bint miss(self, int64_t sequence) except -1
    @cython.locals(scan=Scan, tag=uint64_t)
    cdef bint skim(self, bytes_p p, Py_ssize_t i, Py_ssize_t end) noexcept
    cdef void next_skip(self, int64_t sequence) except *
    cdef void judge(self, bytes topic) except *
    @cython.locals(at=Py_ssize_t)
    cdef bint hand_on(self, bytes_p p, Py_ssize_t start, Py_ssize_t end, int64_t stream,
                      int64_t sequence, int64_t count) except -1
    @cython.locals(at=Py_ssize_t, target=writable_p)
    cdef bint open_run(self, int64_t stream, int64_t sequence) except -1
    @cython.locals(target=writable_p)
    cdef bint close_run(self) except -1
    @cython.locals(at=Py_ssize_t)
    cdef Py_ssize_t reserve(self, Py_ssize_t size) except -1
    cpdef list out(self)
