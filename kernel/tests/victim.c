// SPDX-License-Identifier: GPL-2.0-only
/*
 * Somebody without colors has nearly all memory, or reads more files than there is room for; and a strict group
 * wants what its colors have. It is neither killed nor given other pages: what is in its way is moved, and while
 * its colors are reserved nobody else comes there. Who has too much is killed, as in any kernel. What the kernel
 * itself needs for the group leaves room to the others, and does not get into the colors of other groups. Nobody
 * has to wait for a task that is stuck.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
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

/* A task of a group that fills so much memory, looks at it, and keeps it. */
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
		shared->spoilt = !intact(memory, bytes);
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

static pid_t begin_strict(size_t bytes, struct shared *shared)
{
	return begin_in("strict", bytes, false, shared);
}

/* Waits until a child has its memory, or is gone, and calls @watch meanwhile; whether it has. */
static bool is_done(pid_t child, struct shared *shared, double seconds, void (*watch)(void))
{
	double end = now() + seconds;

	while (!shared->ready && now() < end && !waitpid(child, NULL, WNOHANG)) {
		if (watch)
			watch();
		pause_for(0.05);
	}
	return shared->ready;
}

static bool has_memory(pid_t child, struct shared *shared)
{
	return is_done(child, shared, 200, NULL);
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
	begun = has_memory(begin_hog(all / 100 * 82, huge, hog), hog);
	victim = begin_strict(wanted, strict);
	done = has_memory(victim, strict);
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
		ksft_test_result_fail("colors cannot be reserved\n");
		goto end;
	}
	holder = begin_hog(all / 100 * 60, false, hog);
	begun = has_memory(holder, hog);
	outside = outside_of(holder);
	/* There is as much for both, but not of the colors that are left to them. */
	rival = begin_hog(all / 100 * 33, false, other);
	second = has_memory(rival, other);
	if (second)
		outside += outside_of(rival);
	hogs = group_number("hog", "memory.events", "oom_kill");
	victim = begin_strict(wanted, strict);
	done = has_memory(victim, strict);
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
	begun = has_memory(begin_in("lax", all / 100 * (6 + 36), false, lax), lax);
	done = has_memory(begin_hog(all / 100 * 20, false, hog), hog);
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

/*
 * A group that is not strict, but has all its pages inside of its colors, does not answer for others: it is not killed
 * when unassigned pages are short, although it has more than any that have these.
 */
static void spared(void)
{
	struct shared *lax = share();
	size_t all = settled_free_bytes();
	long outside, lax_kills, hog_kills;
	bool begun;

	group_make("hog");
	group_make("lax");
	if (!group_put("lax", "cpuset.colors", "0-%u", colors / 2 - 1) || !reserve(colors / 2)) {
		ksft_test_result_fail("colors cannot be reserved\n");
		goto end;
	}
	begun = has_memory(begin_in("lax", all / 100 * 18, false, lax), lax);
	outside = group_number("lax", "cpuset.colors.stat", "outside");
	for (int hogs = 0; hogs < 5; hogs++) {
		struct shared *hog = share();

		has_memory(begin_hog(all / 100 * 12, false, hog), hog);
	}
	lax_kills = group_number("lax", "memory.events", "oom_kill");
	hog_kills = group_number("hog", "memory.events", "oom_kill");
	ksft_print_msg("the group that has 18 %% has %ld pages outside, %ld of it killed; of five tasks that need 12 %% each %ld\n",
		       outside, lax_kills, hog_kills);
	if (outside)
		ksft_test_result_skip("not all pages of a group that is not strict are inside\n");
	else
		ksft_test_result(begun && !lax_kills && hog_kills > 0,
				 "a group that has no unassigned pages does not answer for them\n");
end:
	reserve_nothing();
	group_end("lax", 30);
	end_groups();
}

/*
 * Tasks of a strict group may be in memory cgroups below it, as the containers of a pod are. They use up the same
 * colors, so the one that has most of them is killed, and not the one that comes too late.
 */
