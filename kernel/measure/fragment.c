// SPDX-License-Identifier: GPL-2.0-only
/*
 * How many superpages are to be had where memory is in pieces.
 *
 * Fills memory: base pages of a process, pages of a file between them, and page tables and inodes, which
 * cannot be moved, now and then. Gives a part of that back by chance, so that nearly every block of 2 MiB has
 * something left in it; the seed is fragment_seed= of the kernel's command line. For some time it then
 * takes pages and gives others back, by chance again. At last it asks for superpages for most of what is
 * free, with madvise() and defrag, so that the faults compact, and touches a base page for each 32 KiB of
 * them meanwhile, as a system at work does.
 *
 * Prints "thp SEED WANTED HAD FALLBACKS COMPACT_STALL COMPACT_SUCCESS FREE_BEFORE_MB BLOCKS_BEFORE", by
 * /proc/vmstat, free memory, and how many free blocks of 2 MiB or more there were before. With
 * fragment_spread=1 all tasks take colors in turn from the beginning.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tests/kernel_file.h"
#include "dealt.h"

/* Free blocks of at least 2 MiB, in units of that. */
static long free_blocks(void)
{
	FILE *file = fopen("/proc/buddyinfo", "r");
	char line[256];
	long blocks = 0;

	if (!file)
		die("/proc/buddyinfo");
	while (fgets(line, sizeof(line), file)) {
		char *at = strstr(line, "zone"), *end;

		at += 4;
		at += strspn(at, " ");
		at += strcspn(at, " ");
		for (int order = 0; order <= 10; order++) {
			long count = strtol(at, &end, 10);

			at = end;
			if (order >= 9)
				blocks += count << (order - 9);
		}
	}
	fclose(file);
	return blocks;
}

static unsigned long long state;

static unsigned int chance(unsigned int below)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (state >> 33) % below;
}

/* More than there is, of which a part is touched. */
static char *map_sparse(size_t size)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

int main(void)
{
	const char *seed = getenv("fragment_seed"), *spread = getenv("fragment_spread");
	long total, wanted, had = 0, fallback, stall, success, before, blocks;
	size_t pages, files = 0, tables = 0;
	char *memory, *filler, *huge, *sparse, path[64];
	int disk;

	printf("TAP version 13\n1..1\n");
	state = seed ? strtoull(seed, NULL, 10) : 1;
	if (spread && !strcmp(spread, "1"))
		set("/proc/sys/vm/page_color_spread", "1");
	set("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
	set("/sys/kernel/mm/transparent_hugepage/defrag", "madvise");
	/* Only what is asked for here counts. */
	set("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "0");
	set("/proc/sys/vm/swappiness", "0");
	total = number_in("/proc/meminfo", "MemAvailable:");
	/* All but a sixteenth. */
	pages = (size_t)total * 1024 / PAGE / 16 * 15;
	memory = map_sparse(pages * PAGE);
	madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
	sparse = map_sparse((pages / 128 + 1) * HUGE);
	madvise(sparse, (pages / 128 + 1) * HUGE, MADV_NOHUGEPAGE);
	mkdir("/run/many", 0755);
	disk = open("/disk/fragment", O_RDWR | O_CREAT | O_TRUNC, 0644);
	if (disk < 0)
		die("/disk/fragment");
	static char page[PAGE];
	size_t limit = pages / 16 * 15;
	for (size_t i = 0; i < limit; i++) {
		memory[i * PAGE] = 1;
		/* One of sixteen in the page cache, up to 50 MiB. */
		if (i % 16 == 0 && i / 16 < 12800 && write(disk, page, PAGE) != (ssize_t)PAGE)
			die("write");
		/* Inodes and dentries are of the kernel, */
		if (i % 128 == 0) {
			snprintf(path, sizeof(path), "/run/many/%zu", files++);
			close(open(path, O_WRONLY | O_CREAT, 0644));
		}
		/* and so is the page table that each 2 MiB of addresses need. */
		if (i % 128 == 64)
			sparse[tables++ * HUGE] = 1;
	}
	sync();
	/* Three of four pages are given back, and one of two files and tables. */
	for (size_t i = 0; i < limit; i++)
		if (chance(4) && madvise(memory + i * PAGE, PAGE, MADV_DONTNEED))
			die("madvise");
	for (size_t i = 0; i < files; i++)
		if (chance(2)) {
			snprintf(path, sizeof(path), "/run/many/%zu", i);
			unlink(path);
		}
	for (size_t i = 0; i < tables; i++)
		if (chance(2) && munmap(sparse + i * HUGE, HUGE))
			die("munmap");
	/* Comings and goings: every page that comes is anywhere, and as many go. */
	for (size_t i = 0; i < limit / 2; i++) {
		memory[chance(limit) * PAGE] = 1;
		for (int k = 0; k < 3; k++)
			madvise(memory + chance(limit) * PAGE, PAGE, MADV_DONTNEED);
	}
	before = number_in("/proc/meminfo", "MemFree:");
	blocks = free_blocks();
	had = number_in("/proc/vmstat", "thp_fault_alloc");
	fallback = number_in("/proc/vmstat", "thp_fault_fallback");
	stall = number_in("/proc/vmstat", "compact_stall");
	success = number_in("/proc/vmstat", "compact_success");
	wanted = before * 1024 / HUGE / 16 * 13;
	huge = map_sparse((wanted + 1) * HUGE);
	huge = (char *)(((unsigned long)huge + HUGE - 1) & ~(HUGE - 1));
	madvise(huge, wanted * HUGE, MADV_HUGEPAGE);
	filler = map_sparse(wanted * 64 * PAGE);
	madvise(filler, wanted * 64 * PAGE, MADV_NOHUGEPAGE);
	for (long i = 0; i < wanted; i++) {
		huge[i * HUGE] = 1;
		for (long k = 0; k < 64; k++)
			filler[(i * 64 + k) * PAGE] = 1;
	}
	printf("thp %s %ld %ld %ld %ld %ld %ld %ld\n", seed ? seed : "1", wanted,
	       number_in("/proc/vmstat", "thp_fault_alloc") - had,
	       number_in("/proc/vmstat", "thp_fault_fallback") - fallback,
	       number_in("/proc/vmstat", "compact_stall") - stall,
	       number_in("/proc/vmstat", "compact_success") - success, before / 1024, blocks);
	printf("ok 1 asked\n");
	return 0;
}
