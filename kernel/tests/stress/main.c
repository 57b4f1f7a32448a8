// SPDX-License-Identifier: GPL-2.0-only
/*
 * A mixed load on page coloring, for kernel/stress. It goes in rounds, each with other
 * colors: all loads are started, checked every minute, and ended; then everything has to
 * be given back, so that the colors can be others again.
 *
 * From the environment, which is the kernel's command line: stress_seconds, stress_seed,
 * stress_only (the name of a load), stress_coloring=off (to compare with).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../kselftest.h"
#include "stress.h"

static const struct load loads[] = {
	{ "compile", compile, 1 },
	{ "forks", fork_storm, 2 },
	{ "threads", threads, 1 },
	{ "pressure", pressure, 1 },
	{ "hot_set", hot_set, 1 },
	{ "superpages", superpages, 1 },
	{ "files", files, 1 },
	{ "shared_memory", shared_memory, 1 },
	{ "groups", groups, 2 },
	{ "settings", settings, 1 },
	{ "readers", readers, 1 },
	{ "kills", kills, 1 },
};

/* 64 colors, hashes, 1024, 32 that are not the lowest bits, 2, 16. */
static const char *const geometries[] = {
	"bits:12-17", "masks:0x11000,0x22000,0x44000,0x88000,0x110000", "bits:12-21",
	"bits:14-18", "masks:0x1000", "2048/32",
};

#define MAX_PROCESSES	32

/* kB: what may be kept of the kernel's memory, and of other memory. */
#define SLAB_GROWTH	(12 * 1024)
#define OTHER_GROWTH	(24 * 1024)

static struct {
	const struct load	*load;
	unsigned int		seed;
	int			pid;
} processes[MAX_PROCESSES];

static unsigned int process_count, restarts, checkpoints, rounds;

/* At boot, after each round, and at the end. */
static struct rest rests[2 + sizeof(geometries) / sizeof(*geometries)];
static unsigned int rest_count;
static struct owners owners_before, owners_after;

static long setting(const char *name, long otherwise)
{
	const char *text = getenv(name);

	return text && atol(text) > 0 ? atol(text) : otherwise;
}

/* Also to the kernel's log, to be seen while the machine runs and beside what it says. */
static void __attribute__((format(printf, 1, 2))) say(const char *text, ...)
{
	char line[256];
	va_list args;

	va_start(args, text);
	vsnprintf(line, sizeof(line), text, args);
	va_end(args);
	printf("# %s\n", line);
	fflush(stdout);
	pc_write("/dev/kmsg", line);
}

static void start(unsigned int i)
{
	fflush(stdout);
	processes[i].pid = fork();
	if (processes[i].pid)
		return;
	setpgid(0, 0);
	pc_write("/proc/self/oom_score_adj", "500");
	processes[i].load->body(processes[i].seed);
	fflush(stdout);
	_exit(0);
}

static void start_all(unsigned int seed)
{
	const char *only = getenv("stress_only");
	unsigned int i, copy;

	process_count = 0;
	/* Who asked may have been killed. */
	shared->room = 0;
	__atomic_store_n(&shared->stop, 0, __ATOMIC_SEQ_CST);
	for (i = 0; i < sizeof(loads) / sizeof(*loads); i++) {
		/* A list, with commas. */
		if (only && !strstr(only, loads[i].name))
			continue;
		for (copy = 0; copy < loads[i].count; copy++) {
			processes[process_count].load = &loads[i];
			processes[process_count].seed = seed + 1000 * i + 10 * copy;
			start(process_count++);
		}
	}
}

/* Those that were killed for want of memory begin anew, others may not end. */
static void look_after_processes(void)
{
	unsigned int i;
	int status;

	for (i = 0; i < process_count; i++) {
		if (processes[i].pid <= 0 ||
		    waitpid(processes[i].pid, &status, WNOHANG) != processes[i].pid)
			continue;
		kill(-processes[i].pid, SIGKILL);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
			wrong("%s ended with status %#x", processes[i].load->name, status);
		restarts++;
		processes[i].seed++;
		start(i);
	}
}

