// SPDX-License-Identifier: GPL-2.0-only
/*
 * For how long interrupts are off where page coloring has most to do: one of many colors is on the CPU's lists,
 * and these are full; then they are emptied at once. Or the kernel's own memory has a sixteenth of the colors, and each page
 * of it is cut out of a large block. The tracer irqsoff keeps the longest time of each scene, where it began and
 * ended, and the stack at its end. Each scene is run with coloring and without.
 *
 *	irqsoff [ROUNDS]
 *
 * "irqsoff SCENE coloring|off READY TAKEN MICROSECONDS STARTED ENDED STACK...", one line for each round; READY is
 * how many pages the CPU had ready by color, TAKEN how many were taken for their color during the scene. A scene
 * that has nothing to do, for there are too few of them, is a failure.
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
#define COLORS		"/proc/page_color"
#define MOST_COLORS	1024
#define ROUNDS		3
/* The color of what is confined; and the colors of the kernel's own memory. */
#define COLOR		5
#define OWN_TEXT	"0-63"
/* So many pages at least are ready by color before a scene empties the lists, or are taken in it. */
#define ENOUGH		256
/* 8 MiB in pipes, which are the kernel's own memory. */
#define PIPES		8
#define PIPE_BYTES	(1UL << 20)

#define PR_PAGE_COLOR		0x50434f4c
#define PR_PAGE_COLOR_SET	1

static unsigned int colors, short_of;
static bool coloring;

/* One of the colors, or every eighth, or all of them. */
static void confine(unsigned int step)
{
	unsigned long set[MOST_COLORS / 64] = { 0 };

	if (!coloring)
		return;
	for (unsigned int color = COLOR % step; color < colors; color += step)
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
static void say(const char *scene, long ready, long taken)
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
	printf("irqsoff %s %s %ld %ld %ld %s %s%s\n", scene, coloring ? "coloring" : "off", ready, taken, latency,
	       started, ended, stack);
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
 * /proc/page_color, from a file that stays open: its buffer is as long as it has to be after the first time. To have a
 * longer one made, and to free it, again and again empties the lists of the CPU.
 */
static const char *read_colors(void)
{
	static char text[1 << 20];
	static int file = -1;
	size_t length = 0;
	ssize_t got;

	if (file < 0)
		file = open(COLORS, O_RDONLY | O_CLOEXEC);
	lseek(file, 0, SEEK_SET);
	while ((got = read(file, text + length, sizeof(text) - 1 - length)) > 0)
		length += got;
	text[length] = '\0';
	return text;
}

/* Pages that the CPU has ready by color, and those that were taken for their color so far, of all zones. */
static void count(long *ready, long *taken)
{
	const char *line = read_colors();

	*ready = *taken = 0;
	for (; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		long color, free, allocated, hits;

		if (!strncmp(line, "ready ", 6))
			*ready += atol(line + 6);
		else if (sscanf(line, "%ld %ld %ld %ld", &color, &free, &allocated, &hits) == 4 && color == COLOR)
			*taken += hits;
	}
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

/* The lists may be shorter from now on, and as long as before. */
static void shrink(void)
{
	put(SYSCTL "percpu_pagelist_high_fraction", "0");
	put(SYSCTL "percpu_pagelist_high_fraction", "8");
}

/*
 * Pages of the kernel's own, of a sixteenth of the colors: in bulk onto the ordinary lists, and back. All others are
 * reserved, so that this program and the rest of the machine have to do with these as well.
 */
static void take_own(void)
{
	static char page[PAGE];
	int ends[PIPES][2];

	if (coloring && !put(SYSCTL "page_color_unassigned", OWN_TEXT))
		_exit(1);
	for (int i = 0; i < PIPES; i++) {
		if (pipe(ends[i]) || fcntl(ends[i][1], F_SETPIPE_SZ, PIPE_BYTES) < (int)PIPE_BYTES)
			_exit(1);
		for (size_t at = 0; at < PIPE_BYTES; at += PAGE)
			if (write(ends[i][1], page, PAGE) != (ssize_t)PAGE)
				_exit(1);
	}
	for (int i = 0; i < PIPES; i++) {
		close(ends[i][0]);
		close(ends[i][1]);
	}
	if (coloring)
		put(SYSCTL "page_color_unassigned", "\n");
}

/* What is to be there for a scene to have anything to do. */
enum need { READY, TAKEN };

static const struct scene {
	const char	*name;
	void		(*act)(void);
	enum need	need;
	/* Which colors the lists are full of: every so many-th; 0 for one of them. */
	unsigned int	step;
} scenes[] = {
	{ "compaction", compact, READY, 0 },
	{ "switched_off", close_lists, READY, 0 },
	{ "block_offline", offline, READY, 0 },
	{ "any_taken", take_others, READY, 0 },
	{ "same_taken", take_same, READY, 0 },
	{ "limits_changed", shrink, READY, 0 },
	{ "own_taken", take_own, TAKEN, 0 },
	{ "compaction_all_colors", compact, READY, 1 },
};

static void run(const struct scene *scene)
{
	long ready, taken, before, left;

	if (scene->step)
		fill_lists(scene->step, 64UL << 20);
	else
		fill_lists(colors, one_color());
	count(&ready, &before);
	trace(true);
	scene->act();
	trace(false);
	count(&left, &taken);
	/* They are counted anew where coloring was switched off. */
	taken = taken > before ? taken - before : 0;
	say(scene->name, ready, taken);
	if (coloring && (scene->need == READY ? ready : taken) < ENOUGH) {
		ksft_print_msg("%s: %ld pages were ready, %ld taken\n", scene->name, ready, taken);
		short_of++;
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;

	ksft_print_header();
	colors = number_in(COLORS, "colors");
	if (access(TRACING "tracing_max_latency", F_OK))
		ksft_exit_skip("the kernel has no tracer irqsoff\n");
	ksft_set_plan(1);
	put(SYSCTL "percpu_pagelist_high_fraction", "8");
	/* Only where a scene asks for it; kswapd has memory compacted when it was woken for more than is free. */
	put(SYSCTL "compaction_proactiveness", "0");
	put(SYSCTL "watermark_boost_factor", "0");
	put(TRACING "options/function-trace", "0");
	put(TRACING "options/stacktrace", "1");
	if (!put(TRACING "current_tracer", "irqsoff"))
		ksft_exit_fail_perror("irqsoff");
	trace(false);
	read_colors();
	for (int on = 1; on >= 0; on--) {
		coloring = on;
		put(SYSCTL "page_coloring", on ? "1" : "0");
		for (int round = 0; round < rounds; round++)
			for (unsigned int i = 0; i < ARRAY_SIZE(scenes); i++)
				run(&scenes[i]);
	}
	put(TRACING "current_tracer", "nop");
	put(SYSCTL "page_coloring", "1");
	ksft_test_result(!short_of, "all scenes were run, and had something to do\n");
	ksft_finished();
}
