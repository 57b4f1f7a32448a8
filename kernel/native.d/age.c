// SPDX-License-Identifier: GPL-2.0-only
/*
 * age PAGES PERCENT SEED: takes pages and gives PERCENT of them back, one by one in random order; then keeps the rest until it is
 * killed. What is free afterwards lies in no order. Prints a line when it has done so.
 */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guest.h"

int main(int argc, char **argv)
{
	size_t pages, back;
	uint32_t *order;
	char *memory;

	if (argc != 4) {
		fprintf(stderr, "usage: age PAGES PERCENT SEED\n");
		return 2;
	}
	pages = number(argv[1]);
	back = pages * number(argv[2]) / 100;
	seed(number(argv[3]));
	memory = fresh(pages * PAGE);
	order = malloc((pages + 1) * sizeof(*order));
	if (!order)
		die("malloc");
	for (size_t i = 0; i < pages; i++)
		order[i] = i;
	shuffle(order, pages);
	for (size_t i = 0; i < back; i++)
		if (madvise(memory + order[i] * PAGE, PAGE, MADV_DONTNEED))
			die("madvise");
	printf("native aged\n");
	fflush(stdout);
	for (;;)
		pause();
}
