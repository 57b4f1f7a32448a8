/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Compaction: items in demand live together on superpages.
 *
 *   base pages that were accessed                    hot region, a superpage
 *   | cold | HOT | cold | cold |  <--- change --->   | HOT | HOT | cold | HOT | ...
 *   | HOT | cold | cold | HOT |        places        | cold | HOT | ...
 *
 * A page that was accessed holds several items, most of them cold as a rule. Which are not is what
 * the items' own counts of accesses say; a tracker of pages cannot know. So the notice says where
 * to look, and the counts say what to move.
 *
 * A hot region is two pages of the arena that were full of items before, made a superpage where
 * they lie. Items change places, so no memory is added; every other part of the cache deals with
 * their slots as with any other.
 *
 * Heat is told by a time of its own: an epoch is over when the cache was asked for EPOCH_TURNS
 * items for each that it holds, and then counts from before it count half. A busy cache forgets in
 * seconds, an idle one not at all.
 *
 * What keeps items from moving to and fro: the threshold is the heat above which everything just
 * fits; what is hotter comes in, and only what is less than half as hot goes out.
 */
#define _GNU_SOURCE
#include "cache.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    EPOCH_TURNS = 2,
    EPOCH_LEAST = 4096,     /* accesses of an epoch, however few items there are */
    HEATS = 256,            /* heats that the threshold tells apart; the last stands for all above */
    WANTED = SUPERPAGE_BYTES / 4, /* hot bytes without a place that are worth one more region */
    BATCH = 64,             /* items moved between two pauses */
    PAUSE_US = 500,
    CALM = 64,              /* if less than this part of the places changed hands, rest longer */
    REST_MOST = 64,         /* epochs */
};

static size_t region_count(const struct cache *cache)
{
    return cache->arena_bytes / SUPERPAGE_BYTES;
}

/* Words of the bitmap of base pages. */
static size_t active_words(const struct cache *cache)
{
    return cache->arena_bytes / BASE_PAGE_BYTES / 64 + 1;
}

bool hot_init(struct cache *cache, size_t bytes)
{
    struct hot_area *hot = &cache->hot;
    size_t pages = cache->arena_bytes / PAGE_BYTES + 1;
    hot->limit = (uint32_t)(bytes / SUPERPAGE_BYTES);
    if (hot->limit > region_count(cache))
        hot->limit = (uint32_t)region_count(cache);
    hot->rest = 1;
    hot->page_hot = calloc(pages, sizeof *hot->page_hot);
    hot->pages = calloc((size_t)hot->limit * PAGES_PER_REGION + 1, sizeof *hot->pages);
    hot->active = calloc(active_words(cache), sizeof *hot->active);
    hot->warm = calloc(active_words(cache), sizeof *hot->warm);
    hot->region_heat = calloc(region_count(cache) + 1, sizeof *hot->region_heat);
    return hot->page_hot && hot->pages && hot->active && hot->warm &&
           hot->region_heat;
}

void hot_destroy(struct cache *cache)
{
    free((void *)cache->hot.page_hot);
    free(cache->hot.pages);
    free(cache->hot.active);
    free(cache->hot.warm);
    free(cache->hot.region_heat);
}

void hot_notice(struct cache *cache)
{
    struct hot_area *hot = &cache->hot;
    /* Notices add up, as each tells of the moments that were sampled. A page is taken out when
     * compaction finds nothing on it that was asked for of late. */
    hot->noticed = true;
    hot->rest = 1;
    hot->rest_left = 0;
}

void hot_notice_range(struct cache *cache, uintptr_t start, size_t bytes)
{
    uintptr_t arena = (uintptr_t)cache->arena;
    for (uintptr_t at = start; at - start < bytes; at += BASE_PAGE_BYTES) {
        size_t page = (at - arena) / BASE_PAGE_BYTES;
        if (at >= arena && page < cache->arena_bytes / BASE_PAGE_BYTES)
            cache->hot.active[page / 64] |= (uint64_t)1 << page % 64;
    }
}

/* Locks the item in a slot, if there is one: its stripe, else NULL. */
static struct stripe *lock_slot(struct cache *cache, struct item *slot)
{
    uint64_t tag = item_tag(slot);
    if (tag_state(tag) != ITEM_LINKED)
        return NULL;
    struct stripe *stripe = cache_stripe(cache, tag_hash(tag));
    pthread_mutex_lock(&stripe->lock);
    /* Only with this lock may an item with this hash be linked, changed or taken out. */
    if (item_tag(slot) == tag)
        return stripe;
    pthread_mutex_unlock(&stripe->lock);
    return NULL;
}

/* Moves a linked item to a slot of its class that is ours, and the one it leaves is. With its
 * stripe. If `first`, its bucket leads to it at once and not by way of items on cold pages. */
