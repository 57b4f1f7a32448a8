// SPDX-License-Identifier: GPL-2.0-only
/*
 * What changes under tasks that have colors, while they fill memory: CPUs and memory blocks go and come, groups of
 * different parents have them in turn. And folios between a page and a superpage, which a set may have or not.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kselftest.h"
#include "kernel_file.h"
#include "page_color_lib.h"

#define MIB		(1UL << 20)
#define FILLERS		3
#define CPU		"/sys/devices/system/cpu/cpu"
#define BLOCK		"/sys/devices/system/memory/memory"
#define THP		"/sys/kernel/mm/transparent_hugepage/"
#define FOLIO		(64UL << 10)

/* What fillers say: how often they have filled their memory and found it as it should be. */
static struct {
	volatile unsigned long rounds[FILLERS];
} *said;

/* Fills memory of sets that change, and looks at it, until it is killed. Of a strict one no page may be outside. */
static void filler(unsigned int number, bool strict)
{
	unsigned int seed = number + 1;

	for (;;) {
		/* At least half of them, so that strict ones do not run out. */
		struct pc_set set = pc_range(rand_r(&seed) % (pc_colors / 2), pc_colors / 2);
		char *memory;

		PC_ASSERT(!pc_confine(&set, strict));
		memory = pc_map(MIB);
		pc_fill(memory, MIB, seed);
		if (strict)
			pc_inside_set("a strict set", &set, memory, MIB);
		if (!pc_intact(memory, MIB, seed))
			pc_fail("a byte of filler %u is not what it was", number);
		munmap(memory, MIB);
		said->rounds[number]++;
	}
}

static pid_t fillers[FILLERS];

