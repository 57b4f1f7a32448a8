// SPDX-License-Identifier: GPL-2.0-only
/*
 * How often page faults of many tasks at once take the locks of the page allocator, and wait for them: on a
 * kernel that counts that (the flavours lockstat).
 *
 * Prints lines "scale MODE LOAD LOCK ACQUISITIONS LEAST MOST CONTENTIONS LEAST MOST", per 1,000 pages: medians of some
 * rounds, and what they lie between. MODE is one of color_modes.h. A LOAD is that of will-it-scale of the same
 * name: each task maps memory of its own, writes to every page and unmaps it.
 *
 *	page_fault1	anonymous memory
 *	page_fault2	a private mapping of a file, of which pages are copied
 *	page_fault3	a shared mapping of a file, whose pages are there already
 *	order0		few pages that each of 16 processes touches and gives back time and again
 *	pipe		a page of the kernel's own that each of 16 processes fills and empties
 *
 * The first three are by threads of one program, or by processes. Base pages in all of them. LOCK is `zone` or `pcp`, of the
 * allocator; `colors`, all of the patches' own; or `others`. Who finds the lock of per-CPU lists taken does not wait,
 * but goes to the zone's.
 *
 * scale_mode= and scale_mib= on the kernel's command line choose modes, and how much a task maps (128).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "color_modes.h"
#include "dealt.h"

#define ROUNDS 3
#define MOST_TASKS 16U
#define FEW 64UL
#define LOCKS 4

static const char *const lock_names[LOCKS] = { "zone", "pcp", "colors", "others" };

/* By lock, and whether it was waited for. */
typedef double counts_t[LOCKS][2];

struct load {
	const char *name;
	void (*work)(unsigned int task, size_t pages);
	unsigned int tasks;	/* 0: one for each CPU */
	bool threads;
	bool files;
};

/* Of all tasks and of who counts. */
static pthread_barrier_t *barrier;

static const struct load *current;
static size_t current_pages;
static int files[MOST_TASKS];

static void touch_all(int flags, int file, size_t pages)
{
	char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, file, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
	touch(memory, pages * PAGE);
	if (munmap(memory, pages * PAGE))
		die("munmap");
}

static void anonymous(unsigned int task, size_t pages)
{
	(void)task;
	touch_all(MAP_PRIVATE | MAP_ANONYMOUS, -1, pages);
}

static void private_file(unsigned int task, size_t pages)
{
	touch_all(MAP_PRIVATE, files[task], pages);
}

static void shared_file(unsigned int task, size_t pages)
{
	touch_all(MAP_SHARED, files[task], pages);
}

static void few(unsigned int task, size_t pages)
{
	char *memory = map(FEW * PAGE);

	(void)task;
	madvise(memory, FEW * PAGE, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < pages / FEW; i++) {
		touch(memory, FEW * PAGE);
		if (madvise(memory, FEW * PAGE, MADV_DONTNEED))
			die("madvise");
	}
}

static void pipe_page(unsigned int task, size_t pages)
{
	static char page[PAGE];
	int ends[2];

	(void)task;
	if (pipe(ends))
		die("pipe");
	for (size_t i = 0; i < pages; i++)
		if (write(ends[1], page, PAGE) != (ssize_t)PAGE || read(ends[0], page, PAGE) != (ssize_t)PAGE)
			die("a pipe");
	close(ends[0]);
	close(ends[1]);
}

static const struct load loads[] = {
	{ "page_fault1_threads", anonymous, .threads = true },
	{ "page_fault1_processes", anonymous },
	{ "page_fault2_threads", private_file, .threads = true, .files = true },
	{ "page_fault2_processes", private_file, .files = true },
	{ "page_fault3_threads", shared_file, .threads = true, .files = true },
	{ "page_fault3_processes", shared_file, .files = true },
	{ "order0", few, 16 },
	{ "pipe", pipe_page, 16 },
};

static void meet(void)
{
	pthread_barrier_wait(barrier);
}

/* What a task does: only the work itself is counted, not that it begins and ends. */
static void *take_part(void *argument)
{
	unsigned int task = (unsigned long)argument;
	cpu_set_t cpu;

	CPU_ZERO(&cpu);
	CPU_SET(task % sysconf(_SC_NPROCESSORS_ONLN), &cpu);
	if (sched_setaffinity(0, sizeof(cpu), &cpu))
		die("sched_setaffinity");
	meet();
	meet();
	current->work(task, current_pages);
	meet();
	meet();
	return NULL;
}

static void add_line(const char *name, double waits, double takes, counts_t counts)
{
	int lock = 3;

	if (strstr(name, "page_color"))
		lock = 2;
	else if (!strncmp(name, "&zone->lock", 11))
		lock = 0;
	else if (!strncmp(name, "&pcp->lock", 10))
		lock = 1;
	counts[lock][0] += takes;
	counts[lock][1] += waits;
}