static void move(struct cache *cache, struct item *from, struct item *to, bool first)
{
    uint64_t hash = tag_hash(item_tag(from));
    /* Not the order of use before it: neighbours of the list write that under another lock. */
    size_t start = offsetof(struct item, cas);
    memcpy((char *)to + start, (char *)from + start, item_bytes(from) - start);
    to->bumped = from->bumped;
    atomic_store_explicit(&to->heat, atomic_load_explicit(&from->heat, memory_order_relaxed),
                          memory_order_relaxed);
    cache_relink(cache, from, to, first);
    item_set_tag(to, hash, ITEM_LINKED);
    slab_lru_replace(cache, from, to);
    item_set_tag(from, 0, ITEM_OWNED);
}

struct compaction {
    struct cache *cache;
    struct hot_counters *counters;
    const _Atomic bool *stop;
    uint32_t now, epoch;
    unsigned threshold;             /* from this heat on an item is to be on a hot region */
    uint64_t bytes[2][HEATS];       /* of slots, not hot and hot, whose items have that heat */
    uint64_t wanted[CLASSES_MAX];   /* bytes of items in that class that are to be there */
    uint64_t places[CLASSES_MAX];   /* bytes of hot pages */
    struct item *spare[CLASSES_MAX]; /* a slot that is ours, on its way from item to item */
    uint32_t round[CLASSES_MAX];    /* places the class may still look at */
    uint32_t slot[CLASSES_MAX];     /* where on the page that its hand points at */
    uint64_t moved;
};

static struct item *slot_at(const struct cache *cache, uint32_t page, uint32_t size, size_t nth)
{
    return (struct item *)(void *)(cache->arena + (size_t)page * PAGE_BYTES + nth * size);
}

/* Heat of what is in a slot; false if that is nothing. A guess, as nothing is locked. */
static bool heat_of(const struct compaction *c, struct item *slot, unsigned *heat)
{
    if (tag_state(item_tag(slot)) != ITEM_LINKED)
        return false;
    *heat = item_heat(slot, c->epoch);
    return true;
}

/* Calls `each` for the items of a page whose head is on an active base page: an item that was
 * accessed had its head read. */
static void each_active(struct compaction *c, uint32_t page,
                        void (*each)(struct compaction *c, int class, struct item *slot,
                                     unsigned heat))
{
    struct cache *cache = c->cache;
    int class = slab_class_of_page(cache, page);
    if (class < 0)
        return;
    uint32_t size = cache->classes[class].size;
    size_t first = (size_t)page * (PAGE_BYTES / BASE_PAGE_BYTES);
    bool all = cache->hot.page_hot[page]; /* one entry maps it, and the list may lack it */
    for (size_t nth = 0; nth < PAGE_BYTES / size; nth++) {
        size_t base = first + nth * size / BASE_PAGE_BYTES;
        struct item *slot = slot_at(cache, page, size, nth);
        unsigned heat;
        if ((all || cache->hot.active[base / 64] >> base % 64 & 1) && heat_of(c, slot, &heat))
            each(c, class, slot, heat);
    }
}

/* From this heat on an item on a hot region stays there. */
static unsigned stays_from(unsigned threshold) { return (threshold + 1) / 2; }

static void survey(struct compaction *c, int class, struct item *slot, unsigned heat)
{
    uint32_t size = c->cache->classes[class].size;
    c->bytes[hot_holds(c->cache, slot)][heat < HEATS ? heat : HEATS - 1] += size;
    c->cache->hot.region_heat[slab_page_of(c->cache, slot) / PAGES_PER_REGION] += heat;
    size_t base = (size_t)((char *)slot - c->cache->arena) / BASE_PAGE_BYTES;
    if (heat > 0)
        c->cache->hot.warm[base / 64] |= (uint64_t)1 << base % 64;
}

static void demand(struct compaction *c, int class, struct item *slot, unsigned heat)
{
    if (heat >= (hot_holds(c->cache, slot) ? stays_from(c->threshold) : c->threshold))
        c->wanted[class] += c->cache->classes[class].size;
}

/* Whether its memory is there already. All but a sixteenth, as slots need not be full. */
static bool is_resident(const char *start)
{
    unsigned char here[SUPERPAGE_BYTES / BASE_PAGE_BYTES];
    size_t count = 0;
    if (mincore((void *)(uintptr_t)start, SUPERPAGE_BYTES, here) != 0)
        return false;
    for (size_t i = 0; i < sizeof here; i++)
        count += here[i] & 1;
    return count >= sizeof here - sizeof here / 16;
}

