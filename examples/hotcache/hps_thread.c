/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libsuperhue is loaded when the cache starts, so the cache builds and runs without it.
 *
 * The decision about a region is the cache's own. The library knows pages; the cache knows which
 * bytes of them are asked for. If the hot items of a region make up less than a quarter of it, they
 * are better off together with those of other regions than on a superpage that is mostly cold.
 */
#define _GNU_SOURCE
#include "hps_thread.h"

#include "cache.h"
#include "server.h"

#include <dlfcn.h>
#include <errno.h>
#include <hps.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PATIENCE_MS = 1000,     /* longest wait for a notice, so that what grew cold is looked after */
    RETRY_SECONDS = 5,      /* between two attempts to reach a service that is gone */
    LIST_PAGES = 1 << 16,   /* pages fetched at once after a signal */
};

struct library {
    void *handle;
    int (*enable)(const struct hps_options *);
    int (*disable)(void);
    int (*set_functions)(hps_decide_fn, hps_compact_fn, void *);
    int (*wait)(int);
    int (*fetch)(struct hps_page *, size_t, size_t *);
    int (*process)(const struct hps_page *, size_t, struct hps_outcome *);
    void *(*huge_alloc)(size_t, size_t *);
    int (*huge_free)(void *, size_t);
    const char *(*strerror)(int);
    size_t (*reason)(char *, size_t);
};

struct hps_thread {
    struct library library;
    enum hps_mode mode;
    struct cache *cache;
    unsigned min_heat;
    pthread_t thread;
    bool running;
    bool said;                  /* why it does not work */
    _Atomic bool stop;
    struct hot_counters counters;
    struct hps_page *list;      /* HPS_SIGNAL */
    uintptr_t *addresses;
    size_t addresses_room;
    pthread_mutex_t lock;       /* of the text */
    char state[400];
};

/* The area calls back without a context, and there is one area. */
static struct library *alloc_library;

static void *superpage_alloc(size_t bytes) { return alloc_library->huge_alloc(bytes, NULL); }
static void superpage_free(void *start, size_t bytes) { alloc_library->huge_free(start, bytes); }

const char *hps_mode_name(enum hps_mode mode)
{
    return mode == HPS_OFF ? "off" : mode == HPS_THREAD ? "thread" : "signal";
}

int hps_signal(void) { return SIGRTMIN + 3; }

static void set_state(struct hps_thread *thread, const char *text)
{
    pthread_mutex_lock(&thread->lock);
    snprintf(thread->state, sizeof thread->state, "%s", text);
    pthread_mutex_unlock(&thread->lock);
}

/* Says once what does not work; `stats hps` says it at any time. */
static void complain(struct hps_thread *thread, const char *text)
{
    set_state(thread, text);
    if (!thread->said)
        fprintf(stderr, "hotcache: not tracked, hot items stay where they are: %s\n", text);
    thread->said = true;
}

static void complain_about(struct hps_thread *thread, int error)
{
    char reason[256] = "", text[sizeof thread->state];
    thread->library.reason(reason, sizeof reason);
    snprintf(text, sizeof text, "%s%s%s", thread->library.strerror(error), reason[0] ? ": " : "",
             reason);
    complain(thread, text);
}

