// SPDX-License-Identifier: GPL-2.0-only
/*
 * What page faults cost, on a machine whose clock counts instructions (kernel/test --icount: one
 * nanosecond each). The clock is stopped by nothing else: no time slice, no interrupt of a disk.
 *
 * Prints lines "cost MODE OPERATION MEDIAN LEAST MOST": instructions per page, of some rounds. MODE is one of
 * color_modes.h. cost_mode= on the kernel's command line, which is in the environment of its programs then, chooses
 * some of them with commas between, cost_operation= one operation: to count, with a plugin of qemu, what is executed between
 * measure_begin() and measure_end().
 *
 * An instruction that fills or copies a string is one instruction to a processor, and one per eight
 * bytes to the emulator. It is counted as one: by this many less for each page that an operation is
 * known to fill or copy.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "color_modes.h"
#include "dealt.h"

#define PAGES 4096UL
#define STRING (PAGE / 8 - 1)
#define FEW 64UL
#define PIPE_PAGES 256UL
/* Memory that begins and ends within superpages. */
#define HEAD (HUGE / 4)
#define MIDDLE (6 * HUGE)
#define TAIL (HUGE / 2)
#define ROUNDS 15

#define READ_ONLY_FILE "/mnt/pages"

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static char *map_as(size_t size, int advice)
{
	char *memory = map(size);

	madvise(memory, size, advice);
	return memory;
}

static void unmap(char *memory, size_t size)
{
	if (munmap(memory, size))
		die("munmap");
}

/* The first touch of anonymous memory. */
static double fault(void)
{
	char *memory = map_as(PAGES * PAGE, MADV_NOHUGEPAGE);
	double start = now();

	touch(memory, PAGES * PAGE);
	start = now() - start;
	unmap(memory, PAGES * PAGE);
	return start / PAGES - STRING;
}

/* Giving it back. */
static double release(void)
{
	char *memory = map_as(PAGES * PAGE, MADV_NOHUGEPAGE);
	double start;

	touch(memory, PAGES * PAGE);
	start = now();
	unmap(memory, PAGES * PAGE);
	return (now() - start) / PAGES;
}

/* Both, of a few pages time and again, which per-CPU lists serve. */
static double reuse(void)
{
	char *memory = map_as(FEW * PAGE, MADV_NOHUGEPAGE);
	double start = now();

	for (size_t i = 0; i < PAGES / FEW; i++) {
		touch(memory, FEW * PAGE);
		madvise(memory, FEW * PAGE, MADV_DONTNEED);
	}
	start = now() - start;
	unmap(memory, FEW * PAGE);
	return start / PAGES - STRING;
}

/* The first write after fork. A child times its own: it says them through shared memory. */
static double copy(void)
{
	char *memory = map_as(PAGES * PAGE, MADV_NOHUGEPAGE);
	double *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), time;
	pid_t child;

	if (shared == MAP_FAILED)
		die("mmap");
	touch(memory, PAGES * PAGE);
	child = fork();
	if (child < 0)
		die("fork");
	if (!child) {
		double start = now();

		touch(memory, PAGES * PAGE);
		*shared = now() - start;
		_exit(0);
	}
	waitpid(child, NULL, 0);
	time = *shared;
	munmap(shared, PAGE);
	unmap(memory, PAGES * PAGE);
	return time / PAGES - STRING;
}

/* Writing a new file to a tmpfs. */
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
	return start / PAGES - STRING;
}

/*
 * Reading a file into the page cache, ahead of its reader. Its disk is zram, which has a page of equal
 * words at once and fills it with them: no interrupts, and nothing to wait for.
 */
static double read_file(void)
{
	static char page[PAGE];
	int file = open(READ_ONLY_FILE, O_RDONLY);
	double start;

	if (file < 0)
		die(READ_ONLY_FILE);
	if (posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED))
		die("posix_fadvise");
	start = now();
	for (size_t i = 0; i < PAGES; i++)
		if (read(file, page, PAGE) != (ssize_t)PAGE)
			die("read");
	start = now() - start;
	close(file);
	return start / PAGES - 2 * STRING;
}