static void begin_fillers(void)
{
	unsigned int i;

	said = mmap(NULL, pc_page_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	PC_ASSERT(said != MAP_FAILED);
	for (i = 0; i < FILLERS; i++) {
		fillers[i] = pc_fork();
		if (!fillers[i])
			filler(i, i);
	}
}

/* That all of them go on: each has filled its memory @more times. */
static void fillers_go_on(unsigned long more)
{
	unsigned long before[FILLERS];
	unsigned int i, tries;
	int status;

	memcpy(before, (void *)said->rounds, sizeof(before));
	for (i = 0; i < FILLERS; i++) {
		for (tries = 3000; said->rounds[i] < before[i] + more && tries; tries--) {
			if (waitpid(fillers[i], &status, WNOHANG) == fillers[i])
				pc_fail("filler %u ended with status %#x", i, status);
			usleep(10000);
		}
		if (!tries)
			pc_fail("filler %u stands still after %lu rounds", i, said->rounds[i]);
	}
}

static void end_fillers(void)
{
	unsigned int i;
	int status;

	fillers_go_on(1);
	for (i = 0; i < FILLERS; i++) {
		kill(fillers[i], SIGKILL);
		PC_ASSERT(waitpid(fillers[i], &status, 0) == fillers[i]);
		PC_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	}
}

static void agree(void)
{
	char why[256];

	if (!pc_zones_agree(why, sizeof(why)))
		pc_fail("%s", why);
}

static void cpus_go_and_come(void)
{
	unsigned int round;

	if (!pc_exists(CPU "1/online"))
		pc_skip("no CPU can go");
	begin_fillers();
	for (round = 0; round < 10; round++) {
		fillers_go_on(1);
		PC_ASSERT(!pc_write(CPU "1/online", "0"));
		fillers_go_on(2);
		PC_ASSERT(!pc_write(CPU "1/online", "1"));
	}
	agree();
	end_fillers();
}

static void blocks_go_and_come(void)
{
	unsigned int block, gone = 0;
	char path[128], state[32];

	begin_fillers();
	for (block = 0; block < 64 && gone < 6; block++) {
		snprintf(path, sizeof(path), BLOCK "%u/state", block);
		if (pc_read(path, state, sizeof(state)) || strcmp(state, "online"))
			continue;
		fillers_go_on(1);
		if (switch_block(block, "offline", 5))
			continue;
		gone++;
		fillers_go_on(1);
		if (switch_block(block, "online", 5))
			pc_fail("block %u does not come back", block);
	}
	agree();
	end_fillers();
	if (!gone)
		pc_skip("no memory block can go");
	ksft_print_msg("%u blocks went and came\n", gone);
}

static char root[1024];

static const char *in(const char *group, const char *file)
{
	static char path[2048];

	snprintf(path, sizeof(path), "%s/changes_%s/%s", root, group, file);
	return path;
}

static void make(const char *group)
{
	if (mkdir(in(group, ""), 0755) && errno != EEXIST)
		pc_fail("no group %s: %m", group);
}

/* Two parents with colors, each with a child that has some of these. */
static void groups_change(void)
{
	static const char *const groups[] = { "a/one", "b/two" };
	const unsigned int part = pc_colors / 4;
	char text[32], all[2048];
	unsigned int i, round;
	char *memory;

	if (!pc_cgroup2(root, sizeof(root)))
		pc_skip("there is no cpuset controller for groups");
	for (i = 0; i < 2; i++) {
		const char parent[] = { 'a' + i, '\0' };

		make(parent);
		snprintf(text, sizeof(text), "%u-%u", 2 * i * part, (2 * i + 2) * part - 1);
		PC_ASSERT(!pc_write(in(parent, "cpuset.colors"), text));
		PC_ASSERT(!pc_write(in(parent, "cgroup.subtree_control"), "+cpuset"));
		make(groups[i]);
		snprintf(text, sizeof(text), "%u-%u", 2 * i * part, (2 * i + 1) * part - 1);
		PC_ASSERT(!pc_write(in(groups[i], "cpuset.colors"), text));
	}
	memory = pc_map(4 * MIB);
	pc_fill(memory, 4 * MIB, 5);
	for (round = 0; round < 20; round++) {
		struct pc_set set = pc_range(2 * (round % 2) * part, part);

		PC_ASSERT(!pc_write(in(groups[round % 2], "cgroup.procs"), "0"));
		pc_inside_set("of the group that it has come to", &set, memory, 4 * MIB);
		PC_ASSERT(pc_intact(memory, 4 * MIB, 5));
		pc_fill(memory, 4 * MIB, 5);
	}
	snprintf(all, sizeof(all), "%s/cgroup.procs", root);
	PC_ASSERT(!pc_write(all, "0"));
	for (i = 0; i < 2; i++)
		if (rmdir(in(groups[i], "")) || rmdir(in(i ? "b" : "a", "")))
			pc_fail("a group is left: %m");
}

/* Folios of 64 KiB that were given at faults so far. */
static unsigned long folios(void)
{
	char text[32];

	PC_ASSERT(!pc_read(THP "hugepages-64kB/stats/anon_fault_alloc", text, sizeof(text)));
	return strtoul(text, NULL, 10);
}

/* How often /proc/super_page has counted them as wanted. */
static unsigned long wanted(void)
{
	char text[4096], *rest = text, *line;
	unsigned long kb, reserve;
	unsigned int order;

	PC_ASSERT(!pc_read("/proc/super_page", text, sizeof(text)));
	while ((line = strsep(&rest, "\n")))
		if (sscanf(line, "%u %lu %lu", &order, &kb, &reserve) == 3 && kb == FOLIO >> 10)
			return reserve;
	pc_fail("/proc/super_page has no line of 64 KiB");
}

/* 16 colors follow each other in a folio of 64 KiB. */
static void folios_of_a_set(void)
{
	static const struct {
		unsigned int first, count;
		bool fits;
	} cases[] = { { 0, 64, true }, { 0, 16, true }, { 16, 32, true }, { 0, 8, false }, { 8, 16, false } };
	const size_t size = 8 * MIB;
	unsigned int i;

	if (!pc_exists(THP "hugepages-64kB/stats/anon_fault_alloc"))
		pc_skip("folios of 64 KiB are not counted");
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct pc_set set = pc_range(cases[i].first, cases[i].count);
		unsigned long had, asked;
		char *memory;

		PC_ASSERT(!pc_confine(&set, false));
		memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		PC_ASSERT(memory != MAP_FAILED);
		had = folios();
		asked = wanted();
		pc_fill(memory, size, i);
		had = folios() - had;
		asked = wanted() - asked;
		ksft_print_msg("%u colors from %u: %lu folios of %lu, %lu wanted\n", cases[i].count, cases[i].first, had,
			       size / FOLIO, asked);
		pc_inside_set("folios", &set, memory, size);
		if (cases[i].fits && (had < size / FOLIO * 9 / 10 || asked < had))
			pc_fail("%u colors from %u: only %lu folios, %lu wanted", cases[i].count, cases[i].first, had, asked);
		if (!cases[i].fits && had)
			pc_fail("%u colors from %u: %lu folios, which have others", cases[i].count, cases[i].first, had);
		munmap(memory, size);
	}
}

static const struct pc_test tests[] = {
	{ "CPUs go and come under tasks with sets", cpus_go_and_come },
	{ "memory blocks go and come under tasks with sets", blocks_go_and_come },
	{ "tasks change between groups of different parents", groups_change },
	{ "folios of 64 KiB in sets that have room for them, and in others", folios_of_a_set },
};

int main(int argc, char **argv)
{
	unsigned int i;

	pc_main(argc, argv);
	pc_begin(64);
	if (pc_colors != 64)
		ksft_exit_skip("the tests are for 64 colors of bits 12 to 17\n");
	pc_plan(sizeof(tests) / sizeof(*tests) + 1);
	pc_override(THP "hugepages-64kB/enabled", "always");
	pc_override(THP "hugepages-2048kB/enabled", "never");
	for (i = 0; i < sizeof(tests) / sizeof(*tests); i++)
		pc_run(&tests[i]);
	pc_finish();
}
