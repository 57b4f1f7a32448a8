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

#include "../tests/number.h"
#include "confined.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define MPOL_MF_MOVE 2
#define INSIDE "--inside"

static const struct colors quarter = { 16, 16 }, four = { 4, 4 }, one = { 7, 1 };
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

static char program_path[256], data_path[256], group[] = "/sys/fs/cgroup/confined";

/* What a scene asks for, and where. */
enum wish { LOOK, LOOK_MAPPED, COMPACT, CROWD, UNCROWD, RECLAIM, TO_NODE, ALLOW_NODE, SWAP_OFF, WRITE, JOIN };

struct request {
	enum wish wish;
	pid_t pid;
	/* LOOK: how many pages something happened to, which `unit` says. */
	unsigned long value, size;
	char name[48], unit[48];
};

static int wishes, answers;

static void ask_for(struct request *request)
{
	char done;

	request->pid = getpid();
	if (write(wishes, request, sizeof(*request)) != sizeof(*request) || read(answers, &done, 1) != 1)
		_exit(1);
}

static void ask(enum wish wish, unsigned long value)
{
	struct request request = { .wish = wish, .value = value };

	ask_for(&request);
}

static void look(const char *name, unsigned long value, const char *unit)
{
	struct request request = { .wish = LOOK, .value = value };

	snprintf(request.name, sizeof(request.name), "%s", name);
	snprintf(request.unit, sizeof(request.unit), "%s", unit);
	ask_for(&request);
}

/* The scenes. */

static void touch(void)
{
	char *memory = map(32 * MIB);

	fill(memory, 32 * MIB, 1);
	look("fault", 32 * MIB / PAGE, "touched");
}

static void fork_and_write(void)
{
	char *memory = map(16 * MIB);
	uint64_t *before;
	pid_t child;
	int status;

	fill(memory, 16 * MIB, 2);
	before = entries_of(memory, 16 * MIB);
	child = fork();
	if (!child) {
		fill(memory, 16 * MIB, 3);
		look("fork, copied by the child", moved_since(before, memory, 16 * MIB), "copied");
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status)
		_exit(1);
	child = fork();
	if (!child)
		for (;;)
			pause();
	fill(memory, 16 * MIB, 4);
	look("fork, copied by the parent", moved_since(before, memory, 16 * MIB), "copied");
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
}

static void exec(void)
{
	char one_end[16], other_end[16];

	snprintf(one_end, sizeof(one_end), "%d", wishes);
	snprintf(other_end, sizeof(other_end), "%d", answers);
	execl(program_path, "confined", INSIDE, one_end, other_end, NULL);
	_exit(1);
}

/* Another program by now, whose file was not in memory. */
static void after_exec(void)
{
	static char zeroed[4 * MIB];
	char *heap = malloc(4 * MIB), *memory = map(4 * MIB);

	if (!heap)
		_exit(1);
	fill(zeroed, sizeof(zeroed), 5);
	fill(heap, 4 * MIB, 6);
	fill(memory, 4 * MIB, 7);
	look("exec", 12 * MIB / PAGE, "touched");
}

static void write_file(void)
{
	static char block[65536];
	char path[300];
	int file;

	snprintf(path, sizeof(path), "%s.new", data_path);
	file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	for (size_t at = 0; at < 32 * MIB; at += sizeof(block))
		if (write(file, block, sizeof(block)) != sizeof(block))
			die(path);
	look("file written", 32 * MIB / PAGE, "written");
	if (fsync(file))
		die("fsync");
	look("file written to disk", 32 * MIB / PAGE, "written");
	unlink(path);
}

static void read_file(void)
{
	static char block[65536];
	int file = open(data_path, O_RDONLY | O_CLOEXEC);
	unsigned long pages = missing(file, 32 * MIB);

	for (size_t at = 0; at < 32 * MIB; at += sizeof(block))
		if (read(file, block, sizeof(block)) != sizeof(block))
			die(data_path);
	look("file read", pages, "read");
}

static void map_file(void)
{
	int file = open(data_path, O_RDONLY | O_CLOEXEC);
	volatile char *memory = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	unsigned long pages = missing(file, 32 * MIB);

	if (memory == MAP_FAILED)
		die(data_path);
	for (size_t at = 0; at < 32 * MIB; at += PAGE)
		(void)memory[at];
	look("file mapped", pages, "read");
	for (size_t at = 0; at < 32 * MIB; at += PAGE)
		memory[at] = 1;
	look("file mapped, private copies", 32 * MIB / PAGE, "copied");
}

