// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where pages lie, and memory to look at: see confined.h.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "confined.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* Of /proc/kpageflags: Documentation/admin-guide/mm/pagemap.rst. */
#define UPTODATE (1ULL << 3)
#define LRU (1ULL << 5)
#define SLAB (1ULL << 7)
#define MAPPED (1ULL << 11)
#define ANONYMOUS (1ULL << 12)
#define SWAP_CACHE (1ULL << 13)
#define SWAP_BACKED (1ULL << 14)
#define NO_PAGE (1ULL << 20)
#define ZERO_PAGE (1ULL << 24)
#define PAGE_TABLE (1ULL << 26)
#define MAPPED_TO_DISK (1ULL << 34)
#define PRIVATE (1ULL << 35)

/* Of /proc/PID/pagemap. */
#define PRESENT (1ULL << 63)
#define SWAPPED (1ULL << 62)
#define FRAME ((1ULL << 55) - 1)

#define CHUNK 4096

void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	fflush(NULL);
	_exit(1);
}

static bool inside(uint64_t frame, struct colors colors)
{
	return frame % COLORS - colors.first < colors.count;
}

static int open_file(const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);

	if (file < 0)
		die(path);
	return file;
}

static void count(struct tally *tally, uint64_t frame, uint64_t flags, struct colors colors)
{
	if (flags & (SLAB | PAGE_TABLE | NO_PAGE))
		return;
	if (flags & (ANONYMOUS | SWAP_CACHE)) {
		tally->anonymous++;
		tally->anonymous_inside += inside(frame, colors);
	} else if (flags & (SWAP_BACKED | MAPPED | PRIVATE | MAPPED_TO_DISK)) {
		tally->file++;
		tally->file_inside += inside(frame, colors);
	} else if (flags & (LRU | UPTODATE)) {
		tally->own++;
	}
}

static struct tally look_once(uint64_t inode, struct colors colors)
{
	int groups = open_file("/proc/kpagecgroup"), flags = open_file("/proc/kpageflags");
	static uint64_t group[CHUNK], flag[CHUNK];
	struct tally tally = { 0 };
	uint64_t frame = 0;
	ssize_t got;

	while ((got = pread(groups, group, sizeof(group), frame * 8)) > 0) {
		if (pread(flags, flag, got, frame * 8) != got)
			die("/proc/kpageflags");
		for (ssize_t i = 0; i < got / 8; i++, frame++)
			if (group[i] == inode)
				count(&tally, frame, flag[i], colors);
	}
	close(groups);
	close(flags);
	return tally;
}

/* A page that is migrated meanwhile is seen at both places, or at none: until nothing changes. */
struct tally tally_group(const char *folder, struct colors colors)
{
	struct tally before, tally;
	int tries = 100;
	struct stat stat;

	if (lstat(folder, &stat))
		die(folder);
	tally = look_once(stat.st_ino, colors);
	do {
		before = tally;
		usleep(10000);
		tally = look_once(stat.st_ino, colors);
	} while (memcmp(&before, &tally, sizeof(tally)) && --tries);
	return tally;
}

unsigned long mapped_outside(pid_t pid, struct colors colors)
{
	char line[512], maps_path[64], path[64];
	unsigned long start, end, outside = 0;
	int pagemap, flags;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	pagemap = open_file(path);
	flags = open_file("/proc/kpageflags");
	snprintf(maps_path, sizeof(maps_path), "/proc/%d/maps", pid);
	maps = fopen(maps_path, "re");
	if (!maps)
		die(maps_path);
	while (fgets(line, sizeof(line), maps)) {
		/* Not pages of memory, or the kernel's in every process. */
		if (sscanf(line, "%lx-%lx", &start, &end) != 2 || strstr(line, "[v"))
			continue;
		for (; start < end; start += PAGE) {
			uint64_t entry, flag = 0;

			if (pread(pagemap, &entry, 8, start / PAGE * 8) != 8 || !(entry & PRESENT))
				continue;
			if (pread(flags, &flag, 8, (entry & FRAME) * 8) == 8 && !(flag & ZERO_PAGE))
				outside += !inside(entry & FRAME, colors);
		}
	}
	fclose(maps);
	close(pagemap);
	close(flags);
	return outside;
}

uint64_t *entries_of(const volatile char *memory, size_t size)
{
	int file = open_file("/proc/self/pagemap");
	uint64_t *entries = malloc(size / PAGE * 8);

	if (!entries || pread(file, entries, size / PAGE * 8, (uintptr_t)memory / PAGE * 8) !=
			(ssize_t)(size / PAGE * 8))
		die("/proc/self/pagemap");
	close(file);
	return entries;
}

unsigned long moved_since(const uint64_t *before, const volatile char *memory, size_t size)
{
	uint64_t *now = entries_of(memory, size);
	unsigned long moved = 0;

	for (size_t i = 0; i < size / PAGE; i++)
		moved += (now[i] & FRAME) != (before[i] & FRAME);
	free(now);
	return moved;
}

unsigned long swapped(const volatile char *memory, size_t size)
{
	uint64_t *entries = entries_of(memory, size);
	unsigned long pages = 0;

	for (size_t i = 0; i < size / PAGE; i++)
		pages += !!(entries[i] & SWAPPED);
	free(entries);
	return pages;
}

char *map(size_t size)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	madvise(memory, size, MADV_NOHUGEPAGE);
	return memory;
}

void fill(volatile char *memory, size_t size, uint64_t seed)
{
	for (size_t at = 0; at < size; at += PAGE)
		*(volatile uint64_t *)(memory + at) = seed * 0x9e3779b97f4a7c15ull + at;
}

void check(const volatile char *memory, size_t size, uint64_t seed)
{
	for (size_t at = 0; at < size; at += PAGE)
		if (*(const volatile uint64_t *)(memory + at) != seed * 0x9e3779b97f4a7c15ull + at) {
			errno = EIO;
			die("memory has changed");
		}
}

unsigned long missing(int file, size_t size)
{
	unsigned char *there = malloc(size / PAGE);
	void *memory = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
	unsigned long pages = 0;

	if (!there || memory == MAP_FAILED || mincore(memory, size, there))
		die("mincore");
	for (size_t i = 0; i < size / PAGE; i++)
		pages += !(there[i] & 1);
	munmap(memory, size);
	free(there);
	return pages;
}

void map_files(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long start, end, inode;
	char line[512];

	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &inode) == 3 && inode)
			madvise((void *)start, end - start, MADV_POPULATE_READ);
	if (maps)
		fclose(maps);
}
