/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Stands in for libsuperhue in the tests: notices come all the time, and each names a random half
 * of the pages that are present. What it says is true of the pages (they are there) and wild about
 * their heat, which is the worst that a tracker could do to the cache.
 *
 *   FAKE_HPS_ENABLE=ERRNO   hps_enable_track() fails with that number
 *   FAKE_HPS_END=N          the service ends after every N notices
 *   FAKE_HPS_NO_MEMORY=1    no region becomes a superpage; else every fourth attempt fails
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <hps.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES_MAX = 1 << 16, INTERVAL_US = 3000, SMALLEST = 16 << 20, LARGEST = 512 << 20 };

static hps_decide_fn decide;
static hps_compact_fn compact;
static void *user;
static int32_t signo;
static _Atomic bool enabled;
static _Atomic long notices;
static pthread_t notifier;
static struct hps_page list[PAGES_MAX];

static long setting(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static bool ended(void)
{
    long end = setting("FAKE_HPS_END");
    return end > 0 && atomic_load(&notices) >= end;
}

/* A random half of the present pages of the mappings of a cache's size. */
static size_t collect(struct hps_page *pages, size_t room)
{
    size_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    char line[512];
    while (maps && pagemap >= 0 && fgets(line, sizeof line, maps)) {
        uint64_t start, end, inode;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " rw-p %*s %*s %" SCNu64, &start, &end,
                   &inode) != 3 || inode != 0 || end - start < SMALLEST || end - start > LARGEST)
            continue;
        for (uint64_t at = start; at < end && count < room; at += HPS_REGION_SIZE) {
            uint64_t words[512];
            ssize_t got = pread(pagemap, words, sizeof words, (off_t)(at / 4096 * 8));
            for (ssize_t i = 0; i < got / 8 && at + (uint64_t)i * 4096 < end && count < room; i++)
                if (words[i] >> 63 && random() & 1)
                    pages[count++] = (struct hps_page){ .address = at + (uint64_t)i * 4096,
                                                        .heat = 1 + (uint32_t)random() % 1000 };
        }
    }
    if (maps)
        fclose(maps);
    if (pagemap >= 0)
        close(pagemap);
    return count;
}

static int by_address(const void *a, const void *b)
{
    const struct hps_page *one = a, *other = b;
    return (one->address > other->address) - (one->address < other->address);
}

static int hottest_first(const void *a, const void *b)
{
    const struct hps_page *one = a, *other = b;
    return one->heat != other->heat ? (one->heat < other->heat) - (one->heat > other->heat)
                                    : by_address(a, b);
}

int hps_process(const struct hps_page *pages, size_t count, struct hps_outcome *outcome)
{
    struct hps_page *sorted = malloc((count + 1) * sizeof *sorted);
    size_t collapsed = 0, failed = 0;
    memcpy(sorted, pages, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_address);
    size_t kept = 0;
    for (size_t first = 0, next; first < count; first = next) {
        uint64_t region = sorted[first].address / HPS_REGION_SIZE;
        for (next = first; next < count && sorted[next].address / HPS_REGION_SIZE == region; next++)
            ;
        struct hps_region asked = {
            .size = sizeof asked, .address = region * HPS_REGION_SIZE, .pages = sorted + first,
            .count = next - first,
            .suggestion = next - first >= 128 ? HPS_COLLAPSE : HPS_COMPACT,
        };
        int decision = decide ? decide(&asked, user) : asked.suggestion;
        if (decision == HPS_COLLAPSE && !setting("FAKE_HPS_NO_MEMORY") && random() & 3)
            collapsed++;
        else if (decision == HPS_COLLAPSE)
            failed++;
        if (decision == HPS_COMPACT) {
            memmove(sorted + kept, sorted + first, (next - first) * sizeof *sorted);
            kept += next - first;
        }
    }
    qsort(sorted, kept, sizeof *sorted, hottest_first);
    if (kept > 0 && compact)
        compact(sorted, kept, user);
    free(sorted);
    if (outcome) {
        outcome->collapsed = collapsed;
        outcome->failed = failed;
    }
    return 0;
}

static void *notify(void *argument)
{
    while (atomic_load(&enabled)) {
        usleep(INTERVAL_US);
        kill(getpid(), signo);
    }
    return argument;
}

int hps_enable_track(const struct hps_options *options)
{
    if (setting("FAKE_HPS_ENABLE"))
        return -(int)setting("FAKE_HPS_ENABLE");
    if (atomic_exchange(&enabled, true))
        return -EALREADY;
    atomic_store(&notices, 0);
    signo = options ? options->signo : 0;
    if (signo && pthread_create(&notifier, NULL, notify, NULL) != 0)
        return -EAGAIN;
    return 0;
}

int hps_disable_track(void)
{
    if (!atomic_exchange(&enabled, false))
        return -ENOTCONN;
    if (signo)
        pthread_join(notifier, NULL);
    return 0;
}

int hps_set_functions(hps_decide_fn new_decide, hps_compact_fn new_compact, void *new_user)
{
    decide = new_decide;
    compact = new_compact;
    user = new_user;
    return 0;
}

int hps_wait_signal(int timeout_ms)
{
    (void)timeout_ms;
    if (!atomic_load(&enabled))
        return -ENOTCONN;
    if (ended())
        return -EPIPE;
    usleep(INTERVAL_US);
    atomic_fetch_add(&notices, 1);
    size_t count = collect(list, PAGES_MAX);
    hps_process(list, count, NULL);
    return (int)count;
}

int hps_fetch(struct hps_page *pages, size_t capacity, size_t *available)
{
    if (available)
        *available = 0;
    if (!atomic_load(&enabled))
        return -ENOTCONN;
    if (ended())
        return -EPIPE;
    if (capacity == 0)
        return 0;
    atomic_fetch_add(&notices, 1);
    return (int)collect(pages, capacity);
}

int hps_get_statistics(struct hps_statistics *statistics)
{
    (void)statistics;
    return -ENOTCONN;
}

const char *hps_strerror(int result) { return strerror(-result); }

size_t hps_reason(char *buffer, size_t size)
{
    return (size_t)snprintf(buffer, size, "the fake service says so");
}
