// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A process to be tracked. Obeys one line at a time and answers each with one:
 *
 *   map MIB base|huge|half   maps and writes memory, a guard on each side; answers its address
 *   touch PAGE...            reads one byte of each page
 *   loop FIRST COUNT         a thread reads pages FIRST.. over and over; answers once it does
 *   laps COUNT               waits until it has been through them COUNT times more
 *   stop                     ends it
 *   noaccess FIRST COUNT     forbids all access
 *   unmap FIRST COUNT        unmaps
 *   forget                   has the kernel flush every translation of this process from the TLB
 *   zeroes                   maps 2 MiB and only reads; answers its address
 *   fork                     forks; the child obeys, and its parent again when it has left;
 *                            answers the child's number
 *   exec                     executes itself
 *   leave                    exits
 *   chaos | chaos-exec       changes the arena for ever, see below; never answers
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define PAGE 4096ul
#define HUGE (2ul << 20)
/*
 * The arena, of slots of 2 MiB:  slot % 4 == 0  base pages; only pages % 4 == 0 are ever touched
 *                                slot % 4 == 2  anything, collapsed at times
 *                                odd            never mapped
 */
#define ARENA 0x100000000000ul
#define SLOTS 64ul

static char *memory;
static atomic_int looping;
static atomic_ulong laps;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void touch(unsigned long page)
{
	(void)*(volatile char *)(memory + page * PAGE);
}

