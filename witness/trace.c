// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Tells a reader what a program under user-mode QEMU refers to, while it runs: nothing is kept on a disk.
 *
 *	-plugin trace.so,ring=FILE,parent=PID
 *
 *	ring	a file in memory that the reader made: a page with the places of both sides, then room for words
 *	parent	the reader; if it is gone, the program goes on without being seen
 *
 * What the words are, and what becomes of them: crates/lab/papers/src/program/trace.rs. The file is mapped and closed
 * before the program begins: a descriptor of ours could be closed, and its number be that of one of the program's own files.
 *
 * Threads write in the order in which the emulator ran them. A process that the program starts is not seen: neither are
 * those that take its place (execve), for which nothing is emulated.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "qemu.h"

#define EXPORT __attribute__((visibility("default")))
#define MAGIC 0x3165636172746873ULL /* "shtrace1" */
#define PAGE 4096ULL
#define ROUND(bytes) (((bytes) + PAGE - 1) & ~(PAGE - 1))
#define ADDRESS(address) (((uint64_t)(address) << 16 >> 16) << 8)

enum {
	REFERENCE, ANONYMOUS, OTHER, EMPTIED, MOVED, THREAD, PROCESS, EXECUTED, NOT_EXECUTED, RESERVED, OPENED, CLOSED,
};

/* System calls of x86-64 that change what memory is there, or who runs. */
enum {
	SYS_mmap = 9, SYS_mprotect = 10, SYS_munmap = 11, SYS_brk = 12, SYS_mremap = 25, SYS_madvise = 28, SYS_clone = 56, SYS_fork = 57,
	SYS_vfork = 58, SYS_execve = 59, SYS_execveat = 322,
	SYS_pkey_mprotect = 329,
};

#define GUEST_CLONE_VM 0x100
#define GUEST_CLONE_VFORK 0x4000

EXPORT int qemu_plugin_version = 1;

/* The ring's first page; each side writes a line of its own. */
struct head {
	uint64_t magic;
	_Alignas(64) _Atomic uint64_t written;
	_Alignas(64) _Atomic uint64_t taken;
	_Atomic uint64_t stop;
};

static struct head *head;
static uint64_t *ring, room;
/* Words written, and how many the reader was known to have taken. */
static uint64_t at, taken;
static pid_t reader;
static atomic_flag busy = ATOMIC_FLAG_INIT;
static atomic_bool off;
static atomic_bool begun;
static uint64_t program_break;
/* A thread of the program is one of the emulator. */
static __thread uint64_t arguments[4];

static void die(const char *what)
{
	fprintf(stderr, "trace: %s\n", what);
	exit(1);
}

static void lock(void)
{
	while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire))
		sched_yield();
}

static void unlock(void)
{
	atomic_flag_clear_explicit(&busy, memory_order_release);
}

/* Waits for room; false if nobody reads any more. */
static bool wait_for_room(void)
{
	const struct timespec nap = { 0, 100000 };

	for (;;) {
		taken = atomic_load_explicit(&head->taken, memory_order_acquire);
		if (atomic_load_explicit(&head->stop, memory_order_relaxed) || getppid() != reader) {
			atomic_store(&off, true);
			return false;
		}
		if (at - taken < room)
			return true;
		nanosleep(&nap, NULL);
	}
}

/* With the lock held. */
static inline void put(uint64_t word)
{
	if (at - taken >= room && (atomic_load_explicit(&off, memory_order_relaxed) || !wait_for_room()))
		return;
	ring[at % room] = word;
	at++;
	atomic_store_explicit(&head->written, at, memory_order_release);
}

static void put_range(uint64_t kind, uint64_t start, uint64_t bytes)
{
	lock();
	put(kind << 56 | ADDRESS(start));
	put(bytes);
	unlock();
}

static void put_event(uint64_t kind)
{
	lock();
	put(kind << 56);
	unlock();
}

static void on_access(unsigned int cpu, meminfo info, uint64_t address, void *own)
{
	(void)cpu;
	(void)own;
	if (atomic_load_explicit(&off, memory_order_relaxed))
		return;
	lock();
	put(ADDRESS(address) | (uint64_t)qemu_plugin_mem_size_shift(info) << 1 | qemu_plugin_mem_is_store(info));
	unlock();
}

/*
 * The anonymous memory that the program begins with: its bss, which lies behind what was mapped of a file. That of the
 * emulator's own is among it, and is never referred to. The stack is not: a kernel gives it no superpages.
 */
static void tell_beginning(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	uint64_t from, to, inode, end_of_file = 0;
	char rights[8];

	if (!maps)
		return;
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*s %*s %" SCNu64, &from, &to, rights, &inode) != 4)
			continue;
		if (inode)
			end_of_file = to;
		else if (from == end_of_file && !strcmp(rights, "rw-p"))
			put_range(ANONYMOUS, from, to - from);
	}
	fclose(maps);
}

