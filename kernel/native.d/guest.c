// SPDX-License-Identifier: GPL-2.0-only
/*
 * See guest.h.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "guest.h"

#define PRESENT (1ULL << 63)
#define FRAME ((1ULL << 55) - 1)

#define PR_PAGE_COLOR 0x50434f4c
#define PR_PAGE_COLOR_SET 1
#define PR_PAGE_COLOR_SPREAD 2
#define MOST_COLORS 1024U

static uint64_t state = 88172645463325252ull;

void die(const char *what)
{
	perror(what);
	exit(1);
}

unsigned long number(const char *text)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (end == text || *end) {
		fprintf(stderr, "%s is not a number\n", text);
		exit(2);
	}
	return value;
}

void seed(uint64_t from)
{
	state = (from + 1) * 0x9e3779b97f4a7c15ull | 1;
	for (int i = 0; i < 8; i++)
		below(2);
}

uint64_t below(uint64_t limit)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 16) % limit;
}

void shuffle(uint32_t *numbers, size_t count)
{
	for (size_t i = count; i > 1; i--) {
		size_t other = below(i);
		uint32_t kept = numbers[i - 1];

		numbers[i - 1] = numbers[other];
		numbers[other] = kept;
	}
}

double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

char *fresh(size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	for (size_t at = 0; at < bytes; at += PAGE)
		((volatile char *)memory)[at] = 1;
	return memory;
}

void frames(const char *memory, size_t pages, uint64_t *numbers)
{
	int file = open("/proc/self/pagemap", O_RDONLY);

	if (file < 0 || pread(file, numbers, pages * 8, (uintptr_t)memory / PAGE * 8) != (ssize_t)(pages * 8))
		die("/proc/self/pagemap");
	close(file);
	for (size_t i = 0; i < pages; i++) {
		if (!(numbers[i] & PRESENT)) {
			fprintf(stderr, "page %zu has no frame\n", i);
			exit(1);
		}
		numbers[i] &= FRAME;
	}
}

void **link_lines(char **lines, size_t count)
{
	uint32_t *order = malloc(count * sizeof(*order));

	if (!order)
		die("malloc");
	for (size_t i = 0; i < count; i++)
		order[i] = i;
	shuffle(order, count);
	for (size_t i = 0; i < count; i++)
		*(void **)lines[order[i]] = lines[order[i + 1 < count ? i + 1 : 0]];
	free(order);
	return (void **)lines[0];
}

void **link_memory(char *memory, size_t bytes)
{
	size_t count = bytes / LINE;
	char **lines = malloc(count * sizeof(*lines));
	void **first;

	if (!lines)
		die("malloc");
	for (size_t i = 0; i < count; i++)
		lines[i] = memory + i * LINE;
	first = link_lines(lines, count);
	free(lines);
	return first;
}

void **follow(void **at, size_t steps)
{
	while (steps--)
		at = *at;
	return at;
}

void take_colors(const char *arm)
{
	static unsigned long set[MOST_COLORS / 64];
	unsigned int low, high;

	if (!strcmp(arm, "off"))
		return;
	if (!strcmp(arm, "spread")) {
		if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SPREAD, 0, 0, 0))
			die("prctl(PR_PAGE_COLOR_SPREAD)");
		return;
	}
	if (sscanf(arm, "%u-%u", &low, &high) != 2 || low > high || high >= MOST_COLORS) {
		fprintf(stderr, "there is no arm %s\n", arm);
		exit(2);
	}
	memset(set, 0, sizeof(set));
	for (unsigned int color = low; color <= high; color++)
		set[color / 64] |= 1UL << color % 64;
	if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, set, (high / 64 + 1) * 8, 0))
		die("prctl(PR_PAGE_COLOR_SET)");
}
