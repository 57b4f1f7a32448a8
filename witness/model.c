// SPDX-License-Identifier: GPL-2.0-or-later
#include "model.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_SHIFT 12
#define SUPERPAGE_SHIFT 21

static void refuse(const char *line)
{
	fprintf(stderr, "witness: cannot use this of a machine: %s\n", line);
	exit(1);
}

static void *room(size_t count, size_t size)
{
	void *made = calloc(count, size);

	if (!made)
		refuse("no memory for it");
	return made;
}

static unsigned int log2_of(unsigned int value)
{
	return __builtin_ctz(value);
}

static bool read_cache(struct cache *cache, const char *line)
{
	unsigned int size, line_size, sector_lines, write_back, write_allocate, virtual_index;
	char replacement[16];

	if (sscanf(line, "cache %u %u %u %u %15s %u %u %u", &size, &cache->ways, &line_size, &sector_lines, replacement,
		   &virtual_index, &write_back, &write_allocate) != 8)
		return false;
	cache->tree = !strcmp(replacement, "tree-plru");
	if (!cache->tree && strcmp(replacement, "lru"))
		return false;
	cache->virtual_index = virtual_index;
	cache->write_back = write_back;
	cache->write_allocate = write_allocate;
	cache->line_shift = log2_of(line_size);
	cache->sector_shift = log2_of(sector_lines);
	cache->sets = size / line_size / sector_lines / cache->ways;
	cache->block = room((size_t)cache->sets * cache->ways, 8);
	cache->used = room((size_t)cache->sets * cache->ways, 8);
	cache->valid = room((size_t)cache->sets * cache->ways, 1);
	cache->dirty = room((size_t)cache->sets * cache->ways, 1);
	cache->latest = room(cache->sets, 1);
	cache->tree_bits = room(cache->sets, 8);
	return cache->sets && !(cache->sets & (cache->sets - 1));
}

static bool read_tlb(struct tlb *tlb, const char *line)
{
	unsigned int entries, base, super;

	if (sscanf(line, "tlb %u %u %u %u %u", &tlb->level, &entries, &tlb->ways, &base, &super) != 5)
		return false;
	tlb->base = base;
	tlb->super = super;
	if (!tlb->ways || !entries || entries > 65535)
		return false;
	tlb->sets = entries / tlb->ways;
	tlb->key = room(entries, 8);
	tlb->used = room(entries, 8);
	return tlb->sets && !(tlb->sets & (tlb->sets - 1));
}

unsigned int model_read(FILE *from, struct machine *machines, unsigned int most)
{
	struct machine *machine = NULL;
	unsigned int count = 0, directory;
	char line[256];
	bool good;

	while (fgets(line, sizeof(line), from)) {
		if (!strncmp(line, "machine ", 8)) {
			if (count == most)
				refuse("there are too many");
			machine = &machines[count++];
			good = sscanf(line, "machine %63s", machine->name) == 1;
		} else if (!machine) {
			good = false;
		} else if (!strncmp(line, "cache ", 6)) {
			good = machine->caches < LEVELS && read_cache(&machine->cache[machine->caches++], line);
		} else if (!strncmp(line, "tlb ", 4)) {
			good = machine->tlbs < MOST_TLBS && read_tlb(&machine->tlb[machine->tlbs++], line);
		} else {
			good = sscanf(line, "walk %u %u", &directory, &machine->walk_through) == 2 &&
			       machine->walk_through < machine->caches;
			machine->walk_directory = directory;
		}
		if (!good)
			refuse(line);
	}
	return count;
}

void model_reset(struct machine *machine)
{
	for (unsigned int i = 0; i < machine->caches; i++) {
		struct cache *cache = &machine->cache[i];
		size_t slots = (size_t)cache->sets * cache->ways;

		memset(cache->block, 0, slots * 8);
		memset(cache->used, 0, slots * 8);
		memset(cache->valid, 0, slots);
		memset(cache->dirty, 0, slots);
		memset(cache->latest, 0, cache->sets);
		memset(cache->tree_bits, 0, cache->sets * 8UL);
	}
	for (unsigned int i = 0; i < machine->tlbs; i++) {
		struct tlb *tlb = &machine->tlb[i];

		memset(tlb->key, 0, (size_t)tlb->sets * tlb->ways * 8);
		memset(tlb->used, 0, (size_t)tlb->sets * tlb->ways * 8);
		memset(tlb->hint, 0, sizeof(tlb->hint));
	}
	memset(&machine->counts, 0, sizeof(machine->counts));
	machine->now = 0;
}

