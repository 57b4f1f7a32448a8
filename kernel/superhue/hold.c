// SPDX-License-Identifier: GPL-2.0-only
/*
 * hold MIB SECONDS [fork|exec]
 *
 * Touches so much memory and says where it lies, then waits, so that others can look at it. Linked
 * statically. With `fork` a child does that after writing to what it shares; with `exec` the program
 * is started again first.
 *
 *   set 8-15  pages 2048  outside 0  fewest 256  most 256
 *
 * "outside" are pages that are not of the set of the process; "fewest" and "most" are of one color of it.
 * By frame numbers as far as they are shown, else by the kernel's count; "fewest" and "most" are left out where
 * that is not shown for each color.
 */
#include <err.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 1024
#define PAGE 4096UL

static uint64_t masks[10];
static unsigned int bits;
static char set_text[8200] = "none";
static bool set[MOST];
static long counted[MOST];
/* Inside the set and outside, and whether each color is shown. */
static long sums[2];
static bool table;

/* Reads /proc/self/page_color: geometry, set, and the pages of each color. */
static void read_colors(void)
{
	FILE *file = fopen("/proc/self/page_color", "r");
	char line[8300], name[64], value[8192];

	if (!file)
		err(4, "page_color");
	bits = 0;
	table = false;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%63s %8191[^\n]", name, value) < 2)
			continue;
		if (table) {
			long base, large;

			if (sscanf(value, "%ld %ld", &base, &large) == 2)
				counted[atoi(name) % MOST] = base + large;
		} else if (!strcmp(name, "geometry")) {
			char *at = strchr(value, ':');

			for (; at && bits < 10; at = strchr(at + 1, ','))
				masks[bits++] = strtoull(at + 1, NULL, 16);
		} else if (!strcmp(name, "set")) {
			snprintf(set_text, sizeof(set_text), "%s", value);
		} else if (!strcmp(name, "inside") || !strcmp(name, "outside")) {
			sums[*name == 'o'] = atol(value);
		} else if (!strcmp(name, "color")) {
			table = true;
		}
	}
	fclose(file);
	memset(set, !strcmp(set_text, "none"), sizeof(set));
	for (char *at = set_text; *at >= '0' && *at <= '9';) {
		long first = strtol(at, &at, 10), last = first;

		if (*at == '-')
			last = strtol(at + 1, &at, 10);
		for (; first <= last && first < MOST; first++)
			set[first] = true;
		if (*at == ',')
			at++;
	}
}

static unsigned int color_of(uint64_t frame)
{
	unsigned int color = 0;

	for (unsigned int bit = 0; bit < bits; bit++)
		color |= (unsigned int)__builtin_parityll(frame * PAGE & masks[bit]) << bit;
	return color;
}

/* By frame numbers, into counted[]; false if they are hidden. */
static bool count_frames(const char *memory, size_t size)
{
	int file = open("/proc/self/pagemap", O_RDONLY);
	uint64_t word;

	memset(counted, 0, sizeof(counted));
	for (size_t at = 0; at < size; at += PAGE) {
		off_t offset = (off_t)((uintptr_t)(memory + at) / PAGE * 8);

		if (file < 0 || pread(file, &word, 8, offset) != 8)
			err(1, "pagemap");
		word &= (1ULL << 55) - 1;
		if (!word) {
			close(file);
			return false;
		}
		counted[color_of(word)]++;
	}
	close(file);
	return true;
}

/*
 * All pages of the program's file, which belong to the process that read it first: those that are mapped on the way
 * would count as more than before.
 */
static void map_program(void)
{
	extern const char __executable_start[], end[];
	uintptr_t start = (uintptr_t)__executable_start / PAGE * PAGE;

	for (uintptr_t at = start; at < (uintptr_t)end; at += PAGE)
		madvise((void *)at, PAGE, MADV_POPULATE_READ);
}

static void say(const char *memory, size_t size, const long *before, const long *sums_before)
{
	long pages = 0, outside = 0, fewest = -1, most = 0;

	read_colors();
	if (!count_frames(memory, size)) {
		/* What is more than before; pages of files may have gone. */
		read_colors();
		if (!table) {
			outside = sums[1] > sums_before[1] ? sums[1] - sums_before[1] : 0;
			pages = sums[0] - sums_before[0] + outside;
			printf("set %s pages %ld outside %ld\n", set_text, pages, outside);
			fflush(stdout);
			return;
		}
		for (unsigned int color = 0; color < 1U << bits; color++)
			counted[color] = counted[color] > before[color] ? counted[color] - before[color] : 0;
	}
	for (unsigned int color = 0; color < 1U << bits; color++) {
		pages += counted[color];
		if (!set[color]) {
			outside += counted[color];
			continue;
		}
		if (fewest < 0 || counted[color] < fewest)
			fewest = counted[color];
		if (counted[color] > most)
			most = counted[color];
	}
	printf("set %s pages %ld outside %ld fewest %ld most %ld\n", set_text, pages, outside,
	       fewest, most);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static long before[MOST], sums_before[2];
	size_t size;
	char *memory;

	if (argc < 3)
		errx(2, "usage: hold MIB SECONDS [fork|exec]");
	if (argc > 3 && !strcmp(argv[3], "exec")) {
		execl("/proc/self/exe", "hold", argv[1], argv[2], NULL);
		err(1, "exec");
	}
	size = strtoul(argv[1], NULL, 10) << 20;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		err(1, "mmap");
	madvise(memory, size, MADV_NOHUGEPAGE);
	map_program();
	read_colors();
	memcpy(before, counted, sizeof(before));
	memcpy(sums_before, sums, sizeof(sums));
	memset(memory, 1, size);
	if (argc > 3 && !strcmp(argv[3], "fork")) {
		int status;
		pid_t child = fork();

		if (!child) {
			/* Every page is copied. Those of files a child maps anew. */
			map_program();
			read_colors();
			memcpy(before, counted, sizeof(before));
			memcpy(sums_before, sums, sizeof(sums));
			memset(memory, 2, size);
			say(memory, size, before, sums_before);
			_exit(0);
		}
		if (child < 0 || waitpid(child, &status, 0) < 0 || status)
			errx(1, "the child failed");
		return 0;
	}
	say(memory, size, before, sums_before);
	sleep((unsigned int)atoi(argv[2]));
	return 0;
}
