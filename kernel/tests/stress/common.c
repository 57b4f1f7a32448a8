// SPDX-License-Identifier: GPL-2.0-only
/* What the loads of kernel/stress share. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stress.h"

struct shared *shared;
bool uncolored;

void done(enum operation what, unsigned long count)
{
	__atomic_add_fetch(&shared->done[what], count, __ATOMIC_RELAXED);
}

void wrong(const char *text, ...)
{
	unsigned long before = __atomic_fetch_add(&shared->failures, 1, __ATOMIC_RELAXED);
	char line[512];
	va_list args;
	int length;

	/* The first ones say enough. */
	if (before >= 20)
		return;
	va_start(args, text);
	length = snprintf(line, sizeof(line), "# wrong: ");
	length += vsnprintf(line + length, sizeof(line) - length - 1, text, args);
	va_end(args);
	if (length > (int)sizeof(line) - 2)
		length = sizeof(line) - 2;
	line[length++] = '\n';
	/* In one piece, also while others write. */
	if (write(STDOUT_FILENO, line, length) < 0)
		_exit(1);
}

unsigned int random_below(unsigned int *seed, unsigned int below)
{
	return below ? rand_r(seed) % below : 0;
}

/* xorshift: neither zeroes, nor poison, nor the words of other pages. */
static uint64_t next_word(uint64_t word)
{
	word ^= word << 13;
	word ^= word >> 7;
	return word ^ word << 17;
}

static uint64_t first_word(uint64_t mark, size_t page)
{
	return ((mark + 1) * 0x9e3779b97f4a7c15ull) ^ ((page + 1) * 0xc2b2ae3d27d4eb4full);
}

void write_bytes(void *memory, size_t size, uint64_t mark)
{
	uint64_t *word = memory, value = 0;
	size_t i;

	for (i = 0; i < size / sizeof(*word); i++) {
		if (i % (PAGE / sizeof(*word)) == 0)
			value = first_word(mark, i / (PAGE / sizeof(*word)));
		word[i] = value;
		value = next_word(value);
	}
	if (size >= MIB)
		DONE_N(mib_written, size / MIB);
}

bool check_bytes(const char *whose, const void *memory, size_t size, uint64_t mark)
{
	const uint64_t *word = memory;
	uint64_t value = 0;
	size_t i;

	for (i = 0; i < size / sizeof(*word); i++) {
		if (i % (PAGE / sizeof(*word)) == 0)
			value = first_word(mark, i / (PAGE / sizeof(*word)));
		if (word[i] != value) {
			wrong("%s: byte %zu of %zu: %#llx instead of %#llx", whose,
			      i * sizeof(*word), size, (unsigned long long)word[i],
			      (unsigned long long)value);
			return false;
		}
		value = next_word(value);
	}
	if (size >= MIB)
		DONE_N(mib_verified, size / MIB);
	return true;
}

void *map(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	madvise(memory, size, MADV_NOHUGEPAGE);
	return memory;
}

/* At least half of the colors, so that there is enough memory of a strict set. */
static struct pc_set some_set(unsigned int *seed)
{
	unsigned int half = (pc_colors + 1) / 2;
	unsigned int first = random_below(seed, pc_colors - half + 1);

	return pc_range(first, half + random_below(seed, pc_colors - first - half + 1));
}

void change_own_set(unsigned int *seed)
{
	struct pc_set set = some_set(seed);
	bool strict = random_below(seed, 2);

	switch (random_below(seed, 4)) {
	case 0:
		prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_OFF, 0, 0, 0);
		break;
	case 1:
		prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SPREAD, 0, 0, 0);
		break;
	default:
		/* Refused while coloring is off, or outside of the group's. */
		if (!pc_confine(&set, strict) && strict)
			DONE(task_strict_sets);
	}
	DONE(task_sets_changed);
}

void some_colors(unsigned int *seed, char *text, size_t size)
{
	struct pc_set set = some_set(seed);
	unsigned int first = 0, last = pc_colors - 1;

	while (!pc_has(&set, first))
		first++;
	while (!pc_has(&set, last))
		last--;
	snprintf(text, size, "%u-%u", first, last);
}

int reap(const char *whose, int pid)
{
	int status;

	if (pid <= 0)
		return -1;
	while (waitpid(pid, &status, 0) != pid)
		if (errno != EINTR)
			return -1;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return -1;
	if (status)
		wrong("%s: a child ended with status %#x", whose, status);
	return status;
}

/* A lock of a process that was killed is free again. */
void settings_lock(void)
{
	int mine = getpid(), owner;

	for (;;) {
		owner = 0;
		if (__atomic_compare_exchange_n(&shared->settings_lock, &owner, mine, false,
						__ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
		if (kill(owner, 0) && errno == ESRCH)
			__atomic_compare_exchange_n(&shared->settings_lock, &owner, 0, false,
						    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
		else
			usleep(10000);
	}
}

void settings_unlock(void)
{
	__atomic_store_n(&shared->settings_lock, 0, __ATOMIC_RELEASE);
}
