// SPDX-License-Identifier: GPL-2.0-only
/*
 * Maps a file as search indexes and model weights are mapped, and says how much of it huge pages map.
 *
 *	mapfile FILE MIB [dirty|sparse]
 *
 * Makes FILE with MIB MiB, writes it to the disk, reads it into memory in small folios, maps it and touches every page. For each line
 * of standard input it prints the KiB that huge pages map (FilePmdMapped) and whether the contents are right; the end of input ends it.
 * dirty: one page of each 2 MiB is changed first, and not written. sparse: only every other page is in memory.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE (2ul << 20)

static void fail(const char *what)
{
	perror(what);
	exit(2);
}

static unsigned char content(size_t page)
{
	return page * 37 + page / 251 + 1;
}

static long huge_kib(const void *from)
{
	FILE *smaps = fopen("/proc/self/smaps", "r");
	char line[512];
	int inside = 0;
	long kib = 0, here;

	if (!smaps)
		fail("smaps");
	while (fgets(line, sizeof(line), smaps)) {
		unsigned long start, end;

		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start <= (unsigned long)from && (unsigned long)from < end;
		if (inside && (sscanf(line, "FilePmdMapped: %ld", &here) == 1))
			kib += here;
	}
	fclose(smaps);
	return kib;
}

static void touch(volatile unsigned char *map, size_t size, size_t step)
{
	for (size_t at = 0; at < size; at += step)
		(void)map[at];
}

/* One page of each 2 MiB, to what it is already. */
static void change(volatile unsigned char *map, size_t size)
{
	for (size_t at = 0; at < size; at += HUGE)
		map[at] = map[at];
}

int main(int count, char **words)
{
	const char *how = count > 3 ? words[3] : "";
	size_t size = count > 2 ? strtoul(words[2], NULL, 10) << 20 : 0;
	size_t step = strcmp(how, "sparse") ? 4096 : 8192;
	unsigned char page[4096], *place, *map;
	char line[64];
	int file;

	if (!size) {
		fprintf(stderr, "mapfile FILE MIB [dirty|sparse]\n");
		return 2;
	}
	file = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (file < 0)
		fail(words[1]);
	for (size_t at = 0; at < size; at += sizeof(page)) {
		memset(page, content(at / sizeof(page)), sizeof(page));
		if (write(file, page, sizeof(page)) != sizeof(page))
			fail("write");
	}
	if (fsync(file) || posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED))
		fail("fsync");
	close(file);
	file = open(words[1], strcmp(how, "dirty") ? O_RDONLY : O_RDWR);
	/* No readahead, and so no large folios. */
	posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
	for (size_t at = 0; at < size; at += step)
		if (pread(file, page, sizeof(page), at) != sizeof(page))
			fail("pread");
	place = mmap(NULL, size + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	place = (void *)(((unsigned long)place + HUGE - 1) & ~(HUGE - 1));
	map = mmap(place, size, fcntl(file, F_GETFL) & O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ,
		   MAP_SHARED | MAP_FIXED, file, 0);
	if (map == MAP_FAILED)
		fail("mmap");
	madvise(map, size, MADV_RANDOM);
	if (!strcmp(how, "dirty"))
		change(map, size);
	touch(map, size, step);
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		int right = 1;

		touch(map, size, step);
		for (size_t at = 0; at < size; at += step)
			right &= map[at] == content(at / 4096) && map[at + 4095] == content(at / 4096);
		printf("huge %ld contents %s\n", huge_kib(map), right ? "right" : "wrong");
		fflush(stdout);
	}
	return 0;
}
