/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Memory of the hash table's buckets. One bucket is read for every request, at random, so of all
 * the cache has this is best off on superpages; for that it lies together.
 */
#define _GNU_SOURCE
#include "cache.h"

#include <sys/mman.h>

enum { FIRST_BUCKETS = 16 };

static size_t part_bytes(uint32_t level)
{
    return ((size_t)FIRST_BUCKETS << level) * sizeof(struct item *);
}

bool table_init(struct table *table) { return pthread_mutex_init(&table->lock, NULL) == 0; }

void table_destroy(struct table *table)
{
    for (uint32_t level = 0; level < TABLE_LEVELS; level++)
        if (table->levels[level])
            munmap(table->levels[level], part_bytes(level) * STRIPES);
    pthread_mutex_destroy(&table->lock);
}

/* Address space for one level; memory comes with the first use. */
static char *map_level(size_t bytes)
{
    size_t more = bytes >= SUPERPAGE_BYTES ? SUPERPAGE_BYTES : 0;
    char *start = mmap(NULL, bytes + more, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    size_t skip = more ? -(uintptr_t)start % SUPERPAGE_BYTES : 0;
    if (skip)
        munmap(start, skip);
    if (more - skip)
        munmap(start + skip + bytes, more - skip);
    return start + skip;
}

struct item **table_take(struct table *table, uint32_t stripe, uint32_t level)
{
    if (level >= TABLE_LEVELS)
        return NULL;
    pthread_mutex_lock(&table->lock);
    if (!table->levels[level])
        table->levels[level] = map_level(part_bytes(level) * STRIPES);
    char *start = table->levels[level];
    if (start)
        table->users[level]++;
    pthread_mutex_unlock(&table->lock);
    return start ? (struct item **)(void *)(start + part_bytes(level) * stripe) : NULL;
}

void table_give(struct table *table, uint32_t stripe, uint32_t level)
{
    size_t bytes = part_bytes(level);
    pthread_mutex_lock(&table->lock);
    /* No stripe comes back to a level, so a part that was left is never asked for again. */
    if (--table->users[level] == 0) {
        munmap(table->levels[level], bytes * STRIPES);
        table->levels[level] = NULL;
    } else if (bytes >= BASE_PAGE_BYTES) {
        madvise(table->levels[level] + bytes * stripe, bytes, MADV_DONTNEED);
    }
    pthread_mutex_unlock(&table->lock);
}

char *table_settled(struct table *table, size_t *bytes)
{
    char *start = NULL;
    pthread_mutex_lock(&table->lock);
    for (uint32_t level = 0; level < TABLE_LEVELS; level++)
        if (table->users[level] == STRIPES && part_bytes(level) * STRIPES >= SUPERPAGE_BYTES) {
            start = table->levels[level];
            *bytes = part_bytes(level) * STRIPES;
        }
    pthread_mutex_unlock(&table->lock);
    return start;
}
