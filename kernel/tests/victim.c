// SPDX-License-Identifier: GPL-2.0-only
/*
 * Somebody without colors has nearly all memory, or reads more files than there is room for; and a strict group
 * wants what its colors have. It is neither killed nor given other pages: what is in its way is moved, and while
 * its colors are reserved nobody else comes there. Who has too much is killed, as in any kernel.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include "hostile.h"

/* One of so many parts of the colors is the group's. */
#define PART		4
/* Of files, while the others have an eighth of the colors. */
#define FILE_PATH	"/disk/victim.file"

static unsigned int colors;

static size_t free_bytes(void)
{
	return number_in("/proc/meminfo", "MemFree:") * 1024;
}

/* The same when what has ended has given back its memory: until it has not grown for a second, half a minute at most. */
static size_t settled_free_bytes(void)
{
	size_t before, now = free_bytes();
	int seconds = 0;

	do {
		before = now;
		sleep(1);
		now = free_bytes();
	} while (now > before + 8 * MIB && ++seconds < 30);
	return now;
}

static long outside_of(pid_t process)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/page_color", process);
	return number_in(path, "outside");
}

static bool reserve(unsigned int first)
{
	char text[32];

	snprintf(text, sizeof(text), "%u-%u", first, colors - 1);
	return put(SYSCTL "page_color_unassigned", text);
}

static void reserve_nothing(void)
{
	put(SYSCTL "page_color_unassigned", "\n");
}

/* A task of a group that fills so much memory, and keeps it. */
static pid_t begin_in(const char *group, size_t bytes, bool huge, struct shared *shared)
{
	pid_t child = fork();

	if (!child) {
		char *memory;

		if (!group_put(group, "cgroup.procs", "0"))
			_exit(1);
		be_nobody();
		memory = map(bytes);
		if (huge)
			madvise(memory, bytes, MADV_HUGEPAGE);
		fill(memory, bytes);
		shared->ready = 1;
		for (;;)
			pause();
	}
	return child;
}

/* An ordinary one: its group has no colors. */
static pid_t begin_hog(size_t bytes, bool huge, struct shared *shared)
{
	return begin_in("hog", bytes, huge, shared);
}

/* One of the strict group that fills so much memory and looks at it. */
static pid_t begin_strict(size_t bytes, struct shared *shared)
{
	pid_t child = fork();

	if (!child) {
		char *memory;

		if (!group_put("strict", "cgroup.procs", "0"))
			_exit(1);
		be_nobody();
		memory = map(bytes);
		fill(memory, bytes);
		shared->spoilt = !intact(memory, bytes);
		shared->ready = 1;
		for (;;)
			pause();
	}
	return child;
}

/* Waits until a child has its memory, or is gone; whether it has. */
static bool has_memory(pid_t child, struct shared *shared, double seconds)
{
	double end = now() + seconds;

	while (!shared->ready && now() < end && !waitpid(child, NULL, WNOHANG))
		pause_for(0.05);
	return shared->ready;
}

static bool make_groups(void)
{
	group_make("hog");
	group_make("strict");
	return group_put("strict", "cpuset.colors", "0-%u", colors / PART - 1) && group_put("strict", "cpuset.colors.strict", "1");
}

static void end_groups(void)
{
	group_end("hog", 30);
	group_end("strict", 30);
}

/* Memory is there, but not in the colors of the group: the hog has them as well as all others. */
static void moved(bool huge)
{
	struct shared *hog = share(), *strict = share();
	long evicted = number_in("/proc/vmstat", "page_color_evict"), killed, outside;
	size_t all = settled_free_bytes(), wanted = all / 100 * 7;
	bool begun, done;
	pid_t victim;

	make_groups();
	begun = has_memory(begin_hog(all / 100 * 82, huge, hog), hog, 200);
	victim = begin_strict(wanted, strict);
	done = has_memory(victim, strict, 200);
	outside = outside_of(victim);
	killed = group_number("strict", "memory.events", "oom_kill") + group_number("hog", "memory.events", "oom_kill");
	evicted = number_in("/proc/vmstat", "page_color_evict") - evicted;
	ksft_print_msg("%zu of %zu MiB free, %zu wanted of a %dth: %s, %ld pages moved, %ld outside, %ld killed\n",
		       free_bytes() / MIB, all / MIB, wanted / MIB, PART, done ? "had" : "not had", evicted, outside, killed);
	/* Huge pages may leave blocks that have enough pages of these colors. */
	if (huge && begun && done && !evicted)
		ksft_test_result_skip("nothing was in the way of a strict group beside a hog with huge pages\n");
	else
		ksft_test_result(begun && done && !strict->spoilt && !killed && evicted > 0 && outside >= 0 && outside < 512,
				 "a strict group has its colors beside a hog%s\n", huge ? " with huge pages" : "");
	end_groups();
}

