/* CRC-32C (Castagnoli), reflected, as a header so that every kernel gets it inlined.
 *
 *   regraft_crc32c_at(p, start, end)           checksum of p[start:end]
 *   regraft_crc32c_more(value, p, start, end)  the same, continuing from an earlier checksum
 *   regraft_crc32c_portable(value, p, start, end)   the table version, whatever the processor
 *
 * Three implementations:
 *   x86-64   the crc32 instruction takes 8 bytes with a latency of 3 cycles and a throughput of 1.
 *            Short inputs go 8 bytes a step. Longer ones are cut into three lanes of equal length
 *            that run side by side and are joined by carry-less multiplication: moving a checksum
 *            over n zero words is multiplying it by x^(64 n) modulo the polynomial, and
 *            crc32(0, clmul(c, k)) is c * k * x^33, hence k[n] = x^(64 n - 33), k[1] = x^31 = 1.
 *            The instructions are written as assembly so that the function can be inlined into
 *            callers compiled for the base architecture; one flag, set at load, guards them.
 *   aarch64  the crc32c instructions, where the compiler was told that they exist.
 *   others   slicing by 8, tables made at first use.
 */
#ifndef REGRAFT_CRC32C_H
#define REGRAFT_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define REGRAFT_NOINLINE __attribute__((noinline, unused))
#define REGRAFT_LIKELY(x) __builtin_expect(!!(x), 1)
#else
#define REGRAFT_NOINLINE
#define REGRAFT_LIKELY(x) (x)
#endif

/* ---- tables ------------------------------------------------------------------------------- */

#define REGRAFT_CRC32C_POLYNOMIAL 0x82F63B78u

static uint32_t regraft_crc32c_table[8][256];
static volatile int regraft_crc32c_table_ready = 0;

static REGRAFT_NOINLINE void regraft_crc32c_make_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = (c >> 1) ^ (REGRAFT_CRC32C_POLYNOMIAL & (0u - (c & 1u)));
        regraft_crc32c_table[0][i] = c;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int i = 0; i < 256; i++) {
            uint32_t c = regraft_crc32c_table[slice - 1][i];
            regraft_crc32c_table[slice][i] = (c >> 8) ^ regraft_crc32c_table[0][c & 255u];
        }
    regraft_crc32c_table_ready = 1; /* made twice by two threads: the same bytes twice */
}

static REGRAFT_NOINLINE uint32_t regraft_crc32c_portable(uint32_t value, const unsigned char *p,
                                                         ptrdiff_t start, ptrdiff_t end) {
    const uint32_t(*t)[256] = (const uint32_t(*)[256])regraft_crc32c_table;
    const unsigned char *last = p + end;
    uint32_t c = ~value;
    if (!regraft_crc32c_table_ready) regraft_crc32c_make_table();
    for (p += start; last - p >= 8; p += 8) {
        uint32_t a = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                          (uint32_t)p[3] << 24);
        c = t[7][a & 255u] ^ t[6][(a >> 8) & 255u] ^ t[5][(a >> 16) & 255u] ^ t[4][a >> 24] ^
            t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
    }
    for (; p < last; p++) c = (c >> 8) ^ t[0][(c ^ *p) & 255u];
    return ~c;
}

/* ---- x86-64 ------------------------------------------------------------------------------- */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <emmintrin.h>

#define REGRAFT_CRC32C_LANE_MAX 256 /* words in one lane of one round: 3 * 256 * 8 = 6 KiB */
#define REGRAFT_CRC32C_LANES_FROM 192 /* bytes from which three lanes pay for joining them */

static int regraft_crc32c_hardware = 0;
static uint32_t regraft_crc32c_shift[2 * REGRAFT_CRC32C_LANE_MAX + 1];

static inline uint64_t regraft_crc32c_word(uint64_t c, const unsigned char *p) {
    __asm__("crc32q %1, %0" : "+r"(c) : "m"(*(const unsigned char(*)[8])p));
    return c;
}

static inline uint64_t regraft_crc32c_value(uint64_t c, uint64_t v) {
    __asm__("crc32q %1, %0" : "+r"(c) : "r"(v));
    return c;
}

static inline uint64_t regraft_clmul(uint64_t a, uint64_t b) {
    __m128i x = _mm_cvtsi64_si128((long long)a);
    __m128i y = _mm_cvtsi64_si128((long long)b);
    __asm__("pclmulqdq $0, %1, %0" : "+x"(x) : "x"(y));
    return (uint64_t)_mm_cvtsi128_si64(x);
}

__attribute__((constructor)) static void regraft_crc32c_choose(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return;
    uint64_t k = 1;
    for (int words = 1; words <= 2 * REGRAFT_CRC32C_LANE_MAX; words++) {
        regraft_crc32c_shift[words] = (uint32_t)k;
        k = regraft_crc32c_value(k, 0);
    }
    regraft_crc32c_hardware = 1;
}

