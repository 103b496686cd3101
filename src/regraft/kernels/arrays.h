/* Memory and hashing for the indexes. */
#ifndef REGRAFT_ARRAYS_H
#define REGRAFT_ARRAYS_H

#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Ask for memory that will be looked at soon. */
#if defined(__GNUC__)
#define regraft_prefetch(p) __builtin_prefetch(p)
#else
#define regraft_prefetch(p) ((void)0)
#endif

/* Large arrays are pages of their own: they grow without being copied, and hold zeros without being
   written, so that nobody waits for it. On Linux the pages are large ones where the system has
   them: most looks are at places far apart, and each would ask for another small page. */
#define REGRAFT_PAGE ((size_t)2 << 20)

#if defined(__linux__)
#include <sys/mman.h>

#define regraft_is_large(size) ((size) >= REGRAFT_PAGE)

static inline size_t regraft_pages(size_t size) {
    return (size + REGRAFT_PAGE - 1) & ~(REGRAFT_PAGE - 1);
}

static inline char *regraft_map(size_t size) {
    char *p = (char *)mmap(NULL, size + REGRAFT_PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t before;
    if (p == (char *)MAP_FAILED) return NULL;
    before = (size_t)(-(uintptr_t)p) & (REGRAFT_PAGE - 1);
    if (before) munmap(p, before);
    munmap(p + before + size, REGRAFT_PAGE - before);
    madvise(p + before, size, MADV_HUGEPAGE); /* if it cannot be, small ones will do */
    return p + before;
}

static inline void *regraft_enlarge(void *a, size_t old, size_t size) {
    size_t pages = regraft_pages(size), had = regraft_is_large(old) ? regraft_pages(old) : 0;
    char *p;
    if (pages == had) return a;
    p = regraft_map(pages);
    if (p == NULL) return NULL;
    if (had == 0) {
        if (old) memcpy(p, a, old);
        free(a);
    } else if (mremap(a, had, had, MREMAP_MAYMOVE | MREMAP_FIXED, p) == MAP_FAILED) {
        munmap(p, pages);
        return NULL;
    }
    return p;
}

static inline void regraft_free(void *a, size_t size) {
    if (regraft_is_large(size)) munmap(a, regraft_pages(size));
    else free(a);
}
#else
#define regraft_is_large(size) 0
#define regraft_enlarge(a, old, size) NULL
#define regraft_free(a, size) free(a)
#endif

/* From `old` bytes to `size`, which are more; what is new is zeroed. NULL: no memory. */
static inline void *regraft_more(void *a, size_t old, size_t size) {
    char *grown;
    if (regraft_is_large(size)) return regraft_enlarge(a, old, size);
    grown = (char *)realloc(a, size);
    if (grown != NULL) memset(grown + old, 0, size - old);
    return grown;
}

/* Room for n items of `size` bytes: half as much again at least, and zeroed. NULL: no memory. */
static inline void *regraft_grow(void *a, Py_ssize_t *room, Py_ssize_t n, size_t size) {
    Py_ssize_t more = *room + *room / 2 + 8;
    void *grown;
    if (more < n) more = n;
    grown = regraft_more(a, (size_t)*room * size, (size_t)more * size);
    if (grown != NULL) *room = more;
    return grown;
}

static inline uint64_t regraft_mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9E3779B97F4A7C15ULL;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ULL;
    return x ^ (x >> 32);
}

/* Eight bytes a step; seeded, so that nobody outside can choose texts that collide. */
static inline uint64_t regraft_hash(const unsigned char *p, Py_ssize_t n, uint64_t seed) {
    uint64_t h = seed ^ ((uint64_t)n * 0x9E3779B97F4A7C15ULL), w;
    while (n >= 8) {
        memcpy(&w, p, 8);
        h = regraft_mix(h ^ w);
        p += 8;
        n -= 8;
    }
    w = 0;
    memcpy(&w, p, (size_t)n);
    return regraft_mix(h ^ w);
}

/* One table for all: places hold a value and its 64-bit key, side by side, so that a look at one is
   one look at memory. It is at most two thirds full, and doubles.

   A large one is not moved to its new places at once, which would take milliseconds: with every
   change a few places of the old ones are, in order. Until then a key may be in either: those
   whose home is not moved yet come to the old places, and what is behind `moved` there is void. */
typedef struct {
    uint64_t key;
    uint32_t held; /* value + 1; 0: empty; GONE: was, in an old place */
} regraft_place;

typedef struct {
    regraft_place *places;
    uint64_t mask; /* places - 1 */
    Py_ssize_t n;
    regraft_place *old; /* NULL: all are moved */
    uint64_t old_mask;
    uint64_t moved;
} regraft_table;

#define REGRAFT_GONE 0xFFFFFFFFu
#define REGRAFT_AT_ONCE 4096 /* places that are moved at once */
#define REGRAFT_MOVES 16     /* places that are moved with every change of a larger table */

