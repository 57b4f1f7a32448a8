/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/**
 * @file superhue.h
 * libsuperhue: memory in chosen page colors.
 *
 * Pages of one color compete for the same sets of a cache; pages of different colors never do. Memory that has
 * all colors evenly ("spread") uses the whole cache, whatever page frames the kernel chose. Two
 * programs, or two parts of one program, that have different colors do not evict each other.
 *
 *     if (superhue_color_open() < 0) ...           // finds the machine's colors, the first time half a second
 *     double *state = superhue_color_alloc("0-7", 512 << 10, SUPERHUE_COLOR_STRICT | SUPERHUE_COLOR_LOCKED);
 *     ...
 *     superhue_color_free(state);
 *
 * No privilege is needed. The library measures colors by timing; it neither knows nor reports the frames of the
 * memory. Color numbers mean the same in all programs that share the machine's palette (superhue_color_open()).
 *
 * Sets are written as in `superhue run --colors`: "spread" (all colors), a list as "0-3,8", a share as "50%".
 *
 * Results. Functions that return `int` return zero or a count, or a negative errno value.
 * superhue_color_strerror() explains a value, and superhue_color_reason() returns the reason why the last call of
 * this thread failed. No function sets errno or blocks signals.
 *
 * Threads. Every function may be called from any thread at any time, but not in signal handlers. One thread at a time
 * searches, places or verifies pages, and the others wait for it. superhue_color_free() does not, nor does
 * superhue_color_alloc() if it finds room in memory that the library holds already. Both take locks for short times,
 * without priority inheritance. While a fork waits for a search, all of them wait.
 *
 * Fork. Memory and functions work in the child. While parent and child share a page, the first of them that
 * writes it gets a copy of a color that the kernel chooses: superhue_color_verify() shows that,
 * superhue_color_place() repairs it, SUPERHUE_COLOR_PRIVATE avoids it. A fork waits until no function of this
 * library runs. It calls the program's pthread_atfork(3) handlers before it waits, if the program registered them after
 * this library was loaded. So these handlers may take a lock that the program also holds around calls of this library,
 * but may not call this library.
 *
 * Structures begin with their size, so that later versions can extend them: set it to sizeof(struct ...) before the call.
 */
#ifndef SUPERHUE_SUPERHUE_H
#define SUPERHUE_SUPERHUE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Version of this header. The library is compatible with every older header of the same major. */
#define SUPERHUE_VERSION_MAJOR 1
#define SUPERHUE_VERSION_MINOR 0

/** Flag: fail rather than use a page of another color. */
#define SUPERHUE_COLOR_STRICT 0x1u
/** Flag: keep the memory from being swapped out (mlock(2)); counts against RLIMIT_MEMLOCK. */
#define SUPERHUE_COLOR_LOCKED 0x2u
/** Flag: leave the memory out of forked children, so that the parent's pages never become copies. */
#define SUPERHUE_COLOR_PRIVATE 0x4u

/**
 * Opens the machine's colors, and finds them if no program has done so: up to a second, with a few ten MiB in use.
 * One call is enough; the other functions call it if the program did not. A second call tests the colors, and
 * finds them again if they have changed.
 *
 * @return 0, or
 *   -EOPNOTSUPP colors cannot be determined here, or pages cannot be moved (superhue_color_reason() has the reason and
 *   the remedy);
 *   -ENOMEM
 */
int superhue_color_open(void);

/**
 * Returns the number of colors.
 *
 * @return the number, or an error of superhue_color_open()
 */
int superhue_color_count(void);

/**
 * Allocates zeroed memory in these colors, aligned to 64 bytes, and to pages from 4,096 bytes on.
 *
 * While it searches for pages of these colors, the process also holds pages of other colors: at most 1 GiB, an eighth
 * of the machine's available memory, and half of what its control groups leave. For one color of 32, 32 pages pass
 * through its hands for each that it keeps.
 *
 * All of it is resident when this returns. Small objects share pages with others of the same set and flags.
 *
 * @param set the colors
 * @param size bytes, not 0
 * @param flags SUPERHUE_COLOR_..., or 0
 * @return the memory, or NULL; then superhue_color_error() returns the number and superhue_color_reason() the text
 */
