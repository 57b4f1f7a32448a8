// SPDX-License-Identifier: GPL-2.0-only
/* Loads of groups: made, given colors, strict or not, used and removed. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stress.h"

static void write_to(const char *group, const char *file, const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", group, file);
	pc_write(path, text);
}

/* Has memory from before it came to the group, and from after. */
static int start_member(const char *group, unsigned int seed)
{
	int child = fork();

	if (!child) {
		const size_t size = 6 * MIB;
		char *memory = map(size);
		unsigned int i;

		if (!memory)
			_exit(0);
		change_own_set(&seed);
		write_bytes(memory, size / 2, seed);
		write_to(group, "cgroup.procs", "0");
		DONE(processes_moved);
		write_bytes(memory + size / 2, size / 2, seed + 1);
		for (i = 0; i < 10 && !stopping(); i++) {
			check_bytes("group, before", memory, size / 2, seed);
			check_bytes("group, after", memory + size / 2, size / 2, seed + 1);
			usleep(20000);
		}
		_exit(0);
	}
	return child;
}

static void change(const char *group, unsigned int *seed)
{
	char text[64];

	switch (random_below(seed, 6)) {
	case 0:
		write_to(group, "cpuset.colors.strict", random_below(seed, 2) ? "1" : "0");
		DONE(group_strict_written);
		break;
	case 1:
		write_to(group, "cpuset.colors", "");
		DONE(group_colors_written);
		break;
	case 2:
		write_to(group, "memory.max", random_below(seed, 2) ? "16M" : "max");
		break;
	default:
		/* Some are refused: outside of the parent's, or coloring is off. */
		some_colors(seed, text, sizeof(text));
		write_to(group, "cpuset.colors", text);
		DONE(group_colors_written);
	}
}

static void remove_group(const char *group)
{
	while (rmdir(group) && errno == EBUSY)
		usleep(10000);
	DONE(groups_removed);
}

void groups(unsigned int seed)
{
	unsigned int round = 0, i;

	while (!stopping()) {
		char outer[128], inner[192];
		int first, second;

		snprintf(outer, sizeof(outer), GROUPS "/%d.%u", getpid(), round++);
		snprintf(inner, sizeof(inner), "%s/inner", outer);
		if (mkdir(outer, 0755)) {
			wrong("groups: %s: %m", outer);
			return;
		}
		DONE(groups_made);
		change(outer, &seed);
		write_to(outer, "cgroup.subtree_control", "+cpuset +memory");
		if (mkdir(inner, 0755)) {
			wrong("groups: %s: %m", inner);
			return;
		}
		DONE(groups_made);
		first = start_member(inner, seed++);
		second = start_member(inner, seed++);
		for (i = 0; i < 12 && !stopping(); i++) {
			change(random_below(&seed, 2) ? outer : inner, &seed);
			usleep(30000);
		}
		reap("groups", first);
		reap("groups", second);
		remove_group(inner);
		remove_group(outer);
	}
}