static void below(void)
{
	struct shared *first = share(), *second = share();
	size_t wanted = settled_free_bytes() / PART / 100;
	long first_kills, second_kills;
	bool begun, done;

	make_groups();
	group_put("strict", "cgroup.subtree_control", "+memory");
	group_make("strict/first");
	group_make("strict/second");
	begun = has_memory(begin_in("strict/first", wanted * 65, false, first), first);
	done = has_memory(begin_in("strict/second", wanted * 50, false, second), second);
	first_kills = group_number("strict/first", "memory.events", "oom_kill");
	second_kills = group_number("strict/second", "memory.events", "oom_kill");
	ksft_print_msg("of a quarter of the colors, 65 %% %s had, then 50 %% %s; %ld and %ld killed\n", begun ? "were" : "were not",
		       done ? "were" : "were not", first_kills, second_kills);
	ksft_test_result(begun && done && !second->spoilt && first_kills == 1 && !second_kills,
			 "a strict group answers for its colors in all memory cgroups below it\n");
	group_end("strict/first", 30);
	group_end("strict/second", 30);
	end_groups();
}

/* Free pages of the colors from @first on, before @end, as /proc/page_color counts them. */
static long free_pages(unsigned int first, unsigned int end)
{
	FILE *file = fopen("/proc/page_color", "re");
	unsigned int color;
	char line[256];
	long sum = 0, pages;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "%u %ld", &color, &pages) == 2 && color >= first && color < end)
			sum += pages;
	if (file)
		fclose(file);
	return sum;
}

/* So many page tables, each for one page: what is only read is the page of zeros, and takes no memory. */
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
			(void)*(volatile char *)(memory + shared->rounds * 2 * MIB);
		shared->ready = 1;
		for (;;)
			pause();
	}
	return child;
}

/* What is unassigned where an eighth of the colors is, and how many pages of that were free at least. */
static unsigned int first_unassigned;
static long lowest;

static void watch_unassigned(void)
{
	long pages = free_pages(first_unassigned, colors);

	if (pages < lowest)
		lowest = pages;
}

/*
 * The page tables of a group are the kernel's own memory. They do not take all that is left to those without colors,
 * nor what is reserved for other groups.
 */
