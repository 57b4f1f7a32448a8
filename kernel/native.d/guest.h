/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by the programs that kernel/native runs inside the guest. They are static, and print lines that begin with "native".
 */
#ifndef NATIVE_GUEST_H
#define NATIVE_GUEST_H

#include <stddef.h>
#include <stdint.h>

#define PAGE 4096UL
#define LINE 64UL
#define LINES_OF_PAGE (PAGE / LINE)

/* Ends the program; prints the failed call and the reason. */
void die(const char *what);

/* A number of the command line. */
unsigned long number(const char *text);

/* Makes the numbers of below() follow from this one. */
void seed(uint64_t from);

/* A random number below another one. */
uint64_t below(uint64_t limit);

/* A number below `limit` for each count. They do not depend on each other: a chain of them would hide loads that overlap. */
static inline uint64_t scattered(uint64_t count, uint64_t limit)
{
	count *= 0x9e3779b97f4a7c15ull;
	count = (count ^ count >> 32) * 0xd6e8feb86659fd93ull;
	return (unsigned __int128)count * limit >> 64;
}

/* Shuffles numbers. */
void shuffle(uint32_t *numbers, size_t count);

/* Nanoseconds of the monotonic clock; a system call, which takes microseconds here. */
double now(void);

/* Memory of this many bytes in base pages, touched page by page, in ascending order. */
char *fresh(size_t bytes);

/* The frame number of each page. */
void frames(const char *memory, size_t pages, uint64_t *numbers);

/* Links lines of 64 bytes to a ring in random order. Returns the first. */
void **link_lines(char **lines, size_t count);

/* The same for all lines of memory that is contiguous. */
void **link_memory(char *memory, size_t bytes);

/* Follows a ring for so many steps. */
void **follow(void **at, size_t steps);

/* Gives the calling task colors: "off" leaves it as it is, "spread" is all of them in turn, "4-7" is a set. */
void take_colors(const char *arm);

#endif