/* Whole words only, at least three: three lanes, a round for every 6 KiB, what is left over
 * (up to two words) one by one. */
static REGRAFT_NOINLINE uint64_t regraft_crc32c_lanes(uint64_t c, const unsigned char *p,
                                                      size_t words) {
    while (words >= 3) {
        size_t lane = words / 3;
        if (lane > REGRAFT_CRC32C_LANE_MAX) lane = REGRAFT_CRC32C_LANE_MAX;
        const unsigned char *a = p, *b = p + 8 * lane, *d = p + 16 * lane;
        const unsigned char *stop = b - 8; /* the last word of each lane goes with the joining */
        uint64_t c1 = 0, c2 = 0, w, joined;
        for (; a + 32 <= stop; a += 32, b += 32, d += 32) {
            c = regraft_crc32c_word(c, a);
            c1 = regraft_crc32c_word(c1, b);
            c2 = regraft_crc32c_word(c2, d);
            c = regraft_crc32c_word(c, a + 8);
            c1 = regraft_crc32c_word(c1, b + 8);
            c2 = regraft_crc32c_word(c2, d + 8);
            c = regraft_crc32c_word(c, a + 16);
            c1 = regraft_crc32c_word(c1, b + 16);
            c2 = regraft_crc32c_word(c2, d + 16);
            c = regraft_crc32c_word(c, a + 24);
            c1 = regraft_crc32c_word(c1, b + 24);
            c2 = regraft_crc32c_word(c2, d + 24);
        }
        for (; a < stop; a += 8, b += 8, d += 8) {
            c = regraft_crc32c_word(c, a);
            c1 = regraft_crc32c_word(c1, b);
            c2 = regraft_crc32c_word(c2, d);
        }
        c = regraft_crc32c_word(c, a);
        c1 = regraft_crc32c_word(c1, b);
        joined = regraft_clmul(c, regraft_crc32c_shift[2 * lane]) ^
                 regraft_clmul(c1, regraft_crc32c_shift[lane]);
        memcpy(&w, d, 8);
        c = regraft_crc32c_value(c2, w ^ joined);
        p += 24 * lane;
        words -= 3 * lane;
    }
    for (; words; words--, p += 8) c = regraft_crc32c_word(c, p);
    return c;
}

static inline uint32_t regraft_crc32c_more(uint32_t value, const unsigned char *p, ptrdiff_t start,
                                           ptrdiff_t end) {
    if (!REGRAFT_LIKELY(regraft_crc32c_hardware))
        return regraft_crc32c_portable(value, p, start, end);
    uint64_t c = (uint32_t)~value;
    size_t n = (size_t)(end - start);
    p += start;
    if (n >= REGRAFT_CRC32C_LANES_FROM) {
        size_t whole = n & ~(size_t)7;
        c = regraft_crc32c_lanes(c, p, whole / 8);
        p += whole;
    } else {
        for (const unsigned char *stop = p + (n & ~(size_t)7); p != stop; p += 8)
            c = regraft_crc32c_word(c, p);
    }
    if (n & 4) {
        uint32_t v;
        memcpy(&v, p, 4);
        __asm__("crc32l %1, %k0" : "+r"(c) : "r"(v));
        p += 4;
    }
    if (n & 2) {
        uint16_t v;
        memcpy(&v, p, 2);
        __asm__("crc32w %1, %k0" : "+r"(c) : "r"(v));
        p += 2;
    }
    if (n & 1) __asm__("crc32b %1, %k0" : "+r"(c) : "q"(*p));
    return ~(uint32_t)c;
}

/* ---- aarch64 ------------------------------------------------------------------------------ */

#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32) && !defined(__AARCH64EB__)
#include <arm_acle.h>

static inline uint32_t regraft_crc32c_more(uint32_t value, const unsigned char *p, ptrdiff_t start,
                                           ptrdiff_t end) {
    const unsigned char *last = p + end;
    uint32_t c = ~value;
    for (p += start; last - p >= 8; p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        c = __crc32cd(c, v);
    }
    for (; p < last; p++) c = __crc32cb(c, *p);
    return ~c;
}

/* ---- the rest ----------------------------------------------------------------------------- */

#else

static inline uint32_t regraft_crc32c_more(uint32_t value, const unsigned char *p, ptrdiff_t start,
                                           ptrdiff_t end) {
    return regraft_crc32c_portable(value, p, start, end);
}

#endif

static inline uint32_t regraft_crc32c_at(const unsigned char *p, ptrdiff_t start, ptrdiff_t end) {
    return regraft_crc32c_more(0, p, start, end);
}

#endif