static void stop_all(void)
{
	unsigned int left = process_count, i, tries;

	__atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
	/* What they are about may be slow: reading memory back from swap. */
	for (tries = 0; tries < 1200 && left; tries++) {
		usleep(100000);
		for (i = 0; i < process_count; i++)
			if (processes[i].pid > 0 &&
			    waitpid(processes[i].pid, NULL, WNOHANG) == processes[i].pid) {
				kill(-processes[i].pid, SIGKILL);
				processes[i].pid = 0;
				left--;
			}
	}
	for (i = 0; i < process_count; i++)
		if (processes[i].pid > 0) {
			say("%s does not end, and is killed", processes[i].load->name);
			kill(-processes[i].pid, SIGKILL);
			waitpid(processes[i].pid, NULL, 0);
		}
	/* Orphans, whose parents were killed. */
	for (tries = 0; tries < 100; tries++) {
		if (waitpid(-1, NULL, WNOHANG) < 0)
			break;
		usleep(100000);
	}
}

static void checkpoint(void)
{
	unsigned long before = shared->failures;

	settings_lock();
	check_zones();
	settings_unlock();
	check_log();
	checkpoints += shared->failures == before;
	say("checkpoint %u: %s, %lu pages free, %u restarts", checkpoints,
	    shared->failures == before ? "all is well" : "something is wrong", pc_free_pages(NULL),
	    restarts);
}

static bool rmdir_groups(void)
{
	unsigned int tries;

	/* Groups of loads that were killed. */
	for (tries = 0; tries < 50; tries++) {
		if (system("find " GROUPS " -depth -type d -exec rmdir {} + 2>/dev/null"))
			usleep(200000);
		if (rmdir(GROUPS) && errno == ENOENT)
			return true;
		usleep(100000);
	}
	return false;
}

/* Everything is given back: then the geometry may be changed. */
static void change_geometry(const char *geometry)
{
	int error;

	pc_write(PC_SPREAD, "0");
	pc_write(PC_UNASSIGNED, "");
	error = pc_write(PC_COLORING, "0");
	if (error)
		wrong("coloring cannot be switched off: %s", strerror(-error));
	error = pc_change_geometry(geometry);
	if (error)
		wrong("the geometry cannot be %s: %s", geometry, strerror(-error));
	error = pc_write(PC_COLORING, uncolored ? "0" : "1");
	/* What sets are asked for has to be something, where all are refused. */
	if (!pc_read_geometry() && uncolored)
		pc_colors = 2;
	if (error || !pc_colors)
		wrong("coloring cannot be switched on: %s", strerror(-error));
}

static void make_groups(void)
{
	if (mkdir(GROUPS, 0755) && errno != EEXIST)
		wrong("no groups: %m");
	pc_write(GROUPS "/cgroup.subtree_control", "+cpuset +memory");
}

static void take_rest(void)
{
	struct rest *rest = &rests[rest_count];

	look_at_rest(rest);
	say("rest %u: %lu kB free, %lu kB slab, %lu kB shrunk, %lu kB stacks, %lu kB unknown, "
	    "%lu dying groups", rest_count++, rest->free, rest->slab, rest->shrunk, rest->depot,
	    rest->unknown, rest->dying);
}

static void run_round(const char *geometry, unsigned int seed, unsigned int seconds)
{
	time_t end, now = time(NULL), next;

	end = now + seconds;
	next = now + 60;
	change_geometry(geometry);
	make_groups();
	say("round %u: %s, %u colors, %u seconds", ++rounds, geometry, pc_colors, seconds);
	check_zones();
	start_all(seed);
	while ((now = time(NULL)) < end) {
		usleep(200000);
		look_after_processes();
		if (now >= next) {
			checkpoint();
			next += 60;
		}
	}
	checkpoint();
	stop_all();
	if (return_blocks())
		say("memory blocks were left offline");
	if (!rmdir_groups())
		wrong("groups are left in " GROUPS);
	check_zones();
	check_log();
	take_rest();
}

