// SPDX-License-Identifier: GPL-2.0-or-later
#include "model.h"

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

/* A tree that halves the ways until one is left: a bit for each half that has halves, 1 if the second was used last. */
static void plant(struct cache *cache)
{
	for (unsigned int way = 0; way < cache->ways; way++) {
		unsigned int low = 0, high = cache->ways, node = 1;

		while (high - low > 1) {
			unsigned int middle = (low + high) / 2;
			bool second = way >= middle;

			cache->tree_of[way] |= 1ULL << node;
			cache->tree_used[way] |= (uint64_t)second << node;
			low = second ? middle : low;
			high = second ? high : middle;
			node = node * 2 + second;
		}
	}
}

static bool read_cache(struct cache *cache, const char *line)
{
	unsigned int size, line_size, sector_lines, write_back, write_allocate, virtual_index;
	char replacement[16];

	if (sscanf(line, "cache %u %u %u %u %15s %u %u %u", &size, &cache->ways, &line_size, &sector_lines, replacement,
		   &virtual_index, &write_back, &write_allocate) != 8)
		return false;
	cache->tree = !strcmp(replacement, "tree-plru");
	if ((!cache->tree && strcmp(replacement, "lru")) || !cache->ways || cache->ways > MOST_WAYS)
		return false;
	plant(cache);
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
	tlb->after = room(entries, 2);
	tlb->before = room(entries, 2);
	tlb->latest = room(tlb->sets, 2);
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
		memset(tlb->hint, 0, sizeof(tlb->hint));
		memset(tlb->held, 0, sizeof(tlb->held));
		/* A ring for each set. */
		for (unsigned int entry = 0; entry < tlb->sets * tlb->ways; entry++) {
			unsigned int way = entry % tlb->ways, first = entry - way;

			tlb->after[entry] = first + (way + 1) % tlb->ways;
			tlb->before[entry] = first + (way + tlb->ways - 1) % tlb->ways;
			tlb->latest[entry / tlb->ways] = first;
		}
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
	uint64_t *tree = &cache->tree_bits[place->set];

	cache->latest[place->set] = way;
	if (cache->tree)
		*tree = (*tree & ~cache->tree_of[way]) | cache->tree_used[way];
	else
		cache->used[place->first + way] = ++machine->now;
}

/* The way that has the block, or as many as there are. All are looked at, whatever is found: so several are at once. */
static inline unsigned int way_of(const struct cache *cache, size_t first, uint64_t block)
{
	const uint64_t *blocks = cache->block + first;
	unsigned int found = cache->ways;

	for (unsigned int way = 0; way < cache->ways; way++)
		found = blocks[way] == block ? way : found;
	return found;
}

static inline bool touch(struct machine *machine, struct cache *cache, const struct place *place, bool store)
{
	size_t latest = place->first + cache->latest[place->set], slot;
	unsigned int way;

	/* To use it once more changes no order. */
	if (cache->block[latest] == place->block && cache->valid[latest] & place->bit) {
		if (store)
			cache->dirty[latest] |= place->bit;
		return true;
	}
	way = way_of(cache, place->first, place->block);
	slot = place->first + way;
	if (way == cache->ways || !(cache->valid[slot] & place->bit))
		return false;
	if (store)
		cache->dirty[slot] |= place->bit;
	mark_used(machine, cache, place, way);
	return true;
}

static unsigned int victim(const struct cache *cache, const struct place *place)
{
	unsigned int low = 0, high = cache->ways, node = 1, oldest = 0;
	const int64_t *used = cache->used + place->first;
	int64_t least = INT64_MAX;

	/* The last one is filled last. */
	if (!cache->block[place->first + cache->ways - 1])
		for (unsigned int way = 0; way < cache->ways; way++)
			if (!cache->block[place->first + way])
				return way;
	if (!cache->tree) {
		for (unsigned int way = 0; way < cache->ways; way++)
			least = used[way] < least ? used[way] : least;
		for (unsigned int way = 0; way < cache->ways; way++)
			oldest = used[way] == least ? way : oldest;
		return oldest;
	}
	/* To the half that was not used last. */
	while (high - low > 1) {
		unsigned int middle = (low + high) / 2;
		bool second = !(cache->tree_bits[place->set] >> node & 1);

		low = second ? middle : low;
		high = second ? high : middle;
		node = node * 2 + second;
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
	unsigned int way = cache->ways, shift = cache->line_shift + cache->sector_shift;
	uint64_t gone;
	uint8_t dirty;
	size_t slot;

	/* Its neighbour may be there. */
	if (cache->sector_shift)
		way = way_of(cache, place->first, place->block);
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
	for (unsigned int line = 0; dirty; line++, dirty >>= 1)
		if (dirty & 1)
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

/* Has an entry be the one used last of its set. */
static inline void use_entry(struct tlb *tlb, uint16_t *latest, unsigned int entry)
{
	unsigned int was = *latest, oldest = tlb->before[was];

	if (entry == was)
		return;
	*latest = entry;
	/* The oldest of a ring is before the latest already. */
	if (entry == oldest)
		return;
	tlb->before[tlb->after[entry]] = tlb->before[entry];
	tlb->after[tlb->before[entry]] = tlb->after[entry];
	tlb->before[entry] = oldest;
	tlb->after[entry] = was;
	tlb->after[oldest] = entry;
	tlb->before[was] = entry;
}

static bool translated(struct tlb *tlb, int64_t key, uint64_t number)
{
	unsigned int set = number & (tlb->sets - 1), slot = number & (HINTS - 1), entry = tlb->hint[slot];
	uint16_t *latest = &tlb->latest[set];

	if (tlb->key[entry] == key) {
		use_entry(tlb, latest, entry);
		return true;
	}
	/* Only one that is held need be looked for. */
	if (tlb->held[slot])
		for (unsigned int way = 0; way < tlb->ways; way++) {
			entry = set * tlb->ways + way;
			if (tlb->key[entry] != key)
				continue;
			tlb->hint[slot] = entry;
			use_entry(tlb, latest, entry);
			return true;
		}
	entry = tlb->before[*latest];
	if (tlb->key[entry])
		tlb->held[(uint64_t)(tlb->key[entry] - 1) >> 1 & (HINTS - 1)]--;
	tlb->held[slot]++;
	tlb->key[entry] = key;
	tlb->hint[slot] = entry;
	use_entry(tlb, latest, entry);
	return false;
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
			if (translated(tlb, key, number))
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
