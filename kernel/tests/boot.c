// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whether page_color= on the command line had the effect that it should, and memory
 * can be used and programs run with it: spread, and in a set. What is expected
 * stands on the command line too, from where the kernel passes it on as it does
 * every word it does not know:
 *
 *	page_color_expect=64		coloring is on, with 64 colors
 *	page_color_expect=refused	it is off, and the log says why
 *	page_color_expect=off		it is off
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "kselftest.h"
#include "kernel_file.h"

#define PAGE		4096UL
#define JOBS		4
#define MOST_COLORS	1024

#define PR_PAGE_COLOR		0x50434f4c
#define PR_PAGE_COLOR_SET	1
#define PR_PAGE_COLOR_STRICT	1

#define READ_ALL	3	/* klogctl(): what the log has, without taking it out */

/* The number after @word at the beginning of a line of /proc/page_color, or -1. */
static long field(const char *word)
{
	return number_in("/proc/page_color", word);
}

/* Whether the log has @words; the line is said. */
static bool log_has(const char *words)
{
	static char log[1 << 22];
	int length = klogctl(READ_ALL, log, sizeof(log) - 1);
	char *found;

	if (length < 0)
		return false;
	log[length] = '\0';
	found = strstr(log, words);
	if (found)
		ksft_print_msg("log: %.*s\n", (int)strcspn(found, "\n"), found);
	return found;
}

/* What is filled: 64 MiB, or a quarter of a small machine. */
static size_t amount(void)
{
	size_t quarter = sysconf(_SC_PHYS_PAGES) / 4 * PAGE;

	return quarter < 64UL << 20 ? quarter : 64UL << 20;
}

static uint64_t mark(const char *page, unsigned int round)
{
	return (uintptr_t)page * 0x9e3779b97f4a7c15ull + round;
}

static void fill(char *memory, unsigned int round)
{
	for (char *page = memory, *end = memory + amount(); page < end; page += PAGE)
		*(uint64_t *)page = mark(page, round);
}

static bool intact(const char *memory, unsigned int round)
{
	for (const char *page = memory, *end = memory + amount(); page < end; page += PAGE)
		if (*(const uint64_t *)page != mark(page, round))
			return false;
	return true;
}

/* Memory is written, copied by fork, written again by both, and given back. */
static bool memory_works(void)
{
	char *memory = mmap(NULL, amount(), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int status = -1;
	bool works;
	pid_t child;

	if (memory == MAP_FAILED)
		return false;
	/* Base pages are what is colored. */
	madvise(memory, amount(), MADV_NOHUGEPAGE);
	fill(memory, 1);
	child = fork();
	if (!child) {
		works = intact(memory, 1);
		fill(memory, 2);
		_exit(!works || !intact(memory, 2));
	}
	works = intact(memory, 1);
	fill(memory, 3);
	works = works && intact(memory, 3) && child > 0 &&
		waitpid(child, &status, 0) == child && !status;
	return !munmap(memory, amount()) && works;
}

/*
 * What compilers do, with the programs that are there: many short processes in
 * pipelines, which read and write files. What comes out has to be what went in.
 */
static bool programs_run(void)
{
	int status, failed = 0;
	pid_t jobs[JOBS];
	char work[512];

	for (int i = 0; i < JOBS; i++) {
		snprintf(work, sizeof(work),
			 "cd /tmp && seq %d 4000 >%d.c && sort -r %d.c | gzip >%d.o && "
			 "for part in 1 2 3 4; do awk '{ n += $1 } END { print n }' %d.c >>%d.d; done && "
			 "zcat %d.o | sort -n | cmp - %d.c && "
			 "test $(sort -u %d.d | wc -l) = 1 && rm %d.c %d.o %d.d",
			 i, i, i, i, i, i, i, i, i, i, i, i);
		jobs[i] = fork();
		if (!jobs[i]) {
			execl("/bin/sh", "sh", "-c", work, NULL);
			_exit(1);
		}
	}
	for (int i = 0; i < JOBS; i++)
		failed += jobs[i] < 0 || waitpid(jobs[i], &status, 0) != jobs[i] || status;
	return !failed;
}

static bool works(void)
{
	return memory_works() && programs_run();
}

/* As works(), by a process that has the lower half of all colors and no others. */
static bool works_in_set(unsigned int colors)
{
	unsigned long set[MOST_COLORS / 64] = { 0 };
	int status = -1;
	pid_t child;

	for (unsigned int color = 0; color < (colors + 1) / 2; color++)
		set[color / 64] |= 1UL << color % 64;
	child = fork();
	if (!child)
		_exit(prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, set, sizeof(set),
			    PR_PAGE_COLOR_STRICT) || !works());
	return child > 0 && waitpid(child, &status, 0) == child && !status;
}

int main(void)
{
	const char *expected = getenv("page_color_expect");
	const char *spread = "/proc/sys/vm/page_color_spread";
	bool colored, off;

	ksft_print_header();
	if (access("/proc/page_color", R_OK))
		ksft_exit_skip("the kernel has no page coloring\n");
	colored = field("enabled") == 1;
	if (!expected)
		expected = colored ? "something" : "off";
	off = !strcmp(expected, "off") || !strcmp(expected, "refused");
	ksft_print_msg("expected %s: enabled %ld, %ld colors\n", expected,
		       field("enabled"), field("colors"));
	ksft_set_plan(5);

	ksft_test_result(colored != off, "coloring is %s\n", off ? "off" : "on");
	if (!strcmp(expected, "refused"))
		ksft_test_result(log_has("page_color: page_color="),
				 "the log says why\n");
	else if (atol(expected))
		ksft_test_result(field("colors") == atol(expected),
				 "there are %s colors\n", expected);
	else
		ksft_test_result(!log_has("page_color: page_color="),
				 "nothing was refused\n");
	ksft_test_result(memory_works(), "memory can be used\n");
	if (colored) {
		bool spread_works = put(spread, "1") && works();

		ksft_test_result(put(spread, "0") && spread_works,
				 "the same, and programs run, while memory is spread\n");
		ksft_test_result(works_in_set(field("colors")),
				 "the same in a set of half of the colors\n");
	} else {
		ksft_test_result(!put(spread, "1"),
				 "nothing can be spread\n");
		ksft_test_result(programs_run() && !works_in_set(1),
				 "programs run, and there are no sets\n");
	}
	ksft_finished();
}
