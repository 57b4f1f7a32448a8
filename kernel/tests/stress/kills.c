// SPDX-License-Identifier: GPL-2.0-only
/*
 * A load of groups that may not have what their task asks for. It has to be killed, by
 * the memory cgroup, and nobody else: at the end the kernel may not have killed more
 * tasks than were counted here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stress.h"

#define GIVEN	(8 * MIB)
#define WANTED	(24 * MIB)

static int write_to(const char *group, const char *file, const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", group, file);
	return pc_write(path, text);
}

static void limit(const char *group, unsigned int *seed)
{
	char text[64];

	snprintf(text, sizeof(text), "%lu", GIVEN);
	if (write_to(group, "memory.max", text))
		wrong("kills: %s has no limit", group);
	/* Else it would be swapped out instead. */
	if (write_to(group, "memory.swap.max", "0"))
		wrong("kills: %s may swap", group);
	if (random_below(seed, 2)) {
		/* Refused while coloring is off. */
		some_colors(seed, text, sizeof(text));
		write_to(group, "cpuset.colors", text);
		write_to(group, "cpuset.colors.strict", random_below(seed, 2) ? "1" : "0");
	}
}

static int start_glutton(const char *group, unsigned int seed)
{
	int child = fork();

	if (!child) {
		char *memory = map(WANTED);

		if (!memory || write_to(group, "cgroup.procs", "0"))
			_exit(1);
		change_own_set(&seed);
		write_bytes(memory, WANTED, seed);
		/* More than there may be. */
		_exit(2);
	}
	return child;
}

static void expect_kill(const char *group, int child)
{
	unsigned long kills = 0;
	char path[256];
	int status;

	while (waitpid(child, &status, 0) != child)
		if (errno != EINTR)
			return;
	snprintf(path, sizeof(path), "%s/memory.events", group);
	pc_value(path, "oom_kill", &kills);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && kills == 1)
		DONE(kills_provoked);
	else
		wrong("kills: %s: status %#x, %lu kills", group, status, kills);
}

void kills(unsigned int seed)
{
	unsigned int round = 0;

	while (!stopping()) {
		char group[128];
		int child;

		snprintf(group, sizeof(group), GROUPS "/%d.small.%u", getpid(), round++);
		if (mkdir(group, 0755)) {
			wrong("kills: %s: %m", group);
			return;
		}
		limit(group, &seed);
		child = start_glutton(group, seed++);
		if (child > 0)
			expect_kill(group, child);
		while (rmdir(group) && errno == EBUSY)
			usleep(10000);
		usleep(2000000);
	}
}
