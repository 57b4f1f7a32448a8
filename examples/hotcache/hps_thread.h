/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The thread that listens to the tracking service and compacts.
 */
#ifndef HOTCACHE_HPS_THREAD_H
#define HOTCACHE_HPS_THREAD_H

#include <stdbool.h>
#include <stddef.h>

struct cache;
struct hot_counters;
struct hps_thread;

enum hps_mode {
    HPS_OFF,
    HPS_THREAD,     /* notices come through hps_wait_signal() */
    HPS_SIGNAL,     /* notices come as a signal, which the thread waits for */
};

const char *hps_mode_name(enum hps_mode mode);

/* The signal of HPS_SIGNAL, to be blocked in all threads. */
int hps_signal(void);

/* Loads the library and starts. Never fails: what does not work is said once on standard error, and
 * the cache serves on without. */
struct hps_thread *hps_thread_start(enum hps_mode mode, const char *library, struct cache *cache,
                                    unsigned min_heat);
/* Ends the thread. To be freed when the cache is gone, which refers to it. */
void hps_thread_stop(struct hps_thread *thread);
void hps_thread_free(struct hps_thread *thread);

const struct hot_counters *hps_thread_counters(const struct hps_thread *thread);
/* `off`, `tracked`, or why not. */
const char *hps_thread_state(struct hps_thread *thread, char *buffer, size_t size);

#endif
