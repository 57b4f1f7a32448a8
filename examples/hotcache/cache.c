/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The hash table, and what commands do to items.
 *
 * Each of the 1,024 stripes is a small hash table with a lock of its own that doubles by itself, so
 * growing stalls a thousandth of the keys for some microseconds and nobody else.
 */
#define _GNU_SOURCE
#include "cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { FIRST_BUCKETS = 16 /* as table.c */, LARGEST_NUMBER = 20 };

struct cache *cache_create(size_t limit, size_t hot, uint32_t min_slot, double factor)
{
    struct cache *cache = aligned_alloc(64, (sizeof *cache + 63) / 64 * 64);
    if (!cache)
        return NULL;
    memset(cache, 0, sizeof *cache);
    /* Keys come from strangers: without a secret they could all be chosen for one bucket. */
    if (getrandom(&cache->seed, sizeof cache->seed, GRND_NONBLOCK) != sizeof cache->seed)
        cache->seed = (uintptr_t)cache ^ 0x9e3779b97f4a7c15;
    bool fine = table_init(&cache->table);
    for (int i = 0; i < STRIPES; i++) {
        struct stripe *stripe = &cache->stripes[i];
        pthread_mutex_init(&stripe->lock, NULL);
        stripe->buckets = table_take(&cache->table, (uint32_t)i, 0);
        stripe->mask = FIRST_BUCKETS - 1;
        fine = fine && stripe->buckets;
    }
    if (!fine || !slab_init(cache, limit, min_slot, factor) || !hot_init(cache, hot)) {
        cache_destroy(cache);
        return NULL;
    }
    return cache;
}

void cache_destroy(struct cache *cache)
{
    hot_destroy(cache);
    slab_destroy(cache);
    for (int i = 0; i < STRIPES; i++)
        pthread_mutex_destroy(&cache->stripes[i].lock);
    table_destroy(&cache->table);
    free(cache);
}

/* Eight bytes at a time, each folded in by a 128-bit product; 56 bits, as a tag has room for. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t cache_hash(const struct cache *cache, const char *key, size_t len)
{
    uint64_t state = cache->seed ^ len;
    while (len > 0) {
        uint64_t word = 0;
        size_t part = len < sizeof word ? len : sizeof word;
        memcpy(&word, key, part);
        state = fold(state ^ word, 0x9e3779b97f4a7c15);
        key += part;
        len -= part;
    }
    return fold(state ^ cache->seed, 0xd1342543de82ef95) >> 8;
}

struct stripe *cache_stripe(struct cache *cache, uint64_t hash)
{
    return &cache->stripes[hash % STRIPES];
}

static struct item **bucket_of(struct stripe *stripe, uint64_t hash)
{
    return &stripe->buckets[hash / STRIPES & stripe->mask];
}

bool cache_is_dead(const struct cache *cache, const struct item *item, uint32_t now)
{
    return (item->expires != 0 && item->expires <= now) ||
           item->cas <= atomic_load_explicit(&cache->flushed, memory_order_relaxed);
}

static void grow(struct cache *cache, struct stripe *stripe)
{
    uint32_t mask = stripe->mask * 2 + 1;
    uint32_t number = (uint32_t)(stripe - cache->stripes);
    uint32_t level = (uint32_t)__builtin_ctz((stripe->mask + 1) / FIRST_BUCKETS);
    struct item **old = stripe->buckets;
    struct item **buckets = table_take(&cache->table, number, level + 1);
    if (!buckets)
        return; /* longer chains then */
    for (uint32_t i = 0; i <= stripe->mask; i++) {
        struct item *item = old[i];
        while (item) {
            struct item *next = item->chain;
            struct item **bucket = &buckets[tag_hash(item_tag(item)) / STRIPES & mask];
            item->chain = *bucket;
            *bucket = item;
            item = next;
        }
    }
    stripe->buckets = buckets;
    stripe->mask = mask;
    table_give(&cache->table, number, level);
}

static void link_item(struct cache *cache, struct stripe *stripe, struct item *item, uint64_t hash)
{
    if (stripe->items > stripe->mask)
        grow(cache, stripe);
    struct item **bucket = bucket_of(stripe, hash);
    item->chain = *bucket;
    *bucket = item;
    stripe->items++;
    /* The tag first: who finds it in the order of use needs to know its stripe. */
    item_set_tag(item, hash, ITEM_LINKED);
    slab_lru_add(cache, item);
    atomic_fetch_add_explicit(&cache->items, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&cache->bytes, item_bytes(item),
                              memory_order_relaxed);
}

/* The place that refers to a linked item. With its stripe's lock. */
static struct item **link_of(struct cache *cache, struct item *item)
{
    uint64_t hash = tag_hash(item_tag(item));
    struct item **link = bucket_of(cache_stripe(cache, hash), hash);
    while (*link != item)
        link = &(*link)->chain;
    return link;
}

