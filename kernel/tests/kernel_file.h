/* SPDX-License-Identifier: GPL-2.0-only */
/* The files of /proc, /sys and the like: numbers in them, and what is written to them. */
#ifndef KERNEL_FILE_H
#define KERNEL_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Reads on to a line that begins with @key and a space, and the number after that; false at the end. */
static inline bool next_number(FILE *file, const char *key, long *value)
{
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, key, strlen(key)) && line[strlen(key)] == ' ') {
			*value = atol(line + strlen(key));
			return true;
		}
	return false;
}

/* The number of the last such line; -1 without one. */
static inline long number_in(const char *path, const char *key)
{
	FILE *file = fopen(path, "re");
	long value = -1;

	while (next_number(file, key, &value))
		;
	if (file)
		fclose(file);
	return value;
}

/* The sum of the numbers of all such lines. */
static inline long sum_in(const char *path, const char *key)
{
	FILE *file = fopen(path, "re");
	long sum = 0, value;

	while (next_number(file, key, &value))
		sum += value;
	if (file)
		fclose(file);
	return sum;
}

/* Writes @text to a file; false with errno if that is not possible. */
static inline bool put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC), error;
	bool done = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);

	error = errno;
	if (file >= 0)
		close(file);
	errno = error;
	return done;
}

/* A kernel with PREEMPT_RT has none. */
static inline bool has_thp(void)
{
	return !access("/sys/kernel/mm/transparent_hugepage", F_OK);
}

/*
 * Switches a memory block, for so many seconds at most: the kernel tries again and again, until it succeeds or a
 * signal comes, which is a child's, so that no alarm of the caller is lost. Returns 0 or an error number.
 */
static inline int switch_block(unsigned int block, const char *state, unsigned int seconds)
{
	char path[64];
	int status;
	pid_t child;

	snprintf(path, sizeof(path), "/sys/devices/system/memory/memory%u/state", block);
	fflush(stdout);
	child = fork();
	if (!child) {
		signal(SIGALRM, SIG_DFL);
		alarm(seconds);
		_exit(put(path, state) ? 0 : errno);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
}

#endif
