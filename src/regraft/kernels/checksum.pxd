# The checksum itself is C in a header: a kernel that cimports from here gets it inlined, and
# imports nothing of this module at run time.
cdef extern from "crc32c.h" nogil:
    unsigned int crc32c_at "regraft_crc32c_at"(
        const unsigned char* p, Py_ssize_t start, Py_ssize_t end)
    unsigned int crc32c_more "regraft_crc32c_more"(
        unsigned int value, const unsigned char* p, Py_ssize_t start, Py_ssize_t end)
    unsigned int table_more "regraft_crc32c_portable"(
        unsigned int value, const unsigned char* p, Py_ssize_t start, Py_ssize_t end)

cdef inline const unsigned char* pointer_to(const unsigned char[::1] data) noexcept:
    return &data[0] if data.shape[0] else <const unsigned char*>NULL

cpdef unsigned int crc32c(const unsigned char[::1] data, unsigned int value=*)
cpdef unsigned int crc32c_portable(const unsigned char[::1] data, unsigned int value=*)
