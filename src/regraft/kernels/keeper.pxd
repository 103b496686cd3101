cimport cython
from libc.stdint cimport int32_t, int64_t
from regraft.kernels.arrays cimport Ints
from regraft.kernels.checksum cimport pointer_to
from regraft.kernels.frame cimport bytes_p, cut
from regraft.kernels.outlet cimport Outlet, Route
from regraft.kernels.records cimport Recorder

cdef enum:
    RECORD = 48
    TAKER = 12

@cython.final
cdef class Kept:
    cdef object source
    cdef Route route
    cdef int64_t ordinal
    cdef int64_t count
    cdef bytes stream
    cdef int64_t first
    cdef bint known
    cdef int64_t until
    cdef int64_t at
    cdef Py_ssize_t size
    cdef int64_t expiration
    cdef bytes data

@cython.final
cdef class Keeper:
    cdef readonly Recorder recorder
    cdef readonly Py_ssize_t run_bytes_max
    cdef public int refusal
    cdef Ints full
    cdef readonly int full_count
    cdef Ints away
    cdef readonly int away_count
    cdef public int64_t settles
    cdef public int64_t sequence_settled
    cdef public list delayed
    cdef readonly object waiting
    cdef list dirty
    cdef list confirmed
    cdef readonly int64_t kept
    cdef readonly int64_t repeated
    cdef readonly int64_t deliveries
    cdef readonly int64_t delivered
    cdef readonly int64_t forwarded
    cdef readonly int64_t untaken

    cpdef void set_full(self, int slot, bint full) except *
    cpdef void set_away(self, int slot, bint away) except *
    @cython.locals(k=Py_ssize_t, slot=int32_t, found=Ints)
    cdef Ints here(self, Ints slots)
    @cython.locals(k=Py_ssize_t, slot=int32_t)
    cdef bint is_full(self, Ints slots) except -1
    @cython.locals(kept=Kept, streams=Py_ssize_t, head=Py_ssize_t, settles=int64_t)
    cdef bint keep(self, object source, Route route, bytes_p p, Py_ssize_t start, Py_ssize_t end,
                   int64_t count, int64_t ordinal, int64_t expiration, int64_t now_us,
                   int priority, bytes stream, int64_t first) except -1
    @cython.locals(slots=Ints)
    cdef bint record(self, Route route, bytes_p p, Py_ssize_t start, Py_ssize_t end, int64_t count,
                     int64_t now_us, int priority) except -1
    @cython.locals(kept=Kept)
    cdef bint note(self, object source, int64_t ordinal, bint known) except -1
    @cython.locals(last=Kept)
    cdef int64_t last_until(self) except -1
    @cython.locals(kept=Kept, p=bytes_p, takers=Py_ssize_t)
    cpdef object release(self, int64_t safe, object chunk, int64_t base)
    @cython.locals(route=Route, k=Py_ssize_t, outlet=Outlet)
    cdef bint hand_on(self, Kept kept, object view, bytes_p p, Py_ssize_t start) except -1
    cdef bint confirm(self, int64_t ordinal, int64_t count, int64_t takers, bint known) except -1
    @cython.locals(kept=Kept, lost=list)
    cpdef list abandon(self)
    cpdef list take_dirty(self)
    cpdef list take_confirmed(self)
