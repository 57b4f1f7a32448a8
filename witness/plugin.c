// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The witness: sees each load and store of a program in an emulated machine, with its physical address, and
 * has a model of caches and TLBs count what misses.
 *
 *	-plugin witness.so,ram=FILE,machines=FILE,counts=FILE
 *
 *	ram		the file that the guest's memory is shared in; of no more than 2 GiB, so that it has no hole
 *	machines	what is modelled, as witness/run writes it
 *	counts		where a line goes for each point
 *
 * One CPU. What counts is what instructions at addresses of user space do at addresses of user space, neither
 * the kernel's references nor those of page walks, which the model makes itself: either all that the program does,
 * or what it does to the memory of its loop.
 *
 * The API tells physical addresses, but neither page sizes nor where page tables are. So the plugin finds the
 * root of the tables in the guest's memory: the page that, taken for a root, leads from the address of the bell
 * to the frame that a store to it went to. Each walk from there must end where QEMU says that the access went.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bell.h"
#include "model.h"
#include "qemu.h"

#define EXPORT __attribute__((visibility("default")))
#define USER_END (1ULL << 47)
#define MOST_MACHINES 16
#define MOST_ROOTS 64

/* Of an entry of a page table. */
#define PRESENT 1ULL
#define USER 4ULL
#define LARGE (1ULL << 7)
#define FRAME 0x000ffffffffff000ULL

EXPORT int qemu_plugin_version = 1;

/* A page of the program, as it was when the kernel had run `epoch` times. */
struct page {
	uint64_t number, epoch, frame;
	struct walk walk;
};

static const unsigned char *ram;
static uint64_t ram_size;
static FILE *counts;
static struct machine machines[MOST_MACHINES];
static unsigned int machine_count;

/* Blocks of the kernel's code that ran: only there translations change. */
static uint64_t kernel_ran;
/* Roots that lead to the bell, of which one is alive: others are of programs that ended and are not overwritten yet. */
static uint64_t roots[MOST_ROOTS];
static unsigned int root_count;
static struct page pages[4096];
static uint64_t walks_checked;

static struct machine *active;
static bool counting;
static uint64_t outside, started;
static struct counts before;
static struct bell bell;

static void die(const char *what)
{
	fprintf(stderr, "witness: %s\n", what);
	exit(1);
}

static uint64_t nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static uint64_t entry_at(uint64_t physical)
{
	uint64_t entry = 0;

	if (physical <= ram_size - 8)
		memcpy(&entry, ram + physical, 8);
	return entry;
}

/* From a root to the frame of an address; false if it leads nowhere. */
static bool walk_from(uint64_t from, uint64_t address, struct walk *walk, uint64_t *frame)
{
	uint64_t table = from, at, entry;

	for (int shift = 39;; shift -= 9) {
		at = table + (address >> shift & 511) * 8;
		entry = entry_at(at);
		if (!(entry & PRESENT) || !(entry & USER))
			return false;
		if (shift == 12)
			break;
		if (entry & LARGE) {
			if (shift != 21)
				return false;
			walk->directory = at;
			walk->super = true;
			*frame = (entry & FRAME & ~((1ULL << 21) - 1)) | (address & ((1ULL << 21) - 1) & ~4095ULL);
			return true;
		}
		if (shift == 21)
			walk->directory = at;
		table = entry & FRAME;
	}
	walk->entry = at;
	walk->super = false;
	*frame = entry & FRAME;
	return true;
}

static void find_roots(uint64_t physical)
{
	uint64_t frame;
	struct walk walk;

	root_count = 0;
	for (uint64_t at = 0; at < ram_size; at += 4096) {
		if (!walk_from(at, BELL_ADDRESS, &walk, &frame) || frame != (physical & ~4095ULL))
			continue;
		if (root_count == MOST_ROOTS)
			die("too many page tables lead to the program's memory");
		roots[root_count++] = at;
	}
}

/* From the root that is alive: one that leads elsewhere than the access went is none, and is forgotten. */
static void walk_to(uint64_t address, uint64_t frame, struct walk *walk)
{
	uint64_t found;

	while (root_count && (!walk_from(roots[root_count - 1], address, walk, &found) || found != frame))
		root_count--;
	if (!root_count)
		die("no page table leads to where the program's accesses go");
}

static uint64_t physical_of(meminfo info, uint64_t address)
{
	struct qemu_plugin_hwaddr *found = qemu_plugin_get_hwaddr(info, address);

	if (!found || qemu_plugin_hwaddr_is_io(found))
		die("an access of the program went to no memory");
	return qemu_plugin_hwaddr_phys_addr(found);
}

/* What is known of the page of an address; where the access went is what QEMU says. */
static const struct page *page_of(meminfo info, uint64_t address)
{
	uint64_t number = address >> 12;
	struct page *page = &pages[number & 4095];

	if (page->number == number && page->epoch == kernel_ran + 1)
		return page;
	page->number = number;
	page->epoch = kernel_ran + 1;
	page->frame = physical_of(info, address) & ~4095ULL;
	walk_to(address, page->frame, &page->walk);
	walks_checked++;
	return page;
}

