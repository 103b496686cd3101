cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcpy
from regraft.kernels.arrays cimport Ints, Longs, Table
from regraft.kernels.checksum cimport crc32c_at, pointer_to
from regraft.kernels.envelope cimport i64
from regraft.kernels.frame cimport HEADER, MESSAGE, bytes_p, put_u32, u32, writable, writable_p
from regraft.kernels.outlet cimport copy, copy_bytes

cpdef enum:
    START = 1
    MESSAGES = 2
    CONTROL = 3
    SETTLED = 4
    INDEX = 5
    SNAPSHOT = 6
    TRANSACTION = 7
    SKIP = 8

cpdef enum:
    FOUND = 0
    ZERO = 1
    SHORT = 2
    BAD = 3

cdef enum:
    RECORD = 48
    RECENT = 16
    TAKER = 12
    ROW = 40
    ENTRY = 12
    TRAILER = 64
    GROUP = 16
    PRIORITY = 4
    BLOCK_BYTES = 4096
    ROOM_MIN = 65536
    ROOMS_BYTES_MAX = 67108864

cdef extern from *:
    """
    #define REGRAFT_U32_MAX 0xFFFFFFFFLL
    #define REGRAFT_SETTLES 0x80000000LL
    """
    const int64_t U32_MAX "REGRAFT_U32_MAX"
    const int64_t SETTLES "REGRAFT_SETTLES"

cdef inline void put_i64(writable_p p, Py_ssize_t i, int64_t value) noexcept:
    memcpy(p + i, &value, 8)

cdef extern from "Python.h":
    ctypedef struct PyByteArrayObject:
        Py_ssize_t ob_exports  # how many look at it

# A room for so many bytes that nobody looks at: the longest unused first.
cdef inline bytearray room_for(list rooms, Py_ssize_t size):
    cdef bytearray room
    cdef Py_ssize_t k, total = 0, capacity = ROOM_MIN
    for k in range(len(rooms)):
        room = rooms[k]
        if (<PyByteArrayObject*>room).ob_exports == 0 and size <= len(room) <= 4 * size:
            del rooms[k]
            rooms.append(room)
            return room
        total += len(room)
    while capacity < size:
        capacity *= 2
    while rooms and total + capacity > ROOMS_BYTES_MAX:
        total -= len(<bytearray>rooms[0])
        del rooms[0]
    room = PyByteArray_FromStringAndSize(NULL, capacity)  # nothing is cleared
    rooms.append(room)
    return room

cdef inline Py_ssize_t laid(bytearray room, Py_ssize_t at, int64_t offset):
    cdef int64_t address = <int64_t>PyByteArray_AS_STRING(room) + at
    return at + <Py_ssize_t>((offset - address) & (BLOCK_BYTES - 1))

cdef inline int64_t address_of(object view):
    return <int64_t>pointer_to(view)

cpdef bint fits(object view, int64_t offset)

cdef inline Py_ssize_t padded(Py_ssize_t size) noexcept:
    return (size + 7) & ~<Py_ssize_t>7

@cython.locals(size=Py_ssize_t)
cdef bint whole_frames(bytes_p p, Py_ssize_t at, Py_ssize_t end, int64_t count) noexcept

@cython.final
cdef class Index:
    cdef Py_ssize_t every
    cdef Table table
    cdef Longs stream
    cdef Longs first
    cdef Longs last
    cdef Longs first_time
    cdef Longs last_time
    cdef Longs last_offset
    cdef Longs entries
    cdef Longs entry_row
    cdef Longs entry_offset
    cdef Longs entry_first
    cdef Py_ssize_t size

    cdef Py_ssize_t growth(self, Py_ssize_t row, int64_t offset) noexcept
    cdef int32_t add(self, int32_t row, int64_t stream, int64_t offset, int64_t first,
                     int64_t count, int64_t time_us) except -1
    cdef void enter(self, Py_ssize_t row, int64_t offset, int64_t first) except *
    @cython.locals(rows=Py_ssize_t, p=writable_p, at=Py_ssize_t, k=Py_ssize_t, row=Py_ssize_t,
                   stream=int64_t, places=list)
    cdef bytes payload(self)