static void on_block(uint64_t id, struct qemu_plugin_tb *block)
{
	(void)id;
	if (!atomic_exchange(&begun, true))
		tell_beginning();
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++)
		qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i), on_access, CB_NO_REGS, MEM_RW, NULL);
}

static void on_call(uint64_t id, unsigned int cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
		    uint64_t e, uint64_t f, uint64_t g, uint64_t h)
{
	(void)id, (void)cpu, (void)e, (void)f, (void)g, (void)h;
	if (atomic_load_explicit(&off, memory_order_relaxed))
		return;
	arguments[0] = a;
	arguments[1] = b;
	arguments[2] = c;
	arguments[3] = d;
	switch (number) {
	case SYS_clone:
		put_event((a & GUEST_CLONE_VM) && !(a & GUEST_CLONE_VFORK) ? THREAD : PROCESS);
		return;
	case SYS_fork:
	case SYS_vfork:
		put_event(PROCESS);
		return;
	case SYS_execve:
	case SYS_execveat:
		put_event(EXECUTED);
		return;
	default:
		return;
	}
}

static void moved(uint64_t from, uint64_t bytes, uint64_t to)
{
	lock();
	put((uint64_t)MOVED << 56 | ADDRESS(from));
	put(bytes);
	put(to);
	unlock();
}

static void on_return(uint64_t id, unsigned int cpu, int64_t number, int64_t result)
{
	uint64_t value = result, bytes = ROUND(arguments[1]), old;

	(void)id, (void)cpu;
	if (atomic_load_explicit(&off, memory_order_relaxed))
		return;
	if (number == SYS_execve || number == SYS_execveat) {
		/* It would not have returned. */
		put_event(NOT_EXECUTED);
		return;
	}
	if (value >= -PAGE)
		return;
	switch (number) {
	case SYS_mmap:
		if ((arguments[3] & MAP_ANONYMOUS) && (arguments[3] & MAP_PRIVATE))
			put_range(arguments[2] & PROT_WRITE ? ANONYMOUS : RESERVED, value, bytes);
		else
			put_range(OTHER, value, bytes);
		return;
	case SYS_mprotect:
	case SYS_pkey_mprotect:
		put_range(arguments[2] & PROT_WRITE ? OPENED : CLOSED, arguments[0], bytes);
		return;
	case SYS_munmap:
		put_range(OTHER, arguments[0], bytes);
		return;
	case SYS_brk:
		old = ROUND(program_break);
		program_break = value;
		if (old && ROUND(value) > old)
			put_range(ANONYMOUS, old, ROUND(value) - old);
		else if (ROUND(value) < old)
			put_range(OTHER, ROUND(value), old - ROUND(value));
		return;
	case SYS_mremap:
		old = bytes;
		bytes = ROUND(arguments[2]);
		if (bytes < old) {
			put_range(OTHER, arguments[0] + bytes, old - bytes);
			old = bytes;
		}
		if (value != arguments[0] && old)
			moved(arguments[0], old, value);
		/* Only anonymous memory is commonly enlarged. */
		if (bytes > old)
			put_range(ANONYMOUS, value + old, bytes - old);
		return;
	case SYS_madvise:
		if (arguments[2] == MADV_DONTNEED)
			put_range(EMPTIED, arguments[0], bytes);
		return;
	default:
		return;
	}
}

/* A copy of the program has all of this, and must not use it. */
static void in_child(void)
{
	atomic_store(&off, true);
	unlock();
}

EXPORT int qemu_plugin_install(uint64_t id, const void *about, int count, char **given);
EXPORT int qemu_plugin_install(uint64_t id, const void *about, int count, char **given)
{
	int file = open(option(count, given, "ring"), O_RDWR | O_CLOEXEC);
	struct stat status;
	void *mapped;

	(void)about;
	reader = atoi(option(count, given, "parent"));
	if (file < 0 || fstat(file, &status) || status.st_size < (off_t)(2 * PAGE))
		die("cannot open the ring");
	mapped = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (mapped == MAP_FAILED)
		die("cannot map the ring");
	head = mapped;
	ring = (uint64_t *)((char *)mapped + PAGE);
	room = (status.st_size - PAGE) / 8;
	if (head->magic)
		die("the ring is in use");
	if (pthread_atfork(NULL, NULL, in_child))
		die("cannot be told of copies of the program");
	head->magic = MAGIC;
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
	qemu_plugin_register_vcpu_syscall_cb(id, on_call);
	qemu_plugin_register_vcpu_syscall_ret_cb(id, on_return);
	return 0;
}