static void tables(void)
{
	long least = 0, spilled, others, lost;
	struct shared *strict = share();
	size_t pages;
	bool done;
	FILE *file = fopen("/proc/sys/vm/min_free_kbytes", "re");

	if (file && fscanf(file, "%ld", &least) == 1)
		least = least * 1024 / PAGE / 2;
	if (file)
		fclose(file);
	make_groups();
	if (!reserve(first_unassigned)) {
		ksft_test_result_fail("colors cannot be reserved\n");
		ksft_test_result_fail("colors cannot be reserved\n");
		goto end;
	}
	spilled = number_in("/proc/vmstat", "page_color_spill");
	others = number_in("/proc/vmstat", "page_color_spill_others");
	lost = free_pages(colors / PART, first_unassigned);
	lowest = free_pages(first_unassigned, colors);
	pages = lowest + lowest / 4;
	done = is_done(begin_tables(pages, strict), strict, 300, watch_unassigned);
	spilled = number_in("/proc/vmstat", "page_color_spill") - spilled;
	others = number_in("/proc/vmstat", "page_color_spill_others") - others;
	lost -= free_pages(colors / PART, first_unassigned);
	ksft_print_msg("%lu of %zu page tables; of the unassigned pages %ld were free at least, half of the watermarks are %ld; %ld spilled, %ld to colors of others, which lost %ld\n",
		       strict->rounds, pages, lowest, least, spilled, others, lost);
	ksft_test_result(done && lowest >= least && spilled > 0,
			 "page tables of a group leave unassigned pages to others\n");
	/* The lists of CPUs may have taken some of others. */
	ksft_test_result(done && others >= 0 && others < spilled / 4 && lost < spilled / 4 + 1024, "page tables of a group are in its own colors rather than in those of others\n");
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

/* A file on the disk without a name; -1 if there is no disk. */
static int open_file(void)
{
	int file = open(FILE_PATH, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	unlink(FILE_PATH);
	return file;
}

/* Writes more than there is room for in an eighth of the colors; how much. */
static size_t write_much(int file)
{
	static char block[MIB];
	size_t bytes = 0, most = number_in("/proc/meminfo", "MemTotal:") * 1024 / 8 * 5 / 4;

	while (bytes < most && write(file, block, MIB) == (ssize_t)MIB)
		bytes += MIB;
	fsync(file);
	return bytes;
}

/* Reads a file again and again, until it is killed. */
static pid_t begin_reader(int file)
{
	static char block[MIB];
	pid_t child = fork();

	if (!child) {
		be_nobody();
		for (off_t at = 0;; at += MIB)
			if (pread(file, block, MIB, at) <= 0)
				at = -(off_t)MIB;
	}
	return child;
}

/* How many pages spill while so many page tables of a group are made; -1 if they are not. */
static long spilled_by_tables(size_t pages)
{
	struct shared *strict = share();
	long spilled = number_in("/proc/vmstat", "page_color_spill");

	if (!is_done(begin_tables(pages, strict), strict, 200, NULL))
		return -1;
	return number_in("/proc/vmstat", "page_color_spill") - spilled;
}

/*
 * Files fill the unassigned colors, as they do on any machine that has run for a while. What page tables of a group
 * need is reclaimed of them: hardly any is in reserved colors.
 */
static void busy(void)
{
	const long pages = 4096;
	int file = open_file();
	long spilled, beside;
	size_t bytes;
	pid_t reader;

	if (file < 0) {
		ksft_test_result_skip("there is no disk\n");
		return;
	}
	make_groups();
	if (!reserve(first_unassigned)) {
		ksft_test_result_fail("colors cannot be reserved\n");
		goto end;
	}
	bytes = write_much(file);
	spilled = spilled_by_tables(pages);
	reader = begin_reader(file);
	pause_for(2);
	beside = spilled_by_tables(pages);
	kill(reader, SIGKILL);
	waitpid(reader, NULL, 0);
	ksft_print_msg("for %ld page tables, after %zu MiB of a file, %ld pages spilled; while it was read, %ld\n", pages,
		       bytes / MIB, spilled, beside);
	ksft_test_result(bytes && spilled >= 0 && spilled < pages / 4 && beside >= 0,
			 "page tables of a group are unassigned where files fill memory\n");
end:
	reserve_nothing();
	end_groups();
	close(file);
}

/* More of files than there is room for in the colors that are left to all. */
static void cached(void)
{
	int file = open_file();
	size_t bytes = 0;
	long outside = -1, spilled = number_in("/proc/vmstat", "page_color_spill");

	if (file < 0) {
		ksft_test_result_skip("there is no disk\n");
		return;
	}
	if (reserve(first_unassigned)) {
		bytes = write_much(file);
		outside = file_outside(file, bytes);
		spilled = number_in("/proc/vmstat", "page_color_spill") - spilled;
	}
	ksft_print_msg("of %zu MiB of a file %ld pages are in reserved colors; %ld pages of the kernel itself are\n",
		       bytes / MIB, outside, spilled);
	ksft_test_result(bytes && outside == 0, "what is read and written stays out of reserved colors\n");
	reserve_nothing();
	close(file);
}

/* Reads a file once, as a task of a group, and keeps nothing but the page cache. */
static pid_t begin_files(const char *group, int file, struct shared *shared)
{
	static char block[MIB];
	pid_t child = fork();

	if (!child) {
		if (!group_put(group, "cgroup.procs", "0"))
			_exit(1);
		be_nobody();
		for (off_t at = 0; pread(file, block, MIB, at) > 0; at += MIB)
			;
		shared->ready = 1;
		for (;;)
			pause();
	}
	return child;
}

/* How many pages of a file are in memory. */
static long resident(int file, size_t bytes)
{
	unsigned char *pages = malloc(bytes / PAGE);
	char *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
	long sum = -1;

	if (pages && memory != MAP_FAILED && !mincore(memory, bytes, pages)) {
		sum = 0;
		for (size_t i = 0; i < bytes / PAGE; i++)
			sum += pages[i] & 1;
	}
	munmap(memory, bytes);
	free(pages);
	return sum;
}

/* A file of so many bytes that is not in memory; -1 without a disk. */
static int cold_file(size_t bytes)
{
	static char block[MIB];
	int file = open_file();

	for (size_t at = 0; file >= 0 && at < bytes; at += MIB)
		if (write(file, block, MIB) != (ssize_t)MIB) {
			close(file);
			return -1;
		}
	fsync(file);
	posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
	return file;
}

/*
 * A group that is not strict needs more memory than its own colors and the unassigned ones have. It is killed, and
 * does not reclaim the files of another group before, which would not help it.
 */
static void cache_kept(void)
{
	size_t small = 32 * MIB, large = number_in("/proc/meminfo", "MemTotal:") * 1024 / 100 * 35;
	struct shared *strict = share(), *lax = share();
	long before = -1, after = -1, outside = -1, kills = -1;
	int file = cold_file(small);

	if (file < 0) {
		ksft_test_result_skip("there is no disk, or it is full\n");
		return;
	}
	make_groups();
	group_make("lax");
	if (!group_put("lax", "cpuset.colors", "%u-%u", colors / PART, colors / PART + colors / 16 - 1) ||
	    !reserve(first_unassigned)) {
		ksft_test_result_fail("colors cannot be reserved\n");
		goto end;
	}
	if (has_memory(begin_files("strict", file, strict), strict)) {
		before = resident(file, small);
		has_memory(begin_in("lax", large, false, lax), lax);
		kills = group_number("lax", "memory.events", "oom_kill");
		after = resident(file, small);
		outside = file_outside(file, small);
	}
	ksft_print_msg("of the %ld pages that a strict group reads (%ld in its colors) %ld are left; of another group that fills %zu MiB %ld were killed\n",
		       before, outside, after, large / MIB, kills);
	ksft_test_result(kills == 1 && before > 0 && after >= before / 100 * 95, "a group leaves the files of another group in memory\n");
end:
	reserve_nothing();
	group_end("lax", 30);
	end_groups();
	close(file);
}

/*
 * A task of a group waits in a page fault, for a file system that does not answer. Who gives the group other
 * colors waits for it for a while, but not until it is done.
 */
static void stuck(void)
{
	int disk = open("/disk", O_RDONLY | O_DIRECTORY | O_CLOEXEC), file = cold_file(MIB);
	struct shared *faulting = share(), *writing = share();
	bool frozen, waited = false, written = false;
	double begun;
	pid_t child, writer;

	if (disk < 0 || file < 0) {
		ksft_test_result_skip("there is no disk\n");
		return;
	}
	make_groups();
	child = fork();
	if (!child) {
		char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

		if (memory == MAP_FAILED || !group_put("strict", "cgroup.procs", "0"))
			_exit(1);
		be_nobody();
		(void)*(volatile char *)memory;
		faulting->rounds = 1;
		/* It is frozen meanwhile. */
		pause_for(1);
		*(volatile char *)memory = 1;
		faulting->ready = 1;
		for (;;)
			pause();
	}
	while (!faulting->rounds && !waitpid(child, NULL, WNOHANG))
		pause_for(0.01);
	frozen = faulting->rounds && !ioctl(disk, FIFREEZE, 0);
	pause_for(2);
	begun = now();
	writer = fork();
	if (!writer) {
		writing->ready = group_put("strict", "cpuset.colors", "%u-%u", colors / 2, colors / 2 + colors / PART - 1);
		_exit(0);
	}
	if (frozen) {
		written = is_done(writer, writing, 30, NULL);
		waited = !faulting->ready;
	}
	ksft_print_msg("%s: other colors took %.2f s beside a page fault that %s\n", frozen ? "frozen" : "not frozen", now() - begun,
		       waited ? "waits" : "does not wait");
	if (frozen)
		ioctl(disk, FITHAW, 0);
	ksft_test_result(frozen && waited && written, "a page fault that waits for a file system holds nobody else up\n");
	is_done(writer, writing, 30, NULL);
	end_groups();
	close(file);
	close(disk);
}

int main(void)
{
	bool swap;

	colors = begin();
	if (colors < 32)
		ksft_exit_skip("fewer than 32 colors\n");
	first_unassigned = colors - colors / 8;
	ksft_set_plan(13);
	put("/proc/sys/vm/drop_caches", "3");
	swap = swap_switch(false);
	moved(false);
	if (has_thp())
		moved(true);
	else
		ksft_test_result_skip("there are no huge pages\n");
	killed();
	blamed();
	spared();
	below();
	tables();
	busy();
	cache_kept();
	if (swap)
		swap_switch(true);
	cached();
	stuck();
	ksft_finished();
}
