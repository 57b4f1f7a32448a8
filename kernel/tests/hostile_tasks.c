// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many tasks with a set of their own each, and what the set of one does to the swap readahead of all.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/resource.h>
#include "hostile.h"

#define TASKS		10000
#define SWAPPED		(24 * MIB)

static unsigned int colors;
static struct shared *shared;
static struct shared *counts;

/* In the order of the numbers of the tasks: no two sets are alike. */
static int own_set(unsigned int task)
{
	unsigned long set[MOST_COLORS / 64] = { 0 };

	for (unsigned int bit = 0; bit < 14 && bit < colors - 1; bit++)
		if (task & 1U << bit)
			set[bit / 64] |= 1UL << bit % 64;
	set[(colors - 1) / 64] |= 1UL << (colors - 1) % 64;
	return prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, set, sizeof(set), PR_PAGE_COLOR_STRICT) ? errno : 0;
}

static void *live(void *argument)
{
	int error = own_set((uintptr_t)argument);
	char *memory;

	if (error)
		__sync_fetch_and_add(error == EPERM ? &counts->rounds : &counts->spoilt, 1);
	memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory != MAP_FAILED)
		*memory = 1;
	__sync_fetch_and_add(&counts->ready, 1);
	while (!shared->ready)
		pause_for(1);
	return NULL;
}

/* Tasks, as many as this machine has room for; says how many. */
static unsigned long live_together(bool nobody)
{
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
	pthread_attr_t attributes;
	unsigned long count = 0;
	pthread_t thread;
	int status;
	pid_t child;

	shared = share();
	counts = share();
	child = fork();
	if (!child) {
		setrlimit(RLIMIT_NPROC, &limit);
		if (nobody)
			be_nobody();
		pthread_attr_init(&attributes);
		pthread_attr_setstacksize(&attributes, 4 * PAGE);
		for (; count < TASKS; count++)
			if (pthread_create(&thread, &attributes, live, (void *)count))
				break;
		for (int tries = 9000; tries && counts->ready < count; tries--)
			pause_for(0.05);
		shared->rounds = count;
		shared->ready = 1;
		_exit(counts->ready < count);
	}
	status = await(child, 600);
	count = shared->rounds;
	ksft_print_msg("%s: %lu tasks, %lu had no set, %lu failed, status %#x%s\n", nobody ? "nobody" : "root", count,
		       counts->rounds, counts->spoilt, status, count && counts->rounds == count ? ", refused" : "");
	return status || counts->spoilt ? 0 : count;
}

static bool works(void)
{
	char *memory = map(16 * MIB);
	bool fine;

	fill(memory, 16 * MIB);
	fine = intact(memory, 16 * MIB);
	munmap(memory, 16 * MIB);
	return fine;
}

static void many_tasks(void)
{
	long before, after = 0;
	unsigned long count;

	put("/proc/sys/kernel/threads-max", "30000");
	put("/proc/sys/vm/max_map_count", "100000");
	before = number_in("/proc/meminfo", "SUnreclaim:");
	count = live_together(true);
	ksft_test_result(count == TASKS && works(), "%d tasks of nobody with different sets\n", TASKS);
	count = live_together(false);
	ksft_test_result(count == TASKS && works(), "%d tasks of root with different sets\n", TASKS);
	for (int tries = 200; tries; tries--) {
		after = number_in("/proc/meminfo", "SUnreclaim:");
		if (after < before + 16384)
			break;
		pause_for(0.1);
	}
	ksft_print_msg("%ld KiB of slab before, %ld KiB after\n", before, after);
	ksft_test_result(after < before + 16384, "what they were given is given back\n");
}

/* A group's memory is swapped out, and read again in order; how many pages were read ahead for that. */
static long read_back(void)
{
	struct shared *reader = share();
	long before, hits;
	pid_t child;
	int status;

	group_make("reader");
	child = fork();
	if (!child) {
		char *memory = map(SWAPPED);

		group_put("reader", "cgroup.procs", "0");
		be_nobody();
		fill(memory, SWAPPED);
		reader->ready = 1;
		while (!reader->rounds)
			pause_for(0.02);
		_exit(!intact(memory, SWAPPED));
	}
	await_ready(reader, 60);
	for (int tries = 20; tries && group_number("reader", "memory.swap.current", NULL) < (long)(SWAPPED / 2); tries--)
		group_put("reader", "memory.reclaim", "%lu", SWAPPED);
	ksft_print_msg("%ld KiB swapped out\n", group_number("reader", "memory.swap.current", NULL) / 1024);
	before = number_in("/proc/vmstat", "swap_ra");
	reader->rounds = 1;
	status = await(child, 60);
	hits = number_in("/proc/vmstat", "swap_ra") - before;
	group_end("reader", 20);
	return status ? -1 : hits;
}

static void hold_set(void)
{
	shared->ready = 1;
	for (;;)
		pause();
}

/* The most of some tries: the kernel reads less ahead for a while when that has not paid. */
static long read_ahead(void)
{
	long most = -1;

	for (int tries = 0; tries < 4 && most < 100; tries++) {
		long pages = read_back();

		if (pages > most)
			most = pages;
	}
	return most;
}

static void others_read_ahead(enum way way)
{
	int status = 0;
	long without, with;
	pid_t child;
	bool has;

	shared = share();
	without = read_ahead();
	make_hostile(way, "hostile", 0, 1);
	child = begin_hostile(way, "hostile", 0, 1, hold_set);
	for (int tries = 500; tries && !shared->ready && !waitpid(child, &status, WNOHANG); tries--)
		pause_for(0.02);
	has = shared->ready;
	with = read_ahead();
	group_end("hostile", 20);
	ksft_print_msg("%s: %ld pages read ahead without a set, %ld while somebody has one%s\n", way_names[way], without,
		       with, refused(status) ? ", refused" : "");
	if (without < 100)
		ksft_test_result_skip("nothing is read ahead\n");
	else
		ksft_test_result((has || refused(status)) && with >= 100,
				 "others read ahead from swap, whoever has a set %s\n", way_names[way]);
}

int main(void)
{
	colors = begin();
	if (colors < 16)
		ksft_exit_skip("fewer than 16 colors\n");
	ksft_set_plan(5);
	others_read_ahead(BY_PRCTL);
	others_read_ahead(BY_GROUP);
	many_tasks();
	ksft_finished();
}