static void shared_memory(void)
{
	int file = memfd_create("confined", MFD_CLOEXEC);
	char *memory;

	if (file < 0 || ftruncate(file, 16 * MIB))
		die("memfd_create");
	memory = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	fill(memory, 16 * MIB, 8);
	look("file in memory", 16 * MIB / PAGE, "touched");
}

/* Asks for each page to be on a node; returns how many are. */
static unsigned long to_node(char *memory, size_t size, int node)
{
	size_t pages = size / PAGE;
	void **page = calloc(pages, sizeof(*page));
	int *to = calloc(pages, sizeof(*to)), *status = calloc(pages, sizeof(*status));
	unsigned long there = 0;

	if (!page || !to || !status)
		_exit(1);
	for (size_t i = 0; i < pages; i++) {
		page[i] = memory + i * PAGE;
		to[i] = node;
	}
	if (syscall(SYS_move_pages, 0, pages, page, to, status, MPOL_MF_MOVE) < 0)
		die("move_pages");
	for (size_t i = 0; i < pages; i++)
		there += status[i] == node;
	return there;
}

static unsigned long on_node(char *memory, size_t size, int node)
{
	unsigned long there = 0;

	for (size_t at = 0; at < size; at += PAGE) {
		void *page = memory + at;
		int status = -1;

		syscall(SYS_move_pages, 0, 1UL, &page, NULL, &status, 0);
		there += status == node;
	}
	return there;
}