static inline void regraft_free_table(regraft_table *t) {
    if (t->places != NULL) regraft_free(t->places, (t->mask + 1) * sizeof(regraft_place));
    if (t->old != NULL) regraft_free(t->old, (t->old_mask + 1) * sizeof(regraft_place));
}

/* A key among some places; a value of -1 stands for any. NULL: it is not there. */
static inline regraft_place *regraft_seek(regraft_place *places, uint64_t mask, uint64_t moved,
                                          uint64_t key, int32_t value) {
    uint64_t i = regraft_mix(key) & mask;
    while (places[i].held != 0) {
        if (places[i].key == key && i >= moved && places[i].held != REGRAFT_GONE &&
            (value < 0 || places[i].held == (uint32_t)value + 1))
            return places + i;
        i = (i + 1) & mask;
    }
    return NULL;
}

static inline regraft_place *regraft_place_of(const regraft_table *t, uint64_t key, int32_t value) {
    regraft_place *place;
    if (t->n == 0) return NULL;
    place = regraft_seek(t->places, t->mask, 0, key, value);
    if (place == NULL && t->old != NULL)
        place = regraft_seek(t->old, t->old_mask, t->moved, key, value);
    return place;
}

static inline int32_t regraft_find(const regraft_table *t, uint64_t key) {
    const regraft_place *place = regraft_place_of(t, key, -1);
    return place == NULL ? -1 : (int32_t)(place->held - 1);
}

static inline void regraft_settle(regraft_place *places, uint64_t mask, regraft_place place) {
    uint64_t i = regraft_mix(place.key) & mask;
    while (places[i].held != 0) i = (i + 1) & mask;
    places[i] = place;
}

/* Move some of the old places. */
static inline void regraft_move(regraft_table *t, uint64_t count) {
    regraft_place place;
    for (; count > 0 && t->moved <= t->old_mask; count--) {
        place = t->old[t->moved++];
        if (place.held != 0 && place.held != REGRAFT_GONE)
            regraft_settle(t->places, t->mask, place);
    }
    if (t->moved > t->old_mask) {
        regraft_free(t->old, (t->old_mask + 1) * sizeof(regraft_place));
        t->old = NULL;
    }
}

/* Before something changes: go on moving, and make room for one more. */
static inline int regraft_room(regraft_table *t) {
    regraft_place *places;
    uint64_t size;
    if (t->old != NULL) regraft_move(t, REGRAFT_MOVES);
    if (t->places != NULL && (uint64_t)(t->n + 1) * 3 <= (t->mask + 1) * 2) return 0;
    if (t->old != NULL) regraft_move(t, t->old_mask + 1);
    size = t->places == NULL ? 8 : (t->mask + 1) * 2;
    places = (regraft_place *)regraft_more(NULL, 0, size * sizeof(regraft_place));
    if (places == NULL) return -1;
    t->old = t->places;
    t->old_mask = t->mask;
    t->moved = 0;
    t->places = places;
    t->mask = size - 1;
    if (t->old != NULL && size <= REGRAFT_AT_ONCE) regraft_move(t, size);
    return 0;
}

/* Several values may be under one key: texts whose hashes are equal. */
static inline int regraft_append(regraft_table *t, uint64_t key, int32_t value) {
    regraft_place place;
    uint64_t i;
    if (regraft_room(t) < 0) return -1;
    place.key = key;
    place.held = (uint32_t)value + 1;
    t->n++;
    if (t->old != NULL && (i = regraft_mix(key) & t->old_mask) >= t->moved) {
        while (i <= t->old_mask && t->old[i].held != 0) i++;
        if (i <= t->old_mask) { /* not around the end, where all is moved */
            t->old[i] = place;
            return 0;
        }
    }
    regraft_settle(t->places, t->mask, place);
    return 0;
}

static inline int regraft_store(regraft_table *t, uint64_t key, int32_t value) {
    regraft_place *place = regraft_place_of(t, key, -1);
    if (place == NULL) return regraft_append(t, key, value);
    place->held = (uint32_t)value + 1;
    return 0;
}

/* Empty a place, and close the gap behind it. */
static inline void regraft_empty(regraft_table *t, regraft_place *place) {
    uint64_t i = (uint64_t)(place - t->places), j = i, home;
    for (;;) {
        t->places[i].held = 0;
        for (;;) {
            j = (j + 1) & t->mask;
            if (t->places[j].held == 0) return;
            home = regraft_mix(t->places[j].key) & t->mask;
            if (((j - home) & t->mask) >= ((j - i) & t->mask)) break;
        }
        t->places[i] = t->places[j];
        i = j;
    }
}

/* Forget a key, if it is there; of several values this one, or any if it is -1. */
static inline void regraft_erase(regraft_table *t, uint64_t key, int32_t value) {
    regraft_place *place = regraft_place_of(t, key, value);
    if (place == NULL) return;
    if (place >= t->places && place <= t->places + t->mask)
        regraft_empty(t, place);
    else
        place->held = REGRAFT_GONE;
    t->n--;
    if (t->old != NULL) regraft_move(t, REGRAFT_MOVES);
}

#endif