/* The colors of the group are reserved: who needs more than there is of others is killed. */
static void killed(void)
{
	struct shared *hog = share(), *strict = share(), *other = share();
	size_t all = settled_free_bytes(), wanted = all / PART / 100 * 80;
	long outside, kills, hogs;
	bool begun, done, second;
	pid_t holder, rival, victim;

	make_groups();
	if (!reserve(colors / PART)) {
		ksft_test_result_fail("colors cannot be reserved\n");
		goto end;
	}
	holder = begin_hog(all / 100 * 60, false, hog);
	begun = has_memory(holder, hog, 200);
	outside = outside_of(holder);
	/* There is as much for both, but not of the colors that are left to them. */
	rival = begin_hog(all / 100 * 33, false, other);
	second = has_memory(rival, other, 200);
	if (second)
		outside += outside_of(rival);
	hogs = group_number("hog", "memory.events", "oom_kill");
	victim = begin_strict(wanted, strict);
	done = has_memory(victim, strict, 200);
	kills = group_number("strict", "memory.events", "oom_kill");
	ksft_print_msg("of two hogs %ld were killed, and had %ld pages outside; the group %s %zu MiB, %ld outside, %ld killed\n",
		       hogs, outside, done ? "has" : "has not", wanted / MIB, outside_of(victim), kills);
	/* Of the program itself some pages are in memory since the machine began. */
	ksft_test_result(begun && outside >= 0 && outside < 128 && hogs > 0, "who has no colors is killed rather than given reserved ones\n");
	ksft_test_result(done && !strict->spoilt && !kills && outside_of(victim) < 512, "a strict group has what is reserved for it\n");
end:
	reserve_nothing();
	end_groups();
}

/*
 * A group that is not strict takes unassigned pages when it has used up its colors. If these are short because
 * of it, a task of the group is killed, and not an ordinary one that has less of them.
 */
static void blamed(void)
{
	struct shared *lax = share(), *hog = share();
	size_t all = settled_free_bytes();
	long lax_kills, hog_kills;
	bool begun, done;

	group_make("hog");
	group_make("lax");
	if (!group_put("lax", "cpuset.colors", "0-%u", colors / 16 - 1) || !reserve(colors / 2)) {
		ksft_test_result_fail("colors cannot be reserved\n");
		goto end;
	}
	/* A sixteenth of its own, and most of the half that is unassigned. */
	begun = has_memory(begin_in("lax", all / 100 * (6 + 36), false, lax), lax, 200);
	done = has_memory(begin_hog(all / 100 * 20, false, hog), hog, 200);
	lax_kills = group_number("lax", "memory.events", "oom_kill");
	hog_kills = group_number("hog", "memory.events", "oom_kill");
	ksft_print_msg("the group that has 42 %% %s begun, %ld of it killed; the task that needs 20 %% %s, %ld killed\n",
		       begun ? "has" : "has not", lax_kills, done ? "has it" : "has it not", hog_kills);
	ksft_test_result(begun && done && lax_kills == 1 && !hog_kills,
			 "a group that is not strict answers for the unassigned pages that it has\n");
end:
	reserve_nothing();
	group_end("lax", 30);
	end_groups();
}

/* Free pages of the colors from @first on, as /proc/page_color counts them. */
static long free_pages(unsigned int first)
{
	FILE *file = fopen("/proc/page_color", "re");
	unsigned int color;
	char line[256];
	long sum = 0, pages;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "%u %ld", &color, &pages) == 2 && color >= first && color < colors)
			sum += pages;
	if (file)
		fclose(file);
	return sum;
}