/* The region with a page of the class that has the most heat already, so that the least moves. */
static int64_t best_region(const struct compaction *c, int class)
{
    struct cache *cache = c->cache;
    int64_t best = -1;
    uint32_t regions = atomic_load(&cache->pages) / PAGES_PER_REGION;
    for (uint32_t region = 0; region < regions; region++) {
        uint32_t page = region * PAGES_PER_REGION;
        if (cache->hot.page_hot[page] || (slab_class_of_page(cache, page) != class &&
                                          slab_class_of_page(cache, page + 1) != class))
            continue;
        if (best >= 0 && cache->hot.region_heat[region] <= cache->hot.region_heat[best])
            continue;
        if (slab_page_is_whole(cache, page) && slab_page_is_whole(cache, page + 1) &&
            is_resident(cache->arena + (size_t)region * SUPERPAGE_BYTES))
            best = region;
    }
    return best;
}

/* Makes regions hot while there are hot items without a place on one, and the limit allows. */
static void add_regions(struct compaction *c)
{
    struct cache *cache = c->cache;
    struct hot_area *hot = &cache->hot;
    while (hot->regions < hot->limit) {
        int class = 0;
        for (int i = 0; i < cache->class_count; i++)
            if (c->wanted[i] + c->places[class] > c->wanted[class] + c->places[i])
                class = i;
        if (c->wanted[class] < c->places[class] + WANTED)
            return;
        int64_t region = best_region(c, class);
        if (region < 0) {
            c->wanted[class] = 0; /* it does not have so much memory */
            continue;
        }
        char *start = cache->arena + (size_t)region * SUPERPAGE_BYTES;
        if (!hot->collapse || !hot->collapse(hot->collapse_context, start)) {
            atomic_fetch_add(&c->counters->failed, 1);
            return; /* the kernel has none just now; at the next notice, then */
        }
        for (uint32_t i = 0; i < PAGES_PER_REGION; i++) {
            uint32_t page = (uint32_t)region * PAGES_PER_REGION + i;
            atomic_store(&hot->page_hot[page], 1);
            hot->pages[hot->regions * PAGES_PER_REGION + i] = page;
            c->places[slab_class_of_page(cache, page)] += PAGE_BYTES;
        }
        hot->regions++;
        atomic_fetch_add(&c->counters->superpages, 1);
    }
}

/* Moves something cold from a hot region to the class's spare slot; its place is the spare then.
 * False if all places were looked at. */
static bool displace(struct compaction *c, int class)
{
    struct cache *cache = c->cache;
    struct hot_area *hot = &cache->hot;
    uint32_t size = cache->classes[class].size, pages = hot->regions * PAGES_PER_REGION;
    while (c->round[class] > 0) {
        uint32_t page = hot->pages[hot->hand[class] % pages];
        if (slab_class_of_page(cache, page) != class || c->slot[class] >= PAGE_BYTES / size) {
            hot->hand[class] = (hot->hand[class] + 1) % pages;
            c->slot[class] = 0;
            c->round[class]--;
            continue;
        }
        struct item *slot = slot_at(cache, page, size, c->slot[class]++);
        unsigned heat;
        if (!heat_of(c, slot, &heat) || heat >= stays_from(c->threshold))
            continue;
        struct stripe *stripe = lock_slot(cache, slot);
        if (!stripe)
            continue;
        move(cache, slot, c->spare[class], false);
        pthread_mutex_unlock(&stripe->lock);
        c->spare[class] = slot;
        atomic_fetch_add(&c->counters->displaced, 1);
        return true;
    }
    return false;
}

static void bring_in(struct compaction *c, int class, struct item *from, unsigned heat)
{
    struct cache *cache = c->cache;
    if (heat < c->threshold || atomic_load(c->stop))
        return;
    if (!c->spare[class] && c->round[class] > 0)
        c->spare[class] = slab_alloc(cache, class, c->now);
    if (!c->spare[class] || (!hot_holds(cache, c->spare[class]) && !displace(c, class))) {
        atomic_fetch_add(&c->counters->no_room, 1);
        return;
    }
    struct stripe *stripe = lock_slot(cache, from);
    if (!stripe) {
        atomic_fetch_add(&c->counters->gone, 1); /* deleted or replaced in the meantime */
        return;
    }
    size_t bytes = item_bytes(from);
    move(cache, from, c->spare[class], true);
    pthread_mutex_unlock(&stripe->lock);
    c->spare[class] = from;
    atomic_fetch_add(&c->counters->moved, 1);
    atomic_fetch_add(&c->counters->moved_bytes, bytes);
    /* In the background: clients are served in between, even on a single CPU. */
    if (++c->moved % BATCH == 0)
        nanosleep(&(struct timespec){ .tv_nsec = PAUSE_US * 1000 }, NULL);
}

