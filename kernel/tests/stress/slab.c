// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the kernel keeps of its own memory: caches of slabs, one by one, and what keeps
 * memory besides them. Of what was freed KASAN keeps some in its quarantine, up to a 32nd
 * of the memory; as it belongs to the caches still, it counts as slab. To shrink a cache
 * takes its objects out of there.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stress.h"

#define CACHES		"/sys/kernel/slab"
/* mm/stackdepot.c: DEPOT_POOL_ORDER */
#define DEPOT_POOL_KB	16

void shrink_caches(void)
{
	DIR *folder = opendir(CACHES);
	struct dirent *entry;
	char path[300];

	while (folder && (entry = readdir(folder))) {
		/* Others are names of caches that were merged. */
		if (entry->d_type != DT_DIR || *entry->d_name == '.')
			continue;
		snprintf(path, sizeof(path), CACHES "/%.200s/shrink", entry->d_name);
		pc_write(path, "1");
	}
	if (folder)
		closedir(folder);
}

unsigned long depot_kb(void)
{
	unsigned long pools = 0;

	pc_value("/sys/kernel/debug/stackdepot/stats", "pools", &pools);
	return pools * DEPOT_POOL_KB;
}

void read_caches(struct caches *caches)
{
	FILE *file = fopen("/proc/slabinfo", "re");
	unsigned long active, objects, size, per_slab, pages, slabs;
	char line[512];

	caches->count = 0;
	while (file && fgets(line, sizeof(line), file) && caches->count < MAX_CACHES) {
		struct cache *cache = &caches->cache[caches->count];

		if (sscanf(line,
			   "%39s %lu %lu %lu %lu %lu : tunables %*u %*u %*u : slabdata %*u %lu",
			   cache->name, &active, &objects, &size, &per_slab, &pages, &slabs) != 7)
			continue;
		cache->objects = active;
		cache->kb = slabs * pages * PAGE / 1024;
		caches->count++;
	}
	if (file)
		fclose(file);
}

/* One that is new had nothing. */
static struct cache find(const struct caches *caches, const char *name)
{
	struct cache none = { };
	unsigned int i;

	for (i = 0; i < caches->count; i++)
		if (!strcmp(caches->cache[i].name, name))
			return caches->cache[i];
	return none;
}

struct growth {
	const struct cache	*after;
	struct cache		before;
	long			kb;
};

static int by_growth(const void *a, const void *b)
{
	const struct growth *one = a, *other = b;

	return (one->kb < other->kb) - (one->kb > other->kb);
}

void print_growth(const struct caches *before, const struct caches *after, const char *when,
		  unsigned int most)
{
	static struct growth growth[MAX_CACHES];
	unsigned int i;

	for (i = 0; i < after->count; i++) {
		growth[i].after = &after->cache[i];
		growth[i].before = find(before, after->cache[i].name);
		growth[i].kb = growth[i].after->kb - growth[i].before.kb;
	}
	qsort(growth, after->count, sizeof(*growth), by_growth);
	for (i = 0; i < after->count && i < most && growth[i].kb > 0; i++)
		printf("%s %s %lu %lu %lu %lu\n", when, growth[i].after->name, growth[i].before.kb,
		       growth[i].after->kb, growth[i].before.objects, growth[i].after->objects);
	fflush(stdout);
}
