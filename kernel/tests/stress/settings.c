// SPDX-License-Identifier: GPL-2.0-only
/* Loads of settings of the whole system, and of reading what it shows. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stress.h"

#define BLOCKS	"/sys/devices/system/memory"
#define CMA	"/sys/kernel/debug/cma/reserved"
#define HUGETLB	"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

static void interrupt(int signal)
{
}

static void switch_coloring(void)
{
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

/*
 * Some pages are not movable, and the kernel tries again until a signal comes. What
 * went must come back.
 */
static void block_goes(unsigned int *seed)
{
	char path[300], state[32];
	unsigned int tries;
	int error;

	settings_lock();
	for (tries = 0; tries < 64; tries++) {
		snprintf(path, sizeof(path), BLOCKS "/memory%u/state", random_below(seed, 40));
		if (!pc_read(path, state, sizeof(state)) && !strcmp(state, "online"))
			break;
	}
	if (tries < 64) {
		alarm(4);
		error = pc_write(path, "offline");
		alarm(0);
		if (!error) {
			DONE(blocks_offlined);
			for (tries = 0; tries < 10; tries++) {
				error = pc_write(path, "online");
				if (!error)
					break;
				printf("# %s does not come back: %s\n", path, strerror(-error));
				fflush(stdout);
				sleep(1);
			}
			if (error)
				wrong("settings: %s: %s", path, strerror(-error));
			else
				DONE(blocks_onlined);
		}
	}
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
			block_goes(&seed);
			break;
		case 9:
		case 10:
			take_large(&seed);
			break;
		case 11:
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
