// SPDX-License-Identifier: GPL-2.0-only
/* Whether all is as it should be: the free pages of each color, the log, what is left. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/swap.h>
#include <unistd.h>

#include "stress.h"

#define MAX_ZONES	16

/* A zone of /proc/page_color, and its pages of all colors. */
struct zone {
	int		node;
	char		name[32];
	unsigned long	buddy;
	unsigned long	listed;
	unsigned long	free;
	unsigned long	all;
	unsigned long	colors;
};

/* Less those that are present: of holes, which stay. */
static long surplus[MAX_ZONES];
static bool surplus_known;

static unsigned int read_zones(struct zone *zones)
{
	FILE *file = fopen("/proc/page_color", "re");
	unsigned long color, free, allocated;
	struct zone *zone = NULL;
	unsigned int count = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file)) {
		struct zone new = { };

		if (sscanf(line, "zone %d %31s", &new.node, new.name) == 2) {
			if (count == MAX_ZONES)
				break;
			zone = &zones[count++];
			*zone = new;
		}
		if (!zone)
			continue;
		sscanf(line, "buddy %lu", &zone->buddy);
		sscanf(line, "listed %lu", &zone->listed);
		if (sscanf(line, "%lu %lu %lu", &color, &free, &allocated) == 3) {
			zone->free += free;
			zone->all += free + allocated;
			zone->colors++;
			if ((long)allocated < 0)
				wrong("zone %d %s: more pages of color %lu free than there are",
				      zone->node, zone->name, color);
		}
	}
	if (file)
		fclose(file);
	return count;
}

/* Of /proc/zoneinfo; -1 for a zone that is not there. */
static long present_pages(const struct zone *zone)
{
	FILE *file = fopen("/proc/zoneinfo", "re");
	char line[256], name[32] = "";
	long pages = -1, value;
	int node = -1;

	while (file && fgets(line, sizeof(line), file)) {
		sscanf(line, "Node %d, zone %31s", &node, name);
		if (node == zone->node && !strcmp(name, zone->name) &&
		    sscanf(line, " present %ld", &value) == 1)
			pages = value;
	}
	if (file)
		fclose(file);
	return pages;
}

/*
 * While nobody switches coloring or memory. What is free and what is listed are read
 * under the zone's lock: they are equal at any time, not only when nothing is done.
 */
bool check_zones(void)
{
	struct zone zones[MAX_ZONES];
	unsigned int count, i;
	bool good;

	if (uncolored)
		return true;
	count = read_zones(zones);
	good = count > 0;
	if (!count)
		wrong("/proc/page_color has no zones");
	for (i = 0; i < count; i++) {
		const struct zone *zone = &zones[i];
		long more = zone->all - present_pages(zone);

		if (zone->buddy != zone->listed || zone->listed != zone->free ||
		    zone->colors != pc_colors) {
			wrong("zone %d %s: %lu free, %lu listed, %lu of %lu colors", zone->node,
			      zone->name, zone->buddy, zone->listed, zone->free, zone->colors);
			good = false;
		}
		if (surplus_known && more != surplus[i]) {
			wrong("zone %d %s: %ld pages more than are present, were %ld", zone->node,
			      zone->name, more, surplus[i]);
			good = false;
		}
		surplus[i] = more;
	}
	surplus_known = true;
	return good;
}

static bool complains(const char *line)
{
	static const char *const words[] = {
		"BUG:", "BUG at", "BUG ", "WARNING:", "Oops", "KASAN:", "UBSAN:", "INFO: task",
		"INFO: rcu", "INFO: possible", "INFO: trying", "soft lockup", "possible circular",
		"possible recursive", "suspicious RCU", "inconsistent lock state", "Bad page",
		"general protection", "unreferenced object", "turning off the locking",
		"Bad rss-counter", "ODEBUG:", "EXT4-fs error",
	};
	unsigned int i;

	for (i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (strstr(line, words[i]))
			return true;
	return false;
}

bool check_log(void)
{
	static int log = -1;
	char line[8192], *text;
	bool good = true;
	ssize_t got;

	if (log < 0)
		log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	while ((got = read(log, line, sizeof(line) - 1)) > 0 || (got < 0 && errno == EPIPE)) {
		/* EPIPE: some were overwritten before they were read; the script reads all. */
		if (got < 0)
			continue;
		line[got] = '\0';
		text = strchr(line, ';');
		if (!text || !complains(text))
			continue;
		if (good)
			wrong("the kernel complains: %.300s", text + 1);
		good = false;
	}
	return good;
}

static unsigned long meminfo(const char *key)
{
	unsigned long value = 0;

	pc_value("/proc/meminfo", key, &value);
	return value;
}

/* The sum of what stands in lines of @format. */
static unsigned long __attribute__((format(scanf, 2, 0)))
sum_of(const char *path, const char *format)
{
	FILE *file = fopen(path, "re");
	unsigned long sum = 0, value;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, format, &value) == 1)
			sum += value;
	if (file)
		fclose(file);
	return sum;
}

/* Free pages that CPUs have ready, of no color and of some: they do not count as free. */
static unsigned long ready_pages(void)
{
	return sum_of("/proc/zoneinfo", " count: %lu") + sum_of("/proc/page_color", "ready %lu");
}

const char *const rest_names[REST_USED] = {
	"Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "KernelStack", "PageTables",
	"VmallocUsed", "Percpu",
};

/*
 * What nobody needs stays in swap, and in its cache if it was being written when it was
 * given back.
 */
static void empty_swap(void)
{
	FILE *file = fopen("/proc/swaps", "re");
	char line[256], path[128];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "/dev/%100s", path + 5) == 1) {
			memcpy(path, "/dev/", 5);
			if (swapoff(path) || swapon(path, 0))
				wrong("%s cannot be emptied: %m", path);
		}
	if (file)
		fclose(file);
}

/* Caches are given back first. */
void look_at_rest(struct rest *rest)
{
	unsigned int i;

	sync();
	empty_swap();
	for (i = 0; i < 3; i++) {
		pc_write("/proc/sys/vm/drop_caches", "3");
		pc_write("/proc/sys/vm/compact_memory", "1");
		sleep(1);
	}
	rest->shrunk = meminfo("Slab");
	/* What KASAN lets go may leave another cache empty; RCU frees some later. */
	for (i = 0; i < 2; i++) {
		shrink_caches();
		sleep(1);
	}
	rest->free = meminfo("MemFree") + ready_pages() * PAGE / 1024;
	rest->slab = meminfo("Slab");
	rest->shrunk = rest->shrunk > rest->slab ? rest->shrunk - rest->slab : 0;
	rest->depot = depot_kb();
	rest->unpurged = sum_of("/proc/vmallocinfo", "%*s %lu unpurged") / 1024;
	rest->dying = 0;
	pc_value("/sys/fs/cgroup/cgroup.stat", "nr_dying_descendants", &rest->dying);
	read_caches(&rest->caches);
	rest->unknown = meminfo("MemTotal") - rest->free - rest->depot;
	for (i = 0; i < REST_USED; i++) {
		rest->used[i] = meminfo(rest_names[i]);
		rest->unknown -= rest->used[i];
	}
}
