/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Connections and the threads that serve them.
 */
#ifndef HOTCACHE_SERVER_H
#define HOTCACHE_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "cache.h"
#include "hps_thread.h"

enum {
    INPUT_BYTES = 16 << 10,
    OUTPUT_PAUSE = 64 << 10,    /* replies waiting to be sent before the next command is looked at */
    LINE_MAX_BYTES = 2048,      /* of a command that is not a list of keys */
};

struct settings {
    const char *address;
    uint16_t port;
    size_t limit;               /* bytes of items */
    size_t hot;                 /* bytes of these that may be superpages */
    int threads;
    int connections;
    uint32_t min_slot;          /* of key and value */
    double factor;
    unsigned min_heat;
    int verbose;
    enum hps_mode hps;
    const char *hps_library;
};

/* One set per worker, written by it alone, so that counting costs no shared cache line. */
struct counters {
    _Atomic uint64_t cmd_get, cmd_set, cmd_touch, cmd_flush, get_hits, get_misses, delete_hits,
        delete_misses, incr_hits, incr_misses, decr_hits, decr_misses, cas_hits, cas_misses,
        cas_badval, touch_hits, touch_misses, bytes_read, bytes_written;
};

static inline void count(_Atomic uint64_t *counter, uint64_t more)
{
    uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, value + more, memory_order_relaxed);
}

struct worker {
    struct server *server;
    pthread_t thread;
    int epoll;
    struct counters counters;
};

struct server {
    struct settings settings;
    struct cache *cache;
    struct worker *workers;
    struct hps_thread *hps;
    int listener, stop;         /* descriptors; `stop` becomes readable when it is time to go */
    uint16_t port;              /* the one it got, if any would do */
    time_t started;             /* wall clock */
    _Atomic uint64_t connections, connections_total, refused;
    pthread_mutex_t lock;       /* of the list of connections */
    struct connection *first;
};

enum connection_state {
    READ_COMMAND,
    READ_KEYS,                  /* of a get: key by key, however many */
    READ_VALUE,                 /* of a set, straight into its item */
    SWALLOW_VALUE,              /* of a set that was refused */
    SWALLOW_LINE,
};

struct connection {
    struct server *server;
    struct worker *worker;
    struct connection *next, *previous;
    int fd;
    bool ended;                 /* to be closed once the replies are sent */
    bool waits_to_write;
    bool quiet;                 /* noreply */
    enum connection_state state;
    uint32_t now;

    char *output;
    size_t output_start, output_end, output_room;

    struct item *item;          /* READ_VALUE */
    size_t filled;              /* bytes of its value that are there */
    size_t swallow;             /* SWALLOW_VALUE: bytes to come, line end included */
    enum store_mode mode;
    uint64_t cas;

    bool with_cas;              /* READ_KEYS */
    bool with_touch;
    uint32_t touch;

    size_t input_start, input_end;
    char input[INPUT_BYTES];
};

/* Binds, starts the threads, serves until a signal (SIGTERM, SIGINT) arrives, cleans up. */
int server_run(const struct settings *settings);

/* Seconds of a clock that starts at 2 with the server, so that 0 and 1 are always past. */
uint32_t server_now(void);
void server_start_clock(void);
/* What memcached makes of an expiry time: a relative one up to 30 days, else Unix time. */
uint32_t server_expiry(int64_t given, uint32_t now);

void reply(struct connection *connection, const char *bytes, size_t len);
void reply_text(struct connection *connection, const char *line);

/* protocol.c: does what can be done with the input there is. */
void protocol_advance(struct connection *connection);

/* statistics.c: `stats ...`. */
bool statistics(struct connection *connection, const char *what, size_t len);
void statistics_reset(struct server *server);

/* Clients infer from it what the protocol has; this is the version whose answers it gives. */
#define HOTCACHE_VERSION "1.6.18-hotcache"

#endif