/* What is counted since it was cleared. */
static void read_counts(counts_t counts)
{
	FILE *stat = fopen("/proc/lock_stat", "r");
	unsigned int lines = 0;
	char line[1024];

	if (!stat)
		die("/proc/lock_stat");
	memset(counts, 0, sizeof(counts_t));
	while (fgets(line, sizeof(line), stat)) {
		char *colon = strrchr(line, ':'), *name = line + strspn(line, " ");
		double bounces, waits, time[4], acquired_bounces, takes;

		/* Lines without numbers behind a colon say where it was taken. */
		if (!colon || sscanf(colon + 1, "%lf %lf %lf %lf %lf %lf %lf %lf", &bounces, &waits, time, time + 1,
				     time + 2, time + 3, &acquired_bounces, &takes) != 8)
			continue;
		*colon = '\0';
		add_line(name, waits, takes, counts);
		lines++;
	}
	fclose(stat);
	if (!lines) {
		fprintf(stderr, "/proc/lock_stat has no locks\n");
		exit(1);
	}
}

static void run_once(const struct load *load, size_t pages, counts_t counts)
{
	unsigned int tasks = load->tasks ? load->tasks : sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t threads[MOST_TASKS];
	pid_t children[MOST_TASKS];
	pthread_barrierattr_t across;

	current = load;
	current_pages = pages;
	pthread_barrierattr_init(&across);
	pthread_barrierattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(barrier, &across, tasks + 1);
	for (unsigned long task = 0; task < tasks; task++) {
		if (load->threads) {
			if (pthread_create(&threads[task], NULL, take_part, (void *)task))
				die("pthread_create");
			continue;
		}
		children[task] = fork();
		if (children[task] < 0)
			die("fork");
		if (!children[task]) {
			take_part((void *)task);
			_exit(0);
		}
	}
	meet();
	set("/proc/lock_stat", "0");
	set("/proc/sys/kernel/lock_stat", "1");
	meet();
	meet();
	set("/proc/sys/kernel/lock_stat", "0");
	meet();
	for (unsigned int task = 0; task < tasks; task++) {
		if (load->threads)
			pthread_join(threads[task], NULL);
		else
			wait_for(children[task]);
	}
	pthread_barrier_destroy(barrier);
	read_counts(counts);
	for (int lock = 0; lock < LOCKS; lock++)
		for (int i = 0; i < 2; i++)
			counts[lock][i] *= 1000.0 / ((double)pages * tasks);
}

static void measure(const char *mode, const struct load *load, size_t pages)
{
	counts_t rounds[ROUNDS];

	/* One more, the first, for what is done once: the pages of files. */
	run_once(load, pages, rounds[0]);
	for (int round = 0; round < ROUNDS; round++)
		run_once(load, pages, rounds[round]);
	for (int lock = 0; lock < LOCKS; lock++) {
		printf("scale %s %s %s", mode, load->name, lock_names[lock]);
		for (int i = 0; i < 2; i++) {
			double of_rounds[ROUNDS];

			for (int round = 0; round < ROUNDS; round++)
				of_rounds[round] = rounds[round][lock][i];
			sort(of_rounds, ROUNDS);
			printf(" %.3f %.3f %.3f", of_rounds[ROUNDS / 2], of_rounds[0], of_rounds[ROUNDS - 1]);
		}
		printf("\n");
	}
	fflush(stdout);
}

static void open_files(size_t pages)
{
	for (unsigned int task = 0; task < sysconf(_SC_NPROCESSORS_ONLN) && task < MOST_TASKS; task++) {
		files[task] = memfd_create("scale", 0);
		if (files[task] < 0 || ftruncate(files[task], pages * PAGE))
			die("memfd_create");
	}
}

static void close_files(void)
{
	for (unsigned int task = 0; task < MOST_TASKS; task++)
		if (files[task])
			close(files[task]);
	memset(files, 0, sizeof(files));
}

int main(void)
{
	const char *mib = getenv("scale_mib");
	size_t pages = (mib ? strtoul(mib, NULL, 0) : 128) * MIB / PAGE;

	printf("TAP version 13\n1..1\n");
	barrier = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (barrier == MAP_FAILED)
		die("mmap");
	for (const struct color_mode *mode = color_modes(getenv("scale_mode")); mode->name; mode++) {
		take_mode(mode);
		for (size_t i = 0; i < sizeof(loads) / sizeof(*loads); i++) {
			const struct load *load = &loads[i];

			if (load->files && !files[0])
				open_files(pages);
			else if (!load->files)
				close_files();
			/* As many pages of all tasks together, however many they are. */
			measure(mode->name, load, load->tasks ? pages / 4 : pages);
		}
		close_files();
	}
	printf("ok 1 measured\n");
	return 0;
}