void cache_relink(struct cache *cache, struct item *from, struct item *to, bool first)
{
    struct item **link = link_of(cache, from);
    if (first) {
        uint64_t hash = tag_hash(item_tag(from));
        *link = from->chain;
        link = bucket_of(cache_stripe(cache, hash), hash);
        to->chain = *link;
    } else {
        to->chain = from->chain;
    }
    *link = to;
}

/* Takes it out of the table and the order of use; the slot is the caller's. With the stripe. */
void cache_unlink(struct cache *cache, struct item *item)
{
    struct stripe *stripe = cache_stripe(cache, tag_hash(item_tag(item)));
    *link_of(cache, item) = item->chain;
    stripe->items--;
    slab_lru_remove(cache, item);
    atomic_fetch_sub_explicit(&cache->items, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&cache->bytes, item_bytes(item),
                              memory_order_relaxed);
}

/* The living item of the key. What is dead is thrown out on the way. With the stripe. */
static struct item *find(struct cache *cache, struct stripe *stripe, uint64_t hash, const char *key,
                         size_t key_len, uint32_t now)
{
    struct item *item = *bucket_of(stripe, hash);
    while (item && (tag_hash(item_tag(item)) != hash || item->key_len != key_len ||
                    memcmp(item_key(item), key, key_len) != 0))
        item = item->chain;
    if (item && cache_is_dead(cache, item, now)) {
        cache_unlink(cache, item);
        slab_free(cache, item);
        return NULL;
    }
    return item;
}

/* With the stripe of the item. */
static void count_access(struct cache *cache, struct stripe *stripe, struct item *item)
{
    uint32_t epoch = atomic_load_explicit(&cache->hot.epoch, memory_order_relaxed);
    unsigned heat = item_heat(item, epoch);
    heat += heat < UINT16_MAX;
    atomic_store_explicit(&item->heat, epoch << 16 | heat, memory_order_relaxed);
    stripe->accesses++;
    stripe->hot_accesses += hot_holds(cache, item);
}

/* What was in demand under this key still is. */
static void inherit_heat(struct item *item, const struct item *old)
{
    atomic_store_explicit(&item->heat, atomic_load_explicit(&old->heat, memory_order_relaxed),
                          memory_order_relaxed);
}

/* The same for one that is linked. */
static void accessed(struct cache *cache, struct stripe *stripe, struct item *item, uint32_t now)
{
    count_access(cache, stripe, item);
    slab_lru_bump(cache, item, now);
}

enum result cache_new(struct cache *cache, const char *key, size_t key_len, uint32_t flags,
                      uint32_t expires, size_t bytes, uint32_t now, struct item **made)
{
    int class = slab_class_for(cache, ITEM_HEAD + key_len + bytes);
    if (class < 0)
        return RESULT_TOO_LARGE;
    struct item *item = slab_alloc(cache, class, now);
    if (!item)
        return RESULT_NO_MEMORY;
    item->flags = flags;
    item->bytes = (uint32_t)bytes;
    item->expires = expires;
    item->bumped = now;
    atomic_store_explicit(&item->heat, 0, memory_order_relaxed);
    item->key_len = (uint8_t)key_len;
    memcpy(item_key(item), key, key_len);
    *made = item;
    return RESULT_OK;
}

void cache_drop(struct cache *cache, struct item *item) { slab_free(cache, item); }

/* A new item with the value of both, or NULL. With the stripe: eviction only tries other stripes
 * and leaves alone those of this one. */
static enum result join(struct cache *cache, struct item *first, struct item *second,
                        struct item *like, uint32_t now, struct item **joined)
{
    enum result result = cache_new(cache, item_key(like), like->key_len, like->flags, like->expires,
                                   (size_t)first->bytes + second->bytes, now, joined);
    if (result == RESULT_OK) {
        memcpy(item_value(*joined), item_value(first), first->bytes);
        memcpy(item_value(*joined) + first->bytes, item_value(second), second->bytes);
    }
    return result;
}

enum result cache_store(struct cache *cache, struct item *item, enum store_mode mode, uint64_t cas,
                        uint32_t now)
{
    uint64_t hash = cache_hash(cache, item_key(item), item->key_len);
    struct stripe *stripe = cache_stripe(cache, hash);
    pthread_mutex_lock(&stripe->lock);
    struct item *old = find(cache, stripe, hash, item_key(item), item->key_len, now);
    struct item *unused = NULL;
    enum result result = RESULT_OK;
    switch (mode) {
    case STORE_SET:
        break;
    case STORE_ADD:
        if (old) {
            accessed(cache, stripe, old, now); /* as memcached: a failed add counts as a use */
            result = RESULT_NOT_STORED;
        }
        break;
    case STORE_REPLACE:
        result = old ? RESULT_OK : RESULT_NOT_STORED;
        break;
    case STORE_CAS:
        result = !old ? RESULT_NOT_FOUND : old->cas == cas ? RESULT_OK : RESULT_EXISTS;
        break;
    case STORE_APPEND:
    case STORE_PREPEND:
        if (!old) {
            result = RESULT_NOT_STORED;
            break;
        }
        struct item *joined = NULL;
        bool append = mode == STORE_APPEND;
        result = join(cache, append ? old : item, append ? item : old, old, now, &joined);
        if (result == RESULT_OK) {
            unused = item;
            item = joined;
        }
        break;
    }
    if (result == RESULT_OK) {
        if (old) {
            inherit_heat(item, old);
            cache_unlink(cache, old);
            slab_free(cache, old);
        }
        count_access(cache, stripe, item);
        item->bumped = now; /* its value may have taken a minute to arrive */
        item->cas = atomic_fetch_add(&cache->cas, 1) + 1;
        link_item(cache, stripe, item, hash);
        atomic_fetch_add_explicit(&cache->total_items, 1, memory_order_relaxed);
    } else {
        unused = item;
    }
    pthread_mutex_unlock(&stripe->lock);
    if (unused)
        slab_free(cache, unused);
    return result;
}