/* So many pages, each of which needs a page table of its own. */
static pid_t begin_tables(size_t pages, struct shared *shared)
{
	pid_t child = fork();

	if (!child) {
		char *memory;

		if (!group_put("strict", "cgroup.procs", "0"))
			_exit(1);
		be_nobody();
		memory = map(pages * 2 * MIB);
		for (shared->rounds = 0; shared->rounds < pages; shared->rounds++)
			*(volatile char *)(memory + shared->rounds * 2 * MIB) = 1;
		shared->ready = 1;
		for (;;)
			pause();
	}
	return child;
}

/* The page tables of a group are the kernel's own memory. They do not take all that is left to those without colors. */
static void tables(void)
{
	long least = 0, lowest, now_free, spilled;
	unsigned int first = colors - colors / 8;
	struct shared *strict = share();
	double end = now() + 300;
	size_t pages;
	pid_t child;
	FILE *file = fopen("/proc/sys/vm/min_free_kbytes", "re");

	if (file && fscanf(file, "%ld", &least) == 1)
		least = least * 1024 / PAGE / 2;
	if (file)
		fclose(file);
	make_groups();
	if (!reserve(first)) {
		ksft_test_result_fail("colors cannot be reserved\n");
		goto end;
	}
	spilled = number_in("/proc/vmstat", "page_color_spill");
	lowest = free_pages(first);
	pages = lowest + lowest / 4;
	child = begin_tables(pages, strict);
	while (!strict->ready && now() < end && !waitpid(child, NULL, WNOHANG)) {
		now_free = free_pages(first);
		if (now_free < lowest)
			lowest = now_free;
		pause_for(0.05);
	}
	spilled = number_in("/proc/vmstat", "page_color_spill") - spilled;
	ksft_print_msg("%lu of %zu page tables; of the unassigned pages %ld were free at least, half of the watermarks are %ld; %ld spilled\n",
		       strict->rounds, pages, lowest, least, spilled);
	ksft_test_result(strict->ready && lowest >= least && spilled > 0,
			 "page tables of a group leave unassigned pages to others\n");
end:
	reserve_nothing();
	end_groups();
}

/* Pages of a file that are outside of the unassigned colors, as this program maps it. */
static long file_outside(int file, size_t bytes)
{
	long before = outside_of(getpid()), after;
	char *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);

	if (memory == MAP_FAILED)
		return -1;
	for (size_t at = 0; at < bytes; at += PAGE)
		(void)*(volatile char *)(memory + at);
	after = outside_of(getpid());
	munmap(memory, bytes);
	return after - before;
}

/* More of files than there is room for in the colors that are left to all. */
static void cached(void)
{
	static char block[MIB];
	size_t bytes = 0, most = number_in("/proc/meminfo", "MemTotal:") * 1024 / 8 * 5 / 4;
	int file = open(FILE_PATH, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	long outside = -1, spilled = number_in("/proc/vmstat", "page_color_spill");

	if (file < 0) {
		ksft_test_result_skip("there is no disk\n");
		return;
	}
	unlink(FILE_PATH);
	if (reserve(colors - colors / 8)) {
		while (bytes < most && write(file, block, MIB) == (ssize_t)MIB)
			bytes += MIB;
		fsync(file);
		outside = file_outside(file, bytes);
		spilled = number_in("/proc/vmstat", "page_color_spill") - spilled;
	}
	ksft_print_msg("of %zu MiB of a file %ld pages are in reserved colors; %ld pages of the kernel itself are\n",
		       bytes / MIB, outside, spilled);
	ksft_test_result(bytes && outside == 0, "what is read and written stays out of reserved colors\n");
	reserve_nothing();
	close(file);
}

int main(void)
{
	bool swap;

	colors = begin();
	if (colors < 32)
		ksft_exit_skip("fewer than 32 colors\n");
	ksft_set_plan(7);
	put("/proc/sys/vm/drop_caches", "3");
	swap = swap_switch(false);
	moved(false);
	if (has_thp())
		moved(true);
	else
		ksft_test_result_skip("there are no huge pages\n");
	killed();
	blamed();
	tables();
	if (swap)
		swap_switch(true);
	cached();
	ksft_finished();
}
