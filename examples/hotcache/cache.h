/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The store: items in slabs, found through a hash table, thrown out in the order of their last use.
 *
 * An item has no fixed address. Whoever wants one goes through the hash table, under the lock of
 * its stripe, and is done with it before that lock is let go. So a thread that holds the lock may
 * move the item elsewhere, and that is all that compaction needs.
 *
 *   key --hash--> stripe (lock, buckets) --chain--> item
 *                                                    |  on a cold page: 1 MiB of the arena
 *                                                    |  or in a hot chunk: 64 KiB of a superpage
 *
 * Locks, in the order in which they may be taken: a stripe, then a class, then the hot area. A
 * second stripe is only ever tried, never waited for.
 */
#ifndef HOTCACHE_CACHE_H
#define HOTCACHE_CACHE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KEY_MAX_BYTES = 250,
    PAGE_BYTES = 1 << 20,       /* a slab page, and so the largest item with its header */
    SUPERPAGE_BYTES = 2 << 20,
    CHUNK_BYTES = 64 << 10,     /* the part of a superpage that one class has */
    CHUNKS_PER_SUPERPAGE = SUPERPAGE_BYTES / CHUNK_BYTES,
    BASE_PAGE_BYTES = 4096,
    STRIPES = 1024,             /* a power of two */
    CLASSES_MAX = 63,
    HALF_LIFE = 4,              /* seconds in which an item's count of accesses halves */
};

/* What a slot holds. In the low byte of the item's tag. */
enum item_state {
    ITEM_FREE = 0,              /* nothing; also what fresh memory says */
    ITEM_OWNED = 1,             /* an item that one connection is still filling */
    ITEM_LINKED = 2,            /* an item that is in the hash table */
};

#define NO_CHUNK UINT16_MAX     /* `chunk` of an item on a cold page */

struct item {
    /* hash << 8 | state, in one word so that compaction, which meets slots by address and holds no
     * lock yet, never sees the state of one item with the hash of the next. Everything else is
     * guarded by the stripe of that hash once linked, and by its owner before. */
    _Atomic uint64_t tag;
    struct item *chain;         /* next of the bucket; of the free list for a free slot */
    struct item *newer, *older; /* order of use within the class; guarded by the class's lock */
    uint64_t cas;
    uint32_t flags;
    uint32_t bytes;             /* of the value */
    uint32_t expires;           /* second from which it is dead, 0 never */
    uint32_t accessed;          /* second of the last access */
    uint32_t bumped;            /* second in which it last went to the front of the order of use */
    uint16_t count;             /* accesses, halved every HALF_LIFE: see item_heat() */
    uint16_t chunk;             /* of the hot area, or NO_CHUNK */
    uint8_t class;
    uint8_t key_len;
    char data[];                /* key, value */
};

/* Bytes of an item before its key; sizeof would count padding in which the key begins. */
#define ITEM_HEAD offsetof(struct item, data)

/* All of an item. */
static inline size_t item_bytes(const struct item *item)
{
    return ITEM_HEAD + item->key_len + item->bytes;
}

static inline char *item_key(const struct item *item) { return (char *)(uintptr_t)item->data; }
static inline char *item_value(const struct item *item) { return item_key(item) + item->key_len; }

/* Accesses of late: the count, halved once more for every HALF_LIFE since the last. */
static inline unsigned item_heat(const struct item *item, uint32_t now)
{
    uint32_t halvings = (now - item->accessed) / HALF_LIFE;
    return halvings > 15 ? 0 : item->count >> halvings;
}

struct slab_class {
    pthread_mutex_t lock;
    uint32_t size;              /* of a slot */
    struct item *free;          /* slots that were used before */
    char *fresh;                /* slots of the newest page that were not */
    uint32_t fresh_left;
    struct item *newest, *oldest;
    uint64_t pages, linked, evicted, reclaimed;
};

struct stripe {
    pthread_mutex_t lock;
    struct item **buckets;
    uint32_t mask;              /* buckets - 1 */
    uint32_t items;
} __attribute__((aligned(64)));

/* 64 KiB of a superpage: slots of one class, or none. */
struct chunk {
    char *start;
    struct item *free;
    uint32_t used;              /* slots that hold an item */
    uint32_t carved;            /* slots ever used; the rest is fresh */
    int class;                  /* -1: in nobody's use */
};

/* The hot area: superpages to which compaction moves items. Only the thread that compacts takes
 * slots, assigns chunks and adds superpages; every thread gives slots back. */
struct hot_area {
    pthread_mutex_t lock;
    struct chunk *chunks;
    uint32_t count, limit;      /* chunks there are, may be */
    uint32_t hand;              /* chunk that the search for something colder looks at next */
    void *(*superpage_alloc)(size_t bytes);
    void (*superpage_free)(void *start, size_t bytes);
    void **superpages;
    _Atomic uint64_t items, bytes;
};

