/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/**
 * @file hps.h
 * libsuperhue: an application takes part in the placement of its own memory.
 *
 * The service `superhue track` watches which pages of this process are accessed, and notifies the process
 * when that has changed. This library fetches the list, decides for each 2 MiB region, and acts inside
 * this process only:
 *
 *     service --notice--> hps_wait_signal --list--> decide --+- HPS_COLLAPSE  the region becomes a huge page
 *             (or a signal)    (or hps_fetch)                +- HPS_COMPACT   goes to your compact function
 *                                                            +- HPS_LEAVE     nothing
 *
 * By default the library collapses a region if at least a quarter of its 512 pages are active, and leaves
 * it alone if it is a huge page already. Otherwise it passes the region to `compact`, which may move its hot
 * objects onto memory from hps_huge_alloc().
 *
 * Results. Functions that return `int` return zero or a count, or a negative errno value;
 * hps_strerror() explains a value. No function sets errno or blocks signals.
 *
 * Threads. Every function may be called from any thread at any time, also from the callbacks, except
 * that a callback must not unload the library. The library holds no lock while a callback runs. A callback returns:
 * it may not leave by longjmp(3), a C++ exception or pthread_exit(3). Do not cancel a thread that is inside a function
 * (pthread_cancel): hps_disable_track() ends hps_wait_signal().
 *
 * Signals. Only hps_fetch() and hps_strerror() may be called in a signal handler.
 *
 * Fork. A child is not tracked: its calls return -ESRCH until it calls hps_enable_track() itself.
 * All descriptors are close-on-exec. After exec the new program is not tracked either.
 *
 * Service. If it ends or is restarted, hps_wait_signal() and hps_fetch() return -EPIPE from then on. Call
 * hps_disable_track() and hps_enable_track() to start again (see hps_wait_signal).
 *
 * Structures begin with their size, so that later versions can extend them: set it to
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
/** Path of the service's socket, unless options or the environment (SUPERHUE_TRACK_SOCKET) name another. */
#define HPS_DEFAULT_SOCKET "/run/superhue/track.sock"

/** hps_page.flags: one page-table entry maps the whole region, so its pages cannot be distinguished. */
#define HPS_PAGE_HUGE 0x1u
/** hps_page.flags: the tracker watches ranges, not pages; the heat is that of the range around the page. */
#define HPS_PAGE_ESTIMATED 0x2u

/** An active page. */
struct hps_page {
    uint64_t address; /**< first byte; aligned to 4 KiB, to 2 MiB with HPS_PAGE_HUGE */
    uint32_t heat;    /**< share of recent samples that found it touched, per mille, newer ones weigh more: 1 to 1000 */
    uint32_t flags;   /**< HPS_PAGE_... */
};

/** A decision about a region. */
enum hps_decision {
    HPS_LEAVE = 0,    /**< nothing */
    HPS_COLLAPSE = 1, /**< MADV_COLLAPSE: its base pages become one huge page; contents and addresses stay */
    HPS_COMPACT = 2   /**< pass its active pages to the compact function */
};

/** A region that has active pages. The structure grows only at its end; `size` is its length. */
struct hps_region {
    size_t size;                  /**< sizeof(struct hps_region) of the library */
    uint64_t address;             /**< first byte; aligned to 2 MiB */
    const struct hps_page *pages; /**< its active pages, ascending by address; valid during the call */
    size_t count;                 /**< number of these pages, 1 to 512 */
    uint32_t heat;                /**< sum of their heat; for a huge page 512 times that of its one entry */
    uint32_t flags;               /**< HPS_PAGE_HUGE, HPS_PAGE_ESTIMATED: for the whole region */
    int32_t suggestion;           /**< the library's decision: an enum hps_decision */
    uint32_t reserved;            /**< zero */
};

/**
 * Decides about one region, in place of the library. Called in the thread that called
 * hps_wait_signal() or hps_process(), region by region, in ascending order.
 *
 * @return an enum hps_decision; any other value counts as HPS_LEAVE
 */
typedef int (*hps_decide_fn)(const struct hps_region *region, void *user);

