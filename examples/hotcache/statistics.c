/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * `stats`, under memcached's names where it has the figure, and `stats hps`.
 */
#define _GNU_SOURCE
#include "server.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

__attribute__((format(printf, 3, 4)))
static void stat(struct connection *c, const char *name, const char *format, ...)
{
    char line[512];
    int head = snprintf(line, sizeof line, "STAT %s ", name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + head, sizeof line - (size_t)head, format, arguments);
    va_end(arguments);
    reply_text(c, line);
}

static void number(struct connection *c, const char *name, uint64_t value)
{
    stat(c, name, "%" PRIu64, value);
}

/* One counter of all workers, by its place in the structure. */
static uint64_t sum(struct server *server, size_t offset)
{
    uint64_t total = 0;
    for (int i = 0; i < server->settings.threads; i++) {
        char *counters = (char *)&server->workers[i].counters;
        total += atomic_load_explicit((_Atomic uint64_t *)(void *)(counters + offset),
                                      memory_order_relaxed);
    }
    return total;
}

#define NAMED(name) { #name, offsetof(struct counters, name) }
static const struct { const char *name; size_t offset; } named[] = {
    NAMED(cmd_get), NAMED(cmd_set), NAMED(cmd_flush), NAMED(cmd_touch), NAMED(get_hits),
    NAMED(get_misses), NAMED(delete_misses), NAMED(delete_hits), NAMED(incr_misses),
    NAMED(incr_hits), NAMED(decr_misses), NAMED(decr_hits), NAMED(cas_misses), NAMED(cas_hits),
    NAMED(cas_badval), NAMED(touch_hits), NAMED(touch_misses), NAMED(bytes_read),
    NAMED(bytes_written),
};

static void general(struct connection *c)
{
    struct server *server = c->server;
    struct cache *cache = server->cache;
    uint64_t evicted = 0, reclaimed = 0;
    for (int i = 0; i < cache->class_count; i++) {
        struct slab_class *class = &cache->classes[i];
        pthread_mutex_lock(&class->lock);
        evicted += class->evicted;
        reclaimed += class->reclaimed;
        pthread_mutex_unlock(&class->lock);
    }
    struct rusage usage = { 0 };
    getrusage(RUSAGE_SELF, &usage);
    number(c, "pid", (uint64_t)getpid());
    number(c, "uptime", (uint64_t)(server_now() - 2));
    number(c, "time", (uint64_t)time(NULL));
    stat(c, "version", "%s", HOTCACHE_VERSION);
    number(c, "pointer_size", 8 * sizeof(void *));
    stat(c, "rusage_user", "%ld.%06ld", (long)usage.ru_utime.tv_sec, (long)usage.ru_utime.tv_usec);
    stat(c, "rusage_system", "%ld.%06ld", (long)usage.ru_stime.tv_sec,
         (long)usage.ru_stime.tv_usec);
    number(c, "max_connections", (uint64_t)server->settings.connections);
    number(c, "curr_connections", atomic_load(&server->connections));
    number(c, "total_connections", atomic_load(&server->connections_total));
    number(c, "rejected_connections", atomic_load(&server->refused));
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        number(c, named[i].name, sum(server, named[i].offset));
    number(c, "limit_maxbytes", server->settings.limit);
    number(c, "threads", (uint64_t)server->settings.threads);
    number(c, "bytes", atomic_load(&cache->bytes));
    number(c, "curr_items", atomic_load(&cache->items));
    number(c, "total_items", atomic_load(&cache->total_items));
    number(c, "evictions", evicted);
    number(c, "reclaimed", reclaimed);
}

static void settings(struct connection *c)
{
    const struct settings *s = &c->server->settings;
    number(c, "maxbytes", s->limit);
    number(c, "maxconns", (uint64_t)s->connections);
    number(c, "tcpport", c->server->port);
    stat(c, "inter", "%s", s->address);
    number(c, "verbosity", (uint64_t)s->verbose);
    stat(c, "growth_factor", "%.2f", s->factor);
    number(c, "chunk_size", s->min_slot);
    number(c, "num_threads", (uint64_t)s->threads);
    number(c, "item_size_max", PAGE_BYTES);
    stat(c, "cas_enabled", "yes");
    stat(c, "evictions", "on");
    stat(c, "flush_enabled", "yes");
    stat(c, "binding_protocol", "ascii");
    stat(c, "hps", "%s", hps_mode_name(s->hps));
    number(c, "hot_bytes", s->hot);
    number(c, "hot_hits", s->min_heat);
}