struct cache {
    struct stripe stripes[STRIPES];
    struct slab_class classes[CLASSES_MAX];
    int class_count;
    char *arena;                /* address space of every cold page; 2 MiB aligned */
    size_t arena_bytes;
    uint32_t page_limit;        /* cold pages that may be in use; a class without any gets one more */
    _Atomic uint32_t pages;
    _Atomic uint8_t *page_class; /* class + 1 of each page, 0 if not in use */
    struct hot_area hot;
    uint64_t seed;
    _Atomic uint64_t cas;       /* the last one given out */
    _Atomic uint64_t flushed;   /* items with a cas up to this one are dead */
    _Atomic uint32_t flush_at;  /* second in which to flush, 0 none */
    _Atomic uint64_t items, bytes, total_items;
};

enum store_mode { STORE_SET, STORE_ADD, STORE_REPLACE, STORE_APPEND, STORE_PREPEND, STORE_CAS };

enum result {
    RESULT_OK, RESULT_NOT_STORED, RESULT_EXISTS, RESULT_NOT_FOUND, RESULT_TOO_LARGE,
    RESULT_NO_MEMORY, RESULT_NOT_NUMBER,
};

/* A cache of at most `limit` bytes of items, of which `hot` are for superpages. NULL if there is no
 * memory for its tables. */
struct cache *cache_create(size_t limit, size_t hot, uint32_t min_slot, double factor);
void cache_destroy(struct cache *cache);

/* A new item, to be filled by the caller and then handed to cache_store() or cache_drop(). */
enum result cache_new(struct cache *cache, const char *key, size_t key_len, uint32_t flags,
                      uint32_t expires, size_t bytes, uint32_t now, struct item **item);
void cache_drop(struct cache *cache, struct item *item);
/* Takes the item, whatever the result. `cas` matters for STORE_CAS. */
enum result cache_store(struct cache *cache, struct item *item, enum store_mode mode, uint64_t cas,
                        uint32_t now);

/* Calls `emit` with the item of that key while it is locked. Counts as an access. If `expires` is
 * given, sets it. */
bool cache_get(struct cache *cache, const char *key, size_t key_len, uint32_t now,
               const uint32_t *expires, void (*emit)(void *context, const struct item *item),
               void *context);
bool cache_delete(struct cache *cache, const char *key, size_t key_len, uint32_t now);
/* Adds to (or takes from) a decimal value; the new one goes to `value`. */
enum result cache_add_number(struct cache *cache, const char *key, size_t key_len, bool increase,
                             uint64_t delta, uint32_t now, uint64_t *value);
/* Everything there is dies now, or in that second. */
void cache_flush(struct cache *cache, uint32_t at);
/* Once a second or so. */
void cache_tick(struct cache *cache, uint32_t now);

/* ---- for compaction: hot.c ---- */

uint64_t cache_hash(const struct cache *cache, const char *key, size_t len);
struct stripe *cache_stripe(struct cache *cache, uint64_t hash);
/* The place that refers to a linked item. With its stripe's lock. */
struct item **cache_link_of(struct cache *cache, struct item *item);
bool cache_is_dead(const struct cache *cache, const struct item *item, uint32_t now);
void cache_unlink(struct cache *cache, struct item *item);

static inline uint64_t item_tag(const struct item *item)
{
    return atomic_load_explicit(&item->tag, memory_order_acquire);
}

static inline void item_set_tag(struct item *item, uint64_t hash, enum item_state state)
{
    atomic_store_explicit(&item->tag, hash << 8 | (uint64_t)state, memory_order_release);
}

static inline uint64_t tag_hash(uint64_t tag) { return tag >> 8; }
static inline enum item_state tag_state(uint64_t tag) { return (enum item_state)(tag & 0xff); }

/* ---- slab.c: slots ---- */

bool slab_init(struct cache *cache, size_t limit, uint32_t min_slot, double factor);
void slab_destroy(struct cache *cache);
/* The smallest class with room for so many bytes, or -1. */
int slab_class_for(const struct cache *cache, size_t bytes);
/* A free slot on a cold page, throwing out what was not used for longest if there is no other. */
struct item *slab_alloc(struct cache *cache, int class, uint32_t now);
/* Gives back a slot, cold or hot, that is not linked. */
void slab_free(struct cache *cache, struct item *item);
void slab_lru_add(struct cache *cache, struct item *item);
void slab_lru_remove(struct cache *cache, struct item *item);
/* Moves an item to the front of the order of use. */
void slab_lru_bump(struct cache *cache, struct item *item, uint32_t now);

/* ---- hot.c: the hot area ---- */

struct hot_counters {
    _Atomic uint64_t notifications, pages, moved, moved_bytes, cooled, cold_skipped, busy_skipped,
        full, superpages, no_superpage;
};

bool hot_init(struct cache *cache, size_t bytes);
void hot_destroy(struct cache *cache);
void hot_free(struct cache *cache, struct item *item);
/* Moves the hot items of these base pages to superpages. `min_heat`: accesses of late that make an
 * item hot. One thread at a time. */
void hot_compact(struct cache *cache, const uintptr_t *pages, size_t count, unsigned min_heat,
                 uint32_t now, struct hot_counters *counters);
/* Bytes of items on these base pages that are hot. */
size_t hot_bytes_on(struct cache *cache, const uintptr_t *pages, size_t count, unsigned min_heat,
                    uint32_t now);
/* Moves items that nobody asks for any more back to cold pages. Same thread as hot_compact(). */
void hot_cool(struct cache *cache, uint32_t now, struct hot_counters *counters);

#endif
