// SPDX-License-Identifier: GPL-2.0-only
/* Loads of anonymous memory: more than there is, hot sets that change, superpages. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stress.h"

#ifndef MADV_COLD
#define MADV_COLD	20
#define MADV_PAGEOUT	21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif
#define HUGE		(2 * MIB)
#define MOVE_ALL	2	/* MPOL_MF_MOVE of move_pages() */

/*
 * No memory block can go within minutes where all are full. While room is asked for, what
 * is above the first quarter is given back, and @used ends there.
 */
static size_t usable(char *memory, size_t size, size_t *used)
{
	size_t quarter = (size / 4) & ~(MIB - 1);

	if (!__atomic_load_n(&shared->room, __ATOMIC_RELAXED))
		return size;
	madvise(memory + quarter, size - quarter, MADV_DONTNEED);
	if (*used > quarter)
		*used = quarter;
	return quarter;
}

/* Goes over more memory than there is. */
void pressure(unsigned int seed)
{
	size_t size = shared->pressure, used, at;
	char *memory = map(size);
	uint64_t round = seed;

	/* The others are to feel it. */
	setpriority(PRIO_PROCESS, 0, -10);
	while (memory && !stopping()) {
		round++;
		used = 0;
		while (used + MIB <= usable(memory, size, &used) && !stopping()) {
			if (random_below(&seed, 16) == 0)
				change_own_set(&seed);
			write_bytes(memory + used, MIB, round + used);
			if (random_below(&seed, 8) == 0 &&
			    !madvise(memory + used, MIB, MADV_PAGEOUT))
				DONE(mib_paged_out);
			used += MIB;
		}
		for (at = 0; at < used && !stopping(); at += MIB) {
			check_bytes("pressure", memory + at, MIB, round + at);
			usable(memory, size, &used);
		}
		madvise(memory, size, MADV_DONTNEED);
	}
}

static void move_between_nodes(char *memory, size_t pages, unsigned int *seed)
{
	int nodes[64], status[64], target = random_below(seed, 2);
	unsigned long moved = 0;
	void *address[64];
	size_t i;

	for (i = 0; i < 64; i++) {
		address[i] = memory + random_below(seed, pages) * PAGE;
		nodes[i] = target;
		status[i] = -1;
	}
	syscall(SYS_move_pages, 0, 64, address, nodes, status, MOVE_ALL);
	for (i = 0; i < 64; i++)
		moved += status[i] == target;
	DONE_N(pages_moved_between_nodes, moved);
}

/* A part of the memory is hot, then another one; what was hot goes cold, or out. */
void hot_set(unsigned int seed)
{
	enum { CHUNKS = 48, HOT = 8 };
	const size_t chunk = MIB / 2;
	bool nodes = !access("/sys/devices/system/node/node1", F_OK);
	char *memory = map(CHUNKS * chunk);
	uint64_t mark[CHUNKS];
	unsigned int i, first;

	for (i = 0; memory && i < CHUNKS; i++) {
		mark[i] = seed + i;
		write_bytes(memory + i * chunk, chunk, mark[i]);
	}
	while (memory && !stopping()) {
		change_own_set(&seed);
		first = random_below(&seed, CHUNKS - HOT);
		for (i = first; i < first + HOT && !stopping(); i++) {
			check_bytes("hot set", memory + i * chunk, chunk, mark[i]);
			mark[i] += 1000;
			write_bytes(memory + i * chunk, chunk, mark[i]);
		}
		if (nodes)
			move_between_nodes(memory, CHUNKS * chunk / PAGE, &seed);
		madvise(memory + first * chunk, HOT * chunk,
			random_below(&seed, 2) ? MADV_COLD : MADV_PAGEOUT);
		/* Of what is cold as well. */
		i = random_below(&seed, CHUNKS);
		check_bytes("cold set", memory + i * chunk, chunk, mark[i]);
		DONE(hot_sets_changed);
	}
}

/* How much of the process is mapped by superpages, in kB. */
static unsigned long in_superpages(void)
{
	unsigned long kb = 0;

	pc_value("/proc/self/smaps_rollup", "AnonHugePages", &kb);
	return kb;
}

/*
 * Of base pages, one by one; it counts if it is seen. While memory is short there may be
 * none to be had.
 */
static void collapse(char *start, size_t size)
{
	unsigned long before;
	unsigned int tries;
	char *at;

	for (at = start; at < start + size; at += HUGE)
		for (tries = 0; tries < 10 && !stopping(); tries++) {
			before = in_superpages();
			if (!madvise(at, HUGE, MADV_COLLAPSE)) {
				if (in_superpages() > before)
					DONE(superpages_collapsed);
				break;
			}
			/* Pages that somebody else has isolated or locked. */
			if (errno != EAGAIN)
				break;
			usleep(20000);
		}
}

/* Base pages first, of which superpages are made: by khugepaged, or right away. */
static void write_and_collapse(char *start, size_t size, uint64_t mark, unsigned int *seed)
{
	/* A set of some colors has no superpages. */
	prctl(PR_PAGE_COLOR, random_below(seed, 2) ? PR_PAGE_COLOR_SPREAD : PR_PAGE_COLOR_OFF,
	      0, 0, 0);
	madvise(start, size, MADV_NOHUGEPAGE);
	write_bytes(start, size, mark);
	madvise(start, size, MADV_HUGEPAGE);
	if (random_below(seed, 3))
		collapse(start, size);
	else
		usleep(300000);
}

void superpages(unsigned int seed)
{
	for (; !stopping(); ) {
		size_t size = (2 + random_below(&seed, 5)) * HUGE, part;
		char *memory = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *start;
		uint64_t mark = random_below(&seed, 1 << 30);

		if (memory == MAP_FAILED)
			continue;
		start = (char *)(((uintptr_t)memory + HUGE - 1) & ~(HUGE - 1));
		change_own_set(&seed);
		if (random_below(&seed, 2) == 0) {
			write_and_collapse(start, size, mark, &seed);
		} else {
			if (random_below(&seed, 2))
				madvise(memory, size + HUGE, MADV_HUGEPAGE);
			write_bytes(start, size, mark);
		}
		DONE_N(superpages_asked, size / HUGE);
		/* Some are split: a hole, other rights, out to swap. */
		part = random_below(&seed, size / HUGE) * HUGE;
		if (random_below(&seed, 2))
			mprotect(start + part + MIB, MIB, PROT_READ);
		if (random_below(&seed, 2))
			madvise(start + part, HUGE, MADV_PAGEOUT);
		check_bytes("superpages", start, size, mark);
		if (!madvise(start + part + 37 * PAGE, PAGE, MADV_DONTNEED)) {
			DONE(superpages_split);
			if (start[part + 37 * PAGE] || start[part + 38 * PAGE - 1])
				wrong("superpages: a page that was given back is not empty");
			write_bytes(start + part + 37 * PAGE, PAGE, mark);
			check_bytes("superpages, split", start + part + 37 * PAGE, PAGE, mark);
		}
		munmap(memory, size + HUGE);
	}
}
