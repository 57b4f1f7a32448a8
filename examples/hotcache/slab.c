/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Slots of graded sizes on pages of 1 MiB.
 *
 *   arena:   | page 0: class 3 | page 1: class 7 | page 2: class 3 | ... not in use ... |
 *   page:    | slot | slot | slot | ... | too small for a slot |
 *
 * A page belongs to its class for good, so a slot stays where it is and what it is, and its tag can
 * be read at any time. Slots are cut off a fresh page one by one: memory nobody uses is never
 * touched.
 */
#define _GNU_SOURCE
#include "cache.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Old items to try before giving up: each may be locked by somebody just now. */
enum { EVICTION_TRIES = 50 };

/* An item goes to the front of the order of use at most once in so many seconds. Reading would take
 * the lock of the whole class otherwise. */
enum { BUMP_SECONDS = 60 };

bool slab_init(struct cache *cache, size_t limit, uint32_t min_slot, double factor)
{
    /* From a multiple of 24 on, so that the usual settings give memcached's sizes (96, 120, 152,
     * ... 600): people choose -f and -n by how their items fit those. */
    double size = (double)((ITEM_HEAD + min_slot + 23) / 24 * 24);
    while (cache->class_count < CLASSES_MAX - 1) {
        uint32_t slot = ((uint32_t)size + 7) / 8 * 8;
        if (slot > PAGE_BYTES / 2)
            break;
        cache->classes[cache->class_count++].size = slot;
        size = slot * factor;
    }
    cache->classes[cache->class_count++].size = PAGE_BYTES;
    for (int i = 0; i < cache->class_count; i++)
        pthread_mutex_init(&cache->classes[i].lock, NULL);

    cache->page_limit = (uint32_t)(limit / PAGE_BYTES);
    uint32_t pages = cache->page_limit + (uint32_t)cache->class_count;
    /* Address space only. One superpage more than needed, and what lies outside of the boundaries is
     * given back, so that a region of 2 MiB is always two whole pages and nothing else. */
    pages += pages % PAGES_PER_REGION;
    cache->arena_bytes = (size_t)pages * PAGE_BYTES;
    char *start = mmap(NULL, cache->arena_bytes + SUPERPAGE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return false;
    size_t skip = -(uintptr_t)start % SUPERPAGE_BYTES;
    if (skip)
        munmap(start, skip);
    cache->arena = start + skip;
    munmap(cache->arena + cache->arena_bytes, SUPERPAGE_BYTES - skip);
    cache->page_class = calloc(pages, sizeof *cache->page_class);
    return cache->page_class != NULL;
}

void slab_destroy(struct cache *cache)
{
    if (cache->arena)
        munmap(cache->arena, cache->arena_bytes);
    free((void *)cache->page_class);
    for (int i = 0; i < cache->class_count; i++)
        pthread_mutex_destroy(&cache->classes[i].lock);
}

int slab_class_for(const struct cache *cache, size_t bytes)
{
    int low = 0, high = cache->class_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (cache->classes[middle].size < bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low < cache->class_count ? low : -1;
}

/* A page for the class, if the limit allows or it has none yet. */
static bool add_page(struct cache *cache, int index)
{
    struct slab_class *class = &cache->classes[index];
    uint32_t page = atomic_load(&cache->pages);
    do {
        /* Every class may have one page, limit or not: the arena has room for that. */
        if (page >= cache->page_limit && class->pages > 0)
            return false;
    } while (!atomic_compare_exchange_weak(&cache->pages, &page, page + 1));
    class->fresh = cache->arena + (size_t)page * PAGE_BYTES;
    class->fresh_left = PAGE_BYTES / class->size;
    class->pages++;
    atomic_store_explicit(&cache->page_class[page], (uint8_t)(index + 1), memory_order_release);
    return true;
}

/* Throws out an old item and returns its slot. With the class's lock. */
static struct item *evict(struct cache *cache, struct slab_class *class, uint32_t now)
{
    struct item *item = class->oldest;
    for (int tries = 0; item && tries < EVICTION_TRIES; tries++, item = item->newer) {
        /* Linked, for only those are in the list. Its stripe comes before our lock in the order of
         * locks, so it may only be tried. */
        struct stripe *stripe = cache_stripe(cache, tag_hash(item_tag(item)));
        if (pthread_mutex_trylock(&stripe->lock) != 0)
            continue;
        if (cache_is_dead(cache, item, now))
            class->reclaimed++;
        else
            class->evicted++;
        pthread_mutex_unlock(&class->lock);
        cache_unlink(cache, item);
        item_set_tag(item, 0, ITEM_OWNED);
        pthread_mutex_unlock(&stripe->lock);
        pthread_mutex_lock(&class->lock);
        return item;
    }
    return NULL;
}

struct item *slab_alloc(struct cache *cache, int index, uint32_t now)
{
    struct slab_class *class = &cache->classes[index];
    pthread_mutex_lock(&class->lock);
    struct item *item = class->free;
    if (item) {
        class->free = item->chain;
    } else if (class->fresh_left > 0 || add_page(cache, index)) {
        item = (struct item *)(void *)class->fresh;
        class->fresh += class->size;
        class->fresh_left--;
    } else {
        item = evict(cache, class, now);
    }
    pthread_mutex_unlock(&class->lock);
    if (item) {
        item_set_tag(item, 0, ITEM_OWNED);
        item->class = (uint8_t)index;
    }
    return item;
}

void slab_free(struct cache *cache, struct item *item)
{
    item_set_tag(item, 0, ITEM_FREE);
    struct slab_class *class = &cache->classes[item->class];
    pthread_mutex_lock(&class->lock);
    item->chain = class->free;
    class->free = item;
    pthread_mutex_unlock(&class->lock);
}

static void list_add(struct slab_class *class, struct item *item)
{
    item->newer = NULL;
    item->older = class->newest;
    if (class->newest)
        class->newest->newer = item;
    else
        class->oldest = item;
    class->newest = item;
}

static void list_remove(struct slab_class *class, struct item *item)
{
    if (item->newer)
        item->newer->older = item->older;
    else
        class->newest = item->older;
    if (item->older)
        item->older->newer = item->newer;
    else
        class->oldest = item->newer;
}

void slab_lru_add(struct cache *cache, struct item *item)
{
    struct slab_class *class = &cache->classes[item->class];
    pthread_mutex_lock(&class->lock);
    list_add(class, item);
    class->linked++;
    pthread_mutex_unlock(&class->lock);
}

void slab_lru_remove(struct cache *cache, struct item *item)
{
    struct slab_class *class = &cache->classes[item->class];
    pthread_mutex_lock(&class->lock);
    list_remove(class, item);
    class->linked--;
    pthread_mutex_unlock(&class->lock);
}

void slab_lru_replace(struct cache *cache, struct item *from, struct item *to)
{
    struct slab_class *class = &cache->classes[from->class];
    pthread_mutex_lock(&class->lock);
    to->newer = from->newer;
    to->older = from->older;
    *(to->newer ? &to->newer->older : &class->newest) = to;
    *(to->older ? &to->older->newer : &class->oldest) = to;
    pthread_mutex_unlock(&class->lock);
}

void slab_lru_bump(struct cache *cache, struct item *item, uint32_t now)
{
    if (now - item->bumped < BUMP_SECONDS)
        return;
    item->bumped = now;
    struct slab_class *class = &cache->classes[item->class];
    pthread_mutex_lock(&class->lock);
    list_remove(class, item);
    list_add(class, item);
    pthread_mutex_unlock(&class->lock);
}

bool slab_page_is_whole(struct cache *cache, uint32_t page)
{
    int index = slab_class_of_page(cache, page);
    if (index < 0)
        return false;
    struct slab_class *class = &cache->classes[index];
    pthread_mutex_lock(&class->lock);
    /* `fresh` points behind the last slot once all are used, which may be the next page. */
    bool whole = class->fresh_left == 0 || slab_page_of(cache, class->fresh) != page;
    pthread_mutex_unlock(&class->lock);
    return whole;
}
