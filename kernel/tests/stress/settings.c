// SPDX-License-Identifier: GPL-2.0-only
/* Loads of settings of the whole system, and of reading what it shows. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "stress.h"

#define BLOCKS	"/sys/devices/system/memory"
#define MAX_BLOCKS	64
#define CMA	"/sys/kernel/debug/cma/reserved"
#define HUGETLB	"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

static void interrupt(int signal)
{
}

static void switch_coloring(void)
{
	if (uncolored)
		return;
	settings_lock();
	if (pc_write(PC_COLORING, "0"))
		wrong("settings: coloring cannot be switched off");
	usleep(20000);
	if (pc_write(PC_COLORING, "1"))
		wrong("settings: coloring cannot be switched on");
	settings_unlock();
	DONE(coloring_switched);
}

static void reserve(unsigned int *seed)
{
	char text[64] = "";

	if (random_below(seed, 2))
		snprintf(text, sizeof(text), "%u-%u", random_below(seed, pc_colors / 4 + 1),
			 pc_colors - 1);
	if (pc_write(PC_UNASSIGNED, text))
		wrong("settings: page_color_unassigned does not take '%s'", text);
	DONE(reservations_changed);
}

struct block {
	char	path[64];
};

/* The blocks of ZONE_MOVABLE that are in some state: elsewhere the kernel's own pages keep them. */
static unsigned int find_blocks(const char *wanted, struct block *blocks, unsigned int most)
{
	DIR *folder = opendir(BLOCKS);
	char path[300], text[64];
	unsigned int count = 0;
	struct dirent *entry;

	while (folder && (entry = readdir(folder)) && count < most) {
		unsigned int number;

		if (sscanf(entry->d_name, "memory%u", &number) != 1)
			continue;
		snprintf(path, sizeof(path), BLOCKS "/memory%u/state", number);
		if (pc_read(path, text, sizeof(text)) || strcmp(text, wanted))
			continue;
		/* One that is offline may be of several. */
		snprintf(path, sizeof(path), BLOCKS "/memory%u/valid_zones", number);
		if (pc_read(path, text, sizeof(text)) || !strstr(text, "Movable"))
			continue;
		snprintf(blocks[count++].path, sizeof(blocks->path), BLOCKS "/memory%u/state",
			 number);
	}
	if (folder)
		closedir(folder);
	return count;
}

/* What went must come back, to where it can go again. */
static bool block_returns(const struct block *block)
{
	unsigned int tries;
	int error = 0;

	for (tries = 0; tries < 10; tries++) {
		error = pc_write(block->path, "online_movable");
		if (!error)
			return true;
		printf("# %s does not come back: %s\n", block->path, strerror(-error));
		fflush(stdout);
		sleep(1);
	}
	wrong("settings: %s: %s", block->path, strerror(-error));
	return false;
}

/* Who took them may have been killed. */
unsigned int return_blocks(void)
{
	struct block blocks[MAX_BLOCKS];
	unsigned int count = find_blocks("offline", blocks, MAX_BLOCKS), i;

	for (i = 0; i < count; i++)
		block_returns(&blocks[i]);
	return count;
}

static void ask_for_room(int room)
{
	__atomic_store_n(&shared->room, room, __ATOMIC_RELAXED);
}

/* The kernel tries again and again, until a signal comes. */
static int take_offline(const struct block *block, time_t until)
{
	time_t now = time(NULL);
	int error;

	alarm(until > now ? until - now : 1);
	error = pc_write(block->path, "offline");
	alarm(0);
	return error;
}

/* One after another, until one goes. Some hold what the kernel took at boot. */
static void block_goes(unsigned int *seed)
{
	time_t until = time(NULL) + 90;
	struct block blocks[MAX_BLOCKS];
	unsigned int count, first, i;

	settings_lock();
	ask_for_room(1);
	sleep(3);
	count = find_blocks("online", blocks, MAX_BLOCKS);
	first = random_below(seed, count);
	for (i = 0; i < count && time(NULL) < until; i++) {
		const struct block *block = &blocks[(first + i) % count];

		if (take_offline(block, until))
			continue;
		DONE(blocks_offlined);
		usleep(200000);
		if (block_returns(block))
			DONE(blocks_onlined);
		break;
	}
	ask_for_room(0);
	settings_unlock();
}

/* Large pages, and areas of many: they take pages of all colors out of the lists. */
static void take_large(unsigned int *seed)
{
	if (random_below(seed, 2)) {
		pc_write(HUGETLB, "8");
		usleep(50000);
		pc_write(HUGETLB, "0");
		DONE_N(hugetlb_pages, 8);
	} else if (!pc_write(CMA "/alloc", "256")) {
		usleep(50000);
		pc_write(CMA "/free", "256");
		DONE(cma_allocations);
	}
}

static void merge(unsigned int *seed)
{
	pc_write("/sys/kernel/mm/ksm/run", random_below(seed, 2) ? "1" : "2");
	DONE(ksm_switched);
}

void settings(unsigned int seed)
{
	struct sigaction action = { .sa_handler = interrupt };

	sigaction(SIGALRM, &action, NULL);
	/* Among all the others it would get to little. */
	setpriority(PRIO_PROCESS, 0, -10);
	while (!stopping()) {
		usleep(400000);
		switch (random_below(&seed, 16)) {
		case 0:
			pc_write("/proc/sys/vm/compact_memory", "1");
			DONE(compactions);
			break;
		case 1:
		case 2:
			pc_write(PC_SPREAD, random_below(&seed, 2) ? "1" : "0");
			DONE(spread_switched);
			break;
		case 3:
		case 4:
			/* Takes coloring to be on. */
			settings_lock();
			if (!uncolored)
				reserve(&seed);
			settings_unlock();
			break;
		case 5:
		case 6:
			switch_coloring();
			break;
		case 7:
			pc_write("/proc/sys/vm/drop_caches", random_below(&seed, 2) ? "1" : "3");
			DONE(caches_dropped);
			break;
		case 8:
		case 9:
			block_goes(&seed);
			break;
		case 10:
		case 11:
			take_large(&seed);
			break;
		case 12:
			merge(&seed);
			break;
		default:
			break;
		}
	}
	pc_write(HUGETLB, "0");
	pc_write("/sys/kernel/mm/ksm/run", "2");
}

/* Of any process, also one that is just ending. */
static void read_process(unsigned int *seed, char *text, size_t size)
{
	DIR *folder = opendir("/proc");
	unsigned int skip = random_below(seed, 60);
	struct dirent *entry;
	char path[300];

	*path = '\0';
	while (folder && (entry = readdir(folder)))
		if (atoi(entry->d_name) > 0) {
			snprintf(path, sizeof(path), "/proc/%s/page_color", entry->d_name);
			if (!skip--)
				break;
		}
	if (folder)
		closedir(folder);
	if (*path && !pc_read(path, text, size))
		DONE(pid_page_color_read);
}

void readers(unsigned int seed)
{
	const size_t size = 262144;
	char *text = malloc(size);

	while (text && !stopping()) {
		if (!pc_read("/proc/page_color", text, size))
			DONE(page_color_read);
		if (!pc_read("/proc/super_page", text, size))
			DONE(super_page_read);
		read_process(&seed, text, size);
		usleep(50000);
	}
}
