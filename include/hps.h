/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/**
 * @file hps.h
 * libsuperhue: an application takes part in the placement of its own memory.
 *
 * The service `superhue track` watches which pages of this process are accessed and tells it when
 * that has changed. This library fetches the list, decides for each 2 MiB region, and acts inside
 * this process only:
 *
 *     service ──notice──> hps_wait_signal ──list──> decide ──┬─ HPS_COLLAPSE  the region becomes a superpage
 *             (or a signal)    (or hps_fetch)                ├─ HPS_COMPACT   handed to your compact function
 *                                                            └─ HPS_LEAVE     nothing
 *
 * By default a region is collapsed when at least a quarter of its 512 pages are active, left if it
 * is a superpage already, and otherwise handed to `compact`, which may move the hot objects in it
 * onto memory from hps_huge_alloc().
 *
 * Results. Functions that return `int` return zero or a count, or a negative errno value; what a
 * value means here says hps_strerror(). No function sets errno or blocks signals.
 *
 * Threads. Every function may be called from any thread at any time, from the callbacks too, save
 * that a callback must not unload the library. No lock is held while a callback runs.
 *
 * Signals. Only hps_fetch() and hps_strerror() may be called in a signal handler.
 *
 * Fork. A child is not tracked: its calls return -ESRCH until it calls hps_enable_track() itself.
 * All descriptors are close-on-exec; a program that is executed is not tracked either.
 *
 * Service. If it ends or is restarted, hps_wait_signal() and hps_fetch() return -EPIPE, once and
 * from then on; call hps_disable_track() and hps_enable_track() to begin anew (see hps_wait_signal).
 *
 * Structures begin with their size, so that later versions can grow them: set it to
 * sizeof(struct ...) of the header you compile against, most simply with HPS_OPTIONS_INIT.
 */
#ifndef SUPERHUE_HPS_H
#define SUPERHUE_HPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Version of this header. The library is compatible with every older header of the same major. */
#define HPS_VERSION_MAJOR 1
#define HPS_VERSION_MINOR 0

/** Bytes in a region: 2 MiB, aligned. */
#define HPS_REGION_SIZE ((size_t)2097152)
/** Bytes in a base page. */
#define HPS_PAGE_SIZE ((size_t)4096)
/** Where the service listens unless options or the environment (SUPERHUE_TRACK_SOCKET) say otherwise. */
#define HPS_DEFAULT_SOCKET "/run/superhue/track.sock"

/** hps_page.flags: one page-table entry maps the region whole; there is no telling its pages apart. */
#define HPS_PAGE_HUGE 0x1u
/** hps_page.flags: the tracker watches ranges, not pages; the heat is that of a range around it. */
#define HPS_PAGE_ESTIMATED 0x2u

/** An active page. */
struct hps_page {
    uint64_t address; /**< first byte; aligned to 4 KiB, to 2 MiB with HPS_PAGE_HUGE */
    uint32_t heat;    /**< recent samples that found it touched, per mille, newer ones weighing more: 1 to 1000 */
    uint32_t flags;   /**< HPS_PAGE_... */
};

/** What to do with a region. */
enum hps_decision {
    HPS_LEAVE = 0,    /**< nothing */
    HPS_COLLAPSE = 1, /**< MADV_COLLAPSE: its base pages become one superpage; contents and addresses stay */
    HPS_COMPACT = 2   /**< hand its active pages to the compact function */
};

/** A region that has active pages. Grows only at its end; `size` says how far it reaches. */
struct hps_region {
    size_t size;                  /**< sizeof(struct hps_region) of the library */
    uint64_t address;             /**< first byte; aligned to 2 MiB */
    const struct hps_page *pages; /**< its active pages, ascending by address; valid during the call */
    size_t count;                 /**< how many, 1 to 512 */
    uint32_t heat;                /**< sum of their heat; for a superpage 512 times that of its one entry */
    uint32_t flags;               /**< HPS_PAGE_HUGE, HPS_PAGE_ESTIMATED: true of all of it */
    int32_t suggestion;           /**< what the library would do: an enum hps_decision */
    uint32_t reserved;            /**< zero */
};

