// SPDX-License-Identifier: GPL-2.0-only
/* Loads of processes and threads: forks a few generations deep, exec, threads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stress.h"

#define COPIED	(2 * MIB)

/* What a process has of its parent is the parent's, until it writes. */
static void generation(char *memory, uint64_t mark, unsigned int depth, unsigned int seed)
{
	enum { CHILDREN = 3 };
	size_t part = random_below(&seed, 7) * (COPIED / 8);
	int child[CHILDREN];
	unsigned int i;

	for (i = 0; i < CHILDREN; i++) {
		child[i] = -1;
		if (depth == 0 || stopping())
			continue;
		child[i] = fork();
		if (child[i] > 0)
			DONE(processes_forked);
		if (child[i])
			continue;
		seed += 7 * i + 1;
		if (random_below(&seed, 2))
			change_own_set(&seed);
		check_bytes("fork", memory, COPIED, mark);
		generation(memory, mark, depth - 1, seed);
		write_bytes(memory + part, COPIED / 4, mark + 1 + i);
		check_bytes("copy on write", memory + part, COPIED / 4, mark + 1 + i);
		_exit(0);
	}
	for (i = 0; i < CHILDREN; i++)
		reap("fork", child[i]);
}

static void run_other(void)
{
	char *argv[] = { "true", NULL }, *env[] = { NULL };
	pid_t pid;

	/* vfork() and exec. */
	if (!posix_spawn(&pid, "/bin/true", NULL, NULL, argv, env)) {
		DONE(programs_run);
		reap("exec", pid);
	}
}

void fork_storm(unsigned int seed)
{
	char *memory = map(COPIED);
	uint64_t mark = seed;

	while (memory && !stopping()) {
		change_own_set(&seed);
		mark += 100;
		write_bytes(memory, COPIED, mark);
		generation(memory, mark, 3, seed++);
		check_bytes("parent of forks", memory, COPIED, mark);
		run_other();
	}
}

static void *thread(void *argument)
{
	unsigned int seed = (uintptr_t)argument;
	int i;

	for (i = 0; i < 4 && !stopping(); i++) {
		size_t size = (1 + random_below(&seed, 4)) * MIB;
		char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (memory == MAP_FAILED)
			continue;
		change_own_set(&seed);
		write_bytes(memory, size, seed);
		sched_yield();
		check_bytes("thread", memory, size, seed);
		munmap(memory, size);
	}
	return NULL;
}

/* Several in one address space, each with its colors. */
void threads(unsigned int seed)
{
	enum { COUNT = 4 };
	pthread_t id[COUNT];
	bool started[COUNT];
	int i;

	while (!stopping()) {
		for (i = 0; i < COUNT; i++) {
			started[i] = !pthread_create(&id[i], NULL, thread,
						     (void *)(uintptr_t)(seed + i));
			if (started[i])
				DONE(threads_started);
		}
		for (i = 0; i < COUNT; i++)
			if (started[i])
				pthread_join(id[i], NULL);
		seed += COUNT;
	}
}
