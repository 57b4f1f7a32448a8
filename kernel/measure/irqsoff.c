// SPDX-License-Identifier: GPL-2.0-only
/*
 * For how long interrupts are off where page coloring has most to do: one of many colors is on the CPU's lists,
 * and these are full; then they are emptied at once. The tracer irqsoff keeps the longest time of each scene,
 * where it began and ended, and the stack at its end. Each scene is run with coloring and without.
 *
 *	irqsoff [ROUNDS]
 *
 * "irqsoff SCENE coloring|off READY MICROSECONDS STARTED ENDED STACK...", one line for each round; READY is how many
 * pages the CPU had ready by color.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "kselftest.h"
#include "kernel_file.h"

#define PAGE		4096UL
#define TRACING		"/sys/kernel/tracing/"
#define SYSCTL		"/proc/sys/vm/"
#define MOST_COLORS	1024
#define ROUNDS		3

#define PR_PAGE_COLOR		0x50434f4c
#define PR_PAGE_COLOR_SET	1

static unsigned int colors;
static bool coloring;

/* One of the colors, or every eighth, or all of them. */
static void confine(unsigned int step)
{
	unsigned long set[MOST_COLORS / 64] = { 0 };

	if (!coloring)
		return;
	for (unsigned int color = 5 % step; color < colors; color += step)
		set[color / 64] |= 1UL << color % 64;
	if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, set, sizeof(set), 0))
		_exit(1);
}

static void trace(bool on)
{
	if (on) {
		put(TRACING "tracing_on", "0");
		put(TRACING "trace", "\n");
		put(TRACING "tracing_max_latency", "0");
	}
	put(TRACING "tracing_on", on ? "1" : "0");
}

/* Words of the trace: what it says of the longest time. */
static void say(const char *scene, long ready)
{
	FILE *file = fopen(TRACING "trace", "re");
	char line[512], started[128] = "-", ended[128] = "-", stack[1024] = "", *at;
	long latency = 0;

	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		if ((at = strstr(line, "latency: ")))
			latency = atol(at + 9);
		else if ((at = strstr(line, "=> started at: ")))
			snprintf(started, sizeof(started), "%s", at + 15);
		else if ((at = strstr(line, "=> ended at:   ")))
			snprintf(ended, sizeof(ended), "%s", at + 15);
		else if (!strncmp(line, " => ", 4) && strlen(stack) + strlen(line) < sizeof(stack))
			strcat(strcat(stack, " "), line + 4);
	}
	if (file)
		fclose(file);
	printf("irqsoff %s %s %ld %ld %s %s%s\n", scene, coloring ? "coloring" : "off", ready, latency, started, ended, stack);
	fflush(stdout);
}

static char *touched(size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		_exit(1);
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < bytes; at += PAGE)
		((volatile char *)memory)[at] = 1;
	return memory;
}

/*
 * In a child with some colors: the CPU's lists get what it gave back, all that it had of one color. For a tenth of
 * a second after compaction nothing waits there, so that is waited for; it takes pages twice, as the first of them
 * open the lists again.
 */
static void fill_lists(unsigned int step, size_t bytes)
{
	pid_t child;
	int status;

	usleep(300000);
	child = fork();
	if (!child) {
		confine(step);
		munmap(touched(bytes), bytes);
		munmap(touched(bytes), bytes);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status)
		ksft_exit_fail_msg("the lists could not be filled\n");
}

/* Of what has a color so much that no zone runs out of it: the lists would be drained for more. */
static size_t one_color(void)
{
	return sysconf(_SC_PHYS_PAGES) * PAGE / colors * 3 / 8;
}

static void compact(void)
{
	put(SYSCTL "compact_memory", "1");
}

static void close_lists(void)
{
	put(SYSCTL "page_coloring", "0");
	put(SYSCTL "page_coloring", coloring ? "1" : "0");
}

/* The lists of all CPUs are drained, and a memory block is emptied. */
static void offline(void)
{
	char path[128];

	for (int block = 8; block < 12; block++) {
		snprintf(path, sizeof(path), "/sys/devices/system/memory/memory%d/state", block);
		if (put(path, "offline")) {
			put(path, "online");
			return;
		}
	}
}

/* What waits by color is taken by those who want any, or other colors. */
static void take_others(void)
{
	size_t bytes = 64UL << 20;

	munmap(touched(bytes), bytes);
}

static void take_same(void)
{
	pid_t child = fork();
	int status;

	if (!child) {
		confine(colors);
		munmap(touched(one_color()), one_color());
		_exit(0);
	}
	waitpid(child, &status, 0);
}

/* All that the kernel can drop: page cache, and what waits for that. */
static void shrink(void)
{
	put("/proc/sys/vm/percpu_pagelist_high_fraction", "0");
	put("/proc/sys/vm/percpu_pagelist_high_fraction", "8");
}

static const struct {
	const char	*name;
	void		(*act)(void);
} scenes[] = {
	{ "compaction", compact }, { "switched_off", close_lists }, { "block_offline", offline }, { "any_taken", take_others },
	{ "same_taken", take_same }, { "limits_changed", shrink },
};

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;

	ksft_print_header();
	colors = number_in("/proc/page_color", "colors");
	if (access(TRACING "tracing_max_latency", F_OK))
		ksft_exit_skip("the kernel has no tracer irqsoff\n");
	ksft_set_plan(1);
	put("/proc/sys/vm/percpu_pagelist_high_fraction", "8");
	/* Only where a scene asks for it. */
	put("/proc/sys/vm/compaction_proactiveness", "0");
	put(TRACING "options/function-trace", "0");
	put(TRACING "options/stacktrace", "1");
	if (!put(TRACING "current_tracer", "irqsoff"))
		ksft_exit_fail_perror("irqsoff");
	trace(false);
	for (int on = 1; on >= 0; on--) {
		coloring = on;
		put(SYSCTL "page_coloring", on ? "1" : "0");
		for (int round = 0; round < rounds; round++)
			for (unsigned int i = 0; i < ARRAY_SIZE(scenes); i++) {
				long ready;

				fill_lists(colors, one_color());
				ready = sum_in("/proc/page_color", "ready");
				trace(true);
				scenes[i].act();
				trace(false);
				say(scenes[i].name, ready);
			}
		/* All colors are there. */
		for (int round = 0; round < rounds; round++) {
			long ready;

			fill_lists(1, 64UL << 20);
			ready = sum_in("/proc/page_color", "ready");
			trace(true);
			compact();
			trace(false);
			say("compaction_all_colors", ready);
		}
	}
	put(TRACING "current_tracer", "nop");
	put(SYSCTL "page_coloring", "1");
	ksft_test_result_pass("all scenes were run\n");
	ksft_finished();
}
