/* Rows of bits for the matrix: 4096 slots wide, in memory that begins on a cache line. */
#ifndef REGRAFT_MATRIX_H
#define REGRAFT_MATRIX_H

#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define REGRAFT_ROW 64 /* words of 64 bits */

#if defined(__GNUC__) || defined(__clang__)
#define REGRAFT_MATRIX_INLINE static inline __attribute__((always_inline))
#define REGRAFT_RESTRICT __restrict__
static inline int regraft_lowest(uint64_t w) {
    return __builtin_ctzll(w);
}
#else
#define REGRAFT_MATRIX_INLINE static inline
#define REGRAFT_RESTRICT
static inline int regraft_lowest(uint64_t w) {
    int n = 0;
    for (; !(w & 255); w >>= 8) n += 8;
    for (; !(w & 1); w >>= 1) n++;
    return n;
}
#endif

/* Bits first to last, both below 64; none when last < first. */
static inline uint64_t regraft_span(int first, int last) {
    return last < first ? 0 : (~(uint64_t)0 >> (63 - last)) & (~(uint64_t)0 << first);
}

/* What stands below the point is cut off; what is larger than any number of a text is made equal,
 * so that order is kept and the conversion is defined. */
static inline int64_t regraft_whole(double x) {
    return x < 4503599627370496.0 ? (int64_t)x : (int64_t)1 << 52;
}

/* ---- one slot ----------------------------------------------------------------------------- */

/* malloc() promises 16 bytes; the address that it gave is kept, the line is found at each use. */
static inline uint64_t *regraft_aligned(void *p) {
    return (uint64_t *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

static inline void *regraft_rows(Py_ssize_t height) {
    size_t size = (size_t)height * REGRAFT_ROW * sizeof(uint64_t) + 63;
    void *p = malloc(size);
    if (p != NULL) memset(p, 0xFF, size);
    return p;
}

static inline void regraft_bar(void *p, int slot, uint64_t rows) {
    uint64_t *a = regraft_aligned(p) + (slot >> 6), kept = ~((uint64_t)1 << (slot & 63));
    for (; rows; rows &= rows - 1) a[regraft_lowest(rows) * REGRAFT_ROW] &= kept;
}

/* The lowest slot that is clean, now used. There must be one. */
static inline int regraft_take(uint64_t *used, uint64_t *clean) {
    int i = 0, k;
    while (!clean[i]) i++;
    k = regraft_lowest(clean[i]);
    used[i] |= (uint64_t)1 << k;
    clean[i] &= clean[i] - 1;
    return i * 64 + k;
}

static inline int regraft_used(const uint64_t *used, int slot) {
    return (int)(used[slot >> 6] >> (slot & 63) & 1);
}

static inline void regraft_leave(uint64_t *used, int slot) {
    used[slot >> 6] &= ~((uint64_t)1 << (slot & 63));
}

/* ---- all slots of a block ----------------------------------------------------------------- */

/* Set the bits of all free slots, in the rows of one dimension. */
static inline void regraft_wash(void *p, Py_ssize_t height, const uint64_t *used) {
    uint64_t *a = regraft_aligned(p);
    for (; height > 0; height--, a += REGRAFT_ROW) {
        int i;
        for (i = 0; i < REGRAFT_ROW; i++) a[i] |= ~used[i];
    }
}

/* left = used AND the row at[dimensions[k]] of every k; whether anything is left. Four rows a
 * round: what is left is then read and written a quarter as often, and asked for an early end. */
REGRAFT_MATRIX_INLINE int regraft_meet_rows(uint64_t *REGRAFT_RESTRICT left, const uint64_t *used,
                                            void *const *rows, const int32_t *dimensions,
                                            const int32_t *at, Py_ssize_t n) {
    Py_ssize_t k;
    int i, j;
    memcpy(left, used, REGRAFT_ROW * sizeof(uint64_t));
    for (k = 0; k < n; k += 4) {
        const uint64_t *r[4];
        uint64_t any = 0;
        for (j = 0; j < 4; j++) { /* in the last round the last row may stand twice */
            Py_ssize_t row = k + j < n ? k + j : n - 1;
            r[j] = regraft_aligned(rows[row]) + (size_t)at[dimensions[row]] * REGRAFT_ROW;
        }
        for (i = 0; i < REGRAFT_ROW; i++) {
            left[i] &= (r[0][i] & r[1][i]) & (r[2][i] & r[3][i]);
            any |= left[i];
        }
        if (!any) return 0;
    }
    return 1;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

static int regraft_matrix_wide = 0;

__attribute__((constructor)) static void regraft_matrix_choose(void) {
    __builtin_cpu_init();
    regraft_matrix_wide = __builtin_cpu_supports("avx2") != 0;
}

__attribute__((target("avx2"), noinline)) static int regraft_meet_wide(
    uint64_t *left, const uint64_t *used, void *const *rows, const int32_t *dimensions,
    const int32_t *at, Py_ssize_t n) {
    return regraft_meet_rows(left, used, rows, dimensions, at, n);
}

static inline int regraft_meet(uint64_t *left, const uint64_t *used, void *const *rows,
                               const int32_t *dimensions, const int32_t *at, Py_ssize_t n) {
    if (regraft_matrix_wide) return regraft_meet_wide(left, used, rows, dimensions, at, n);
    return regraft_meet_rows(left, used, rows, dimensions, at, n);
}

#else

static inline int regraft_meet(uint64_t *left, const uint64_t *used, void *const *rows,
                               const int32_t *dimensions, const int32_t *at, Py_ssize_t n) {
    return regraft_meet_rows(left, used, rows, dimensions, at, n);
}

#endif

/* The owners of the slots that are left, in order; how many. */
static inline Py_ssize_t regraft_owners(const uint64_t *left, const int32_t *owners, int32_t *out) {
    Py_ssize_t n = 0;
    int i;
    for (i = 0; i < REGRAFT_ROW; i++) {
        uint64_t w = left[i];
        for (; w; w &= w - 1) out[n++] = owners[i * 64 + regraft_lowest(w)];
    }
    return n;
}

#endif
