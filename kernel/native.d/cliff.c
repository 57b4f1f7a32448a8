// SPDX-License-Identifier: GPL-2.0-only
/*
 * cliff COLORS WAYS SEED: tests that the colors which this kernel computes are those of the cache.
 *
 * Chases through the lines of N pages of one color, by frame number. As long as N is at most the number of ways, all of
 * them fit into the sets of that color; one page more and they do not. Pages of all colors in turn have no such cliff there.
 * Prints, for each color (-1: all in turn) and each N, nanoseconds of a load.
 */
#include <stdio.h>
#include <stdlib.h>

#include "guest.h"

/* Pages of each color, for each way, among which those of a color are found. */
#define SHARE 4
/* Range of N, below and above the number of ways. */
#define BELOW 4
#define ABOVE 6
#define TIMES 7
#define LOADS 40000

static double chase(char **pages, size_t count)
{
	char **lines = malloc(count * LINES_OF_PAGE * sizeof(*lines));
	size_t all = count * LINES_OF_PAGE, passes = LOADS / all + 1;
	double least = 0;
	void **at;

	if (!lines)
		die("malloc");
	for (size_t i = 0; i < all; i++)
		lines[i] = pages[i / LINES_OF_PAGE] + i % LINES_OF_PAGE * LINE;
	at = follow(link_lines(lines, all), 2 * all);
	free(lines);
	for (int time = 0; time < TIMES; time++) {
		double begin = now(), took;

		at = follow(at, passes * all);
		took = (now() - begin) / (passes * all);
		least = !time || took < least ? took : least;
	}
	/* Used, so that the compiler keeps the loads. */
	return at ? least : 0;
}

int main(int argc, char **argv)
{
	size_t colors, ways, most, pages;
	uint64_t *numbers;
	char *memory, **of, **mixed;
	size_t *counts;

	if (argc != 4) {
		fprintf(stderr, "usage: cliff COLORS WAYS SEED\n");
		return 2;
	}
	colors = number(argv[1]);
	ways = number(argv[2]);
	seed(number(argv[3]));
	most = ways + ABOVE;
	pages = colors * ways * SHARE;
	memory = fresh(pages * PAGE);
	numbers = malloc(pages * sizeof(*numbers));
	of = calloc(colors * most, sizeof(*of));
	counts = calloc(colors, sizeof(*counts));
	mixed = malloc(most * sizeof(*mixed));
	if (!numbers || !of || !counts || !mixed)
		die("malloc");
	frames(memory, pages, numbers);
	for (size_t i = 0; i < pages; i++) {
		size_t color = numbers[i] % colors;

		if (counts[color] < most)
			of[color * most + counts[color]++] = memory + i * PAGE;
	}
	for (size_t color = 0; color < colors; color++)
		if (counts[color] < most) {
			fprintf(stderr, "only %zu pages of color %zu\n", counts[color], color);
			return 1;
		}
	for (size_t i = 0; i < most; i++)
		mixed[i] = of[i % colors * most + i / colors];
	for (size_t count = ways > BELOW ? ways - BELOW : 1; count <= most; count++) {
		printf("native -1 %zu %.3f\n", count, chase(mixed, count));
		for (size_t color = 0; color < colors; color++)
			printf("native %zu %zu %.3f\n", color, count, chase(of + color * most, count));
	}
	return 0;
}