/**
 * Decides what to do with one region, in place of the library. Called in the thread that called
 * hps_wait_signal() or hps_process(), region by region, ascending.
 *
 * @return an enum hps_decision; any other value counts as HPS_LEAVE
 */
typedef int (*hps_decide_fn)(const struct hps_region *region, void *user);

/**
 * Takes the active pages of all regions decided HPS_COMPACT, hottest first (ties: ascending
 * address). Called at most once per notice, in the same thread, after every region was decided;
 * not called if there are none. The array is valid during the call. It may take as long as it
 * likes: the library holds no lock and the service does not wait.
 */
typedef void (*hps_compact_fn)(const struct hps_page *pages, size_t count, void *user);

/** How to be tracked. Initialise with HPS_OPTIONS_INIT: zero means the default everywhere. */
struct hps_options {
    size_t size;        /**< sizeof(struct hps_options) */
    const char *socket; /**< path of the service's socket; NULL: SUPERHUE_TRACK_SOCKET, else HPS_DEFAULT_SOCKET */
    uint64_t threshold; /**< notify once this many pages are active (a superpage counts 512); 0: 1 */
    int32_t signo;      /**< notify by this signal, with the count in si_value.sival_int and si_code SI_QUEUE;
                             0: by hps_wait_signal(). Block or handle it before enabling. */
    uint32_t min_heat;  /**< a page is active from this heat on, 1 to 1000 per mille; 0: 50 */
    uint32_t pid;       /**< whom to watch: 0 this process; another only as root, and then there are
                             lists but no decisions (hps_wait_signal() only counts) */
    int32_t timeout_ms; /**< how long hps_enable_track() may wait for the service; 0: 5000 */
};

/** An initialiser for struct hps_options: every default. */
#define HPS_OPTIONS_INIT { sizeof(struct hps_options), NULL, 0, 0, 0, 0, 0 }

/**
 * Asks the service to track this process.
 *
 * @param options how, or NULL for every default
 * @return 0, or
 *   -EALREADY it is tracked; -EBUSY another thread is just enabling or disabling;
 *   -ENOENT, -ECONNREFUSED no service there; -ETIMEDOUT it did not answer; -EPROTO it speaks another version;
 *   -EPERM it refused (another user's process, a PID namespace it cannot see); -EUSERS it has too many clients;
 *   -EOPNOTSUPP it cannot track on this machine; -EINVAL bad options; or what socket(2) and connect(2) say.
 *   hps_reason() tells the service's own words.
 */
int hps_enable_track(const struct hps_options *options);

/**
 * Ends tracking. Threads in hps_wait_signal() return -ENOTCONN. Memory that was collapsed stays so.
 *
 * @return 0, -ENOTCONN if not tracked, -ESRCH in a forked child, -EBUSY while another thread enables
 */
int hps_disable_track(void);

/**
 * Sets the callbacks; they are used from the next decision on. May be called before
 * hps_enable_track(), and stays in force when tracking ends.
 *
 * @param decide NULL: the library decides
 * @param compact NULL: regions to compact are left
 * @param user passed to both
 * @return 0, or -ENOMEM
 */
int hps_set_functions(hps_decide_fn decide, hps_compact_fn compact, void *user);

/**
 * Waits for a notice in this thread, then fetches the list, decides and acts. With options.signo
 * set there are no such notices: it waits until the service ends.
 *
 *     for (;;) {
 *         int pages = hps_wait_signal(-1);
 *         if (pages == -EPIPE) {            // the service was stopped or restarted
 *             hps_disable_track();
 *             while (hps_enable_track(NULL) < 0) sleep(1);
 *         } else if (pages < 0) break;
 *     }
 *
 * @param timeout_ms how long; negative: without end; 0: not at all
 * @return active pages (a superpage counts 512), 0 when the time is over, or
 *   -ENOTCONN not tracked or just disabled; -ESRCH in a forked child; -EPIPE the service ended;
 *   -EINTR a signal handler ran; -ENOMEM; what the service said when it ended the tracking (hps_reason()):
 *   -EOPNOTSUPP the tracker failed, -EBUSY somebody else watches the same memory, -ESRCH the process is gone
 */
