/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where the pages of a group of tasks lie, which is found out without what the kernel says about
 * colors: /proc/kpagecgroup has the group that each page frame is charged to, /proc/kpageflags what
 * it is used for, and its color are bits 12 to 17 of its address.
 */
#ifndef CONFINED_H
#define CONFINED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
#define COLORS 64

/* The colors of a group: @count from @first on. */
struct colors {
	unsigned int first, count;
};

struct tally {
	unsigned long anonymous, anonymous_inside;
	unsigned long file, file_inside;
	/* What a file system has for itself in the page cache, as the free blocks of ext4: no data of a file. */
	unsigned long own;
};

/* Ends the program with errno, in words. */
void __attribute__((noreturn)) die(const char *what);

/* All pages that a group is charged for; what the kernel has for it, as page tables, is left out. */
struct tally tally_group(const char *folder, struct colors colors);
/* The pages that a process has mapped, and are outside; its memory that is swapped is none. */
unsigned long mapped_outside(pid_t pid, struct colors colors);

/* Entries of /proc/self/pagemap, to be freed. */
uint64_t *entries_of(const volatile char *memory, size_t size);
/* How many pages are in another frame now, and how many are in swap space. */
unsigned long moved_since(const uint64_t *before, const volatile char *memory, size_t size);
unsigned long swapped(const volatile char *memory, size_t size);

/* Base pages, nothing of which is there yet. */
char *map(size_t size);
void fill(volatile char *memory, size_t size, uint64_t seed);
/* Ends the program if something else is there than fill() wrote. */
void check(const volatile char *memory, size_t size, uint64_t seed);

/* How much of an open file is not in memory, in pages. */
unsigned long missing(int file, size_t size);

/* Has all pages mapped of the files that are mapped. */
void map_files(void);

#endif
