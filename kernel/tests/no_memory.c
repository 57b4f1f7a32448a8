// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sets of colors that no page of the machine has: those of bits of the address that are
 * zero everywhere. Who insists on such a set gets no memory, others get what there is; the
 * machine goes on.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kselftest.h"
#include "kernel_file.h"

#define PAGE		4096UL
#define BYTES		(4UL << 20)
/* Bits 40 and 41: the address of no memory here is that high, so all of it has color 0. */
#define GEOMETRY	"bits:40-41"
#define EMPTY		(1UL << 1)
#define EMPTY_TEXT	"1"

#define PR_PAGE_COLOR		0x50434f4c
#define PR_PAGE_COLOR_SET	1
#define PR_PAGE_COLOR_STRICT	1

#define SYSCTL		"/proc/sys/vm/"
#define GROUP		"/sys/fs/cgroup/no_memory"

/* Sets of the geometry of before are freed after a while. */
static bool change_geometry(const char *text)
{
	bool done = false;

	put(SYSCTL "page_coloring", "0");
	for (int tries = 100; !done && tries; tries--) {
		done = put(SYSCTL "page_color_geometry", text);
		if (!done)
			usleep(50000);
	}
	return put(SYSCTL "page_coloring", "1") && done;
}

static char *map(void)
{
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		_exit(1);
	madvise(memory, BYTES, MADV_NOHUGEPAGE);
	return memory;
}

static void touch(volatile char *memory)
{
	for (size_t at = 0; at < BYTES; at += PAGE)
		memory[at] = 1;
}

/* The status of a child that does that. */
static int status_of(void (*body)(void))
{
	pid_t child = fork();
	int status = -1;

	if (!child) {
		/* The out-of-memory killer may end any task but the test. */
		put("/proc/self/oom_score_adj", "1000");
		body();
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	return status;
}

static void confine(unsigned long flags)
{
	unsigned long set = EMPTY;

	if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, &set, sizeof(set), flags))
		_exit(1);
}

static void strict(void)
{
	char *memory = map();

	confine(PR_PAGE_COLOR_STRICT);
	touch(memory);
}

static void not_strict(void)
{
	char *memory = map();

	confine(0);
	touch(memory);
	memory[0] = 2;
}

static void join_and_touch(void)
{
	char *memory = map();

	touch(memory);
	if (!put(GROUP "/cgroup.procs", "0"))
		_exit(1);
	/* What there is stays, since there is nowhere to move it. */
	for (size_t at = 0; at < BYTES; at += PAGE)
		if (memory[at] != 1)
			_exit(1);
	touch(map());
}

static void join_and_start(void)
{
	if (!put(GROUP "/cgroup.procs", "0"))
		_exit(1);
	execl("/bin/sh", "sh", "-c", "seq 1 1000 | sort | tail -n 1", NULL);
	_exit(1);
}

static void works_as_before(void)
{
	touch(map());
}

static bool killed(int status)
{
	return WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGBUS);
}

static void groups(void)
{
	long outside, left;
	int status;

	if (mkdir(GROUP, 0755) || !put(GROUP "/cpuset.colors", EMPTY_TEXT)) {
		ksft_test_result_skip("no group with colors\n");
		ksft_test_result_skip("no group with colors\n");
		ksft_test_result_skip("no group with colors\n");
		return;
	}
	status = status_of(join_and_touch);
	outside = number_in(GROUP "/cpuset.colors.stat", "outside");
	left = number_in(GROUP "/cpuset.colors.stat", "unmovable_nomem");
	ksft_print_msg("status %#x, %ld pages outside, %ld not moved\n", status, outside, left);
	ksft_test_result(!status && outside >= (long)(BYTES / PAGE) && left >= (long)(BYTES / PAGE),
			 "a group gets what there is, and it is counted\n");
	put(GROUP "/cpuset.colors.strict", "1");
	ksft_test_result(killed(status_of(join_and_touch)), "a strict group gets nothing\n");
	/* It cannot even begin: exec fails, or what it began is killed. */
	status = status_of(join_and_start);
	ksft_print_msg("status %#x\n", status);
	ksft_test_result(status != 0, "a strict group cannot start programs\n");
	put(GROUP "/cgroup.kill", "1");
	for (int tries = 500; rmdir(GROUP) && tries; tries--)
		usleep(10000);
}

int main(void)
{
	char before[256] = "";
	FILE *file = fopen(SYSCTL "page_color_geometry", "r");

	ksft_print_header();
	if (!file || !fgets(before, sizeof(before), file) || number_in("/proc/page_color", "enabled") != 1)
		ksft_exit_skip("pages are not colored\n");
	fclose(file);
	before[strcspn(before, "\n")] = '\0';
	put("/proc/self/oom_score_adj", "-1000");
	if (!change_geometry(GEOMETRY))
		ksft_exit_fail_msg("no geometry %s\n", GEOMETRY);
	ksft_set_plan(7);
	ksft_test_result(killed(status_of(strict)), "a strict set gets nothing\n");
	ksft_test_result(!status_of(not_strict), "another set gets what there is\n");
	groups();
	ksft_test_result(!status_of(works_as_before), "others are not affected\n");
	ksft_test_result(change_geometry(before), "there is the geometry of before\n");
	ksft_finished();
}
