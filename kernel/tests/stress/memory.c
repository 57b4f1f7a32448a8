// SPDX-License-Identifier: GPL-2.0-only
/* Loads of anonymous memory: more than there is, hot sets that change, superpages. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
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

/* Goes over more memory than there is. */
void pressure(unsigned int seed)
{
	size_t size = shared->pressure, at;
	char *memory = map(size);
	uint64_t round = seed;

	/* The others are to feel it. */
	setpriority(PRIO_PROCESS, 0, -10);
	while (memory && !stopping()) {
		round++;
		for (at = 0; at + MIB <= size && !stopping(); at += MIB) {
			if (random_below(&seed, 16) == 0)
				change_own_set(&seed);
			write_bytes(memory + at, MIB, round + at);
			if (random_below(&seed, 8) == 0 &&
			    !madvise(memory + at, MIB, MADV_PAGEOUT))
				DONE(mib_paged_out);
		}
		size_t end = at;

		for (at = 0; at < end && !stopping(); at += MIB)
			check_bytes("pressure", memory + at, MIB, round + at);
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

/* Waits for khugepaged, if it does not take the superpage right away. */
static void collapse(char *memory, size_t size, unsigned int *seed)
{
	if (random_below(seed, 3)) {
		if (!madvise(memory, size, MADV_COLLAPSE))
			DONE(superpages_collapsed);
	} else {
		usleep(300000);
	}
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
		if (random_below(&seed, 3) == 0) {
			/* Base pages first, of which superpages are made. */
			madvise(memory, size + HUGE, MADV_NOHUGEPAGE);
			write_bytes(start, size, mark);
			madvise(memory, size + HUGE, MADV_HUGEPAGE);
			collapse(start, size, &seed);
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