/* Memory that several processes could have. */
static char *map_shared(size_t size)
{
	int file = memfd_create("confined", MFD_CLOEXEC);

	if (file < 0 || ftruncate(file, size))
		die("memfd_create");
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

static void migrate(void)
{
	char *memory = map(16 * MIB), *shared = map_shared(4 * MIB), name[48], text[16];

	fill(memory, 16 * MIB, 9);
	fill(shared, 4 * MIB, 9);
	for (int node = 1; node >= 0; node--) {
		unsigned long there = to_node(memory, 16 * MIB, node) + to_node(shared, 4 * MIB, node);

		snprintf(name, sizeof(name), "move_pages to node %d", node);
		snprintf(text, sizeof(text), "on_node_%d", node);
		look(name, there, text);
	}
	for (int node = 1; node >= 0; node--) {
		ask(TO_NODE, node);
		snprintf(name, sizeof(name), "migrate_pages by another, to node %d", node);
		snprintf(text, sizeof(text), "on_node_%d", node);
		look(name, on_node(memory, 16 * MIB, node) + on_node(shared, 4 * MIB, node), text);
	}
	for (int node = 1; node >= 0; node--) {
		ask(ALLOW_NODE, node);
		snprintf(name, sizeof(name), "cpuset.mems is node %d", node);
		snprintf(text, sizeof(text), "on_node_%d", node);
		look(name, on_node(memory, 16 * MIB, node) + on_node(shared, 4 * MIB, node), text);
	}
	check(memory, 16 * MIB, 9);
	check(shared, 4 * MIB, 9);
}

static void compact(void)
{
	char *memory = map(32 * MIB);
	uint64_t *before;

	ask(CROWD, 0);
	fill(memory, 32 * MIB, 10);
	before = entries_of(memory, 32 * MIB);
	ask(UNCROWD, 0);
	for (int i = 0; i < 3; i++)
		ask(COMPACT, 0);
	look("compaction", moved_since(before, memory, 32 * MIB), "moved");
	check(memory, 32 * MIB, 10);
}

static void swap(void)
{
	char *memory = map(16 * MIB), *shared = map_shared(4 * MIB);
	unsigned long out;

	fill(memory, 16 * MIB, 11);
	fill(shared, 4 * MIB, 11);
	madvise(memory, 16 * MIB, MADV_PAGEOUT);
	madvise(shared, 4 * MIB, MADV_PAGEOUT);
	out = swapped(memory, 16 * MIB) + swapped(shared, 4 * MIB);
	check(memory, 16 * MIB, 11);
	check(shared, 4 * MIB, 11);
	look("swapped out and in", out, "swapped");

	ask(RECLAIM, 20 * MIB);
	out = swapped(memory, 16 * MIB);
	check(memory, 16 * MIB, 11);
	check(shared, 4 * MIB, 11);
	look("reclaimed by another and swapped in", out, "swapped");

	madvise(memory, 16 * MIB, MADV_PAGEOUT);
	out = swapped(memory, 16 * MIB);
	ask(SWAP_OFF, 0);
	look("swapped in by swapoff", out, "swapped");
	check(memory, 16 * MIB, 11);
}

static void superpages(void)
{
	size_t huge = 2 * MIB;
	char *memory = map(10 * MIB);

	memory += -(uintptr_t)memory & (huge - 1);
	madvise(memory, 4 * MIB, MADV_HUGEPAGE);
	fill(memory, 8 * MIB, 12);
	madvise(memory, 8 * MIB, MADV_HUGEPAGE);
	madvise(memory, 8 * MIB, MADV_COLLAPSE);
	look("superpages wished for", 8 * MIB / PAGE, "touched");
	check(memory, 8 * MIB, 12);
}

static void written_by_other(void)
{
	struct request request = { .wish = WRITE, .size = 8 * MIB };
	char *memory = map(8 * MIB);

	request.value = (uintptr_t)memory;
	ask_for(&request);
	look("written by another process", 8 * MIB / PAGE, "written");
}

/* One and a half times what there is of four colors: the group swaps its own. */
static void too_much_strict(void)
{
	size_t size = 192 * MIB;
	char *memory = map(size);

	fill(memory, size, 13);
	look("more than there is, strict", swapped(memory, size), "swapped");
	check(memory, size, 13);
	look("more than there is, strict, read again", swapped(memory, size), "swapped");
}

static void too_much(void)
{
	char *memory = map(48 * MIB), *shared;
	int file = memfd_create("confined", MFD_CLOEXEC);
	pid_t child;

	fill(memory, 48 * MIB, 14);
	look("more than there is: fault", 48 * MIB / PAGE, "touched");
	if (file < 0 || ftruncate(file, 8 * MIB))
		die("memfd_create");
	shared = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	fill(shared, 8 * MIB, 14);
	look("more than there is: file in memory", 8 * MIB / PAGE, "touched");
	child = fork();
	if (!child) {
		fill(memory, 8 * MIB, 15);
		look("more than there is: fork, copied by the child", 8 * MIB / PAGE, "copied");
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

static void too_much_read(void)
{
	read_file();
}

/* What comes along: memory that can be moved, files that others have, pages that a pipe holds. */
static void come_along(size_t size, const char *name)
{
	struct request request = { .wish = LOOK_MAPPED, .unit = "touched" };
	char *memory = map(size), *held = map(MIB / 4);
	struct iovec part = { held, MIB / 4 };
	int ends[2];

	fill(memory, size, 16);
	fill(held, MIB / 4, 16);
	if (pipe(ends) || fcntl(ends[0], F_SETPIPE_SZ, MIB / 4) < 0 || vmsplice(ends[1], &part, 1, 0) < (ssize_t)PAGE)
		die("vmsplice");
	/* Pages of this program's file that it would map later are others', too. */
	map_files();
	ask(JOIN, 0);
	check(memory, size, 16);
	request.value = size / PAGE;
	snprintf(request.name, sizeof(request.name), "%s", name);
	ask_for(&request);
}

static void attach(void)
{
	come_along(24 * MIB, "attached");
}

static void attach_too_much(void)
{
	come_along(48 * MIB, "attached, more than there is");
}

static const struct scene {
	void (*body)(void);
	const struct colors *colors;
	bool strict, joins;
} scenes[] = {
	{ touch, &quarter, true, true },
	{ fork_and_write, &quarter, true, true },
	{ exec, &quarter, true, true },
	{ write_file, &quarter, true, true },
	{ read_file, &quarter, true, true },
	{ map_file, &quarter, true, true },
	{ shared_memory, &quarter, true, true },
	{ migrate, &quarter, true, true },
	{ compact, &quarter, true, true },
	{ swap, &quarter, true, true },
	{ superpages, &quarter, true, true },
	{ written_by_other, &quarter, true, true },
	{ too_much_strict, &four, true, true },
	{ too_much, &one, false, true },
	{ too_much_read, &one, false, true },
	{ attach, &quarter, false, false },
	{ attach_too_much, &one, false, false },
};

/* Outside of the group. */

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
	return write_line(path, text);
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
		write_line("/proc/sys/vm/compact_memory", "1");
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

/* Whoever is left of a scene. */
static void clear_group(void)
{
	write_line(in_group("cgroup.kill"), "1");
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
	write_line("/proc/sys/kernel/numa_balancing", scene->strict ? "1" : "0");
	/* Files are to be read for the group, not to be there already. */
	write_line("/proc/sys/vm/drop_caches", "3");
	snprintf(text, sizeof(text), "%u-%u", scene->colors->first, scene->colors->first + scene->colors->count - 1);
	if (mkdir(group, 0755) || !write_line(in_group("cpuset.colors"), text) ||
	    !write_line(in_group("cpuset.colors.strict"), scene->strict ? "1" : "0"))
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
	for (size_t i = 0; i < sizeof(scenes) / sizeof(*scenes); i++)
		run(&scenes[i]);
	unlink(program_path);
	unlink(data_path);
	printf("%sok 1 all pages are where they should be\n", failures ? "not " : "");
	return !!failures;
}
