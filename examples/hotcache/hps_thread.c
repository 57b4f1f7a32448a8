/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libsuperhue is loaded when the cache starts, so the cache builds and runs without it.
 *
 * The decision about a region is the cache's own. The library knows pages; the cache knows which
 * items on them are asked for. Under most loads every page holds some such item, and to the library
 * all of the cache looks like one that deserves superpages. So all active pages go to compaction,
 * and only the regions which that has chosen become superpages.
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
};

struct library {
    void *handle;
    int (*enable)(const struct hps_options *);
    int (*disable)(void);
    int (*set_functions)(hps_decide_fn, hps_compact_fn, void *);
    int (*wait)(int);
    int (*fetch)(struct hps_page *, size_t, size_t *);
    int (*process)(const struct hps_page *, size_t, struct hps_outcome *);
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
    size_t list_room;
    uintptr_t wanted;           /* the region that compaction wants to be a superpage, or 0 */
    pthread_mutex_t lock;       /* of the text */
    char state[400];
};

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

static int decide(const struct hps_region *region, void *user)
{
    struct hps_thread *thread = user;
    if (thread->wanted)
        return region->address == thread->wanted ? HPS_COLLAPSE : HPS_LEAVE;
    uintptr_t arena = (uintptr_t)thread->cache->arena;
    /* What the cache did not lay out itself, the heap for instance, stays as it is: part of such a
     * region may be unused, and to collapse it would add that to memory. The arena is whole regions. */
    return region->address >= arena && region->address - arena < thread->cache->arena_bytes
        ? HPS_COMPACT : HPS_LEAVE;
}

/* Only notes them down. What is done about it takes counts of accesses, which may be too young. */
static void compact(const struct hps_page *pages, size_t count, void *user)
{
    struct hps_thread *thread = user;
    hot_notice(thread->cache);
    for (size_t i = 0; i < count; i++)
        hot_notice_range(thread->cache, (uintptr_t)pages[i].address,
                         pages[i].flags & HPS_PAGE_HUGE ? HPS_REGION_SIZE : HPS_PAGE_SIZE);
}

/* Has the library make one region a superpage, by a list that names it alone. */
static bool collapse(void *context, void *start)
{
    struct hps_thread *thread = context;
    struct hps_page page = { .address = (uintptr_t)start, .heat = 1000 };
    struct hps_outcome outcome = { .size = sizeof outcome };
    thread->wanted = (uintptr_t)start;
    int error = thread->library.process(&page, 1, &outcome);
    thread->wanted = 0;
    return error == 0 && outcome.collapsed == 1;
}

static int enable(struct hps_thread *thread)
{
    struct hps_options options = HPS_OPTIONS_INIT;
    /* Every page that was accessed: how often is for the items on it to say. */
    options.min_heat = 1;
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
    int count = thread->library.fetch(thread->list, notified ? thread->list_room : 0, NULL);
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
        hot_tick(thread->cache, thread->min_heat, server_now(), &thread->stop, &thread->counters);
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
    /* Room for every page there can be; what is not filled takes no memory. */
    thread->list_room = cache->arena_bytes / BASE_PAGE_BYTES;
    if (mode == HPS_SIGNAL && !(thread->list = calloc(thread->list_room, sizeof *thread->list))) {
        complain(thread, "no memory for the list of pages");
        return thread;
    }
    cache->hot.collapse = collapse;
    cache->hot.collapse_context = thread;
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
