/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The store: items in slabs, found through a hash table, thrown out in the order of their last use.
 *
 * An item has no fixed address. A user finds it through the hash table, under the lock of
 * its stripe, and is done with it before that lock is let go. So a thread that holds the lock may
 * move the item elsewhere, and that is all that compaction needs.
 *
 *   key --hash--> stripe (lock, buckets) --chain--> item in a slot of the arena
 *
 *   arena:   |  page  |  page  |  page  |  page  |  page  |  page  | ...   1 MiB each
 *            |   base pages    |  hot: superpage |   base pages    |       2 MiB each
 *
 * A hot region is nothing but two pages of the arena that became a superpage. Compaction has items
 * in demand change places with items on it that nobody asks for, so memory in use stays the same.
 *
 * Locks, in the order in which they may be taken: a stripe, then a class or the table. A second
 * stripe is only ever tried, never waited for.
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
    PAGES_PER_REGION = SUPERPAGE_BYTES / PAGE_BYTES,
    BASE_PAGE_BYTES = 4096,
    STRIPES = 1024,             /* a power of two */
    CLASSES_MAX = 63,
    TABLE_LEVELS = 24,          /* sizes of a stripe's buckets, each twice the one before */
};

/* What a slot holds. In the low byte of the item's tag. */
enum item_state {
    ITEM_FREE = 0,              /* nothing; also what fresh memory says */
    ITEM_OWNED = 1,             /* an item that one connection is still filling */
    ITEM_LINKED = 2,            /* an item that is in the hash table */
};

