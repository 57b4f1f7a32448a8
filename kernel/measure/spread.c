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
 *
 * Memory is measured `fresh`, as it is after boot, and `aged`: another process has most of it
 * and gave every other page back, chosen at random.
 *
 * Prints a line for each program, where DEVIATION is the most that a color differs from
 * pages / 64, and COUNTS are the pages of each color:
 *
 *	spread STATE KIND MIB DEVIATION COUNTS...
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
#define COLORS 64
#define MOST_MIB 256
#define PROGRAMS 5
/* What the other process has of aged memory; it keeps half of it. */
#define AGED_MIB 1200UL

#define PRESENT (1ULL << 63)
#define FRAME ((1ULL << 55) - 1)

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static char *map(size_t size, int flags, int file)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, file, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	/* Base pages are what has one color. */
	madvise(memory, size, MADV_NOHUGEPAGE);
	return memory;
}

static void touch(volatile char *memory, size_t size, char value)
{
	for (size_t at = 0; at < size; at += PAGE)
		memory[at] = value;
}

static void say(const char *state, const char *kind, const char *memory, size_t size)
{
	unsigned long count[COLORS] = { 0 }, pages = size / PAGE;
	int file = open("/proc/self/pagemap", O_RDONLY);
	static uint64_t entries[MOST_MIB * MIB / PAGE];
	double deviation = 0;

	if (file < 0 || pread(file, entries, pages * sizeof(*entries), (uintptr_t)memory / PAGE * sizeof(*entries)) !=
	    (ssize_t)(pages * sizeof(*entries)))
		die("/proc/self/pagemap");
	close(file);
	for (size_t i = 0; i < pages; i++) {
		if (!(entries[i] & PRESENT) || !(entries[i] & FRAME)) {
			fprintf(stderr, "page %zu has no frame\n", i);
			exit(1);
		}
		count[(entries[i] & FRAME) % COLORS]++;
	}
	for (int color = 0; color < COLORS; color++) {
		double off = count[color] - (double)pages / COLORS;

		if (off < 0)
			off = -off;
		if (off > deviation)
			deviation = off;
	}
	printf("spread %s %s %lu %g", state, kind, size / MIB, deviation);
	for (int color = 0; color < COLORS; color++)
		printf(" %lu", count[color]);
	printf("\n");
	fflush(stdout);
}

static void wait_for(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) != child || status) {
		fprintf(stderr, "a process failed\n");
		exit(1);
	}
}

static void copy(const char *state, size_t size)
{
	char *memory = map(size, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	pid_t child;

	touch(memory, size, 1);
	child = fork();
	if (!child) {
		touch(memory, size, 2);
		say(state, "copy", memory, size);
		exit(0);
	}
	wait_for(child);
}

static void write_file(const char *state, size_t size)
{
	int file = memfd_create("spread", 0);
	char page[PAGE], *memory;

	memset(page, 1, sizeof(page));
	for (size_t at = 0; at < size; at += PAGE)
		if (write(file, page, PAGE) != (ssize_t)PAGE)
			die("write");
	memory = map(size, MAP_SHARED | MAP_POPULATE, file);
	say(state, "file", memory, size);
}

static void program(const char *state, const char *kind, size_t size)
{
	char *memory;

	/* What it needs itself comes first: the page tables and the buffers of what follows. */
	memory = map(PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	touch(memory, PAGE, 1);
	if (!strcmp(kind, "copy")) {
		copy(state, size);
	} else if (!strcmp(kind, "file")) {
		write_file(state, size);
	} else {
		memory = map(size, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		touch(memory, size, 1);
		say(state, kind, memory, size);
	}
}

static void measure(const char *state)
{
	static const char *const kinds[] = { "touch", "copy", "file" };
	char mib[16];

	for (int kind = 0; kind < 3; kind++)
		for (int size = 1; size <= MOST_MIB; size *= 2)
			for (int i = 0; i < PROGRAMS; i++) {
				pid_t child = fork();

				if (!child) {
					snprintf(mib, sizeof(mib), "%d", size);
					execl("/proc/self/exe", "spread", state, kinds[kind], mib, NULL);
					die("exec");
				}
				wait_for(child);
			}
}

/* Pages that are free are next to pages that are not, as in a machine that has been up for long. */
static pid_t age(void)
{
	uint64_t random = 88172645463325252ull;
	int done[2];
	pid_t child;
	char byte;

	if (pipe(done))
		die("pipe");
	child = fork();
	if (!child) {
		char *memory = map(AGED_MIB * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);

		touch(memory, AGED_MIB * MIB, 1);
		for (size_t at = 0; at < AGED_MIB * MIB; at += PAGE) {
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			if (random >> 40 & 1)
				madvise(memory + at, PAGE, MADV_DONTNEED);
		}
		if (write(done[1], "x", 1) != 1)
			exit(1);
		for (;;)
			pause();
	}
	close(done[1]);
	if (child < 0 || read(done[0], &byte, 1) != 1)
		die("aging");
	close(done[0]);
	return child;
}

static int spread(const char *value)
{
	int file = open("/proc/sys/vm/page_color_spread", O_WRONLY), done;

	if (file < 0)
		return 0;
	done = write(file, value, 1) == 1;
	close(file);
	return done;
}

int main(int argc, char **argv)
{
	pid_t other;

	if (argc == 4) {
		program(argv[1], argv[2], strtoul(argv[3], NULL, 10) * MIB);
		return 0;
	}
	printf("TAP version 13\n1..1\n");
	if (!access("/proc/sys/vm/page_coloring", F_OK) && !spread("1"))
		die("vm.page_color_spread");
	measure("fresh");
	spread("0");
	other = age();
	spread("1");
	measure("aged");
	kill(other, SIGKILL);
	spread("0");
	printf("ok 1 measured\n");
	return 0;
}