/* A function of the library. POSIX has it that the pointer dlsym() returns can be called. */
static bool load_function(struct library *library, const char *name, void *into)
{
    void *symbol = dlsym(library->handle, name);
    memcpy(into, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool load(struct hps_thread *thread, const char *path)
{
    struct library *l = &thread->library;
    l->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (l->handle && load_function(l, "hps_enable_track", &l->enable) &&
        load_function(l, "hps_disable_track", &l->disable) &&
        load_function(l, "hps_set_functions", &l->set_functions) &&
        load_function(l, "hps_wait_signal", &l->wait) && load_function(l, "hps_fetch", &l->fetch) &&
        load_function(l, "hps_process", &l->process) &&
        load_function(l, "hps_huge_alloc", &l->huge_alloc) &&
        load_function(l, "hps_huge_free", &l->huge_free) &&
        load_function(l, "hps_strerror", &l->strerror) &&
        load_function(l, "hps_reason", &l->reason))
        return true;
    const char *why = dlerror();
    char text[sizeof thread->state];
    snprintf(text, sizeof text, "cannot load %s (set --hps-library): %s", path,
             why ? why : "a function is missing");
    complain(thread, text);
    return false;
}

/* The addresses of `count` base pages, in a buffer that is kept. */
static const uintptr_t *addresses_of(struct hps_thread *thread, const struct hps_page *pages,
                                     size_t count)
{
    if (thread->addresses_room < count) {
        uintptr_t *larger = realloc(thread->addresses, count * sizeof *larger);
        if (!larger)
            return NULL; /* not this time */
        thread->addresses = larger;
        thread->addresses_room = count;
    }
    for (size_t i = 0; i < count; i++)
        thread->addresses[i] = (uintptr_t)pages[i].address;
    return thread->addresses;
}

static int decide(const struct hps_region *region, void *user)
{
    struct hps_thread *thread = user;
    if (region->suggestion != HPS_COLLAPSE || region->flags & HPS_PAGE_HUGE)
        return region->suggestion;
    uintptr_t arena = (uintptr_t)thread->cache->arena;
    if (region->address < arena || region->address - arena >= thread->cache->arena_bytes)
        return region->suggestion;
    const uintptr_t *pages = addresses_of(thread, region->pages, region->count);
    if (!pages)
        return HPS_LEAVE;
    size_t hot = hot_bytes_on(thread->cache, pages, region->count, thread->min_heat, server_now());
    return hot < HPS_REGION_SIZE / 4 ? HPS_COMPACT : HPS_COLLAPSE;
}

static void compact(const struct hps_page *pages, size_t count, void *user)
{
    struct hps_thread *thread = user;
    const uintptr_t *addresses = addresses_of(thread, pages, count);
    if (addresses)
        hot_compact(thread->cache, addresses, count, thread->min_heat, server_now(),
                    &thread->counters);
}

static int enable(struct hps_thread *thread)
{
    struct hps_options options = HPS_OPTIONS_INIT;
    if (thread->mode == HPS_SIGNAL)
        options.signo = hps_signal();
    return thread->library.enable(&options);
}

/* Waits for a notice and has it dealt with. Positive if there was one, negative if it is over. */
static int wait_for_notice(struct hps_thread *thread)
{
    if (thread->mode == HPS_THREAD)
        return thread->library.wait(PATIENCE_MS);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, hps_signal());
    struct timespec patience = { .tv_sec = PATIENCE_MS / 1000 };
    /* The list is asked for even when no signal came, for that is how the end is noticed. */
    bool notified = sigtimedwait(&set, NULL, &patience) > 0;
    int count = thread->library.fetch(thread->list, notified ? LIST_PAGES : 0, NULL);
    if (count <= 0)
        return count == -EAGAIN ? 0 : count;
    int error = thread->library.process(thread->list, (size_t)count, NULL);
    return error < 0 ? error : count;
}

static void *run(void *argument)
{
    struct hps_thread *thread = argument;
    bool tracked = false;
    uint32_t retry = 0;
    while (!atomic_load(&thread->stop)) {
        if (!tracked && server_now() >= retry) {
            int error = enable(thread);
            tracked = error == 0;
            if (tracked)
                set_state(thread, "tracked");
            else
                complain_about(thread, error);
            retry = server_now() + RETRY_SECONDS;
        }
        if (!tracked) {
            usleep(100000);
            continue;
        }
        int result = wait_for_notice(thread);
        if (result > 0)
            atomic_fetch_add(&thread->counters.notifications, 1);
        else if (result < 0 && result != -EINTR) {
            complain_about(thread, result);
            thread->library.disable();
            tracked = false;
            retry = server_now() + RETRY_SECONDS;
        }
        hot_cool(thread->cache, server_now(), &thread->counters);
    }
    if (tracked)
        thread->library.disable();
    return NULL;
}

struct hps_thread *hps_thread_start(enum hps_mode mode, const char *library, struct cache *cache,
                                    unsigned min_heat)
{
    struct hps_thread *thread = calloc(1, sizeof *thread);
    if (!thread)
        return NULL;
    thread->mode = mode;
    thread->cache = cache;
    thread->min_heat = min_heat;
    pthread_mutex_init(&thread->lock, NULL);
    set_state(thread, "off");
    if (mode == HPS_OFF || !load(thread, library))
        return thread;
    if (mode == HPS_SIGNAL && !(thread->list = calloc(LIST_PAGES, sizeof *thread->list))) {
        complain(thread, "no memory for the list of pages");
        return thread;
    }
    alloc_library = &thread->library;
    cache->hot.superpage_alloc = superpage_alloc;
    cache->hot.superpage_free = superpage_free;
    int error = thread->library.set_functions(decide, compact, thread);
    if (error < 0) {
        complain_about(thread, error);
        return thread;
    }
    thread->running = pthread_create(&thread->thread, NULL, run, thread) == 0;
    if (!thread->running)
        complain(thread, "no thread for it");
    return thread;
}

void hps_thread_stop(struct hps_thread *thread)
{
    if (!thread || !thread->running)
        return;
    atomic_store(&thread->stop, true);
    pthread_join(thread->thread, NULL);
    thread->running = false;
}

void hps_thread_free(struct hps_thread *thread)
{
    if (!thread)
        return;
    /* The library stays loaded: it may have threads of its own. */
    pthread_mutex_destroy(&thread->lock);
    free(thread->list);
    free(thread->addresses);
    free(thread);
}

const struct hot_counters *hps_thread_counters(const struct hps_thread *thread)
{
    static const struct hot_counters none;
    return thread ? &thread->counters : &none;
}

const char *hps_thread_state(struct hps_thread *thread, char *buffer, size_t size)
{
    if (!thread)
        return "no memory";
    pthread_mutex_lock(&thread->lock);
    snprintf(buffer, size, "%s", thread->state);
    pthread_mutex_unlock(&thread->lock);
    return buffer;
}