@cython.final
cdef class Recorder:
    cdef readonly Py_ssize_t segment_bytes
    cdef readonly Py_ssize_t index_every
    cdef public bytes start_payload
    cdef readonly int64_t first
    cdef readonly int64_t position
    cdef public int64_t synced
    cdef readonly int64_t epoch
    cdef readonly int64_t time_us
    cdef bytearray buffer
    cdef list rooms
    cdef readonly Py_ssize_t used
    cdef Py_ssize_t group
    cdef list pieces
    cdef int64_t piece_first
    cdef Ints nothing
    cdef Index index
    cdef Longs numbers
    cdef Longs next
    cdef Longs counts
    cdef Longs sizes
    cdef Ints rows
    cdef Ints touched
    cdef Longs touched_at
    cdef Ints fresh
    cdef Longs records
    cdef Longs recent_at
    cdef Longs recent_from
    cdef list ranked
    cdef list free

    cpdef void open(self, int64_t first, int64_t position, int64_t epoch, int64_t time_us) except *
    @cython.locals(row=int32_t)
    cpdef void reindex(self, int64_t stream, int64_t offset, int64_t first_seq, int64_t count,
                       int64_t time_us) except *
    @cython.locals(slot=Py_ssize_t)
    cdef void forget_index(self) except *
    @cython.locals(slot=Py_ssize_t, _=int)
    cpdef Py_ssize_t add_stream(self, int64_t number, int64_t next_sequence) except -1
    cpdef void remove_stream(self, Py_ssize_t slot) except *
    cpdef int64_t next_sequence(self, Py_ssize_t slot) except -1
    @cython.locals(n=int64_t, k=Py_ssize_t)
    cpdef int64_t recent(self, Py_ssize_t slot, int64_t sequence) except -2
    @cython.locals(n=int64_t, k=Py_ssize_t, at=int64_t, before=int64_t)
    cpdef int64_t far(self, Py_ssize_t slot, int64_t sequence, int64_t size) except -2
    cpdef int64_t messages(self, Py_ssize_t slot) except -1
    cpdef int64_t size(self, Py_ssize_t slot) except -1
    cdef bint check(self, Py_ssize_t slot) except -1
    @cython.locals(last=int64_t, number=int64_t, k=Py_ssize_t)
    cdef Ints ascending(self, Ints slots)
    @cython.locals(last=int64_t, number=int64_t, k=Py_ssize_t, slot=int32_t, arranged=Ints)
    cdef Ints sort(self, Ints slots)
    cpdef int64_t append(self, int kind, bytes payload, int64_t now_us, int64_t count=*,
                         int64_t publisher=*) except -1
    @cython.locals(position=int64_t)
    cpdef int64_t open_group(self, int64_t publisher, int64_t now_us) except -1
    @cython.locals(at=Py_ssize_t, target=writable_p)
    cpdef int64_t close_group(self, int64_t serial) except -1
    @cython.locals(order=Ints, meta=Py_ssize_t, size=Py_ssize_t, offset=int64_t, at=Py_ssize_t,
                   target=writable_p, place=Py_ssize_t, k=Py_ssize_t, slot=int32_t, kind=int,
                   number=int64_t, sequence=int64_t, row=int32_t, newest=Py_ssize_t)
    cdef int64_t append_run(self, bytes_p p, Py_ssize_t start, Py_ssize_t end, int64_t count,
                            int64_t publisher, Ints slots, int64_t now_us, int priority,
                            int64_t settles, int64_t sequence_settled) except -1
    @cython.locals(p=bytes_p, given=Ints)
    cpdef int64_t append_frames(self, object view, int64_t count, int64_t publisher, list slots,
                                int64_t now_us, int priority=*, int64_t settles=*,
                                int64_t sequence_settled=*) except -1
    cpdef list take_ranked(self)
    @cython.locals(k=Py_ssize_t)
    cpdef list take_touched(self)
    @cython.locals(least=Py_ssize_t, start=Py_ssize_t, index=Py_ssize_t, offset=int64_t,
                   k=Py_ssize_t, slot=int32_t)
    cdef bint make_room(self, Py_ssize_t size, Ints slots, int64_t now_us) except -1
    @cython.locals(size=Py_ssize_t, at=Py_ssize_t, target=writable_p)
    cdef bint write(self, int kind, bytes payload, int64_t now_us, int64_t count,
                    int64_t publisher) except -1
    @cython.locals(at=Py_ssize_t, target=writable_p, unsynced=int64_t)
    cdef Py_ssize_t begin(self, int kind, Py_ssize_t size, int64_t count, Py_ssize_t meta,
                          int64_t publisher, int64_t now_us) except -1
    @cython.locals(begins=bint, most=Py_ssize_t, offset=int64_t)
    cdef Py_ssize_t reserve(self, Py_ssize_t size) except -1
    @cython.locals(larger=bytearray, start=Py_ssize_t, by=Py_ssize_t)
    cdef bint grow(self, Py_ssize_t most) except -1
    @cython.locals(end=int64_t, index=int64_t, at=Py_ssize_t, target=writable_p)
    cdef bint close_segment(self) except -1
    @cython.locals(given=bint)
    cpdef list take(self)

@cython.final
cdef class Walk:
    cdef public int64_t base
    cdef readonly int64_t need
    cdef int64_t trusted
    cdef bint sure
    cdef readonly int kind
    cdef readonly int priority
    cdef readonly int64_t count
    cdef readonly int64_t publisher
    cdef readonly int64_t time_us
    cdef readonly int64_t epoch
    cdef readonly int64_t position
    cdef readonly int64_t unsynced
    cdef readonly Py_ssize_t meta_at
    cdef readonly Py_ssize_t payload_at
    cdef readonly Py_ssize_t end
    cdef readonly Py_ssize_t next

    cpdef int step(self, object view, Py_ssize_t at, int64_t first, int64_t epoch_min) except -1
    @cython.locals(length=Py_ssize_t, checked=Py_ssize_t, meta=Py_ssize_t, epoch=int64_t, k=Py_ssize_t,
                   known=bint)
    cdef int look(self, bytes_p p, Py_ssize_t n, Py_ssize_t at, int64_t position,
                  int64_t epoch_min) noexcept