struct item {
    /* hash << 8 | state, in one word so that compaction, which meets slots by address and holds no
     * lock yet, never sees the state of one item with the hash of the next. Everything else is
     * guarded by the stripe of that hash once linked, and by its owner before. */
    _Atomic uint64_t tag;
    struct item *chain;         /* next of the bucket; of the free list for a free slot */
    struct item *newer, *older; /* order of use within the class; guarded by the class's lock */
    _Atomic uint32_t heat;      /* epoch of the last access << 16 | accesses: see item_heat().
                                   Written under the stripe, read by compaction without. */
    uint32_t bumped;            /* second in which it last went to the front of the order of use */
    uint64_t cas;
    uint32_t flags;
    uint32_t bytes;             /* of the value */
    uint32_t expires;           /* second from which it is dead, 0 never */
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

/* Accesses of late: the count, halved once for every epoch that ended since the last. */
static inline unsigned item_heat(const struct item *item, uint32_t epoch)
{
    uint32_t heat = atomic_load_explicit(&item->heat, memory_order_relaxed);
    uint16_t halvings = (uint16_t)(epoch - (heat >> 16));
    return halvings > 15 ? 0 : (heat & UINT16_MAX) >> halvings;
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

/* One cache line. */
struct stripe {
    pthread_mutex_t lock;
    struct item **buckets;
    uint32_t mask;              /* buckets - 1 */
    uint32_t items;
    uint32_t accesses;          /* and of these, to items on hot regions; both wrap */
    uint32_t hot_accesses;
} __attribute__((aligned(64)));

/* The buckets of all stripes, size by size. Stripes double at nearly the same time, so those in use
 * lie side by side and fill superpages; what they grew out of goes back to the kernel.
 *
 *   level 6:  | stripe 0: 1,024 buckets | stripe 1: 1,024 buckets | ...   8 MiB in all
 */
struct table {
    pthread_mutex_t lock;
    char *levels[TABLE_LEVELS];
    uint32_t users[TABLE_LEVELS]; /* stripes whose buckets are there */
};

/* Which pages of the arena are hot. Written by the one thread that compacts. */
struct hot_area {
    _Atomic uint32_t epoch;     /* the time by which heat is told: see hot_tick() */
    uint32_t regions, limit;    /* hot ones there are, may be */
    _Atomic uint8_t *page_hot;  /* of each page of the arena */
    uint32_t *pages;            /* the hot ones by number, in the order in which they became so */
    uint32_t hand[CLASSES_MAX]; /* place, in that order, at which the class looks for room next */
    uint64_t *active;           /* bitmap of base pages of the arena: what notices told */
    uint64_t *warm;             /* bitmap of those with items that were asked for of late; scratch */
    uint64_t *region_heat;      /* of each 2 MiB of the arena; scratch */
    bool noticed;               /* there was a notice */
    uint32_t seen, seen_hot;    /* sums of the stripes' counts at the last look */
    uint64_t pending;           /* accesses of this epoch */
    uint32_t rest, rest_left;   /* epochs between two compactions, and until the next */
    /* Makes 2 MiB that are aligned a superpage; false if the kernel does not. */
    bool (*collapse)(void *context, void *start);
    void *collapse_context;
    char *collapsed;            /* level of the table that was made superpages */
};

struct cache {
    struct stripe stripes[STRIPES];
    struct table table;
    struct slab_class classes[CLASSES_MAX];
    int class_count;
    char *arena;                /* address space of every cold page; 2 MiB aligned */
    size_t arena_bytes;
    uint32_t page_limit;        /* cold pages that may be in use; a class without any gets one more */
    _Atomic uint32_t pages;
    _Atomic uint8_t *page_class; /* class + 1 of each page, 0 if not in use */
    struct hot_area hot;
    uint64_t seed;
    /* Apart from what is only read. */
    _Alignas(64) _Atomic uint64_t cas;       /* the last one given out */
    _Atomic uint64_t flushed;   /* items with a cas up to this one are dead */
    _Atomic uint32_t flush_at;  /* second in which to flush, 0 none */
    _Atomic uint64_t items, bytes, total_items;
};

enum store_mode { STORE_SET, STORE_ADD, STORE_REPLACE, STORE_APPEND, STORE_PREPEND, STORE_CAS };

enum result {
    RESULT_OK, RESULT_NOT_STORED, RESULT_EXISTS, RESULT_NOT_FOUND, RESULT_TOO_LARGE,
    RESULT_NO_MEMORY, RESULT_NOT_NUMBER,
};

/* A cache of at most `limit` bytes of items, of which `hot` may be superpages. NULL if there is no
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
/* Has the table refer to `to` in place of `from`, which is linked; if `first`, before all others of
 * its bucket. With its stripe's lock. */
void cache_relink(struct cache *cache, struct item *from, struct item *to, bool first);
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

/* ---- table.c: memory of the buckets ---- */

bool table_init(struct table *table);
void table_destroy(struct table *table);
/* Buckets of a stripe at a level, all zero: 16 at level 0, twice as many at the next. NULL if there
 * is no memory. */
struct item **table_take(struct table *table, uint32_t stripe, uint32_t level);
void table_give(struct table *table, uint32_t stripe, uint32_t level);
/* The memory in which every stripe has its buckets, if it is whole superpages; else NULL. */
char *table_settled(struct table *table, size_t *bytes);

/* ---- slab.c: slots ---- */

bool slab_init(struct cache *cache, size_t limit, uint32_t min_slot, double factor);
void slab_destroy(struct cache *cache);
/* The smallest class with room for so many bytes, or -1. */
int slab_class_for(const struct cache *cache, size_t bytes);
/* A free slot, throwing out what was not used for longest if there is no other. */
struct item *slab_alloc(struct cache *cache, int class, uint32_t now);
/* Gives back a slot that is not linked. */
void slab_free(struct cache *cache, struct item *item);
void slab_lru_add(struct cache *cache, struct item *item);
void slab_lru_remove(struct cache *cache, struct item *item);
/* Puts one where the other was. */
void slab_lru_replace(struct cache *cache, struct item *from, struct item *to);
/* Moves an item to the front of the order of use. */
void slab_lru_bump(struct cache *cache, struct item *item, uint32_t now);
/* Whether all slots of a page were used before, so that its memory is there. */
bool slab_page_is_whole(struct cache *cache, uint32_t page);

static inline uint32_t slab_page_of(const struct cache *cache, const void *address)
{
    return (uint32_t)((size_t)((const char *)address - cache->arena) / PAGE_BYTES);
}

/* Class of a page; -1 if it is not in use. */
static inline int slab_class_of_page(const struct cache *cache, uint32_t page)
{
    return atomic_load_explicit(&cache->page_class[page], memory_order_acquire) - 1;
}

/* ---- hot.c: hot regions ---- */

struct hot_counters {
    _Atomic uint64_t notifications, compactions, pages, moved, moved_bytes, displaced, gone, no_room,
        superpages, failed, threshold, table_bytes, accesses, hot_accesses;
};

bool hot_init(struct cache *cache, size_t bytes);
void hot_destroy(struct cache *cache);

static inline bool hot_holds(const struct cache *cache, const struct item *item)
{
    return atomic_load_explicit(&cache->hot.page_hot[slab_page_of(cache, item)],
                                memory_order_relaxed);
}

/* These of one thread only. */

/* What was accessed: first that there is news, then every range of it. What lies outside the arena
 * is passed over. */
void hot_notice(struct cache *cache);
void hot_notice_range(struct cache *cache, uintptr_t start, size_t bytes);
/* Ends an epoch if enough was asked for, and compacts if it is time. To be called every second or
 * so. `min_heat`: accesses of late that make an item hot. `stop`: leave off when it becomes true. */
void hot_tick(struct cache *cache, unsigned min_heat, uint32_t now, const _Atomic bool *stop,
              struct hot_counters *counters);

#endif
