// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages that wait by color are in as many pageblocks as there are colors, and none of those can be
 * emptied meanwhile: compaction has them put back first. Later they wait again.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "kselftest.h"
#include "kernel_file.h"

#define COLORS	"/proc/page_color"
#define SPREAD	"/proc/sys/vm/page_color_spread"
#define PAGE	4096UL
#define BYTES	(16UL << 20)
/* Of the pages that are given back, as many wait at least; after compaction at most. */
#define MANY	256
#define FEW	64

/* How many pages the CPUs have ready by color, after a process gave memory back. */
static long ready_after_use(void)
{
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
	madvise(memory, BYTES, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < BYTES; at += PAGE)
		memory[at] = 1;
	munmap(memory, BYTES);
	return sum_in(COLORS, "ready");
}

int main(void)
{
	long before, after = -1, later = -1;

	ksft_print_header();
	if (number_in(COLORS, "enabled") != 1)
		ksft_exit_skip("pages are not colored\n");
	ksft_set_plan(3);
	if (!put(SPREAD, "1"))
		ksft_exit_fail_perror(SPREAD);
	before = ready_after_use();
	ksft_print_msg("%ld pages are ready by color\n", before);
	ksft_test_result(before >= MANY, "pages that were given back wait by color\n");
	if (put("/proc/sys/vm/compact_memory", "1"))
		after = sum_in(COLORS, "ready");
	ksft_print_msg("%ld pages after compaction\n", after);
	ksft_test_result(after >= 0 && after <= FEW, "none wait while memory is compacted\n");
	for (int tries = 20; later < MANY && tries; tries--) {
		usleep(100000);
		later = ready_after_use();
	}
	ksft_print_msg("%ld pages later\n", later);
	ksft_test_result(later >= MANY, "later they wait again\n");
	put(SPREAD, "0");
	ksft_finished();
}