void *superhue_color_alloc(const char *set, size_t size, unsigned flags);

/**
 * Frees memory from superhue_color_alloc().
 *
 * @param memory its start, or NULL (nothing happens)
 * @return 0, or -EINVAL (not memory of this library, or freed before)
 */
int superhue_color_free(void *memory);

/** Actions of superhue_color_place(), in base pages of 4 KiB. */
struct superhue_color_placement {
    size_t size;     /**< sizeof(struct superhue_color_placement) */
    uint64_t placed; /**< moved to a wanted color */
    uint64_t already;/**< had a wanted color already */
    uint64_t shared; /**< left: shared with another process since a fork, or pinned for I/O */
    uint64_t locked; /**< left: locked in memory */
    uint64_t foreign;/**< left: not private anonymous memory, or part of a huge page */
    uint64_t other;  /**< left: no page of a wanted color was found, or the color is uncertain */
    uint64_t edges;  /**< left: bytes before the first and after the last whole page */
};

/**
 * Moves existing memory of the caller onto pages of these colors. Addresses and contents stay;
 * pages never touched are filled with zeroes. No other thread may touch the memory until the function returns,
 * nor may system calls of other threads.
 *
 * @param set the colors
 * @param memory its start
 * @param size bytes; only whole pages are moved
 * @param placement set to the actions, if not NULL
 * @return 0, also if pages were left; or -EINVAL, -ERANGE, -ENOMEM, or an error of superhue_color_open()
 */
int superhue_color_place(const char *set, void *memory, size_t size, struct superhue_color_placement *placement);

/** Findings of superhue_color_verify(), in base pages of 4 KiB. */
struct superhue_color_verdict {
    size_t size;       /**< sizeof(struct superhue_color_verdict) */
    uint64_t resident; /**< in memory */
    uint64_t absent;   /**< not in memory, so without a color */
    uint64_t shared;   /**< resident, and shared with another process since a fork */
    uint64_t tested;   /**< resident pages that were tested: all, or 4,096 of them at equal distances */
    uint64_t right;    /**< tested, and of a color of the set, confirmed at other cache lines than those of the first measurement */
    uint64_t wrong;    /**< tested, and of another color, or not confirmed */
    uint64_t unsure;   /**< tested, without a clear result */
    uint64_t commonest;/**< tested, and of the most common color of the set; if even, tested / colors of the set */
};

/**
 * Tests whether memory is in these colors, by an independent test. It reads the memory and never writes it.
 *
 * @param set the colors
 * @param memory its start; need not be from superhue_color_alloc()
 * @param size bytes; only whole pages are tested
 * @param verdict set to the findings, if not NULL
 * @return right pages per thousand tested ones (1000: all; also 0 if there was no page to test), or -EINVAL, -ERANGE,
 *   -ESTALE the machine's colors have changed: superhue_color_open() finds them again; or an error of
 *   superhue_color_open()
 */
int superhue_color_verify(const char *set, const void *memory, size_t size, struct superhue_color_verdict *verdict);

/**
 * Returns the result of this thread's last call of superhue_color_alloc().
 *
 * @return 0, or the reason for NULL: -EINVAL no set, size 0 or an unknown flag; -ERANGE the cache does not have these
 *   colors; -EOVERFLOW; -ENOSPC not enough pages of these colors (SUPERHUE_COLOR_STRICT); -EPERM the process may not
 *   lock the memory; -ENOMEM; -ESTALE the machine's colors have changed (SUPERHUE_COLOR_STRICT); or an error of
 *   superhue_color_open()
 */
int superhue_color_error(void);

/**
 * Explains a result of these functions. Async-signal-safe.
 *
 * @param result a return value; negative for errors
 * @return text that is never freed; never NULL
 */
const char *superhue_color_strerror(int result);

/**
 * Copies the reason why the last call of this thread failed, with the remedy.
 *
 * @param buffer the destination, always terminated if size is not 0
 * @param size bytes in the buffer
 * @return the length of the whole text without its terminator; 0 if there is none
 */
size_t superhue_color_reason(char *buffer, size_t size);

#ifdef __cplusplus
}
#endif

#endif