static void map(unsigned long mib, const char *kind)
{
	unsigned long length = mib << 20;
	char *all = mmap(0, length + 3 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (all == MAP_FAILED)
		die("mmap");
	memory = (char *)(((uintptr_t)all + 2 * HUGE - 1) & ~(HUGE - 1));
	if (mprotect(memory, length, PROT_READ | PROT_WRITE))
		die("mprotect");
	if (madvise(memory, length, strcmp(kind, "base") ? MADV_HUGEPAGE : MADV_NOHUGEPAGE))
		die("madvise");
	memset(memory, 1, length);
	if (!strcmp(kind, "half"))
		for (unsigned long at = 0; at < length; at += 2 * HUGE)
			/* To forbid writing to one page splits the huge page. */
			if (mprotect(memory + at, PAGE, PROT_READ) ||
			    mprotect(memory + at, PAGE, PROT_READ | PROT_WRITE))
				die("mprotect");
	/* It is to stay as it is: no work for khugepaged. */
	if (madvise(memory, length, MADV_NOHUGEPAGE))
		die("madvise");
}

/*
 * To unmap more pages than the kernel flushes one by one (33 by default) flushes all of them, and
 * before unmapping is done.
 */
static void forget(void)
{
	char *at = mmap(0, 256 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("mmap");
	madvise(at, 256 * PAGE, MADV_NOHUGEPAGE);
	for (unsigned long page = 0; page < 256; page++)
		at[page * PAGE] = 1;
	if (munmap(at, 256 * PAGE))
		die("munmap");
}

static void *loop(void *argument)
{
	unsigned long *range = argument;

	do {
		for (unsigned long page = range[0]; page < range[0] + range[1]; page++)
			touch(page);
		atomic_fetch_add(&laps, 1);
		if (atomic_load(&looping) == 1)
			atomic_store(&looping, 2);
	} while (atomic_load(&looping));
	return 0;
}

static char *slot_at(unsigned long slot)
{
	return (char *)(ARENA + slot * HUGE);
}

static void fill(unsigned long slot)
{
	char *at = mmap(slot_at(slot), HUGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	unsigned long step = slot % 4 ? 1 : 4;

	if (at == MAP_FAILED)
		die("mmap");
	if (step == 4)
		madvise(at, HUGE, MADV_NOHUGEPAGE);
	for (unsigned long page = 0; page < 512; page += step)
		at[page * PAGE] = 1;
}

static void chaos(int execs, char **arguments)
{
	uint64_t random = 88172645463325252ull ^ (uint64_t)getpid() ^ ((uint64_t)(uintptr_t)&execs << 17);

	for (unsigned long slot = 0; slot < SLOTS; slot += 2)
		fill(slot);
	for (unsigned long round = 0;; round++) {
		unsigned long slot, other;

		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		slot = random % SLOTS & ~1ul;
		other = (random >> 20) % SLOTS & ~3ul;
		switch ((random >> 40) % 9) {
		case 0:
		case 1:
			fill(slot);
			break;
		case 2:
			munmap(slot_at(slot), HUGE);
			break;
		case 3:
			madvise(slot_at(slot), HUGE, MADV_DONTNEED);
			break;
		case 4:
			slot &= ~3ul;
			if (slot != other)
				(void)!mremap(slot_at(slot), HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED,
					      slot_at(other));
			break;
		case 5:
			madvise(slot_at(slot | 2), HUGE, MADV_COLLAPSE);
			break;
		case 6:
			mprotect(slot_at(slot), HUGE / 2, random >> 50 & 1 ? PROT_NONE : PROT_READ);
			mprotect(slot_at(slot), HUGE, PROT_READ | PROT_WRITE);
			break;
		case 7:
			/* Gives whole page tables back. */
			munmap(slot_at(0), SLOTS * HUGE);
			break;
		case 8:
			if (round % 16 == 0) {
				pid_t child = fork();

				if (child == 0)
					_exit(0);
				if (child > 0)
					waitpid(child, 0, 0);
			}
			break;
		}
		if (execs && round == 50)
			execv("/proc/self/exe", arguments);
	}
}

int main(int count, char **arguments)
{
	static char line[1 << 20];
	static unsigned long range[2];
	pthread_t thread;

	if (count > 1)
		chaos(1, arguments);
	/* What is read ahead is lost to the program that `exec` starts. */
	setvbuf(stdin, 0, _IONBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		char *rest = line, *order = strtok_r(rest, " \n", &rest), *word;
		unsigned long numbers[2] = { 0, 0 };

		if (!order)
			continue;
		if (!strcmp(order, "touch")) {
			while ((word = strtok_r(0, " \n", &rest)))
				touch(strtoul(word, 0, 10));
			puts("ok");
			fflush(stdout);
			continue;
		}
		word = strtok_r(0, " \n", &rest);
		numbers[0] = word ? strtoul(word, 0, 10) : 0;
		word = strtok_r(0, " \n", &rest);
		numbers[1] = word ? strtoul(word, 0, 10) : 0;
		if (!strcmp(order, "map")) {
			map(numbers[0], word);
		} else if (!strcmp(order, "loop")) {
			memcpy(range, numbers, sizeof(range));
			atomic_store(&looping, 1);
			if (pthread_create(&thread, 0, loop, range))
				die("pthread_create");
			while (atomic_load(&looping) != 2)
				sched_yield();
		} else if (!strcmp(order, "laps")) {
			unsigned long until = atomic_load(&laps) + numbers[0];

			while (atomic_load(&laps) < until)
				;
		} else if (!strcmp(order, "stop")) {
			atomic_store(&looping, 0);
			pthread_join(thread, 0);
		} else if (!strcmp(order, "noaccess")) {
			if (mprotect(memory + numbers[0] * PAGE, numbers[1] * PAGE, PROT_NONE))
				die("mprotect");
		} else if (!strcmp(order, "unmap")) {
			if (munmap(memory + numbers[0] * PAGE, numbers[1] * PAGE))
				die("munmap");
		} else if (!strcmp(order, "forget")) {
			forget();
		} else if (!strcmp(order, "zeroes")) {
			memory = mmap(0, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (memory == MAP_FAILED)
				die("mmap");
			madvise(memory, HUGE, MADV_NOHUGEPAGE);
			for (unsigned long page = 0; page < 512; page++)
				touch(page);
		} else if (!strcmp(order, "fork")) {
			pid_t child = fork();

			if (child < 0)
				die("fork");
			if (child > 0) {
				waitpid(child, 0, 0);
				continue;
			}
			/* Killed with the parent, or the pipes would stay open. */
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			printf("ok %d\n", getpid());
			fflush(stdout);
			continue;
		} else if (!strcmp(order, "exec")) {
			execv("/proc/self/exe", arguments);
			die("execv");
		} else if (!strcmp(order, "leave")) {
			return 0;
		} else if (!strcmp(order, "chaos")) {
			puts("ok 0");
			fflush(stdout);
			chaos(0, arguments);
		} else if (!strcmp(order, "chaos-exec")) {
			char *again[] = { arguments[0], "chaos", 0 };

			puts("ok 0");
			fflush(stdout);
			chaos(1, again);
		}
		printf("ok %lu\n", (unsigned long)memory);
		fflush(stdout);
	}
	return 0;
}
