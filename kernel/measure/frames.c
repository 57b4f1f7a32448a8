// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which page frames the kernel deals to programs: draws for the lab, which puts them under models of caches.
 *
 * The words after frames= on the kernel's command line say how, parted by commas:
 *
 *	fresh|aged	memory as it is after boot; or: another process has most of it and gave every
 *			other page back, in random order, so that the free lists are mixed
 *	base|thp	base pages only; or superpages wherever the kernel has them
 *	off|spread|sets	tasks as they are; all take all colors in turn; or halves of the colors, by
 *			bit 17 of the physical address
 *	few		a fifth of the draws
 *
 * Each draw is a process of its own, begun by exec: it maps memory as malloc() would, which the
 * kernel may align or not, touches it in the order of the addresses, and reads its page frame numbers
 * from /proc/self/pagemap and whether they are part of superpages from /proc/kpageflags. Before each
 * draw pages are taken and others given back, so that no draw has just what the one before gave back.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "dealt.h"

#define MOST_PAGES (64 * MIB / PAGE)

#define PR_PAGE_COLOR 0x50434f4c
#define PR_PAGE_COLOR_SET 1
/* Of the geometry bits:12-20, which kernel/frames boots with: bit 17 is bit 5 of the color. */
#define COLORS 512
#define BIT 5

struct plan {
	const char *name;
	unsigned long kib, draws;
};

/* What the figures need: kernel/frames --help says where each is used. */
static const struct plan base_plans[] = {
	{ "small", 768, 40 }, { "middle", 4096, 40 }, { "large", 49152, 24 },
	{ "task", 1024, 300 }, { "partner", 4096, 300 }, { NULL, 0, 0 },
};
static const struct plan thp_plans[] = {
	{ "small", 768, 40 },	  { "dim400", 2500, 24 },   { "dim600", 5625, 24 },
	{ "dim800", 10000, 24 },  { "dim1000", 15625, 24 }, { "dim1200", 22500, 24 },
	{ "dim1500", 35157, 24 }, { "fft64k", 3072, 24 },   { "product", 23438, 24 },
	{ "fft1M", 49152, 24 },	  { NULL, 0, 0 },
};
static const struct plan set_plans[] = {
	{ "task", 1024, 300 }, { "partner", 4096, 300 }, { NULL, 0, 0 },
};

/* One draw: to standard output goes a word for each page. */
static void draw(size_t size, int thp)
{
	static uint64_t entries[MOST_PAGES];
	static uint32_t words[MOST_PAGES];
	size_t pages = size / PAGE;
	char *memory = map(size);

	/* What it needs itself comes first. */
	touch((char *)entries, sizeof(*entries) * pages);
	touch((char *)words, sizeof(*words) * pages);
	if (madvise(memory, size, thp ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) && thp)
		die("MADV_HUGEPAGE");
	touch(memory, size);
	own_frames(memory, pages, thp, entries, words);
	/* The address says where superpages could begin. */
	write_all(STDOUT_FILENO, &(uint32_t){ (uintptr_t)memory / PAGE % 512 }, 4);
	write_all(STDOUT_FILENO, words, pages * 4);
}

/* Takes the colors whose bit BIT is as wanted. */
static void confine(int bit)
{
	uint64_t colors[COLORS / 64] = { 0 };

	for (int color = 0; color < COLORS; color++)
		if ((color >> BIT & 1) == bit)
			colors[color / 64] |= 1ULL << (color % 64);
	if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, colors, sizeof(colors), 0) < 0)
		die("PR_PAGE_COLOR_SET");
}

static void run(const struct plan *plan, int aged, int thp, int bit, int disk)
{
	static uint32_t words[MOST_PAGES + 1];
	size_t pages = (plan->kib + 3) / 4, hold = any(2048) * PAGE + PAGE;
	char kib[32], name[64], *held, flag[2] = { thp ? '1' : '0', 0 };
	pid_t child;
	int from;

	/* Others come and go. */
	held = map(hold);
	madvise(held, hold, MADV_NOHUGEPAGE);
	touch(held, hold);
	child = fork_heard(&from);
	if (!child) {
		if (bit >= 0)
			confine(bit);
		snprintf(kib, sizeof(kib), "%zu", pages * 4);
		execl("/proc/self/exe", "frames", "draw", kib, flag, NULL);
		die("exec");
	}
	hear(child, from, words, (pages + 1) * 4);
	/* In random order, so that the lists are mixed further; what is fresh stays in order. */
	for (size_t at = 0; aged && at < hold; at += PAGE)
		madvise(held + any(hold / PAGE) * PAGE, PAGE, MADV_DONTNEED);
	munmap(held, hold);
	snprintf(name, sizeof(name), "%s%s", plan->name, bit < 0 ? "" : bit ? "-high" : "-low");
	put_draw(disk, name, words, pages);
}

int main(int argc, char **argv)
{
	const struct plan *plans = base_plans;
	int aged, thp, few, spread, sets, disk;
	pid_t other = 0;
	size_t most = 0;
	char *how;

	if (argc == 4 && !strcmp(argv[1], "draw")) {
		draw(strtoul(argv[2], NULL, 10) * KIB, argv[3][0] == '1');
		return 0;
	}
	printf("TAP version 13\n1..1\n");
	fflush(stdout);
	how = asked("frames=");
	aged = !!strstr(how, "aged");
	thp = !!strstr(how, "thp");
	few = !!strstr(how, "few");
	spread = !!strstr(how, "spread");
	sets = !!strstr(how, "sets");
	disk = open_disk();
	/* Guests with little memory have it off. */
	set("/sys/kernel/mm/transparent_hugepage/enabled", thp ? "always" : "never");
	seed(how);
	if (aged)
		other = age();
	if (spread)
		set("/proc/sys/vm/page_color_spread", "1");
	if (thp)
		plans = thp_plans;
	else if (sets)
		plans = set_plans;
	begin_dump(disk, how);
	for (const struct plan *plan = plans; plan->name; plan++)
		if (plan->draws > most)
			most = plan->draws;
	/* In turns, so that the plans have the same mixture of memory. */
	for (size_t i = 0; i < most; i++)
		for (const struct plan *plan = plans; plan->name; plan++) {
			if (i >= (few ? (plan->draws + 4) / 5 : plan->draws))
				continue;
			if (sets)
				/* The task has one half, its partner the other. */
				run(plan, aged, thp, !strcmp(plan->name, "partner"), disk);
			else
				run(plan, aged, thp, -1, disk);
		}
	end_dump(disk);
	if (other)
		kill(other, SIGKILL);
	printf("ok 1 measured\n");
	return 0;
}
