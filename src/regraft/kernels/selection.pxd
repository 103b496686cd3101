cimport cython
from regraft.kernels.checksum cimport pointer_to
from regraft.kernels.envelope cimport Scan
from regraft.kernels.frame cimport bytes_p, cut
from regraft.kernels.operands cimport BOOL, FLOAT, INT, LITERAL, NOTHING, STRING, UNLIKE, Operand
from regraft.kernels.patterns cimport Like, begins, find, fits_topic

cdef enum:
    FALSE = 0
    TRUE = 1
    UNKNOWN = 2

    AND = 1
    OR = 2
    NOT = 3
    COMPARE = 4
    IN = 5
    IS_NULL = 6
    STARTS_WITH = 7
    CONSTANT = 8
    LIKE = 9
    REGEXP = 10
    TOPIC_FITS = 11

    EQUAL = 2
    UNEQUAL = 5

cdef inline int rank(int kind) noexcept:
    return INT if kind == FLOAT else kind

@cython.final
cdef class Test:
    cdef public int op
    cdef public int relation
    cdef public list terms
    cdef public list items
    cdef public Operand left
    cdef public Operand right
    cdef public bytes text
    cdef public bytes piece
    cdef public Like like
    cdef public Py_ssize_t text_max
    cdef public object search

    @cython.locals(op=cython.int, value=cython.int, term=Test)
    cdef int evaluate(self, Scan scan, bytes_p p, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(decisive=cython.int, result=cython.int, k=Py_ssize_t, value=cython.int, term=Test)
    cdef int connect(self, Scan scan, bytes_p p, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(left=Operand, right=Operand, kind=cython.int, relation=cython.int,
                   order=cython.int)
    cdef int compare(self, Scan scan, bytes_p p) noexcept
    @cython.locals(left=Operand, item=Operand, kind=cython.int, order=cython.int, low=Py_ssize_t,
                   high=Py_ssize_t, middle=Py_ssize_t)
    cdef int among(self, Scan scan, bytes_p p) noexcept
    @cython.locals(left=Operand, kind=cython.int)
    cdef int examine_text(self, Scan scan, bytes_p p) except -1

@cython.locals(scan=Scan, p=bytes_p, fault=cython.int, value=cython.int)
cpdef object examine_selector(Test test, bytes envelope)