/* Where a line of an address is looked for. */
struct place {
	size_t first;
	unsigned int set, bit;
	uint64_t block;
};

static inline struct place place_of(const struct cache *cache, uint64_t address, uint64_t physical)
{
	unsigned int shift = cache->line_shift + cache->sector_shift;
	struct place place;

	place.set = (cache->virtual_index ? address : physical) >> shift & (cache->sets - 1);
	place.first = (size_t)place.set * cache->ways;
	place.block = (physical >> shift) + 1;
	place.bit = 1u << (physical >> cache->line_shift & ((1u << cache->sector_shift) - 1));
	return place;
}

static inline void mark_used(struct machine *machine, struct cache *cache, const struct place *place, unsigned int way)
{
	unsigned int low = 0, high = cache->ways, node = 1;

	cache->latest[place->set] = way;
	if (!cache->tree) {
		cache->used[place->first + way] = ++machine->now;
		return;
	}
	while (high - low > 1) {
		unsigned int middle = (low + high) / 2;

		if (way >= middle) {
			cache->tree_bits[place->set] |= 1ULL << node;
			low = middle;
			node = node * 2 + 1;
		} else {
			cache->tree_bits[place->set] &= ~(1ULL << node);
			high = middle;
			node = node * 2;
		}
	}
}

static inline bool touch(struct machine *machine, struct cache *cache, const struct place *place, bool store)
{
	size_t latest = place->first + cache->latest[place->set];

	/* To use it once more changes no order. */
	if (cache->block[latest] == place->block && cache->valid[latest] & place->bit) {
		if (store)
			cache->dirty[latest] |= place->bit;
		return true;
	}
	for (unsigned int way = 0; way < cache->ways; way++) {
		size_t slot = place->first + way;

		if (cache->block[slot] != place->block)
			continue;
		if (!(cache->valid[slot] & place->bit))
			return false;
		if (store)
			cache->dirty[slot] |= place->bit;
		mark_used(machine, cache, place, way);
		return true;
	}
	return false;
}

static unsigned int victim(const struct cache *cache, const struct place *place)
{
	unsigned int low = 0, high = cache->ways, node = 1, oldest = 0;

	for (unsigned int way = 0; way < cache->ways; way++)
		if (!cache->block[place->first + way])
			return way;
	if (!cache->tree) {
		for (unsigned int way = 1; way < cache->ways; way++)
			if (cache->used[place->first + way] < cache->used[place->first + oldest])
				oldest = way;
		return oldest;
	}
	/* To the half that was not used last. */
	while (high - low > 1) {
		unsigned int middle = (low + high) / 2;

		if (cache->tree_bits[place->set] >> node & 1) {
			high = middle;
			node = node * 2;
		} else {
			low = middle;
			node = node * 2 + 1;
		}
	}
	return low;
}

/* A line that was thrown out goes into the next cache that has it, or to memory. */
static void write_back(struct machine *machine, unsigned int from, uint64_t physical)
{
	for (unsigned int level = from; level < machine->caches; level++) {
		struct place place = place_of(&machine->cache[level], physical, physical);

		if (touch(machine, &machine->cache[level], &place, true))
			return;
	}
	machine->counts.write_backs++;
}

static void fill(struct machine *machine, unsigned int level, const struct place *place, bool store)
{
	struct cache *cache = &machine->cache[level];
	unsigned int way, shift = cache->line_shift + cache->sector_shift;
	uint64_t gone;
	uint8_t dirty;
	size_t slot;

	/* Its neighbour may be there. */
	for (way = 0; way < cache->ways; way++)
		if (cache->block[place->first + way] == place->block)
			break;
	if (way == cache->ways)
		way = victim(cache, place);
	slot = place->first + way;
	gone = cache->block[slot];
	dirty = cache->dirty[slot];
	if (gone == place->block) {
		cache->valid[slot] |= place->bit;
		if (store)
			cache->dirty[slot] |= place->bit;
		mark_used(machine, cache, place, way);
		return;
	}
	cache->block[slot] = place->block;
	cache->valid[slot] = place->bit;
	cache->dirty[slot] = store ? place->bit : 0;
	mark_used(machine, cache, place, way);
	for (unsigned int line = 0; gone && line < 1u << cache->sector_shift; line++)
		if (dirty >> line & 1)
			write_back(machine, level + 1, ((gone - 1) << shift) + ((uint64_t)line << cache->line_shift));
}

