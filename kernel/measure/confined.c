// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whether groups of tasks stay inside their colors, whatever is done by them and to them, on a machine
 * with 64 colors (page_color=bits:12-17) and two nodes.
 *
 *	confined FOLDER		FOLDER is on a disk
 *
 * Each scene is a process in a group of its own, which asks this program, which is outside of it, to
 * look where all pages of the group are: see confined.h. Prints a line of JSON, after the word `row`,
 * for each look. Groups that are strict have no page outside; of others each page outside is in one
 * of the counts of cpuset.colors.stat.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tests/kernel_file.h"
#include "confined_scenes.h"

/*
 * What is outside in a group that is not strict is outside for one of these: the first ones count what
 * the group allocated, the others what came along when a task came to it.
 */
static const char *const reasons[] = {
	"outside", "large", "unmovable_shared", "unmovable_pinned", "unmovable_busy", "unmovable_hugetlb",
	"unmovable_nomem",
};
#define ALLOCATED 2
#define REASONS (sizeof(reasons) / sizeof(*reasons))

static char group[] = "/sys/fs/cgroup/confined";
static unsigned int failures;

static const char *in_group(const char *file)
{
	static char path[300];

	snprintf(path, sizeof(path), "%s/%s", group, file);
	return path;
}

static bool write_number(const char *path, unsigned long number)
{
	char text[32];

	snprintf(text, sizeof(text), "%lu", number);
	return put(path, text);
}

/* The sum of the first @count reasons, all of which are said. */
static unsigned long say_counts(unsigned int count)
{
	unsigned long sum = 0;

	printf(", \"counted\": {");
	for (unsigned int i = 0; i < count; i++) {
		long value = number_in(in_group("cpuset.colors.stat"), reasons[i]);

		printf("%s\"%s\": %ld", i ? ", " : "", reasons[i], value);
		sum += value;
	}
	printf("}");
	return sum;
}

static void say_look(const struct scene *scene, const struct request *request)
{
	struct tally tally = tally_group(group, *scene->colors);
	unsigned long outside = tally.anonymous - tally.anonymous_inside + tally.file - tally.file_inside;
	bool right = !outside;

	printf("row {\"step\": \"%s\", \"colors\": %u, \"strict\": %s, \"anonymous\": %lu, \"anonymous_inside\": %lu, "
	       "\"file\": %lu, \"file_inside\": %lu, \"file_system_own\": %lu, \"outside\": %lu, \"%s\": %lu",
	       request->name, scene->colors->count, scene->strict ? "true" : "false", tally.anonymous,
	       tally.anonymous_inside, tally.file, tally.file_inside, tally.own, outside, request->unit, request->value);
	if (!scene->strict)
		right = say_counts(ALLOCATED) == outside;
	printf(", \"right\": %s}\n", right ? "true" : "false");
	failures += !right;
}

static void say_mapped(const struct scene *scene, const struct request *request)
{
	unsigned long outside = mapped_outside(request->pid, *scene->colors);
	bool right;

	printf("row {\"step\": \"%s\", \"colors\": %u, \"strict\": %s, \"outside\": %lu, \"%s\": %lu, "
	       "\"moved\": %ld", request->name, scene->colors->count, scene->strict ? "true" : "false", outside,
	       request->unit, request->value, number_in(in_group("cpuset.colors.stat"), "moved"));
	right = say_counts(REASONS) == outside;
	printf(", \"right\": %s}\n", right ? "true" : "false");
	failures += !right;
}

/* Memory between the pages of which is the group's. */
static pid_t crowd;