int hps_wait_signal(int timeout_ms);

/**
 * Copies the newest list of active pages, hottest first. Async-signal-safe. Never waits.
 *
 * A process that does not fetch for a while misses the lists in between: only the newest is kept
 * (hps_get_statistics() counts them). After a notice no other comes until the list was fetched.
 *
 * @param pages where to; may be NULL if capacity is 0
 * @param capacity how many fit
 * @param available how many there are in all, if not NULL: more than capacity if the coldest did not fit
 * @return how many were copied, or
 *   -ENOTCONN not tracked; -ESRCH in a forked child; -EPIPE the service ended;
 *   -EAGAIN the list was just being replaced: there will be another notice; -EINVAL
 */
int hps_fetch(struct hps_page *pages, size_t capacity, size_t *available);

/** What hps_process() did. */
struct hps_outcome {
    size_t size;      /**< sizeof(struct hps_outcome); set it before the call */
    size_t regions;   /**< regions that had active pages */
    size_t collapsed; /**< regions that became superpages */
    size_t failed;    /**< regions the kernel did not collapse: no free superpage, not anonymous memory, unmapped since */
    size_t compacted; /**< pages handed to the compact function */
    size_t left;      /**< regions left as they are */
};

/**
 * Decides about a fetched list and acts, with the callbacks set by hps_set_functions(). Not for
 * signal handlers. A region is decided about by the pages in the list: a list cut short by a small
 * buffer lacks the coldest.
 *
 * @param pages a list from hps_fetch(), in any order
 * @param count how many
 * @param outcome what was done, or NULL
 * @return 0; -EINVAL (a page that is not aligned, count without pages); -ENOMEM
 */
int hps_process(const struct hps_page *pages, size_t count, struct hps_outcome *outcome);

/** Counters since tracking was enabled. */
struct hps_statistics {
    size_t size;         /**< sizeof(struct hps_statistics); set it before the call */
    uint64_t published;  /**< lists the service wrote */
    uint64_t superseded; /**< of these, replaced by a newer one before they were fetched */
    uint64_t active;     /**< active pages in the newest (a superpage counts 512) */
    uint64_t cut;        /**< pages the newest lacks because the service's limit was reached: the coldest */
};

/**
 * Tells the counters.
 *
 * @return 0, -ENOTCONN, -ESRCH, -EINVAL, -EAGAIN (a list was just being written: ask again)
 */
int hps_get_statistics(struct hps_statistics *statistics);

/**
 * Allocates zeroed memory on superpages, to compact onto. Its size is rounded up to 2 MiB; it is
 * aligned to 2 MiB and populated.
 *
 * @param size bytes, not 0
 * @param huge how many of these bytes really are on superpages: fewer if the kernel had none free or
 *   they are disabled (the memory is good all the same); SIZE_MAX if the kernel cannot tell. May be NULL.
 * @return the memory, or NULL if there is not so much
 */
void *hps_huge_alloc(size_t size, size_t *huge);

/**
 * Gives memory from hps_huge_alloc() back.
 *
 * @param memory its start, or NULL (nothing happens)
 * @param size the size it was asked with
 * @return 0, or -EINVAL (not aligned to 2 MiB, size 0)
 */
int hps_huge_free(void *memory, size_t size);

/**
 * What a result of these functions means. Async-signal-safe.
 *
 * @param result a return value; negative for errors
 * @return text that lives forever; never NULL
 */
const char *hps_strerror(int result);

/**
 * Why the last call of this thread failed, in words, with what to do next; the service's own if it
 * refused or ended tracking.
 *
 * @param buffer where to, always terminated if size is not 0
 * @param size bytes there
 * @return the length of the whole text without its terminator; 0 if there is none
 */
size_t hps_reason(char *buffer, size_t size);

#ifdef __cplusplus
}
#endif

#endif
