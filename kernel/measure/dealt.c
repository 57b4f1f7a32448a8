// SPDX-License-Identifier: GPL-2.0-only
/*
 * What programs have in common that look which page frames a kernel deals: see dealt.h.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dealt.h"

#define AGED_MIB 1200UL

#define PRESENT (1ULL << 63)
#define FRAME ((1ULL << 55) - 1)
#define KPF_THP (1ULL << 22)

static uint64_t state = 88172645463325252ull;

void seed(const char *from)
{
	for (const char *at = from; *at; at++)
		state += (unsigned char)*at * 2654435761u;
}

uint64_t any(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 16) % below;
}

void die(const char *what)
{
	perror(what);
	exit(1);
}

static int by_value(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

void sort(double *values, size_t count)
{
	qsort(values, count, sizeof(double), by_value);
}

char *map(size_t size)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

char *map_joined(size_t head, size_t middle, size_t tail)
{
	size_t around = head + middle + tail + 2 * HUGE;
	char *memory = mmap(NULL, around, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	memory += HUGE + (-(uintptr_t)memory & (HUGE - 1));
	if (mprotect(memory - head, head + middle + tail, PROT_READ | PROT_WRITE))
		die("mprotect");
	return memory - head;
}

void touch(volatile char *memory, size_t size)
{
	for (size_t at = 0; at < size; at += PAGE)
		memory[at] = 1;
}

void own_frames(const char *memory, size_t pages, int thp, uint64_t *entries, uint32_t *words)
{
	int file = open("/proc/self/pagemap", O_RDONLY), flags = open("/proc/kpageflags", O_RDONLY);

	if (file < 0 || flags < 0)
		die("/proc");
	if (pread(file, entries, pages * 8, (uintptr_t)memory / PAGE * 8) != (ssize_t)(pages * 8))
		die("/proc/self/pagemap");
	for (size_t i = 0; i < pages; i++) {
		uint64_t frame = entries[i] & FRAME, flag = 0;

		if (!(entries[i] & PRESENT) || !frame) {
			fprintf(stderr, "page %zu has no frame\n", i);
			exit(1);
		}
		if (thp && pread(flags, &flag, 8, frame * 8) != 8)
			die("/proc/kpageflags");
		words[i] = frame | (flag & KPF_THP ? SUPERPAGE : 0);
	}
	close(file);
	close(flags);
}

void write_all(int file, const void *from, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t now = write(file, (const char *)from + done, size - done);

		if (now <= 0)
			die("writing what was found");
		done += now;
	}
}

void wait_for(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) != child || status) {
		fprintf(stderr, "a process failed\n");
		exit(1);
	}
}

pid_t fork_heard(int *from)
{
	int ends[2];
	pid_t child;

	if (pipe(ends))
		die("pipe");
	child = fork();
	if (!child) {
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
	}
	close(ends[1]);
	*from = ends[0];
	return child;
}

void hear(pid_t child, int from, void *to, size_t size)
{
	size_t got = 0;
	char more;

	for (ssize_t now; got < size && (now = read(from, (char *)to + got, size - got)) > 0;)
		got += now;
	if (got != size || read(from, &more, 1) != 0) {
		fprintf(stderr, "a process wrote %s than %zu bytes\n", got != size ? "less" : "more", size);
		exit(1);
	}
	close(from);
	wait_for(child);
}

/* FNV-1a. */
static uint64_t sum = 14695981039346656037ull;

static void put(int disk, const void *from, size_t size)
{
	const unsigned char *bytes = from;

	for (size_t i = 0; i < size; i++)
		sum = (sum ^ bytes[i]) * 1099511628211ull;
	write_all(disk, from, size);
}

/* Pages that are free are next to pages that are not, in no order. */
pid_t age(void)
{
	int done[2];
	pid_t child;
	char byte;

	if (pipe(done))
		die("pipe");
	child = fork();
	if (!child) {
		size_t pages = AGED_MIB * MIB / PAGE, chosen = 0;
		uint32_t *order = (uint32_t *)map(pages * sizeof(*order));
		char *memory = map(AGED_MIB * MIB);

		madvise(memory, AGED_MIB * MIB, MADV_NOHUGEPAGE);
		touch(memory, AGED_MIB * MIB);
		for (size_t i = 0; i < pages; i++)
			if (any(2))
				order[chosen++] = i;
		for (size_t i = chosen - 1; i > 0; i--) {
			size_t other = any(i + 1);
			uint32_t kept = order[i];

			order[i] = order[other];
			order[other] = kept;
		}
		for (size_t i = 0; i < chosen; i++)
			madvise(memory + order[i] * PAGE, PAGE, MADV_DONTNEED);
		if (write(done[1], "x", 1) != 1)
			exit(1);
		for (;;)
			pause();
	}
	close(done[1]);
	if (child < 0 || read(done[0], &byte, 1) != 1)
		die("aging");
	close(done[0]);
	return child;
}

void set(const char *path, const char *value)
{
	int file = open(path, O_WRONLY);

	if (file < 0 || write(file, value, strlen(value)) < 0)
		die(path);
	close(file);
}

int open_disk(void)
{
	DIR *all = opendir("/sys/block");
	struct dirent *entry;

	while (all && (entry = readdir(all))) {
		char path[300], serial[32] = "";
		int file;

		snprintf(path, sizeof(path), "/sys/block/%s/serial", entry->d_name);
		file = open(path, O_RDONLY);
		if (file < 0)
			continue;
		if (read(file, serial, sizeof(serial) - 1) < 0)
			serial[0] = 0;
		close(file);
		if (strncmp(serial, "frames", 6))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
		file = open(path, O_WRONLY);
		if (file < 0)
			die(path);
		closedir(all);
		return file;
	}
	fprintf(stderr, "no disk has the serial number frames\n");
	exit(1);
}

void begin_dump(int disk, const char *how)
{
	struct utsname name;
	char line[512];

	if (uname(&name))
		die("uname");
	snprintf(line, sizeof(line), "superhue-frames/1 %s linux=%s\n", how, name.release);
	write_all(disk, line, strlen(line));
}

void put_draw(int disk, const char *name, const uint32_t *words, size_t pages)
{
	char line[160];

	snprintf(line, sizeof(line), "draw %s %zu %u\n", name, pages, words[0]);
	put(disk, line, strlen(line));
	put(disk, words + 1, pages * 4);
}

void end_dump(int disk)
{
	char line[64];

	snprintf(line, sizeof(line), "\nend %016llx\n", (unsigned long long)sum);
	write_all(disk, line, strlen(line));
	if (fsync(disk))
		die("fsync");
}

char *asked(const char *name)
{
	static char line[4096];
	int file = open("/proc/cmdline", O_RDONLY);
	char *found;

	if (file < 0 || read(file, line, sizeof(line) - 1) < 0)
		die("/proc/cmdline");
	close(file);
	found = strstr(line, name);
	if (!found) {
		fprintf(stderr, "no %s on the kernel's command line\n", name);
		exit(2);
	}
	found[strcspn(found, " \n")] = 0;
	return found + strlen(name);
}