static void begin_crowd(void)
{
	int ready[2];
	char byte;

	if (pipe(ready))
		die("pipe");
	crowd = fork();
	if (!crowd) {
		size_t size = 1200 * MIB;
		char *memory = map(size);

		fill(memory, size, 17);
		for (size_t at = 0; at < size; at += 3 * PAGE)
			madvise(memory + at, PAGE, MADV_DONTNEED);
		if (write(ready[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	if (read(ready[0], &byte, 1) != 1)
		die("crowd");
	close(ready[0]);
	close(ready[1]);
}

static void end_crowd(void)
{
	kill(crowd, SIGKILL);
	waitpid(crowd, NULL, 0);
}

static void migrate_to(pid_t pid, int node)
{
	unsigned long from = 1UL << !node, to = 1UL << node;

	if (syscall(SYS_migrate_pages, pid, 8 * sizeof(long), &from, &to) < 0)
		die("migrate_pages");
}

static void swap_off_and_on(void)
{
	char line[256], path[256] = "";
	FILE *file = fopen("/proc/swaps", "re");

	while (file && fgets(line, sizeof(line), file))
		if (*line == '/')
			sscanf(line, "%255s", path);
	if (file)
		fclose(file);
	if (swapoff(path) || swapon(path, 0))
		die("swap");
}

static void write_to(const struct request *request)
{
	struct iovec from = { malloc(request->size), request->size };
	struct iovec to = { (void *)request->value, request->size };

	if (!from.iov_base)
		die("malloc");
	memset(from.iov_base, 1, request->size);
	if (process_vm_writev(request->pid, &from, 1, &to, 1, 0) != (ssize_t)request->size)
		die("process_vm_writev");
	free(from.iov_base);
}

static void grant(const struct scene *scene, const struct request *request)
{
	switch (request->wish) {
	case LOOK:
		say_look(scene, request);
		break;
	case LOOK_MAPPED:
		say_mapped(scene, request);
		break;
	case COMPACT:
		put("/proc/sys/vm/compact_memory", "1");
		break;
	case CROWD:
		begin_crowd();
		break;
	case UNCROWD:
		end_crowd();
		break;
	case RECLAIM:
		/* As much as there is. */
		write_number(in_group("memory.reclaim"), request->value);
		break;
	case TO_NODE:
		migrate_to(request->pid, request->value);
		break;
	case ALLOW_NODE:
		if (!write_number(in_group("cpuset.mems"), request->value))
			die("cpuset.mems");
		break;
	case SWAP_OFF:
		swap_off_and_on();
		break;
	case WRITE:
		write_to(request);
		break;
	case JOIN:
		if (!write_number(in_group("cgroup.procs"), request->pid))
			die("cgroup.procs");
		break;
	}
}

/* The processes that are left of a scene. */
static void clear_group(void)
{
	put(in_group("cgroup.kill"), "1");
	for (int tries = 500; rmdir(group) && errno != ENOENT; tries--) {
		if (!tries)
			die(group);
		usleep(10000);
	}
}

static void run(const struct scene *scene)
{
	int forth[2], back[2], status;
	struct request request;
	char text[32];
	pid_t child;

	/* It moves pages that are outside to where they are wanted, some of them inside by chance. */
	put("/proc/sys/kernel/numa_balancing", scene->strict ? "1" : "0");
	/* Files are to be read for the group, not to be there already. */
	put("/proc/sys/vm/drop_caches", "3");
	snprintf(text, sizeof(text), "%u-%u", scene->colors->first, scene->colors->first + scene->colors->count - 1);
	if (mkdir(group, 0755) || !put(in_group("cpuset.colors"), text) ||
	    !put(in_group("cpuset.colors.strict"), scene->strict ? "1" : "0"))
		die(group);
	if (pipe(forth) || pipe(back))
		die("pipe");
	fflush(stdout);
	child = fork();
	if (!child) {
		close(forth[0]);
		close(back[1]);
		wishes = forth[1];
		answers = back[0];
		if (scene->joins)
			ask(JOIN, 0);
		scene->body();
		_exit(0);
	}
	close(forth[1]);
	close(back[0]);
	while (read(forth[0], &request, sizeof(request)) == sizeof(request)) {
		grant(scene, &request);
		if (write(back[1], "x", 1) != 1)
			break;
	}
	close(forth[0]);
	close(back[1]);
	if (waitpid(child, &status, 0) != child || status) {
		printf("# scene %d ended with status %#x\n", (int)(scene - scenes), status);
		failures++;
	}
	clear_group();
}

/* Files that a group may read. */
static void copy_program(void)
{
	static char block[65536];
	int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to;
	ssize_t got;

	to = open(program_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
	while ((got = read(from, block, sizeof(block))) > 0)
		if (write(to, block, got) != got)
			die(program_path);
	if (got || fsync(to))
		die(program_path);
	close(from);
	close(to);
	memset(block, 1, sizeof(block));
	to = open(data_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	for (size_t at = 0; at < 32 * MIB; at += sizeof(block))
		if (write(to, block, sizeof(block)) != sizeof(block))
			die(data_path);
	if (fsync(to))
		die(data_path);
	close(to);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], INSIDE)) {
		wishes = atoi(argv[2]);
		answers = atoi(argv[3]);
		after_exec();
		return 0;
	}
	if (argc != 2) {
		fprintf(stderr, "usage: confined FOLDER\n");
		return 1;
	}
	printf("TAP version 13\n1..1\n");
	snprintf(program_path, sizeof(program_path), "%s/program", argv[1]);
	snprintf(data_path, sizeof(data_path), "%s/data", argv[1]);
	copy_program();
	for (unsigned int i = 0; i < scene_count; i++)
		run(&scenes[i]);
	unlink(program_path);
	unlink(data_path);
	printf("%sok 1 all pages are where they should be\n", failures ? "not " : "");
	return !!failures;
}
