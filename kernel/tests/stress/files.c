// SPDX-License-Identifier: GPL-2.0-only
/* Loads of the page cache and of shared memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stress.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif
#define FILE_SIZE	(6 * MIB)
#define BLOCK		(64 * 1024)

static bool write_file(int file, char *block, uint64_t mark)
{
	size_t at;

	for (at = 0; at < FILE_SIZE; at += BLOCK) {
		write_bytes(block, BLOCK, mark + at);
		/* A full disk is none of ours. */
		if (pwrite(file, block, BLOCK, at) != BLOCK)
			return false;
	}
	return true;
}

static void read_file(int file, char *block, uint64_t mark)
{
	size_t at;

	for (at = 0; at < FILE_SIZE && !stopping(); at += BLOCK) {
		if (pread(file, block, BLOCK, at) != BLOCK)
			wrong("files: cannot be read at %zu: %m", at);
		else if (!check_bytes("file", block, BLOCK, mark + at))
			return;
		DONE_N(file_pages_verified, BLOCK / PAGE);
	}
}

/* A part is written through a mapping, and read by calls. */
static void write_mapped(int file, char *block, uint64_t *mark)
{
	char *memory = mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	size_t at;

	if (memory == MAP_FAILED)
		return;
	*mark += 7;
	for (at = 0; at < FILE_SIZE; at += BLOCK)
		write_bytes(memory + at, BLOCK, *mark + at);
	read_file(file, block, *mark);
	munmap(memory, FILE_SIZE);
}

void files(unsigned int seed)
{
	char *block = map(BLOCK), path[128];
	uint64_t mark = seed;
	int file;

	snprintf(path, sizeof(path), DISK "/stress.%d", getpid());
	while (block && !stopping()) {
		mark += FILE_SIZE;
		file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		if (file < 0) {
			wrong("files: %s: %m", path);
			return;
		}
		unlink(path);
		change_own_set(&seed);
		if (write_file(file, block, mark)) {
			DONE(files_written);
			if (random_below(&seed, 2))
				write_mapped(file, block, &mark);
			/* From the disk again. */
			fsync(file);
			posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
			change_own_set(&seed);
			read_file(file, block, mark);
		}
		close(file);
	}
}

/* Written by one process, swapped out, and read by another one, of other colors. */
void shared_memory(unsigned int seed)
{
	const size_t size = 12 * MIB;
	uint64_t mark = seed;

	while (!stopping()) {
		int file = memfd_create("stress", MFD_CLOEXEC), child;
		char *memory;

		if (file < 0 || ftruncate(file, size)) {
			wrong("shared memory: %m");
			return;
		}
		memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (memory == MAP_FAILED) {
			close(file);
			continue;
		}
		change_own_set(&seed);
		write_bytes(memory, size, ++mark);
		madvise(memory, size, MADV_PAGEOUT);
		child = fork();
		if (!child) {
			change_own_set(&seed);
			check_bytes("shared memory", memory, size, mark);
			write_bytes(memory, MIB, mark + 1000);
			_exit(0);
		}
		if (!reap("shared memory", child))
			check_bytes("shared memory, of a child", memory, MIB, mark + 1000);
		munmap(memory, size);
		close(file);
	}
}
