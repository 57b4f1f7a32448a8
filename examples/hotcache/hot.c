/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Compaction: items in demand move together onto superpages.
 *
 *   base pages that were accessed            superpage
 *   | cold | HOT | cold | cold |  ---+---->  | HOT | HOT | HOT | ...
 *   | HOT | cold | cold | HOT |   ---+
 *
 * A page that was accessed holds several items, most of them cold as a rule. Which are not is what
 * the items' own counts of accesses say; a tracker of pages cannot know.
 *
 * When the area is full, an item comes in only in place of one that is less than half as hot, so
 * that two items of nearly the same heat do not change places for ever.
 */
#define _GNU_SOURCE
#include "cache.h"

#include <stdlib.h>
#include <string.h>

enum {
    SEARCH = 64,        /* slots looked at to find something colder */
    HEAT_BITS = 17,     /* heats are told apart by their number of bits */
    TURNOVER = 8,       /* this part of the area may be displaced at one notification */
    IN_VAIN = 8,        /* searches in a row that found nothing colder: the class gives up */
    BATCH = 1024,       /* chunks that one hot_cool() may look at */
};

bool hot_init(struct cache *cache, size_t bytes)
{
    struct hot_area *hot = &cache->hot;
    pthread_mutex_init(&hot->lock, NULL);
    size_t superpages = bytes / SUPERPAGE_BYTES;
    /* Chunks are numbered in 16 bits. */
    size_t most = NO_CHUNK / CHUNKS_PER_SUPERPAGE;
    if (superpages > most)
        superpages = most;
    hot->limit = (uint32_t)superpages * CHUNKS_PER_SUPERPAGE;
    hot->chunks = calloc(hot->limit + 1, sizeof *hot->chunks);
    hot->superpages = calloc(superpages + 1, sizeof *hot->superpages);
    return hot->chunks && hot->superpages;
}

void hot_destroy(struct cache *cache)
{
    struct hot_area *hot = &cache->hot;
    for (uint32_t i = 0; hot->superpages && i < hot->count / CHUNKS_PER_SUPERPAGE; i++)
        hot->superpage_free(hot->superpages[i], SUPERPAGE_BYTES);
    free(hot->superpages);
    free(hot->chunks);
    pthread_mutex_destroy(&hot->lock);
}

void hot_free(struct cache *cache, struct item *item)
{
    struct hot_area *hot = &cache->hot;
    struct chunk *chunk = &hot->chunks[item->chunk];
    uint32_t size = cache->classes[item->class].size;
    pthread_mutex_lock(&hot->lock);
    item->chain = chunk->free;
    chunk->free = item;
    chunk->used--;
    if (chunk->used == 0) {
        /* Nothing is left: the next class may have it. */
        chunk->class = -1;
        chunk->free = NULL;
        chunk->carved = 0;
    }
    pthread_mutex_unlock(&hot->lock);
    atomic_fetch_sub_explicit(&hot->items, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&hot->bytes, size, memory_order_relaxed);
}

static bool has_room(const struct cache *cache, const struct chunk *chunk, int class)
{
    return chunk->class == class &&
           (chunk->free || chunk->carved < CHUNK_BYTES / cache->classes[class].size);
}

/* A chunk with a free slot of the class. Assigns one if need be, but adds none. */
static struct chunk *chunk_for(struct cache *cache, int class, uint32_t *hint)
{
    struct hot_area *hot = &cache->hot;
    struct chunk *unused = NULL;
    if (*hint < hot->count && has_room(cache, &hot->chunks[*hint], class))
        return &hot->chunks[*hint];
    for (uint32_t i = 0; i < hot->count; i++) {
        struct chunk *chunk = &hot->chunks[i];
        if (has_room(cache, chunk, class)) {
            *hint = i;
            return chunk;
        }
        if (chunk->class < 0 && !unused)
            unused = chunk;
    }
    if (unused) {
        unused->class = class;
        *hint = (uint32_t)(unused - hot->chunks);
    }
    return unused;
}

