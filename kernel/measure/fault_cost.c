// SPDX-License-Identifier: GPL-2.0-only
/*
 * What page faults cost, on a machine whose clock counts instructions (kernel/test --icount: one
 * nanosecond each). The clock is stopped by nothing else: no time slice, no interrupt of a disk.
 *
 * Prints lines "cost MODE WHAT INSTRUCTIONS": per page, the median of some rounds. MODE is what
 * coloring was set to: `off`, `on` (free pages are listed by color, nobody asks for one), `spread`
 * (all tasks take colors in turn) and `set` (the program has half of the colors). A kernel without
 * the patches has `none`. WHAT is `fault`, the first touch of anonymous memory, `free`, giving it
 * back, `copy`, the first write after fork, and `file`, writing a new file to a tmpfs.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 4096UL
#define ROUNDS 15

#define PR_PAGE_COLOR 0x50434f4c
#define PR_PAGE_COLOR_SET 1

enum { FAULT, FREE, COPY, FILES, KINDS };
static const char *const names[KINDS] = { "fault", "free", "copy", "file" };
static double cost[KINDS][ROUNDS];

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static void touch(char *memory, char value)
{
	for (size_t i = 0; i < PAGES; i++)
		memory[i * PAGE] = value;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* The writes of a child are timed by itself: it says them through shared memory. */
static double copy(char *memory, double *shared)
{
	pid_t child = fork();

	if (child < 0)
		die("fork");
	if (!child) {
		double start = now();

		touch(memory, 2);
		*shared = now() - start;
		_exit(0);
	}
	waitpid(child, NULL, 0);
	return *shared;
}

static double write_file(void)
{
	static char page[PAGE];
	int file = memfd_create("cost", 0);
	double start;

	if (file < 0)
		die("memfd_create");
	start = now();
	for (size_t i = 0; i < PAGES; i++)
		if (write(file, page, PAGE) != (ssize_t)PAGE)
			die("write");
	start = now() - start;
	close(file);
	return start;
}

static void round_of(int round, double *shared)
{
	char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	double start;

	if (memory == MAP_FAILED)
		die("mmap");
	madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE);
	start = now();
	touch(memory, 1);
	cost[FAULT][round] = (now() - start) / PAGES;
	cost[COPY][round] = copy(memory, shared) / PAGES;
	start = now();
	madvise(memory, PAGES * PAGE, MADV_DONTNEED);
	cost[FREE][round] = (now() - start) / PAGES;
	munmap(memory, PAGES * PAGE);
	cost[FILES][round] = write_file() / PAGES;
}

static int by_value(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

static void measure(const char *mode)
{
	double *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (shared == MAP_FAILED)
		die("mmap");
	/* One more, the first, for what is done once. */
	round_of(0, shared);
	for (int round = 0; round < ROUNDS; round++)
		round_of(round, shared);
	for (int kind = 0; kind < KINDS; kind++) {
		qsort(cost[kind], ROUNDS, sizeof(double), by_value);
		printf("cost %s %s %.1f %.1f %.1f\n", mode, names[kind], cost[kind][ROUNDS / 2], cost[kind][0],
		       cost[kind][ROUNDS - 1]);
	}
	munmap(shared, PAGE);
	fflush(stdout);
}

static int set(const char *name, const char *value)
{
	char path[128];
	int file, result;

	snprintf(path, sizeof(path), "/proc/sys/vm/%s", name);
	file = open(path, O_WRONLY);
	result = file >= 0 && write(file, value, strlen(value)) > 0;
	if (file >= 0)
		close(file);
	return result;
}

int main(void)
{
	/* Half of 64 colors. */
	unsigned long half = 0xffffffffUL;

	printf("TAP version 13\n1..1\n");
	if (access("/proc/sys/vm/page_coloring", F_OK)) {
		measure("none");
	} else {
		if (!set("page_coloring", "0"))
			die("page_coloring");
		measure("off");
		if (!set("page_coloring", "1"))
			die("page_coloring");
		measure("on");
		if (!set("page_color_spread", "1"))
			die("page_color_spread");
		measure("spread");
		set("page_color_spread", "0");
		if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, &half, sizeof(half), 0))
			die("prctl");
		measure("set");
	}
	printf("ok 1 measured\n");
	return 0;
}
