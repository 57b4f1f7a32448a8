// SPDX-License-Identifier: GPL-2.0-only
/* What the tasks of a group do: each scene runs in a process of its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "confined_scenes.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define MPOL_MF_MOVE 2

static const struct colors quarter = { 16, 16 }, four = { 4, 4 }, one = { 7, 1 };

char program_path[256], data_path[256];
int wishes, answers;

static void ask_for(struct request *request)
{
	char done;

	request->pid = getpid();
	if (write(wishes, request, sizeof(*request)) != sizeof(*request) || read(answers, &done, 1) != 1)
		_exit(1);
}

void ask(enum wish wish, unsigned long value)
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

void after_exec(void)
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

const struct scene scenes[] = {
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

const unsigned int scene_count = sizeof(scenes) / sizeof(*scenes);
