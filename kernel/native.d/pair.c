// SPDX-License-Identifier: GPL-2.0-only
/*
 * pair VICTIM BYTES PARTNER-BYTES PARTNER-COLORS LOOPS SEED: a program whose every loop is timed, beside one that takes the CPU
 * between its loops and writes to all of its memory. Prints the worst, the 99th percentile and the median, in nanoseconds.
 *
 *   chase    loads that wait for each other
 *   mcol     sums a matrix of integers column by column
 *   cnt      counts the positive numbers among random ones
 *
 * PARTNER-BYTES may be 0: nothing is written then. The memory of either is of the colors that it has: the victim's are
 * inherited, its partner takes PARTNER-COLORS.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.h"

/* Loops before those that are timed. */
#define WARM 10

static size_t size, dim;
static char *memory;
static void **at;
static uint64_t count;
static volatile int64_t sink;

static void chase(void)
{
	at = follow(at, size / LINE);
}

static void mcol(void)
{
	const int64_t *values = (const int64_t *)memory;
	int64_t sum = 0;

	for (size_t column = 0; column < dim; column++)
		for (size_t row = 0; row < dim; row++)
			sum += values[row * dim + column];
	sink += sum;
}

static void cnt(void)
{
	const int64_t *values = (const int64_t *)memory;
	uint64_t last = count + size / LINE;
	int64_t positive = 0;

	for (; count < last; count++)
		positive += values[scattered(count, size / sizeof(*values))] > 0;
	sink += positive;
}

/* Writes to its memory each time that it is woken, until the pipe is closed. */
static void disturb(int from, int to, size_t bytes, const char *colors)
{
	volatile char *lines = NULL;
	char word;

	take_colors(colors);
	if (bytes)
		lines = fresh(bytes);
	while (read(from, &word, 1) == 1) {
		for (size_t i = 0; i < bytes; i += LINE)
			lines[i]++;
		if (write(to, &word, 1) != 1)
			break;
	}
	exit(0);
}

static int by_value(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

static void fill(const char *name)
{
	int64_t *values = (int64_t *)memory;

	if (!strcmp(name, "chase")) {
		at = link_memory(memory, size);
		return;
	}
	for (size_t i = 0; i < size / sizeof(*values); i++)
		values[i] = (int64_t)below(1000) - 500;
	dim = sqrt(size / sizeof(*values));
}

int main(int argc, char **argv)
{
	int wake[2], ready[2], status;
	size_t loops;
	double *times;
	void (*loop)(void);
	char word = 0;
	pid_t partner;

	if (argc != 7) {
		fprintf(stderr, "usage: pair VICTIM BYTES PARTNER-BYTES PARTNER-COLORS LOOPS SEED\n");
		return 2;
	}
	loop = !strcmp(argv[1], "chase") ? chase : !strcmp(argv[1], "mcol") ? mcol : cnt;
	size = number(argv[2]);
	loops = number(argv[5]);
	seed(number(argv[6]));
	if (pipe(wake) || pipe(ready))
		die("pipe");
	partner = fork();
	if (partner < 0)
		die("fork");
	if (!partner) {
		close(wake[1]);
		close(ready[0]);
		disturb(wake[0], ready[1], number(argv[3]), argv[4]);
	}
	close(wake[0]);
	close(ready[1]);
	times = malloc(loops * sizeof(*times));
	memory = fresh(size);
	if (!times)
		die("malloc");
	fill(argv[1]);
	for (size_t i = 0; i < WARM + loops; i++) {
		double begin;

		if (write(wake[1], &word, 1) != 1 || read(ready[0], &word, 1) != 1)
			die("the partner");
		begin = now();
		loop();
		if (i >= WARM)
			times[i - WARM] = now() - begin;
	}
	close(wake[1]);
	if (waitpid(partner, &status, 0) != partner || status)
		die("the partner");
	qsort(times, loops, sizeof(*times), by_value);
	printf("native %.0f %.0f %.0f\n", times[loops - 1], times[loops * 99 / 100], times[loops / 2]);
	return 0;
}
