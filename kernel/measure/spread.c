// SPDX-License-Identifier: GPL-2.0-only
/*
 * How evenly the pages of programs lie on 64 colors, of programs of 1 to 256 MiB.
 *
 * The colors are those of bits 12 to 17 of the physical address; page frame numbers are read from
 * /proc/self/pagemap. Nothing that the kernel says about colors is looked at. A kernel that can
 * spread pages is told to (vm.page_color_spread); any other one is measured as it is.
 *
 * Each program is a process of its own, begun by exec. It does one of these, in the order of the
 * addresses, which makes one contiguous run:
 *
 *	touch	writes memory for the first time
 *	copy	writes what it shares with its parent after fork
 *	file	writes a file in memory, which is then mapped
 *	joined	writes memory of so many MiB in superpages, with a head and a tail that are smaller than
 *		one; of superpages that are not to be had the base pages count as well
 *
 * Memory is measured `fresh`, as it is after boot, and `aged`: another process has most of it
 * and gave every other page back, in random order.
 *
 * Prints a line for each program, where SUPERPAGES is how many it has, DEVIATION the most that a color
 * differs from base pages / 64, and COUNTS are the base pages of each color:
 *
 *	spread STATE KIND MIB SUPERPAGES DEVIATION COUNTS...
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dealt.h"

#define COLORS 64
#define MOST_MIB 256
#define PROGRAMS 5
/* Neither is a multiple of the colors. */
#define HEAD (HUGE / 4 + 12 * PAGE)
#define TAIL (HUGE / 2 + 5 * PAGE)

#define SPREAD "/proc/sys/vm/page_color_spread"
#define THP "/sys/kernel/mm/transparent_hugepage/"

static const struct kind {
	const char *name;
	int least_mib, most_mib;
} kinds[] = {
	{ "touch", 1, MOST_MIB }, { "copy", 1, MOST_MIB }, { "file", 1, MOST_MIB }, { "joined", 2, 32 },
};

static void say(const char *state, const char *kind, size_t mib, const char *memory, size_t size)
{
	static uint64_t entries[MOST_MIB * MIB / PAGE];
	static uint32_t words[MOST_MIB * MIB / PAGE];
	unsigned long count[COLORS] = { 0 }, pages = size / PAGE, base = 0;
	double deviation = 0;

	own_frames(memory, pages, !strcmp(kind, "joined"), entries, words);
	for (size_t i = 0; i < pages; i++)
		if (!(words[i] & SUPERPAGE)) {
			count[words[i] % COLORS]++;
			base++;
		}
	for (int color = 0; color < COLORS; color++) {
		double off = count[color] - (double)base / COLORS;

		if (off < 0)
			off = -off;
		if (off > deviation)
			deviation = off;
	}
	printf("spread %s %s %zu %lu %g", state, kind, mib, (pages - base) * PAGE / HUGE, deviation);
	for (int color = 0; color < COLORS; color++)
		printf(" %lu", count[color]);
	printf("\n");
	fflush(stdout);
}

/* Base pages are what has one color. */
static char *map_base(size_t size)
{
	char *memory = map(size);

	madvise(memory, size, MADV_NOHUGEPAGE);
	return memory;
}

static void copy(const char *state, size_t mib)
{
	char *memory = map_base(mib * MIB);
	pid_t child;

	touch(memory, mib * MIB);
	child = fork();
	if (!child) {
		touch(memory, mib * MIB);
		say(state, "copy", mib, memory, mib * MIB);
		exit(0);
	}
	wait_for(child);
}

static void write_file(const char *state, size_t mib)
{
	int file = memfd_create("spread", 0);
	char page[PAGE], *memory;

	memset(page, 1, sizeof(page));
	for (size_t at = 0; at < mib * MIB; at += PAGE)
		if (write(file, page, PAGE) != (ssize_t)PAGE)
			die("write");
	memory = mmap(NULL, mib * MIB, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	say(state, "file", mib, memory, mib * MIB);
}

static void join(const char *state, size_t mib)
{
	size_t size = HEAD + mib * MIB + TAIL;
	char *memory = map_joined(HEAD, mib * MIB, TAIL);

	if (madvise(memory, size, MADV_HUGEPAGE))
		die("MADV_HUGEPAGE");
	touch(memory, size);
	say(state, "joined", mib, memory, size);
}

static void program(const char *state, const char *kind, size_t mib)
{
	char *memory;

	/* What it needs itself comes first: the page tables and the buffers of what follows. */
	memory = map_base(PAGE);
	touch(memory, PAGE);
	if (!strcmp(kind, "copy")) {
		copy(state, mib);
	} else if (!strcmp(kind, "file")) {
		write_file(state, mib);
	} else if (!strcmp(kind, "joined")) {
		join(state, mib);
	} else {
		memory = map_base(mib * MIB);
		touch(memory, mib * MIB);
		say(state, kind, mib, memory, mib * MIB);
	}
}

static void measure(const char *state)
{
	char mib[16];

	for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
		for (int size = kinds[k].least_mib; size <= kinds[k].most_mib; size *= 2)
			for (int i = 0; i < PROGRAMS; i++) {
				pid_t child = fork();

				if (!child) {
					snprintf(mib, sizeof(mib), "%d", size);
					execl("/proc/self/exe", "spread", state, kinds[k].name, mib, NULL);
					die("exec");
				}
				wait_for(child);
			}
}

int main(int argc, char **argv)
{
	int spreads = !access(SPREAD, F_OK);
	pid_t other;

	if (argc == 4) {
		program(argv[1], argv[2], strtoul(argv[3], NULL, 10));
		return 0;
	}
	printf("TAP version 13\n1..1\n");
	fflush(stdout);
	/* Superpages where they are asked for, and at once. */
	set(THP "enabled", "madvise");
	set(THP "defrag", "madvise");
	if (spreads)
		set(SPREAD, "1");
	measure("fresh");
	if (spreads)
		set(SPREAD, "0");
	other = age();
	if (spreads)
		set(SPREAD, "1");
	measure("aged");
	kill(other, SIGKILL);
	if (spreads)
		set(SPREAD, "0");
	printf("ok 1 measured\n");
	return 0;
}