static bool add_superpage(struct cache *cache, struct hot_counters *counters)
{
    struct hot_area *hot = &cache->hot;
    if (hot->count >= hot->limit)
        return false;
    char *start = hot->superpage_alloc ? hot->superpage_alloc(SUPERPAGE_BYTES) : NULL;
    if (!start) {
        atomic_fetch_add(&counters->no_superpage, 1);
        return false;
    }
    pthread_mutex_lock(&hot->lock);
    hot->superpages[hot->count / CHUNKS_PER_SUPERPAGE] = start;
    for (uint32_t i = 0; i < CHUNKS_PER_SUPERPAGE; i++) {
        struct chunk *chunk = &hot->chunks[hot->count++];
        *chunk = (struct chunk){ .start = start + (size_t)i * CHUNK_BYTES, .class = -1 };
    }
    pthread_mutex_unlock(&hot->lock);
    atomic_fetch_add(&counters->superpages, 1);
    return true;
}

/* A hot slot of the class, tag OWNED; NULL if the area is full. */
static struct item *hot_alloc(struct cache *cache, int class, uint32_t hints[CLASSES_MAX],
                              struct hot_counters *counters)
{
    struct hot_area *hot = &cache->hot;
    uint32_t size = cache->classes[class].size;
    if (size > CHUNK_BYTES)
        return NULL;
    struct item *item = NULL;
    do {
        pthread_mutex_lock(&hot->lock);
        struct chunk *chunk = chunk_for(cache, class, &hints[class]);
        if (chunk) {
            item = chunk->free;
            if (item)
                chunk->free = item->chain;
            else
                item = (struct item *)(void *)(chunk->start + (size_t)chunk->carved++ * size);
            chunk->used++;
            item_set_tag(item, 0, ITEM_OWNED);
            item->chunk = (uint16_t)(chunk - hot->chunks);
            item->class = (uint8_t)class;
        }
        pthread_mutex_unlock(&hot->lock);
    } while (!item && add_superpage(cache, counters));
    if (item) {
        atomic_fetch_add_explicit(&hot->items, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&hot->bytes, size, memory_order_relaxed);
    }
    return item;
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

/* Moves a linked item to another slot of its class. With its stripe; frees the old slot. */
static void move(struct cache *cache, struct item *from, struct item *to)
{
    uint64_t hash = tag_hash(item_tag(from));
    struct item **link = cache_link_of(cache, from);
    uint16_t chunk = to->chunk;
    /* Not the order of use before it: neighbours of the list write that under another lock. */
    size_t start = offsetof(struct item, cas);
    memcpy((char *)to + start, (char *)from + start, item_bytes(from) - start);
    to->chunk = chunk;
    to->chain = from->chain;
    *link = to;
    slab_lru_remove(cache, from);
    item_set_tag(to, hash, ITEM_LINKED);
    slab_lru_add(cache, to);
    slab_free(cache, from);
}

/* Moves a hot item back to a cold page. With its stripe. */
static bool cool(struct cache *cache, struct item *item, uint32_t now, struct hot_counters *counters)
{
    struct item *slot = slab_alloc(cache, item->class, now);
    if (!slot)
        return false;
    move(cache, item, slot);
    atomic_fetch_add(&counters->cooled, 1);
    return true;
}

/* Makes room for one item of the class by moving out one that is less than half as hot. */
static bool displace(struct cache *cache, int class, unsigned heat, uint32_t now,
                     struct hot_counters *counters)
{
    struct hot_area *hot = &cache->hot;
    uint32_t size = cache->classes[class].size;
    struct item *coldest = NULL;
    unsigned least = heat / 2;
    int looked = 0;
    for (uint32_t n = 0; n < hot->count && looked < SEARCH; n++) {
        struct chunk *chunk = &hot->chunks[hot->hand];
        hot->hand = (hot->hand + 1) % hot->count;
        pthread_mutex_lock(&hot->lock);
        uint32_t carved = chunk->class == class ? chunk->carved : 0;
        pthread_mutex_unlock(&hot->lock);
        for (uint32_t i = 0; i < carved; i++, looked++) {
            struct item *item = (struct item *)(void *)(chunk->start + (size_t)i * size);
            struct stripe *stripe = lock_slot(cache, item);
            if (!stripe)
                continue;
            if (item_heat(item, now) < least) {
                least = item_heat(item, now);
                coldest = item;
            }
            pthread_mutex_unlock(&stripe->lock);
        }
    }
    struct stripe *stripe = coldest ? lock_slot(cache, coldest) : NULL;
    if (!stripe)
        return false;
    bool moved = item_heat(coldest, now) < heat / 2 && cool(cache, coldest, now, counters);
    pthread_mutex_unlock(&stripe->lock);
    return moved;
}

/* Calls `each` for every slot that overlaps the base page, if that lies on a cold page in use. */
static void slots_of(struct cache *cache, uintptr_t address,
                     void (*each)(struct cache *cache, struct item *slot, void *context),
                     void *context)
{
    uintptr_t arena = (uintptr_t)cache->arena;
    if (address < arena || address - arena >= cache->arena_bytes)
        return;
    size_t page = (address - arena) / PAGE_BYTES;
    size_t in_use = atomic_load(&cache->pages);
    int class = page < in_use
        ? atomic_load_explicit(&cache->page_class[page], memory_order_acquire) - 1 : -1;
    if (class < 0)
        return;
    size_t size = cache->classes[class].size;
    size_t offset = (address - arena) % PAGE_BYTES;
    size_t last = (offset + BASE_PAGE_BYTES - 1) / size;
    for (size_t i = offset / size; i <= last && i < PAGE_BYTES / size; i++)
        each(cache, (struct item *)(void *)(cache->arena + page * PAGE_BYTES + i * size), context);
}

struct survey {
    unsigned min_heat;
    uint32_t now;
    size_t bytes[HEAT_BITS];    /* of the items whose heat has so many bits */
};

static unsigned bits(unsigned heat) { return heat ? 32 - (unsigned)__builtin_clz(heat) : 0; }

static void survey_slot(struct cache *cache, struct item *slot, void *context)
{
    struct survey *survey = context;
    struct stripe *stripe = lock_slot(cache, slot);
    if (!stripe)
        return;
    unsigned heat = item_heat(slot, survey->now);
    if (heat >= survey->min_heat)
        survey->bytes[bits(heat)] += cache->classes[slot->class].size;
    pthread_mutex_unlock(&stripe->lock);
}

size_t hot_bytes_on(struct cache *cache, const uintptr_t *pages, size_t count, unsigned min_heat,
                    uint32_t now)
{
    struct survey survey = { .min_heat = min_heat, .now = now };
    size_t sum = 0;
    for (size_t i = 0; i < count; i++)
        slots_of(cache, pages[i], survey_slot, &survey);
    for (int i = 0; i < HEAT_BITS; i++)
        sum += survey.bytes[i];
    return sum;
}

struct mover {
    unsigned min_heat;
    uint32_t now;
    struct hot_counters *counters;
    uint32_t hints[CLASSES_MAX];
    bool full[CLASSES_MAX];
    uint8_t in_vain[CLASSES_MAX];
};

static void move_slot(struct cache *cache, struct item *from, void *context)
{
    struct mover *mover = context;
    struct stripe *stripe = lock_slot(cache, from);
    if (!stripe)
        return;
    int class = from->class;
    unsigned heat = item_heat(from, mover->now);
    uint64_t tag = item_tag(from);
    bool dead = cache_is_dead(cache, from, mover->now);
    pthread_mutex_unlock(&stripe->lock);
    if (dead || heat < mover->min_heat) {
        atomic_fetch_add(&mover->counters->cold_skipped, 1);
        return;
    }
    /* The slot first, for a new superpage takes the kernel a millisecond, and no client shall wait
     * for that at the item's lock. */
    struct item *to = NULL;
    if (!mover->full[class])
        to = hot_alloc(cache, class, mover->hints, mover->counters);
    if (!to) {
        mover->full[class] = true;
        if (mover->in_vain[class] < IN_VAIN &&
            displace(cache, class, heat, mover->now, mover->counters)) {
            mover->in_vain[class] = 0;
            to = hot_alloc(cache, class, mover->hints, mover->counters);
        } else if (mover->in_vain[class] < IN_VAIN) {
            mover->in_vain[class]++;
        }
    }
    if (!to) {
        atomic_fetch_add(&mover->counters->full, 1);
        return;
    }
    stripe = lock_slot(cache, from);
    if (!stripe || item_tag(from) != tag) {
        /* Deleted or replaced in the meantime. */
        if (stripe)
            pthread_mutex_unlock(&stripe->lock);
        slab_free(cache, to);
        atomic_fetch_add(&mover->counters->busy_skipped, 1);
        return;
    }
    size_t bytes = item_bytes(from);
    move(cache, from, to);
    pthread_mutex_unlock(&stripe->lock);
    atomic_fetch_add(&mover->counters->moved, 1);
    atomic_fetch_add(&mover->counters->moved_bytes, bytes);
}

void hot_compact(struct cache *cache, const uintptr_t *pages, size_t count, unsigned min_heat,
                 uint32_t now, struct hot_counters *counters)
{
    struct hot_area *hot = &cache->hot;
    struct survey survey = { .min_heat = min_heat, .now = now };
    for (size_t i = 0; i < count; i++)
        slots_of(cache, pages[i], survey_slot, &survey);
    /* If not all that is hot fits, then the hottest: the lowest heat that does. */
    size_t limit = (size_t)hot->limit * CHUNK_BYTES;
    size_t used = atomic_load(&hot->bytes);
    size_t room = limit > used ? limit - used : 0;
    /* In a full area a part may change hands each time. */
    if (room < limit / TURNOVER)
        room = limit / TURNOVER;
    int lowest = HEAT_BITS;
    for (size_t sum = 0; lowest > 0 && sum + survey.bytes[lowest - 1] <= room; lowest--)
        sum += survey.bytes[lowest - 1];
    struct mover mover = { .min_heat = min_heat, .now = now, .counters = counters };
    /* One step below that, in case all are of a kind; what does not fit is counted. */
    if (lowest > 1 && (1u << (lowest - 2)) > min_heat)
        mover.min_heat = 1u << (lowest - 2);
    for (size_t i = 0; i < count; i++)
        slots_of(cache, pages[i], move_slot, &mover);
    atomic_fetch_add(&counters->pages, count);
}

void hot_cool(struct cache *cache, uint32_t now, struct hot_counters *counters)
{
    struct hot_area *hot = &cache->hot;
    for (uint32_t n = 0; n < hot->count && n < BATCH; n++) {
        struct chunk *chunk = &hot->chunks[hot->hand];
        hot->hand = (hot->hand + 1) % hot->count;
        pthread_mutex_lock(&hot->lock);
        uint32_t carved = chunk->class >= 0 ? chunk->carved : 0;
        size_t size = carved ? cache->classes[chunk->class].size : 0;
        pthread_mutex_unlock(&hot->lock);
        for (uint32_t i = 0; i < carved; i++) {
            struct item *item = (struct item *)(void *)(chunk->start + (size_t)i * size);
            struct stripe *stripe = lock_slot(cache, item);
            if (!stripe)
                continue;
            if (cache_is_dead(cache, item, now)) {
                cache_unlink(cache, item);
                slab_free(cache, item);
            } else if (item_heat(item, now) == 0) {
                cool(cache, item, now, counters);
            }
            pthread_mutex_unlock(&stripe->lock);
        }
    }
}
