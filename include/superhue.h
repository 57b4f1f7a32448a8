/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/**
 * @file superhue.h
 * libsuperhue: memory in chosen page colors.
 *
 * Pages of one color compete for the same sets of a cache, pages of different colors never do. Memory that has
 * all colors evenly ("spread") uses the whole cache, whatever page frames the kernel dealt; two
 * programs, or two parts of one, that have different colors do not evict each other.
 *
 *     if (superhue_color_open() < 0) ...           // finds the machine's colors, the first time half a second
 *     double *state = superhue_color_alloc("0-7", 512 << 10, SUPERHUE_COLOR_STRICT | SUPERHUE_COLOR_LOCKED);
 *     ...
 *     superhue_color_free(state);
 *
 * No privilege is needed. Colors are measured by timing; which frames lie under the memory is never known nor
 * told. Color numbers mean the same in all programs that share the machine's palette (superhue_color_open()).
 *
 * Sets are written as in `superhue run --colors`: "spread" (all colors), a list as "0-3,8", a share as "50%".
 *
 * Results. Functions that return `int` return zero or a count, or a negative errno value; what a value means
 * here says superhue_color_strerror(), and why the last call of this thread failed, superhue_color_reason(). No function sets
 * errno or blocks signals.
 *
 * Threads. Every function may be called from any thread at any time, but not in signal handlers.
 *
 * Fork. Memory and functions work in the child. Pages that parent and child share lose their color for whoever
 * writes them first (it gets a copy of the kernel's choice): superhue_color_verify() tells, superhue_color_place() mends.
 * SUPERHUE_COLOR_PRIVATE avoids it. A fork waits until no function of this library is at work.
 *
 * Structures begin with their size, so that later versions can grow them: set it to sizeof(struct ...) before the call.
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
 * Opens the machine's colors, and finds them if nobody has yet: up to a second, during which a few ten MiB are in use.
 * Called once; the other functions do it themselves when they are called first. Again: the colors are tested, and
 * found anew where they have changed.
 *
 * @return 0, or
 *   -EOPNOTSUPP colors cannot be told here or pages cannot be moved (superhue_color_reason() tells why and what to do);
 *   -ENOMEM
 */
int superhue_color_open(void);

/**
 * How many colors there are.
 *
 * @return the number, or what superhue_color_open() returns
 */
int superhue_color_count(void);

/**
 * Allocates zeroed memory in these colors, aligned to 64 bytes, from 4,096 bytes on to pages.
 *
 * All of it is resident when this returns. Small objects share pages with others of the same set and flags.
 *
 * @param set which colors
 * @param size bytes, not 0
 * @param flags SUPERHUE_COLOR_..., or 0
 * @return the memory, or NULL; then superhue_color_error() tells the number and superhue_color_reason() the words
 */
void *superhue_color_alloc(const char *set, size_t size, unsigned flags);

/**
 * Gives memory from superhue_color_alloc() back.
 *
 * @param memory its start, or NULL (nothing happens)
 * @return 0, or -EINVAL (nothing of this library's, or given back before)
 */
int superhue_color_free(void *memory);

/** What superhue_color_place() did, in base pages of 4 KiB. */
struct superhue_color_placement {
    size_t size;     /**< sizeof(struct superhue_color_placement) */
    uint64_t placed; /**< are now of a wanted color */
    uint64_t already;/**< were already */
    uint64_t shared; /**< left: shared with another process since a fork, or pinned for I/O */
    uint64_t locked; /**< left: locked in memory */
    uint64_t foreign;/**< left: no private anonymous memory, or part of a superpage */
    uint64_t other;  /**< left: no page of a wanted color could be had, or its color is not sure */
    uint64_t edges;  /**< bytes before the first and after the last whole page: left */
};

/**
 * Moves memory that the caller has already onto pages of these colors, where it is not. Addresses and contents stay;
 * pages never touched are filled with zeroes. Until it returns nobody else may touch the memory, system
 * calls of other threads included.
 *
 * @param set which colors
 * @param memory its start
 * @param size bytes; only whole pages are moved
 * @param placement what was done, or NULL
 * @return 0, also when pages were left; or -EINVAL, -ERANGE, -ENOMEM, or what superhue_color_open() returns
 */
int superhue_color_place(const char *set, void *memory, size_t size, struct superhue_color_placement *placement);

/** What superhue_color_verify() found, in base pages of 4 KiB. */
struct superhue_color_verdict {
    size_t size;       /**< sizeof(struct superhue_color_verdict) */
    uint64_t resident; /**< are in memory */
    uint64_t absent;   /**< are not: they have no color */
    uint64_t shared;   /**< resident, and shared with another process since a fork */
    uint64_t tested;   /**< resident pages that were tested: all, or 4,096 of them at equal distances */
    uint64_t right;    /**< tested, and of a color of the set: confirmed at cache lines by which it was not told */
    uint64_t wrong;    /**< tested, and of another color, or not confirmed */
    uint64_t unsure;   /**< tested, without a clear result */
    uint64_t commonest;/**< tested, and of the color of the set that most have; if even, tested / colors of the set */
};

/**
 * Looks whether memory is in these colors, by an independent test. It is read, never written.
 *
 * @param set which colors
 * @param memory its start; need not be from superhue_color_alloc()
 * @param size bytes; only whole pages are looked at
 * @param verdict what was found, or NULL
 * @return right pages per thousand tested ones (1000: all; 0 too if there was none to test), or -EINVAL, -ERANGE,
 *   -ESTALE the machine's colors have changed: superhue_color_open() finds them anew; or what that returns
 */
int superhue_color_verify(const char *set, const void *memory, size_t size, struct superhue_color_verdict *verdict);

/**
 * The result of this thread's last call of superhue_color_alloc().
 *
 * @return 0, or why it returned NULL: -EINVAL no set, size 0 or an unknown flag; -ERANGE there are no such colors;
 *   -EOVERFLOW; -ENOSPC not enough pages of these colors (SUPERHUE_COLOR_STRICT); -EPERM it may not be locked; -ENOMEM;
 *   -ESTALE the machine's colors have changed (SUPERHUE_COLOR_STRICT); or what superhue_color_open() returns
 */
int superhue_color_error(void);

/**
 * What a result of these functions means. Async-signal-safe.
 *
 * @param result a return value; negative for errors
 * @return text that lives forever; never NULL
 */
const char *superhue_color_strerror(int result);

/**
 * Why the last call of this thread failed, in words, with what to do next.
 *
 * @param buffer where to, always terminated if size is not 0
 * @param size bytes there
 * @return the length of the whole text without its terminator; 0 if there is none
 */
size_t superhue_color_reason(char *buffer, size_t size);

#ifdef __cplusplus
}
#endif

#endif
