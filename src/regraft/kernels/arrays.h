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

/* Room for n items of `size` bytes: half as much again at least, and zeroed. NULL: no memory. */
static inline void *regraft_grow(void *a, Py_ssize_t *room, Py_ssize_t n, size_t size) {
    Py_ssize_t more = *room + *room / 2 + 8;
    void *grown;
    if (more < n) more = n;
    grown = realloc(a, (size_t)more * size);
    if (grown == NULL) return NULL;
    memset((char *)grown + (size_t)*room * size, 0, (size_t)(more - *room) * size);
    *room = more;
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

/* One table for all: places hold a value (-1: empty) and its 64-bit key, side by side, so that a
   look at one is one look at memory. */
typedef struct {
    uint64_t key;
    int32_t value;
} regraft_place;

typedef struct {
    regraft_place *places;
    uint64_t mask; /* places - 1 */
    Py_ssize_t n;
} regraft_table;

static inline int32_t regraft_find(const regraft_table *t, uint64_t key) {
    uint64_t i;
    if (t->n == 0) return -1;
    i = regraft_mix(key) & t->mask;
    while (t->places[i].value >= 0) {
        if (t->places[i].key == key) return t->places[i].value;
        i = (i + 1) & t->mask;
    }
    return -1;
}

static inline int regraft_resize(regraft_table *t, uint64_t size) {
    regraft_place *places = (regraft_place *)malloc(size * sizeof(regraft_place));
    uint64_t i, j;
    if (places == NULL) return -1;
    memset(places, 0xFF, size * sizeof(regraft_place));
    if (t->places != NULL) {
        for (i = 0; i <= t->mask; i++) {
            if (t->places[i].value < 0) continue;
            j = regraft_mix(t->places[i].key) & (size - 1);
            while (places[j].value >= 0) j = (j + 1) & (size - 1);
            places[j] = t->places[i];
        }
    }
    free(t->places);
    t->places = places;
    t->mask = size - 1;
    return 0;
}

/* At most two thirds full. */
static inline int regraft_room(regraft_table *t) {
    if (t->places == NULL) return regraft_resize(t, 8);
    if ((uint64_t)(t->n + 1) * 3 > (t->mask + 1) * 2) return regraft_resize(t, (t->mask + 1) * 2);
    return 0;
}

static inline int regraft_store(regraft_table *t, uint64_t key, int32_t value) {
    uint64_t i;
    if (regraft_room(t) < 0) return -1;
    i = regraft_mix(key) & t->mask;
    while (t->places[i].value >= 0 && t->places[i].key != key) i = (i + 1) & t->mask;
    if (t->places[i].value < 0) t->n++;
    t->places[i].key = key;
    t->places[i].value = value;
    return 0;
}

/* Empty place i and close the gap behind it. */
static inline void regraft_empty(regraft_table *t, uint64_t i) {
    uint64_t j = i, home;
    t->n--;
    for (;;) {
        t->places[i].value = -1;
        for (;;) {
            j = (j + 1) & t->mask;
            if (t->places[j].value < 0) return;
            home = regraft_mix(t->places[j].key) & t->mask;
            if (((j - home) & t->mask) >= ((j - i) & t->mask)) break;
        }
        t->places[i] = t->places[j];
        i = j;
    }
}

static inline void regraft_erase(regraft_table *t, uint64_t key) {
    uint64_t i;
    if (t->n == 0) return;
    i = regraft_mix(key) & t->mask;
    while (t->places[i].value >= 0) {
        if (t->places[i].key == key) {
            regraft_empty(t, i);
            return;
        }
        i = (i + 1) & t->mask;
    }
}

/* The same with several values under one key: texts whose hashes may be equal. */
static inline int regraft_append(regraft_table *t, uint64_t key, int32_t value) {
    uint64_t i;
    if (regraft_room(t) < 0) return -1;
    i = regraft_mix(key) & t->mask;
    while (t->places[i].value >= 0) i = (i + 1) & t->mask;
    t->n++;
    t->places[i].key = key;
    t->places[i].value = value;
    return 0;
}

static inline void regraft_remove(regraft_table *t, uint64_t key, int32_t value) {
    uint64_t i = regraft_mix(key) & t->mask;
    while (t->places[i].key != key || t->places[i].value != value) i = (i + 1) & t->mask;
    regraft_empty(t, i);
}

#endif
