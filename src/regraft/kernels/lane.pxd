cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from regraft.kernels.checksum cimport crc32c_at, pointer_to
from regraft.kernels.envelope cimport Scan
from regraft.kernels.groups cimport Group, Screening
from regraft.kernels.keeper cimport Keeper
from regraft.kernels.outlet cimport STREAM_BYTES, Outlet, Route, is_topic
from regraft.kernels.takers cimport Choice
from regraft.kernels.windows cimport Window
from regraft.kernels.frame cimport HEADER, MESSAGE, ORIGIN, QUESTION, REPLY, bytes_p, cut, put_header, u32, writable

cdef enum:
    STOP_END = 0
    STOP_CONTROL = 1
    STOP_FAULT = 2
    KEPT_AT = 10

cdef inline uint64_t u64(bytes_p p, Py_ssize_t i) noexcept:
    cdef uint64_t value
    memcpy(&value, p + i, 8)
    return value

@cython.final
cdef class Seen:
    cdef int64_t last

@cython.final
cdef class Source:
    cdef readonly object key
    cdef readonly long long messages
    cdef readonly long long size
    cdef long long generation
    cdef dict routes
    cdef bytes topic
    cdef Route route
    cdef public list refusals
    cdef public int64_t publisher
    cdef public Window window
    cdef public Outlet outlet
    cdef public Outlet member
    cdef public bint again
    cdef bint foreign
    cdef readonly bytes stream
    cdef bytes kept_stream
    cdef int64_t ordinal
    cdef Seen seen

    cpdef void resume(self, bytes stream, int64_t first) except *

@cython.final
cdef class Lane:
    cdef readonly Py_ssize_t frame_bytes_max
    cdef readonly Py_ssize_t control_bytes_max
    cdef readonly Py_ssize_t topics_max
    cdef object resolve
    cdef public object introduce
    cdef public Keeper keeper
    cdef public long long generation
    cdef public Outlet only
    cdef public Route later
    cdef public object postpone
    cdef public object constrain
    cdef public bytes mark
    cdef public bint trusting
    cdef long long last_stream
    cdef readonly dict streams
    cdef readonly dict older
    cdef list dirty
    cdef Scan scan
    cdef uint64_t head
    cdef readonly int stop
    cdef readonly int fault
    cdef readonly Py_ssize_t fault_detail
    cdef readonly int kind
    cdef readonly int flags
    cdef readonly Py_ssize_t end
    cdef Route run_route
    cdef Py_ssize_t run_start
    cdef Py_ssize_t run_end
    cdef Py_ssize_t run_count
    cdef int64_t run_expiration
    cdef int64_t run_ordinal
    cdef int run_priority
    cdef int64_t run_first
    cdef readonly long long messages
    cdef readonly long long size
    cdef readonly long long deliveries
    cdef readonly long long delivered
    cdef readonly long long forwarded
    cdef readonly long long expired
    cdef readonly long long refused
    cdef readonly long long untaken
    cdef readonly long long repeated
    cdef readonly list unplaced
    cdef Screening screening

    @cython.locals(n=Py_ssize_t, p=bytes_p, head=uint64_t, end=Py_ssize_t, fault=cython.int, kind=cython.int, flags=cython.int)
    cpdef Py_ssize_t run(self, Source source, object view, Py_ssize_t pos, int64_t now_us) except -1
    @cython.locals(kind=cython.int, flags=cython.int, length=Py_ssize_t, large=bint)
    cdef bint check_head(self, bytes_p p, Py_ssize_t pos, uint64_t head) noexcept
    cdef void wrong(self, int fault, Py_ssize_t detail) noexcept
    @cython.locals(ordinal=Py_ssize_t, size=Py_ssize_t, plain=cython.bint)
    cdef bint begin_stream(self, Source source, bytes_p p, Py_ssize_t at, Py_ssize_t end) except -1
    @cython.locals(seen=Seen)
    cdef Seen find_stream(self, bytes stream)
    cdef void name_stream(self, Source source) except *
    @cython.locals(scan=Scan, route=Route, topic=bytes, choice=Choice, link=Outlet, ordinal=int64_t, seen=Seen, persists=bint)
    cdef void message(self, Source source, object view, bytes_p p, Py_ssize_t pos, Py_ssize_t end, int64_t now_us) except *
    @cython.locals(scan=Scan, size=Py_ssize_t, key=bytes, member=Outlet, route=Route, type=uint64_t)
    cdef Route addressed(self, Source source, bytes_p p)
    @cython.locals(k=Py_ssize_t, groups=list, group=Group, place=Py_ssize_t, member=tuple, members=list, picked=Route)
    cdef Route pick(self, Source source, Route route, bytes_p p, Py_ssize_t pos, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(scan=Scan)
    cdef bint constrained(self, Source source, Route route, object view, bytes_p p, Py_ssize_t pos, Py_ssize_t end, int64_t now_us, int64_t ordinal) except -1
    cdef void alone(self, Source source, Route route, Py_ssize_t pos, Py_ssize_t end, int64_t ordinal) except *
    @cython.locals(choice=Choice, link=Outlet)
    cdef Route decided(self, Source source, Route route, bytes_p p, Py_ssize_t pos, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(n=Py_ssize_t, p=bytes_p, scan=Scan, fault=cython.int, topic=bytes, route=Route, unplaced=Py_ssize_t, constrained=bint)
    cpdef tuple find_route(self, Source source, object view)
    @cython.locals(n=Py_ssize_t)
    cpdef void give(self, Outlet outlet, bytes frame, bytes ids) except *
    cdef bint see_takers(self, Source source, Route route, bytes_p p, Py_ssize_t pos, Py_ssize_t end) except -1
    @cython.locals(scan=Scan, keeper=Keeper, later=Route, route=Route, id=uint64_t, due=int64_t, sequence=int64_t, topic=bytes)
    cdef void delay(self, Source source, object view, bytes_p p, Py_ssize_t pos, Py_ssize_t end, int64_t now_us) except *
    @cython.locals(keeper=Keeper, kept=Route, scan=Scan, verdict=cython.int, refusal=cython.int)
    cdef Route persistent(self, Source source, Route route, object view, bytes_p p, int64_t now_us)
    @cython.locals(keeper=Keeper)
    cdef void note(self, Source source, bint known) except *
    @cython.locals(route=Route)
    cdef Route look_up(self, Source source, bytes topic)
    cdef void refuse(self, Source source, int code) except *
    @cython.locals(keeper=Keeper, start=Py_ssize_t, end=Py_ssize_t, count=Py_ssize_t)
    cdef bint hold(self, Source source, Route route, bytes_p p, int64_t now_us) except -1
    @cython.locals(route=Route, size=Py_ssize_t, takers=Py_ssize_t, k=Py_ssize_t, outlet=Outlet)
    cdef void emit(self, Source source, object view, bytes_p p, int64_t now_us) except *
    cpdef list take_unplaced(self)
    cpdef list take_dirty(self)