/* `stats slabs` and `stats items`: what memstat and its kin ask for. */
static void classes(struct connection *c, bool items)
{
    struct cache *cache = c->server->cache;
    uint64_t active = 0;
    for (int i = 0; i < cache->class_count; i++) {
        struct slab_class *class = &cache->classes[i];
        pthread_mutex_lock(&class->lock);
        uint64_t pages = class->pages, linked = class->linked, evicted = class->evicted,
                 reclaimed = class->reclaimed;
        pthread_mutex_unlock(&class->lock);
        if (pages == 0)
            continue;
        active++;
        char name[64];
        uint64_t per_page = PAGE_BYTES / class->size;
        const struct { const char *name; uint64_t value; bool items; } figures[] = {
            { "chunk_size", class->size, false },
            { "chunks_per_page", per_page, false },
            { "total_pages", pages, false },
            { "total_chunks", pages * per_page, false },
            { "used_chunks", linked, false },
            { "number", linked, true },
            { "evicted", evicted, true },
            { "reclaimed", reclaimed, true },
        };
        for (size_t f = 0; f < sizeof figures / sizeof *figures; f++) {
            if (figures[f].items != items)
                continue;
            snprintf(name, sizeof name, items ? "items:%d:%s" : "%d:%s", i + 1, figures[f].name);
            number(c, name, figures[f].value);
        }
    }
    if (!items) {
        number(c, "active_slabs", active);
        number(c, "total_malloced", (uint64_t)atomic_load(&cache->pages) * PAGE_BYTES);
    }
}

static void hps(struct connection *c)
{
    struct server *server = c->server;
    struct hot_area *hot = &server->cache->hot;
    const struct hot_counters *h = hps_thread_counters(server->hps);
    char reason[400];
    stat(c, "mode", "%s", hps_mode_name(server->settings.hps));
    stat(c, "state", "%s", hps_thread_state(server->hps, reason, sizeof reason));
    number(c, "notifications", atomic_load(&h->notifications));
    number(c, "compactions", atomic_load(&h->compactions));
    number(c, "pages", atomic_load(&h->pages));
    number(c, "items_moved", atomic_load(&h->moved));
    number(c, "bytes_moved", atomic_load(&h->moved_bytes));
    number(c, "items_displaced", atomic_load(&h->displaced));
    number(c, "items_gone", atomic_load(&h->gone));
    number(c, "items_no_room", atomic_load(&h->no_room));
    number(c, "threshold", atomic_load(&h->threshold));
    number(c, "superpages", atomic_load(&h->superpages));
    number(c, "superpages_limit", hot->limit);
    number(c, "superpages_failed", atomic_load(&h->failed));
    number(c, "table_bytes", atomic_load(&h->table_bytes));
    number(c, "accesses", atomic_load(&h->accesses));
    number(c, "hot_accesses", atomic_load(&h->hot_accesses));
}

bool statistics(struct connection *c, const char *what, size_t len)
{
    static const char *const names[] = { "", "settings", "items", "slabs", "hps", "reset" };
    size_t which = 0;
    while (which < 6 && (strlen(names[which]) != len || memcmp(names[which], what, len) != 0))
        which++;
    switch (which) {
    case 0: general(c); break;
    case 1: settings(c); break;
    case 2: classes(c, true); break;
    case 3: classes(c, false); break;
    case 4: hps(c); break;
    case 5:
        statistics_reset(c->server);
        reply_text(c, "RESET");
        return true;
    default:
        return false;
    }
    reply_text(c, "END");
    return true;
}

/* Counters start again; a request that is being counted just now may be lost or survive. */
void statistics_reset(struct server *server)
{
    for (int i = 0; i < server->settings.threads; i++)
        for (size_t n = 0; n < sizeof named / sizeof *named; n++) {
            char *counters = (char *)&server->workers[i].counters;
            atomic_store_explicit((_Atomic uint64_t *)(void *)(counters + named[n].offset), 0,
                                  memory_order_relaxed);
        }
    for (int i = 0; i < server->cache->class_count; i++) {
        struct slab_class *class = &server->cache->classes[i];
        pthread_mutex_lock(&class->lock);
        class->evicted = class->reclaimed = 0;
        pthread_mutex_unlock(&class->lock);
    }
    atomic_store(&server->cache->total_items, 0);
    atomic_store(&server->connections_total, 0);
    atomic_store(&server->refused, 0);
}
