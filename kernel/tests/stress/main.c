// SPDX-License-Identifier: GPL-2.0-only
/*
 * A mixed load on page coloring, for kernel/stress. It goes in rounds, each with other
 * colors: all loads are started, checked every minute, and ended; then everything has to
 * be given back, so that the colors can be others again.
 *
 * From the environment, which is the kernel's command line: stress_seconds, stress_seed,
 * stress_only (the name of a load).
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
};

/* 64 colors, hashes, 1024, 32 that are not the lowest bits, 2, 16. */
static const char *const geometries[] = {
	"bits:12-17", "masks:0x11000,0x22000,0x44000,0x88000,0x110000", "bits:12-21",
	"bits:14-18", "masks:0x1000", "2048/32",
};

#define MAX_PROCESSES	32

static struct {
	const struct load	*load;
	unsigned int		seed;
	int			pid;
} processes[MAX_PROCESSES];

static unsigned int process_count, restarts, checkpoints, rounds;

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
	error = pc_write(PC_COLORING, "1");
	if (error || !pc_read_geometry())
		wrong("coloring cannot be switched on: %s", strerror(-error));
}

static void make_groups(void)
{
	if (mkdir(GROUPS, 0755) && errno != EEXIST)
		wrong("no groups: %m");
	pc_write(GROUPS "/cgroup.subtree_control", "+cpuset +memory");
}

static void run_round(const char *geometry, unsigned int seed, unsigned int seconds)
{
	time_t end, now = time(NULL), next;
	struct rest rest;

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
	if (!rmdir_groups())
		wrong("groups are left in " GROUPS);
	check_zones();
	check_log();
	look_at_rest(&rest);
	say("rest %u: %lu kB free, %lu kB slab, %lu kB unknown", rounds, rest.free, rest.slab,
	    rest.unknown);
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
	 * does nothing but swap: then whoever holds a lock meanwhile seems to hang.
	 */
	shared->pressure = (free * 1024 * 3 / 4) & ~(MIB - 1);
	printf("# %lu MiB free, %zu of them for pressure\n", free / 1024, shared->pressure / MIB);
}

static void print_counts(void)
{
	static const char *const names[] = {
#define OP(name) #name,
		OPERATIONS(OP)
#undef OP
	};
	static const char *const events[] = {
		"pswpout", "pswpin", "pgmajfault", "pgmigrate_success", "compact_success",
		"thp_fault_alloc", "thp_collapse_alloc", "thp_split_page", "oom_kill",
	};
	unsigned long value;
	unsigned int i;

	for (i = 0; i < NR_OPERATIONS; i++)
		printf("stress %s %lu\n", names[i], shared->done[i]);
	for (i = 0; i < sizeof(events) / sizeof(*events); i++) {
		value = 0;
		pc_value("/proc/vmstat", events[i], &value);
		printf("stress vmstat_%s %lu\n", events[i], value);
	}
	printf("stress killed_for_memory %u\n", restarts);
	printf("stress checkpoints_passed %u\n", checkpoints);
	printf("stress failures %lu\n", shared->failures);
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
	struct rest before, after;
	time_t begin;

	if (argc > 1 && !strcmp(argv[1], "--self-test"))
		return self_test();
	pc_begin(16);
	pc_plan(5);
	prepare();
	look_at_rest(&before);
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
	look_at_rest(&after);
	check_log();
	print_counts();
	printf("stress free_kb_before %lu\nstress free_kb_after %lu\n", before.free, after.free);
	printf("stress slab_kb_before %lu\nstress slab_kb_after %lu\n", before.slab, after.slab);
	printf("stress unknown_kb_before %ld\nstress unknown_kb_after %ld\n", (long)before.unknown,
	       (long)after.unknown);
	pc_result(checkpoints > 0, "%u checkpoints", checkpoints);
	pc_result(!shared->failures, "%lu things were wrong", shared->failures);
	/* KASAN keeps some of what is freed, and a stack of each kind of allocation. */
	pc_result(after.slab < before.slab + 40 * 1024, "the kernel's own memory is given back");
	pc_result(after.free + after.slab + 24 * 1024 > before.free + before.slab,
		  "all other memory is given back");
	pc_finish();
}