/**
 * Takes the active pages of all regions decided HPS_COMPACT, hottest first (ties: ascending
 * address). Called at most once per notice, in the same thread, after all decisions;
 * not called if there are no such pages. The array is valid during the call. The function may take any
 * time: the library holds no lock and the service does not wait.
 */
typedef void (*hps_compact_fn)(const struct hps_page *pages, size_t count, void *user);

/** Options of tracking. Initialise with HPS_OPTIONS_INIT: zero means the default for every member. */
struct hps_options {
    size_t size;        /**< sizeof(struct hps_options) */
    const char *socket; /**< path of the service's socket; NULL: SUPERHUE_TRACK_SOCKET, else HPS_DEFAULT_SOCKET */
    uint64_t threshold; /**< notify once this number of pages is active (a huge page counts 512); 0: 1 */
    int32_t signo;      /**< notify with this signal, with the count in si_value.sival_int and si_code SI_QUEUE;
                             0: through hps_wait_signal(). Block or handle the signal before enabling. */
    uint32_t min_heat;  /**< lowest heat of an active page, 1 to 1000 per mille; 0: 50 */
    uint32_t pid;       /**< process to watch: 0 for the caller; another one only as root, and then with
                             lists but without decisions (hps_wait_signal() only counts) */
    int32_t timeout_ms; /**< time for which hps_enable_track() may wait for the service, ms; 0: 5000 */
};

/** Initialiser for struct hps_options: every default. */
#define HPS_OPTIONS_INIT { sizeof(struct hps_options), NULL, 0, 0, 0, 0, 0 }

/**
 * Asks the service to track this process.
 *
 * @param options the options, or NULL for every default
 * @return 0, or
 *   -EALREADY the process is tracked already; -EBUSY another thread is enabling or disabling tracking;
 *   -ENOENT, -ECONNREFUSED there is no service; -ETIMEDOUT the service did not answer;
 *   -EPROTO it uses another version of the protocol;
 *   -EPERM it refused (another user's process, a PID namespace it cannot see); -EUSERS it has too many clients;
 *   -EOPNOTSUPP it cannot track on this machine; -EINVAL invalid options; or an error of socket(2) or connect(2).
 *   hps_reason() returns the service's own text.
 */
int hps_enable_track(const struct hps_options *options);

/**
 * Ends tracking. Threads in hps_wait_signal() return -ENOTCONN. Memory that was collapsed stays so. A signal that the
 * service sent before may arrive after this returns: keep it blocked or handled.
 *
 * @return 0, -ENOTCONN if not tracked, -ESRCH in a forked child, -EBUSY while another thread enables tracking
 */
int hps_disable_track(void);

/**
 * Sets the callbacks; the library uses them from the next decision on. May be called before
 * hps_enable_track(), and stays in force when tracking ends.
 *
 * @param decide NULL: the library decides
 * @param compact NULL: regions to compact are left alone
 * @param user passed to both callbacks
 * @return 0, or -ENOMEM
 */
int hps_set_functions(hps_decide_fn decide, hps_compact_fn compact, void *user);

/**
 * Waits for a notice in this thread, then fetches the list, decides and acts. With options.signo
 * set there are no such notices, and it waits until the service ends.
 *
 *     for (;;) {
 *         int pages = hps_wait_signal(-1);
 *         if (pages == -EPIPE) {            // the service was stopped or restarted
 *             hps_disable_track();
 *             while (hps_enable_track(NULL) < 0) sleep(1);
 *         } else if (pages < 0) break;
 *     }
 *
 * @param timeout_ms time limit in milliseconds; negative: no limit; 0: do not wait
 * @return active pages (a huge page counts 512), 0 after the time limit, or
 *   -ENOTCONN not tracked or just disabled; -ESRCH in a forked child; -EPIPE the service ended;
 *   -EINTR a signal handler ran; -ENOMEM; or the reason for which the service ended the tracking (hps_reason()):
 *   -EOPNOTSUPP the tracker failed, -EBUSY another tracker watches the same memory, -ESRCH the process has ended
 */
int hps_wait_signal(int timeout_ms);

