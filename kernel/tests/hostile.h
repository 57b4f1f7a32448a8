/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the hostile_*.c have in common: groups, somebody in one of them who wants to be left alone,
 * and somebody without privileges who does harm by what page coloring gives him.
 */
#ifndef HOSTILE_H
#define HOSTILE_H

#include <dirent.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <time.h>

#include "kselftest.h"
#include "kernel_file.h"

#define PAGE		4096UL
#define MIB		(1UL << 20)
#define NOBODY		65534
#define GROUPS		"/sys/fs/cgroup/"
#define SYSCTL		"/proc/sys/vm/"
#define MOST_COLORS	1024

#define PR_PAGE_COLOR		0x50434f4c
#define PR_PAGE_COLOR_SET	1
#define PR_PAGE_COLOR_SPREAD	2
#define PR_PAGE_COLOR_STRICT	1

/* How a process without privileges comes to a set of colors. */
enum way {
	BY_PRCTL,	/* it asks for it */
	BY_GROUP,	/* it is in a group that an administrator gave them */
};

static const char *const way_names[] = { "by prctl()", "in a group with colors" };

/* What a child exits with if it was not permitted to have colors, so that it did no harm. */
#define REFUSED		77

static inline double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static inline void pause_for(double seconds)
{
	usleep(seconds * 1e6);
}

/* Ends the program as skipped unless there are colors; returns how many. */
static inline unsigned int begin(void)
{
	ksft_print_header();
	if (geteuid() || number_in("/proc/page_color", "enabled") != 1)
		ksft_exit_skip("pages are not colored\n");
	put("/proc/self/oom_score_adj", "-1000");
	return number_in("/proc/page_color", "colors");
}

static inline bool group_put(const char *group, const char *file, const char *format, ...)
{
	char path[256], text[128];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	snprintf(path, sizeof(path), GROUPS "%s/%s", group, file);
	return put(path, text);
}

/* A number in a file of a group: after @key, or the only one without. -1 if there is none. */
static inline long group_number(const char *group, const char *file, const char *key)
{
	char path[256];
	long value = -1;
	FILE *open;

	snprintf(path, sizeof(path), GROUPS "%s/%s", group, file);
	if (key)
		return number_in(path, key);
	open = fopen(path, "re");
	if (open && fscanf(open, "%ld", &value) != 1)
		value = -1;
	if (open)
		fclose(open);
	return value;
}

static inline void group_make(const char *group)
{
	char path[256];

	snprintf(path, sizeof(path), GROUPS "%s", group);
	if (mkdir(path, 0755) && errno != EEXIST)
		ksft_exit_fail_msg("no group %s: %s\n", group, strerror(errno));
}

/* Kills what is in a group and removes it; returns whether that took less than @seconds. */
static inline bool group_end(const char *group, double seconds)
{
	double end = now() + seconds;
	char path[256];

	group_put(group, "cgroup.kill", "1");
	snprintf(path, sizeof(path), GROUPS "%s", group);
	while (rmdir(path)) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (errno == ENOENT)
			break;
		if (now() > end)
			return false;
		pause_for(0.02);
	}
	return true;
}

static inline void be_nobody(void)
{
	/* As any user's: not to be spared. */
	if (!put("/proc/self/oom_score_adj", "0") || setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
	    setresuid(NOBODY, NOBODY, NOBODY))
		_exit(1);
}

/* Asks for the colors from @first on; 0 or an error number. */
static inline int ask(unsigned int first, unsigned int count, bool strict)
{
	unsigned long set[MOST_COLORS / 64] = { 0 };

	for (unsigned int color = first; color < first + count; color++)
		set[color / 64] |= 1UL << color % 64;
	return prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, set, sizeof(set), strict ? PR_PAGE_COLOR_STRICT : 0) ? errno : 0;
}

static inline char *map(size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		_exit(1);
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	return memory;
}

static inline void fill(char *memory, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += PAGE)
		*(volatile uint64_t *)(memory + at) = at ^ (uintptr_t)memory;
}

static inline bool intact(const char *memory, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += PAGE)
		if (*(const volatile uint64_t *)(memory + at) != (at ^ (uintptr_t)memory))
			return false;
	return true;
}

/*
 * Begins a child in a group, strictly confined to some colors in one of the ways; @group exists. It is
 * nobody when it does @body. BY_GROUP the group has the colors already.
 */
static inline pid_t begin_hostile(enum way way, const char *group, unsigned int first, unsigned int count,
				  void (*body)(void))
{
	pid_t child = fork();

	if (!child) {
		if (!group_put(group, "cgroup.procs", "0"))
			_exit(1);
		be_nobody();
		if (way == BY_PRCTL) {
			int error = ask(first, count, true);

			if (error)
				_exit(error == EPERM ? REFUSED : 1);
		}
		body();
		_exit(0);
	}
	return child;
}

/* Makes a group for it, with the colors if it is BY_GROUP. */
static inline void make_hostile(enum way way, const char *group, unsigned int first, unsigned int count)
{
	group_make(group);
	if (way == BY_GROUP && (!group_put(group, "cpuset.colors", "%u-%u", first, first + count - 1) ||
				!group_put(group, "cpuset.colors.strict", "1")))
		ksft_exit_fail_msg("no colors for a group: %s\n", strerror(errno));
}

/* The status of a child that ends within @seconds; -1 if it does not, whereupon it is killed. */
static inline int await(pid_t child, double seconds)
{
	double end = now() + seconds;
	int status;

	while (waitpid(child, &status, WNOHANG) != child) {
		if (now() > end) {
			kill(child, SIGKILL);
			return -1;
		}
		pause_for(0.02);
	}
	return status;
}

static inline bool refused(int status)
{
	return WIFEXITED(status) && WEXITSTATUS(status) == REFUSED;
}

/*
 * Whether a child was refused the colors, or did what it came for: to its end, or until it was killed for want of
 * memory. That nobody was harmed by one that did nothing says nothing.
 */
static inline bool tried(int status)
{
	return refused(status) || !status || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* What a child says to the test. */
struct shared {
	volatile unsigned long	ready;
	volatile unsigned long	rounds;
	volatile unsigned long	spoilt;
};

static inline struct shared *share(void)
{
	struct shared *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (shared == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
	return shared;
}

static inline bool await_ready(struct shared *shared, double seconds)
{
	double end = now() + seconds;

	while (!shared->ready && now() < end)
		pause_for(0.02);
	return shared->ready;
}

/* Somebody in a group who has some memory, and uses none of it until the test asks. */
static inline pid_t begin_victim(const char *group, size_t bytes, struct shared *shared)
{
	pid_t child = fork();

	if (!child) {
		char *memory;

		if (!group_put(group, "cgroup.procs", "0"))
			_exit(1);
		be_nobody();
		memory = map(bytes);
		fill(memory, bytes);
		shared->ready = 1;
		for (;;) {
			char *more = map(MIB);

			fill(more, MIB);
			shared->spoilt += !intact(more, MIB);
			munmap(more, MIB);
			shared->rounds++;
			pause_for(0.05);
		}
	}
	if (!await_ready(shared, 60))
		ksft_exit_fail_msg("the victim did not begin\n");
	return child;
}

/* Swap space: switched off, and on again. */
static inline bool swap_switch(bool on)
{
	static char path[128];
	char line[256];
	FILE *file;

	if (on)
		return *path && !swapon(path, 0);
	file = fopen("/proc/swaps", "re");
	while (file && fgets(line, sizeof(line), file))
		if (*line == '/')
			sscanf(line, "%127s", path);
	if (file)
		fclose(file);
	return *path && !swapoff(path);
}

#endif