/* A disk by its serial number. */
static void mount_compiler(void)
{
	char path[64], serial[64];
	char disk;

	for (disk = 'a'; disk < 'h'; disk++) {
		snprintf(path, sizeof(path), "/sys/block/vd%c/serial", disk);
		if (pc_read(path, serial, sizeof(serial)) || strcmp(serial, "compiler"))
			continue;
		snprintf(path, sizeof(path), "/dev/vd%c", disk);
		mkdir(COMPILER, 0755);
		if (mount(path, COMPILER, "ext4", 0, NULL))
			wrong("no compiler: %m");
		mount("/dev", COMPILER "/dev", NULL, MS_BIND, NULL);
	}
}

static void prepare(void)
{
	struct shared *map = mmap(NULL, sizeof(*map), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned long free = 0;

	if (map == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
	shared = map;
	pc_override(THP "enabled", getenv("stress_thp") ?: "always");
	pc_override(THP "hugepages-64kB/enabled", "always");
	pc_override(THP "khugepaged/scan_sleep_millisecs", "500");
	pc_override("/sys/kernel/mm/ksm/pages_to_scan", "200");
	pc_write("/proc/self/oom_score_adj", "-1000");
	check_log();
	mount_compiler();
	pc_value("/proc/meminfo", "MemFree", &free);
	/*
	 * With that of the others it is more than there is, but not so much that a slow machine
	 * does nothing but swap: then a task that holds a lock meanwhile seems to hang.
	 */
	shared->pressure = (free * 1024 * 3 / 4) & ~(MIB - 1);
	printf("# %lu MiB free, %zu of them for pressure\n", free / 1024, shared->pressure / MIB);
}

static const char *const names[] = {
#define OP(name) #name,
	OPERATIONS(OP)
#undef OP
};

static const char *const events[] = {
	"pswpout", "pswpin", "pgmajfault", "pgmigrate_success", "compact_isolated",
	"thp_fault_alloc", "thp_collapse_alloc", "thp_split_page", "oom_kill",
};

static unsigned long event(const char *name)
{
	unsigned long value = 0;

	pc_value("/proc/vmstat", name, &value);
	return value;
}

/* What cannot be done without something that the machine may lack. */
static const struct {
	enum operation	what;
	const char	*needs;
} needs[] = {
	{ DONE_pages_moved_between_nodes, "/sys/devices/system/node/node1" },
	{ DONE_files_compiled, COMPILER "/src/compile" },
	{ DONE_programs_linked, COMPILER "/src/compile" },
	{ DONE_superpages_collapsed, THP "enabled" },
	{ DONE_cma_allocations, "/sys/kernel/debug/cma/reserved/alloc" },
	{ DONE_ksm_switched, "/sys/kernel/mm/ksm/run" },
};

static bool is_possible(enum operation what)
{
	unsigned int i;

	for (i = 0; i < sizeof(needs) / sizeof(*needs); i++)
		if (needs[i].what == what && !pc_exists(needs[i].needs)) {
			printf("# %s: not without %s\n", names[what], needs[i].needs);
			return false;
		}
	return true;
}

/* How much there is of which nothing was done at all. */
static unsigned int count_undone(void)
{
	unsigned int i, undone = 0;

	for (i = 0; i < NR_OPERATIONS; i++)
		if (!shared->done[i] && is_possible(i)) {
			printf("# never: %s\n", names[i]);
			undone++;
		}
	for (i = 0; i < sizeof(events) / sizeof(*events); i++) {
		if (!strncmp(events[i], "thp_", 4) && !pc_exists(THP "enabled"))
			continue;
		if (!event(events[i])) {
			printf("# never: %s\n", events[i]);
			undone++;
		}
	}
	return undone;
}

static void print_counts(void)
{
	unsigned int i;

	for (i = 0; i < NR_OPERATIONS; i++)
		printf("stress %s %lu\n", names[i], shared->done[i]);
	for (i = 0; i < sizeof(events) / sizeof(*events); i++)
		printf("stress vmstat_%s %lu\n", events[i], event(events[i]));
	printf("stress killed_for_memory %u\n", restarts);
	printf("stress checkpoints_passed %u\n", checkpoints);
	printf("stress failures %lu\n", shared->failures);
}

static void print_rests(void)
{
	const struct rest *before = &rests[0], *after = &rests[rest_count - 1];
	unsigned int i;

	for (i = 0; i < REST_USED; i++)
		printf("used %s %lu %lu\n", rest_names[i], before->used[i], after->used[i]);
	printf("used stacks %lu %lu\n", before->depot, after->depot);
	printf("used unpurged %lu %lu\n", before->unpurged, after->unpurged);
	printf("used unknown %ld %ld\n", (long)before->unknown, (long)after->unknown);
	print_growth(&before->caches, &after->caches, "grown", 16);
	/* What is used for the first time stays, and is no growth after that. */
	print_growth(&rests[1].caches, &after->caches, "grown_since_round_1", 16);
	print_owners(&owners_before, &owners_after, 24);
	printf("stress free_kb_before %lu\nstress free_kb_after %lu\n", before->free, after->free);
	printf("stress slab_kb_before %lu\nstress slab_kb_after %lu\n", before->slab, after->slab);
}

/* What is said to be given back is, whatever KASAN and the page owner keep aside. */
static void judge_rests(void)
{
	const struct rest *before = &rests[0], *after = &rests[rest_count - 1];

	pc_result(after->slab < before->slab + SLAB_GROWTH,
		  "the kernel's own memory is given back");
	pc_result(after->free + after->slab + after->depot + OTHER_GROWTH >
		  before->free + before->slab + before->depot, "all other memory is given back");
	pc_result(after->dying < 10, "%lu groups that were removed are still there", after->dying);
}

/* What the compiled program does, to have been executed. */
static int self_test(void)
{
	static struct shared own;
	char *memory;

	shared = &own;
	memory = map(MIB);
	if (!memory)
		return 0;
	write_bytes(memory, MIB, 42);
	return !check_bytes("a program", memory, MIB, 42);
}

int main(int argc, char **argv)
{
	unsigned int seconds = setting("stress_seconds", 3600);
	unsigned int seed = setting("stress_seed", 1), part;
	const unsigned int parts = sizeof(geometries) / sizeof(*geometries);
	bool long_enough = seconds >= 3000 && !getenv("stress_only");
	time_t begin;

	if (argc > 1 && !strcmp(argv[1], "--self-test"))
		return self_test();
	uncolored = !strcmp(getenv("stress_coloring") ?: "on", "off");
	pc_begin(16);
	pc_plan(uncolored ? 7 : 8);
	prepare();
	/* Not to be counted as growth. */
	memset(&owners_before, 1, sizeof(owners_before));
	memset(&owners_after, 1, sizeof(owners_after));
	take_rest();
	read_owners(&owners_before);
	begin = time(NULL);
	/* The first minutes are of all colors as well, of a short stress. */
	for (part = 0; part < parts; part++) {
		unsigned int left = begin + seconds - time(NULL);

		if ((int)left > 0)
			run_round(geometries[part], seed + 100000 * part, left / (parts - part));
	}
	printf("stress seconds %lu\n", (unsigned long)(time(NULL) - begin));
	change_geometry(geometries[0]);
	check_zones();
	take_rest();
	read_owners(&owners_after);
	check_log();
	print_counts();
	print_rests();
	pc_result(checkpoints > 0, "%u checkpoints", checkpoints);
	pc_result(!shared->failures, "%lu things were wrong", shared->failures);
	pc_result(!long_enough || !count_undone(), "everything was done at least once");
	/* No task but those, also of the other groups with limits, or with strict sets. */
	pc_result(event("oom_kill") == shared->done[DONE_kills_provoked],
		  "%lu tasks were killed, %lu were to be", event("oom_kill"),
		  shared->done[DONE_kills_provoked]);
	judge_rests();
	if (uncolored)
		ksft_finished();
	pc_finish();
}