/* Where the tables are that map the loop's memory, in frames: the directory, then one for each 2 MiB; of a superpage 0. */
static void tell_tables(void)
{
	uint64_t first = bell.from >> 21, frame;
	struct walk walk;

	for (uint64_t block = first; block <= (bell.to - 1) >> 21; block++) {
		if (!root_count || !walk_from(roots[root_count - 1], block == first ? bell.from : block << 21, &walk, &frame))
			die("the memory of the loop is not mapped");
		if (block == first)
			fprintf(counts, " address=%" PRIu64 " directory=%" PRIu64, bell.from, walk.directory >> 12);
		fprintf(counts, " table%" PRIu64 "=%" PRIu64, block - first, walk.super ? 0 : walk.entry >> 12);
	}
}

static void ring(uint64_t physical)
{
	struct counts *now;
	double seconds;

	memcpy(&bell, ram + (physical & ~4095ULL), sizeof(bell));
	switch (bell.ring) {
	case BELL_FILL:
		find_roots(physical);
		active = NULL;
		for (unsigned int i = 0; i < machine_count; i++)
			if (!strcmp(machines[i].name, bell.machine))
				active = &machines[i];
		if (!active)
			die("the program asks for a machine that is not there");
		model_reset(active);
		walks_checked = 0;
		return;
	case BELL_COUNT:
		if (!active)
			die("nothing was filled");
		before = active->counts;
		outside = 0;
		counting = true;
		started = nanoseconds();
		return;
	case BELL_END:
		if (!active || !counting)
			die("nothing was counted");
		seconds = (nanoseconds() - started) / 1e9;
		now = &active->counts;
		fprintf(counts,
			"point %s %s %s loads=%" PRIu64 " stores=%" PRIu64 " outside=%" PRIu64 " memory=%" PRIu64
			" tlb_misses=%" PRIu64 " walks=%" PRIu64 " walk_memory=%" PRIu64 " write_backs=%" PRIu64
			" pages_checked=%" PRIu64 " seconds=%.6f",
			bell.point, bell.machine, bell.whole ? "whole" : "loop", now->loads - before.loads, now->stores - before.stores, outside,
			now->memory - before.memory, now->tlb_misses - before.tlb_misses, now->walks - before.walks,
			now->walk_memory - before.walk_memory, now->write_backs - before.write_backs, walks_checked,
			seconds);
		if (!bell.whole)
			tell_tables();
		fputc('\n', counts);
		fflush(counts);
		active = NULL;
		counting = false;
		return;
	default:
		die("the bell rang for nothing that is known");
	}
}

static void on_access(unsigned int cpu, meminfo info, uint64_t address, void *own)
{
	const struct page *page;

	(void)cpu;
	(void)own;
	if (address >> 12 == BELL_ADDRESS >> 12) {
		if (address == BELL_ADDRESS + offsetof(struct bell, ring) && qemu_plugin_mem_is_store(info))
			ring(physical_of(info, address));
		return;
	}
	if (!active || address >= USER_END)
		return;
	if (address < bell.from || address >= bell.to) {
		outside++;
		if (!bell.whole)
			return;
	}
	page = page_of(info, address);
	model_reference(active, address, page->frame | (address & 4095), qemu_plugin_mem_is_store(info), &page->walk);
}

static void on_block(uint64_t id, struct qemu_plugin_tb *block)
{
	(void)id;
	if (qemu_plugin_tb_vaddr(block) >= USER_END) {
		qemu_plugin_register_vcpu_tb_exec_inline(block, INLINE_ADD_U64, &kernel_ran, 1);
		return;
	}
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++)
		qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i), on_access, CB_NO_REGS, MEM_RW, NULL);
}

EXPORT int qemu_plugin_install(uint64_t id, const void *about, int count, char **given);
EXPORT int qemu_plugin_install(uint64_t id, const void *about, int count, char **given)
{
	int file = open(option(count, given, "ram"), O_RDONLY);
	FILE *described = fopen(option(count, given, "machines"), "r");
	struct stat status;

	(void)about;
	counts = fopen(option(count, given, "counts"), "w");
	if (file < 0 || fstat(file, &status) || !described || !counts)
		die("cannot open its files");
	ram_size = status.st_size;
	if (!ram_size || ram_size > 2ULL << 30)
		die("the guest's memory must be of 1 byte to 2 GiB");
	ram = mmap(NULL, ram_size, PROT_READ, MAP_SHARED, file, 0);
	if (ram == MAP_FAILED)
		die("cannot map the guest's memory");
	machine_count = model_read(described, machines, MOST_MACHINES);
	fclose(described);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
	return 0;
}
