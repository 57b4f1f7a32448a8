// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages that were read from swap before their owner had colors: it is given copies of those that are outside, with
 * what was in them, and what was copied is not kept. Who shares them by fork() gets the same from the slot.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "kselftest.h"
#include "kernel_file.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif
#define PAGE		4096UL
#define PAGES		4096UL
/* So many pages are read around one that is faulted in; page-cluster is their logarithm, 3 by itself. */
#define CLUSTER_TEXT	"3"
#define AROUND		8UL
/* Of other programs, meanwhile. */
#define OTHERS		(PAGES / 16)

#define PR_PAGE_COLOR		0x50434f4c
#define PR_PAGE_COLOR_SET	1

static long cached(void)
{
	return number_in("/proc/meminfo", "SwapCached:") / 4;
}

static uint64_t word(size_t page)
{
	return page * 0x9e3779b97f4a7c15 + 1;
}

static bool intact(const char *memory)
{
	for (size_t page = 0; page < PAGES; page++)
		if (*(volatile uint64_t *)(memory + page * PAGE) != word(page) ||
		    *(volatile uint64_t *)(memory + (page + 1) * PAGE - 8) != word(page))
			return false;
	return true;
}

struct counts {
	/* Pages of the swap cache: when they have been read, and when all are mapped again. */
	long read, mapped;
	bool intact, shared_intact;
};

/* Ends with a status that is not 0 if it cannot be done. */
static void swap_in(struct counts *counts, unsigned long set, bool shared)
{
	char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ends[2], status = 0;
	pid_t child = 0;
	char go;

	if (memory == MAP_FAILED || pipe(ends))
		_exit(2);
	madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE);
	for (size_t page = 0; page < PAGES; page++)
		for (size_t at = 0; at < PAGE; at += 8)
			*(uint64_t *)(memory + page * PAGE + at) = word(page);
	for (int tries = 20; tries && number_in("/proc/self/status", "VmSwap:") < (long)(PAGES * 4 * 9 / 10); tries--)
		if (madvise(memory, PAGES * PAGE, MADV_PAGEOUT))
			_exit(2);
	/* What is being written is not copied, and if it is given back meanwhile Linux leaves it to reclaim. */
	for (int tries = 3000; tries && number_in("/proc/meminfo", "Writeback:") > 0; tries--)
		usleep(10000);
	/* Pages that are mapped twice would not have been swapped. */
	if (shared && !(child = fork())) {
		close(ends[1]);
		if (read(ends[0], &go, 1) < 0)
			_exit(2);
		_exit(!intact(memory));
	}
	/* Nobody has colors yet: a fault reads what is around it. */
	for (size_t page = 0; page < PAGES; page += AROUND)
		*(volatile uint64_t *)(memory + page * PAGE);
	counts->read = cached();
	if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, &set, sizeof(set), 0))
		_exit(2);
	counts->intact = intact(memory);
	counts->mapped = cached();
	close(ends[1]);
	if (shared)
		counts->shared_intact = waitpid(child, &status, 0) == child && !status;
	_exit(0);
}

static void test(bool shared)
{
	struct counts *counts = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	long before = cached(), left;
	int status = -1;
	pid_t child;

	if (counts == MAP_FAILED)
		ksft_exit_fail_msg("no memory\n");
	child = fork();
	if (!child)
		swap_in(counts, 1UL << 5, shared);
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		ksft_exit_fail_msg("it could not be done: status %#x\n", status);
	left = cached() - before;
	ksft_print_msg("%ld pages in the swap cache when they were read, %ld when all were mapped, %ld afterwards\n",
		       counts->read - before, counts->mapped - before, left);
	/* Otherwise nothing was there to copy. */
	ksft_test_result(counts->read - before > (long)(PAGES / 2), "pages are read ahead%s\n",
			 shared ? ", of two processes" : "");
	ksft_test_result(counts->intact && (!shared || counts->shared_intact), "what was in them is there%s\n",
			 shared ? ", in both" : "");
	ksft_test_result(left < (long)OTHERS, "what was copied is not kept%s\n", shared ? ", after both" : "");
}

int main(void)
{
	unsigned long none = 0;

	ksft_print_header();
	/* Which is no set, but nothing else is wrong with it. */
	if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, &none, sizeof(none), 0) && errno != EINVAL)
		ksft_exit_skip("there is no page coloring, or it is off: %s\n", strerror(errno));
	if (number_in("/proc/meminfo", "SwapFree:") < (long)(2 * PAGES * PAGE / 1024))
		ksft_exit_skip("there is too little swap\n");
	if (!put("/proc/sys/vm/page-cluster", CLUSTER_TEXT))
		ksft_exit_fail_msg("page-cluster cannot be set\n");
	ksft_set_plan(6);
	test(false);
	test(true);
	ksft_finished();
}