/**
 * Copies the newest list of active pages, hottest first. Async-signal-safe. Never waits. In a program that loads the library
 * with dlopen(3), a thread calls hps_reason(NULL, 0) once before its signal handler may call this: the first use of memory of
 * the thread's own may allocate.
 *
 * The service keeps only the newest list, so a process that does not fetch for a while misses the lists in
 * between (hps_get_statistics() counts them). After a notice no other follows until the process fetches. The list may have
 * fewer pages than options.threshold: there is no notice of such a list.
 *
 * @param pages the destination; may be NULL if capacity is 0
 * @param capacity pages that fit; with 0 the call only returns how many there are, and a notice that is due stays due
 * @param available if not NULL, set to the number of all pages: more than capacity if the coldest did not fit
 * @return pages copied, or
 *   -ENOTCONN not tracked; -ESRCH in a forked child; -EPIPE the service ended;
 *   -EAGAIN the service was replacing the list: another notice follows; -EINVAL
 */
int hps_fetch(struct hps_page *pages, size_t capacity, size_t *available);

/** Actions of hps_process(). */
struct hps_outcome {
    size_t size;      /**< sizeof(struct hps_outcome); set it before the call */
    size_t regions;   /**< regions that had active pages */
    size_t collapsed; /**< regions that became huge pages */
    size_t failed;    /**< regions the kernel did not collapse: no free huge page, not anonymous memory, unmapped since */
    size_t compacted; /**< pages passed to the compact function */
    size_t left;      /**< regions left alone */
};

/**
 * Decides about a fetched list and acts, with the callbacks set by hps_set_functions(). Not for
 * signal handlers. The decision about a region rests on the pages in the list: a list cut short by a small
 * buffer lacks the coldest.
 *
 * @param pages a list from hps_fetch(), in any order
 * @param count pages in the list
 * @param outcome set to the actions, if not NULL
 * @return 0; -EINVAL (a page that is not aligned, count without pages); -ENOMEM
 */
int hps_process(const struct hps_page *pages, size_t count, struct hps_outcome *outcome);

/** Counters since tracking was enabled. */
struct hps_statistics {
    size_t size;         /**< sizeof(struct hps_statistics); set it before the call */
    uint64_t published;  /**< lists that the service wrote */
    uint64_t superseded; /**< lists that a newer one replaced before a fetch */
    uint64_t active;     /**< active pages in the newest list (a huge page counts 512) */
    uint64_t cut;        /**< pages that the newest list lacks because of the service's limit: the coldest */
};

/**
 * Reads the counters.
 *
 * @return 0, -ENOTCONN, -ESRCH, -EINVAL, -EPIPE (the service ended), -EAGAIN (the service was writing a list: call again)
 */
int hps_get_statistics(struct hps_statistics *statistics);

/**
 * Allocates zeroed memory on huge pages, as a target for compaction. Its size is rounded up to 2 MiB; it is
 * aligned to 2 MiB and populated.
 *
 * @param size bytes, not 0
 * @param huge set to the bytes that are on huge pages: fewer if the kernel had no free huge pages or has them
 *   disabled (the memory is usable all the same); SIZE_MAX if the kernel does not report it. May be NULL.
 * @return the memory, or NULL if there is not enough
 */
void *hps_huge_alloc(size_t size, size_t *huge);

/**
 * Frees memory from hps_huge_alloc().
 *
 * @param memory its start, or NULL (nothing happens)
 * @param size the size of the allocation
 * @return 0, or -EINVAL (not aligned to 2 MiB, size 0)
 */
int hps_huge_free(void *memory, size_t size);

/**
 * Explains a result of these functions. Async-signal-safe.
 *
 * @param result a return value; negative for errors
 * @return text that is never freed; never NULL
 */
const char *hps_strerror(int result);

/**
 * Copies the reason why the last call of this thread failed, with the remedy. If the service refused or ended
 * tracking, the text is the service's own.
 *
 * @param buffer the destination, always terminated if size is not 0
 * @param size bytes in the buffer
 * @return the length of the whole text without its terminator; 0 if there is none
 */
size_t hps_reason(char *buffer, size_t size);

#ifdef __cplusplus
}
#endif

#endif