bool cache_get(struct cache *cache, const char *key, size_t key_len, uint32_t now,
               const uint32_t *expires, void (*emit)(void *context, const struct item *item),
               void *context)
{
    uint64_t hash = cache_hash(cache, key, key_len);
    struct stripe *stripe = cache_stripe(cache, hash);
    pthread_mutex_lock(&stripe->lock);
    struct item *item = find(cache, stripe, hash, key, key_len, now);
    if (item) {
        accessed(cache, stripe, item, now);
        if (expires)
            item->expires = *expires;
        if (emit)
            emit(context, item);
    }
    pthread_mutex_unlock(&stripe->lock);
    return item != NULL;
}

bool cache_delete(struct cache *cache, const char *key, size_t key_len, uint32_t now)
{
    uint64_t hash = cache_hash(cache, key, key_len);
    struct stripe *stripe = cache_stripe(cache, hash);
    pthread_mutex_lock(&stripe->lock);
    struct item *item = find(cache, stripe, hash, key, key_len, now);
    if (item) {
        cache_unlink(cache, item);
        slab_free(cache, item);
    }
    pthread_mutex_unlock(&stripe->lock);
    return item != NULL;
}

static bool parse_number(const struct item *item, uint64_t *number)
{
    char text[LARGEST_NUMBER + 1];
    if (item->bytes > LARGEST_NUMBER)
        return false;
    memcpy(text, item_value(item), item->bytes);
    text[item->bytes] = 0;
    if (text[0] < '0' || text[0] > '9')
        return false;
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    /* Spaces behind it are what a decrement leaves when the number becomes shorter. */
    return errno == 0 && (*end == 0 || *end == ' ');
}

enum result cache_add_number(struct cache *cache, const char *key, size_t key_len, bool increase,
                             uint64_t delta, uint32_t now, uint64_t *value)
{
    uint64_t hash = cache_hash(cache, key, key_len);
    struct stripe *stripe = cache_stripe(cache, hash);
    pthread_mutex_lock(&stripe->lock);
    struct item *item = find(cache, stripe, hash, key, key_len, now);
    enum result result = RESULT_OK;
    uint64_t number = 0;
    if (!item) {
        result = RESULT_NOT_FOUND;
    } else if (!parse_number(item, &number)) {
        result = RESULT_NOT_NUMBER;
    } else {
        if (increase)
            number += delta; /* wraps at 2^64, as documented */
        else
            number = number > delta ? number - delta : 0;
        char text[LARGEST_NUMBER + 1];
        uint32_t len = (uint32_t)snprintf(text, sizeof text, "%" PRIu64, number);
        if (len <= item->bytes) {
            memset(item_value(item), ' ', item->bytes);
            memcpy(item_value(item), text, len);
            accessed(cache, stripe, item, now);
            item->cas = atomic_fetch_add(&cache->cas, 1) + 1;
        } else {
            struct item *longer = NULL;
            result = cache_new(cache, key, key_len, item->flags, item->expires, len, now, &longer);
            if (result == RESULT_OK) {
                memcpy(item_value(longer), text, len);
                inherit_heat(longer, item);
                cache_unlink(cache, item);
                slab_free(cache, item);
                count_access(cache, stripe, longer);
                longer->cas = atomic_fetch_add(&cache->cas, 1) + 1;
                link_item(cache, stripe, longer, hash);
            }
        }
        *value = number;
    }
    pthread_mutex_unlock(&stripe->lock);
    return result;
}

void cache_flush(struct cache *cache, uint32_t at)
{
    atomic_store(&cache->flush_at, at);
    if (at == 0)
        atomic_store(&cache->flushed, atomic_load(&cache->cas));
}

void cache_tick(struct cache *cache, uint32_t now)
{
    uint32_t at = atomic_load(&cache->flush_at);
    if (at != 0 && at <= now && atomic_compare_exchange_strong(&cache->flush_at, &at, 0))
        atomic_store(&cache->flushed, atomic_load(&cache->cas));
}