/* The lowest heat with which all that is to come and all that is to stay fits within the limit. */
static void set_threshold(struct compaction *c, unsigned min_heat)
{
    uint64_t room = (uint64_t)c->cache->hot.limit * SUPERPAGE_BYTES;
    unsigned threshold = HEATS - 1;
    while (threshold > 1) {
        uint64_t sum = 0;
        for (unsigned heat = threshold - 1; heat < HEATS; heat++)
            sum += c->bytes[false][heat];
        for (unsigned heat = stays_from(threshold - 1); heat < HEATS; heat++)
            sum += c->bytes[true][heat];
        if (sum > room)
            break;
        threshold--;
    }
    c->threshold = threshold > min_heat ? threshold : min_heat;
    atomic_store(&c->counters->threshold, c->threshold);
}

static void compact(struct cache *cache, unsigned min_heat, uint32_t now, const _Atomic bool *stop,
                    struct hot_counters *counters)
{
    struct hot_area *hot = &cache->hot;
    struct compaction c = { .cache = cache, .counters = counters, .stop = stop, .now = now,
                            .epoch = atomic_load(&hot->epoch) };
    uint32_t pages = atomic_load(&cache->pages);
    memset(hot->region_heat, 0, region_count(cache) * sizeof *hot->region_heat);
    memset(hot->warm, 0, active_words(cache) * sizeof *hot->warm);
    for (uint32_t page = 0; page < pages; page++)
        each_active(&c, page, survey);
    size_t active = 0;
    for (size_t i = 0; i < active_words(cache); i++) {
        hot->active[i] &= hot->warm[i];
        active += (size_t)__builtin_popcountll(hot->active[i]);
    }
    atomic_store(&counters->pages, active);
    set_threshold(&c, min_heat);
    for (uint32_t page = 0; page < pages; page++)
        each_active(&c, page, demand);
    for (uint32_t i = 0; i < hot->regions * PAGES_PER_REGION; i++)
        c.places[slab_class_of_page(cache, hot->pages[i])] += PAGE_BYTES;
    add_regions(&c);

    /* Each place is looked at once. */
    uint64_t places = 0;
    for (int class = 0; class < cache->class_count; class++) {
        c.round[class] = c.places[class] ? hot->regions * PAGES_PER_REGION : 0;
        places += c.places[class] / cache->classes[class].size;
    }
    for (uint32_t page = 0; page < pages; page++)
        if (!hot->page_hot[page])
            each_active(&c, page, bring_in);
    for (int class = 0; class < cache->class_count; class++)
        if (c.spare[class])
            slab_free(cache, c.spare[class]);
    atomic_fetch_add(&counters->compactions, 1);

    /* Nothing much to do: look less often, until a notice says that something has changed. */
    if (c.moved * CALM < places)
        hot->rest = hot->rest * 2 < REST_MOST ? hot->rest * 2 : REST_MOST;
    else
        hot->rest = 1;
    hot->rest_left = hot->rest - 1;
}

/* The table has one bucket read per request, at random: there is nothing to choose. It is only
 * done when all of it is in use, so that it adds no memory. */
static void collapse_table(struct cache *cache, struct hot_counters *counters)
{
    struct hot_area *hot = &cache->hot;
    size_t bytes = 0;
    char *start = table_settled(&cache->table, &bytes);
    if (!start || start == hot->collapsed || !hot->collapse)
        return;
    size_t done = 0;
    for (size_t at = 0; at < bytes; at += SUPERPAGE_BYTES)
        if (is_resident(start + at) && hot->collapse(hot->collapse_context, start + at))
            done += SUPERPAGE_BYTES;
    if (done == bytes)
        hot->collapsed = start;
    atomic_store(&counters->table_bytes, done);
}

void hot_tick(struct cache *cache, unsigned min_heat, uint32_t now, const _Atomic bool *stop,
              struct hot_counters *counters)
{
    struct hot_area *hot = &cache->hot;
    uint32_t accesses = 0, hot_accesses = 0;
    for (int i = 0; i < STRIPES; i++) {
        struct stripe *stripe = &cache->stripes[i];
        pthread_mutex_lock(&stripe->lock);
        accesses += stripe->accesses;
        hot_accesses += stripe->hot_accesses;
        pthread_mutex_unlock(&stripe->lock);
    }
    /* The counts wrap, their differences do not: nobody is asked 2^32 times a second. */
    uint32_t more = accesses - hot->seen;
    atomic_fetch_add(&counters->accesses, more);
    atomic_fetch_add(&counters->hot_accesses, (uint32_t)(hot_accesses - hot->seen_hot));
    hot->seen = accesses;
    hot->seen_hot = hot_accesses;
    hot->pending += more;
    if (hot->pending < EPOCH_LEAST || hot->pending < EPOCH_TURNS * atomic_load(&cache->items))
        return;
    hot->pending = 0;
    if (hot->noticed && hot->rest_left == 0 && hot->limit > 0) {
        collapse_table(cache, counters);
        compact(cache, min_heat, now, stop, counters);
    } else if (hot->rest_left > 0) {
        hot->rest_left--;
    }
    atomic_fetch_add(&hot->epoch, 1);
}