/* From a level outwards; returns whether a cache had it. */
static bool fetch(struct machine *machine, unsigned int from, uint64_t address, uint64_t physical, bool store)
{
	struct place places[LEVELS];
	unsigned int level;
	bool found = false;

	for (level = from; level < machine->caches && !found; level++) {
		struct cache *cache = &machine->cache[level];

		places[level] = place_of(cache, address, physical);
		found = touch(machine, cache, &places[level], store && level == from);
	}
	if (found)
		level--;
	while (level-- > from)
		fill(machine, level, &places[level], store && level == from);
	return found;
}

static bool translated(struct machine *machine, struct tlb *tlb, int64_t key, uint64_t number)
{
	size_t first = (size_t)(number & (tlb->sets - 1)) * tlb->ways;
	uint16_t *hint = &tlb->hint[number & (HINTS - 1)];
	const int64_t *keys = tlb->key + first, *used = tlb->used + first;
	unsigned int found = UINT_MAX, oldest = 0;
	int64_t least = INT64_MAX;

	if (tlb->key[*hint] == key) {
		tlb->used[*hint] = ++machine->now;
		return true;
	}
	/* All ways, whatever is found: so several are looked at at once. */
	for (unsigned int way = 0; way < tlb->ways; way++)
		found = keys[way] == key ? way : found;
	if (found == UINT_MAX) {
		for (unsigned int way = 0; way < tlb->ways; way++)
			least = used[way] < least ? used[way] : least;
		for (unsigned int way = 0; way < tlb->ways; way++)
			oldest = used[way] == least ? way : oldest;
	}
	*hint = first + (found == UINT_MAX ? oldest : found);
	tlb->used[*hint] = ++machine->now;
	tlb->key[*hint] = key;
	return found != UINT_MAX;
}

/* Asks the TLBs for pages of one size. */
static bool in_tlbs(struct machine *machine, uint64_t address, bool super)
{
	uint64_t number = address >> (super ? SUPERPAGE_SHIFT : PAGE_SHIFT);
	int64_t key = (number << 1 | super) + 1;

	for (unsigned int level = 1; level <= 2; level++)
		for (unsigned int i = 0; i < machine->tlbs; i++) {
			struct tlb *tlb = &machine->tlb[i];

			if (tlb->level != level || !(super ? tlb->super : tlb->base))
				continue;
			if (translated(machine, tlb, key, number))
				return true;
			if (level == 1)
				machine->counts.tlb_misses++;
		}
	return false;
}

static void walk_load(struct machine *machine, uint64_t physical)
{
	if (!fetch(machine, machine->walk_through, physical, physical, false))
		machine->counts.walk_memory++;
}

void model_reference(struct machine *machine, uint64_t address, uint64_t physical, bool store,
		     const struct walk *walk)
{
	struct cache *first = &machine->cache[0];
	struct place place;

	if (!in_tlbs(machine, address, walk->super)) {
		machine->counts.walks++;
		if (machine->walk_directory || walk->super)
			walk_load(machine, walk->directory);
		if (!walk->super)
			walk_load(machine, walk->entry);
	}
	if (store)
		machine->counts.stores++;
	else
		machine->counts.loads++;
	place = place_of(first, address, physical);
	if (touch(machine, first, &place, store && first->write_back)) {
		/* What is written goes on, if this cache does not keep it. */
		if (store && !first->write_back)
			write_back(machine, 1, physical);
		return;
	}
	if (store && !first->write_allocate) {
		if (!fetch(machine, 1, address, physical, true))
			machine->counts.memory++;
		return;
	}
	if (!fetch(machine, 1, address, physical, store && !first->write_back))
		machine->counts.memory++;
	fill(machine, 0, &place, store && first->write_back);
}