/* The first touch of superpages. It is per base page as well. */
static double superpage(void)
{
	char *memory = map_as(PAGES * PAGE + HUGE, MADV_HUGEPAGE);
	char *first = (char *)(((unsigned long)memory + HUGE - 1) & ~(HUGE - 1));
	double start = now();

	for (size_t i = 0; i < PAGES * PAGE; i += HUGE)
		first[i] = 1;
	start = now() - start;
	unmap(memory, PAGES * PAGE + HUGE);
	return start / PAGES - STRING;
}

/* The first touch of memory with a head, superpages and a tail. */
static double joined(void)
{
	size_t size = HEAD + MIDDLE + TAIL;
	char *memory = map_joined(HEAD, MIDDLE, TAIL);
	double start;

	madvise(memory, size, MADV_HUGEPAGE);
	start = now();
	touch(memory, size);
	start = now() - start;
	unmap(memory, size);
	return start / (size / PAGE) - STRING;
}

/* Filling a pipe and emptying it: pages of the kernel's own. */
static double pipe_pages(void)
{
	static char page[PAGE];
	double start;
	int ends[2];

	if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, PIPE_PAGES * PAGE) < (int)(PIPE_PAGES * PAGE))
		die("pipe");
	start = now();
	for (size_t i = 0; i < PAGES; i += PIPE_PAGES) {
		for (size_t j = 0; j < PIPE_PAGES; j++)
			if (write(ends[1], page, PAGE) != (ssize_t)PAGE)
				die("write");
		for (size_t j = 0; j < PIPE_PAGES; j++)
			if (read(ends[0], page, PAGE) != (ssize_t)PAGE)
				die("read");
	}
	start = now() - start;
	close(ends[0]);
	close(ends[1]);
	return start / PAGES - 2 * STRING;
}

static const struct {
	const char *name;
	double (*run)(void);
} operations[] = {
	{ "fault", fault }, { "unmap", release },   { "reuse", reuse },	      { "copy", copy },
	{ "write", write_file }, { "read", read_file }, { "superpage", superpage },
	{ "joined", joined },	{ "pipe", pipe_pages },
};

/* Where a profile of what was executed begins and ends. */
__attribute__((noinline)) void measure_begin(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void measure_end(void)
{
	__asm__ volatile("");
}

static void measure_one(const char *mode, size_t which)
{
	double cost[ROUNDS];

	/* One more, the first, for what is done once. */
	operations[which].run();
	measure_begin();
	for (int round = 0; round < ROUNDS; round++)
		cost[round] = operations[which].run();
	measure_end();
	sort(cost, ROUNDS);
	printf("cost %s %s %.1f %.1f %.1f\n", mode, operations[which].name, cost[ROUNDS / 2], cost[0], cost[ROUNDS - 1]);
	fflush(stdout);
}

/* Each by a process of its own: where the mappings of others were makes fifty instructions of a fault. */
static void measure(const struct color_mode *mode, const char *only)
{
	for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++) {
		pid_t child;

		if (only && strcmp(only, operations[i].name))
			continue;
		if ((operations[i].run == superpage || operations[i].run == joined) && !has_superpages(mode))
			continue;
		fflush(stdout);
		child = fork();
		if (child < 0)
			die("fork");
		if (!child) {
			measure_one(mode->name, i);
			_exit(0);
		}
		wait_for(child);
	}
}

static void make_file(void)
{
	static char page[PAGE];
	int file;

	set("/sys/block/zram0/disksize", "32M");
	if (system("mke2fs -b 4096 /dev/zram0 >/dev/null 2>&1"))
		die("mke2fs");
	mkdir("/mnt", 0755);
	if (mount("/dev/zram0", "/mnt", "ext4", 0, NULL))
		die("mount");
	memset(page, 0x55, PAGE);
	file = open(READ_ONLY_FILE, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	for (size_t i = 0; i < PAGES; i++)
		if (write(file, page, PAGE) != (ssize_t)PAGE)
			die("write");
	fsync(file);
	close(file);
}

int main(void)
{
	const char *only = getenv("cost_operation");

	printf("TAP version 13\n1..1\n");
	make_file();
	for (const struct color_mode *mode = color_modes(getenv("cost_mode")); mode->name; mode++) {
		take_mode(mode);
		measure(mode, only);
	}
	printf("ok 1 measured\n");
	return 0;
}
