/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Caches and TLBs of a machine, written anew for the witness: nothing of crates/lab/cachesim is in it. Two levels of
 * caches that are neither inclusive nor exclusive, as the papers' one-core machines have.
 */
#ifndef WITNESS_MODEL_H
#define WITNESS_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define LEVELS 2
#define MOST_WAYS 32
#define MOST_TLBS 4
#define HINTS 4096

struct cache {
	unsigned int ways, sets, line_shift, sector_shift;
	bool tree, virtual_index, write_back, write_allocate;
	/* Of each slot: block number + 1, or 0; marks of its lines; when it was used. */
	uint64_t *block;
	int64_t *used;
	uint8_t *valid, *dirty;
	/* Of each set: the way that was used last. */
	uint8_t *latest;
	/* Of each set: which half of each half of its ways was used last. */
	uint64_t *tree_bits;
	/* Of each way: the bits that say something of it, and what they are when it was used last. */
	uint64_t tree_of[MOST_WAYS], tree_used[MOST_WAYS];
};

struct tlb {
	unsigned int level, ways, sets;
	bool base, super;
	/* Of each entry: page number and size, or 0; those of its set that were used after and before it. */
	int64_t *key;
	uint16_t *after, *before;
	/* Of each set: the entry used last; the one before it in the ring, which was used longest ago. */
	uint16_t *latest;
	/* By the last bits of a page's number: where such a page was seen last, and how many are held. */
	uint16_t hint[HINTS], held[HINTS];
};

struct counts {
	uint64_t loads, stores, memory, tlb_misses, walks, walk_memory, write_backs;
};

/* Where the entries of the page table are that map a page; of a superpage, the directory's alone. */
struct walk {
	uint64_t directory, entry;
	bool super;
};

struct machine {
	char name[64];
	unsigned int caches, tlbs, walk_through;
	bool walk_directory;
	struct cache cache[LEVELS];
	struct tlb tlb[MOST_TLBS];
	int64_t now;
	struct counts counts;
};

/* Reads machines as witness/run writes them; returns how many, or ends the program. */
unsigned int model_read(FILE *from, struct machine *machines, unsigned int most);
/* Empty caches and TLBs, and nothing counted. */
void model_reset(struct machine *machine);
/* A reference: through the TLBs and, if they do not have its page, the loads of a walk; then through the caches. */
void model_reference(struct machine *machine, uint64_t address, uint64_t physical, bool store,
		     const struct walk *walk);

#endif
