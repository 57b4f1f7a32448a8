/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How the guest's program tells the plugin what it does: a page at a known address, and a store into its
 * last word.
 */
#ifndef WITNESS_BELL_H
#define WITNESS_BELL_H

#include <stdint.h>

#define BELL_ADDRESS 0x10000000000ULL

enum { BELL_FILL = 1, BELL_COUNT = 2, BELL_END = 3 };

struct bell {
	char machine[64]; /* whose caches and TLBs */
	char point[64];	  /* what is about to be done */
	uint64_t from, to; /* addresses of the memory it is done on */
	uint64_t whole;	   /* all references of the program are modelled, not just those to that memory */
	uint64_t unused[492];
	uint64_t ring; /* BELL_FILL: caches are empty; BELL_COUNT: from here on it counts; BELL_END */
};

#endif
