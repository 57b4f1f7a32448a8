// SPDX-License-Identifier: GPL-2.0-only
/*
 * Somebody without privileges fills a color of a strict set, so that there is no free page of it any more.
 * The administrator wants some of these page frames for something else: a memory block to be taken off,
 * memory that is contiguous, a page that goes bad, or other colors. He gets them, as without the set.
 */
#define _GNU_SOURCE
#include "hostile.h"

#define BLOCKS		"/sys/devices/system/memory"
#define CMA		"/sys/kernel/debug/cma"
#define MOST_BLOCKS	2
#define CONTIGUOUS	2048

static unsigned int colors;
static struct shared *shared;
static int blocks[MOST_BLOCKS];
static unsigned int block_count;

/* More than there is of the color: the rest is swapped. Then it just has it. */
static void fill_color(void)
{
	size_t bytes = sysconf(_SC_PHYS_PAGES) * PAGE / colors * 5 / 4;
	char *memory = map(bytes);

	shared->spoilt = (uintptr_t)memory;
	fill(memory, bytes);
	shared->ready = 1;
	for (;;) {
		pause_for(0.2);
		shared->rounds++;
	}
}

/*
 * Of the blocks from the last one down, some that can go. They come back as movable memory: a page of the
 * kernel's own that comes to lie there later would keep a block, in any color.
 */
static void find_blocks(void)
{
	DIR *folder = opendir(BLOCKS);
	struct dirent *entry;
	int all[1024], count = 0, block;

	while (folder && (entry = readdir(folder)) && count < 1024)
		if (sscanf(entry->d_name, "memory%d", &block) == 1)
			all[count++] = block;
	if (folder)
		closedir(folder);
	for (int tries = 0; count && tries < 8 && block_count < MOST_BLOCKS; tries++) {
		int last = 0;

		for (int i = 1; i < count; i++)
			if (all[i] > all[last])
				last = i;
		block = all[last];
		all[last] = all[--count];
		if (switch_block(block, "offline", 10))
			continue;
		if (!switch_block(block, "online_movable", 10))
			blocks[block_count++] = block;
		else if (switch_block(block, "online", 10))
			ksft_print_msg("block %d does not come back\n", block);
	}
}

static void blocks_as_before(void)
{
	for (unsigned int i = 0; i < block_count; i++)
		if (switch_block(blocks[i], "offline", 10) || switch_block(blocks[i], "online", 10))
			ksft_print_msg("block %d stays movable memory\n", blocks[i]);
}

static unsigned int blocks_go(void)
{
	unsigned int gone = 0;

	for (unsigned int i = 0; i < block_count; i++) {
		if (switch_block(blocks[i], "offline", 10))
			continue;
		gone++;
		if (switch_block(blocks[i], "online_movable", 10))
			ksft_print_msg("block %d does not come back\n", blocks[i]);
	}
	return gone;
}

/* Whether pages are to be had from the area for contiguous allocations; they are given back. */
static bool contiguous(void)
{
	DIR *folder = opendir(CMA);
	struct dirent *entry;
	char path[512], text[32];
	bool done = false;

	snprintf(text, sizeof(text), "%d", CONTIGUOUS);
	while (folder && !done && (entry = readdir(folder))) {
		if (*entry->d_name == '.')
			continue;
		snprintf(path, sizeof(path), CMA "/%s/alloc", entry->d_name);
		done = put(path, text);
		snprintf(path, sizeof(path), CMA "/%s/free", entry->d_name);
		if (done && !put(path, text))
			ksft_print_msg("%s: %s\n", path, strerror(errno));
	}
	if (folder)
		closedir(folder);
	return done;
}

/* Some page of a process goes bad: it is replaced. 0, or an error number. */
static int replace_page(pid_t process, uintptr_t from)
{
	int file, error = ENOENT;
	uint64_t entry = 0;
	char text[64];

	snprintf(text, sizeof(text), "/proc/%d/pagemap", process);
	file = open(text, O_RDONLY);
	for (unsigned int page = 0; file >= 0 && page < 4096 && !(entry >> 63); page++)
		if (pread(file, &entry, sizeof(entry), (from / PAGE + page) * sizeof(entry)) != sizeof(entry))
			entry = 0;
	if (file >= 0)
		close(file);
	entry &= (1ULL << 55) - 1;
	if (!entry)
		return ENOENT;
	snprintf(text, sizeof(text), "%#llx", (unsigned long long)entry * PAGE);
	error = put(BLOCKS "/soft_offline_page", text) ? 0 : errno;
	snprintf(text, sizeof(text), "%#llx", (unsigned long long)entry);
	put("/sys/kernel/debug/hwpoison/unpoison-pfn", text);
	return error;
}

static void frames(enum way way)
{
	const char *name = way_names[way];
	unsigned int gone = 0;
	int error, status = 0;
	bool had, ended;
	pid_t child;

	shared = share();
	make_hostile(way, "hostile", colors - 2, 1);
	child = begin_hostile(way, "hostile", colors - 2, 1, fill_color);
	for (int tries = 6000; tries && !shared->ready; tries--) {
		if (waitpid(child, &status, WNOHANG) == child)
			break;
		pause_for(0.02);
	}
	if (refused(status)) {
		ksft_print_msg("%s: refused\n", name);
		ksft_test_result_pass("blocks go in spite of a strict set %s\n", name);
		ksft_test_result_pass("contiguous memory is to be had in spite of a strict set %s\n", name);
		ksft_test_result_pass("a bad page is replaced in spite of a strict set %s\n", name);
		goto end;
	}
	ended = !shared->ready;
	if (ended)
		ksft_print_msg("%s: the color was not filled, status %#x\n", name, status);
	error = replace_page(child, shared->spoilt);
	ksft_print_msg("%s: a bad page: %s\n", name, error ? strerror(error) : "replaced");
	had = contiguous();
	gone = blocks_go();
	ksft_print_msg("%s: %u of %u blocks went, %d contiguous pages were %sto be had\n", name, gone, block_count,
		       CONTIGUOUS, had ? "" : "not ");
	if (!block_count)
		ksft_test_result_skip("no block can go, without a set either\n");
	else
		ksft_test_result(!ended && gone == block_count, "blocks go in spite of a strict set %s\n", name);
	ksft_test_result(!ended && had, "contiguous memory is to be had in spite of a strict set %s\n", name);
	ksft_test_result(!ended && !error, "a bad page is replaced in spite of a strict set %s\n", name);
end:
	group_end("hostile", 20);
}

static void hold_set(void)
{
	shared->ready = 1;
	for (;;)
		pause();
}

/* A task that has a set may not decide which colors the machine has. */
static void geometry(bool strict)
{
	const char *other = colors == 32 ? "bits:12-15" : "bits:12-16";
	char before[256] = "";
	FILE *file = fopen(SYSCTL "page_color_geometry", "re");
	bool changed = false, back = false;
	double end = now() + 8;
	int error = 0;
	pid_t child;

	shared = share();
	if (!file || !fgets(before, sizeof(before), file))
		ksft_exit_fail_msg("no geometry\n");
	fclose(file);
	before[strcspn(before, "\n")] = '\0';
	child = fork();
	if (!child) {
		be_nobody();
		shared->rounds = ask(0, 1, strict);
		hold_set();
	}
	await_ready(shared, 20);
	put(SYSCTL "page_coloring", "0");
	while (!changed && now() < end) {
		changed = put(SYSCTL "page_color_geometry", other);
		error = changed ? 0 : errno;
		pause_for(0.05);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	for (int tries = 200; tries && !back; tries--) {
		back = put(SYSCTL "page_color_geometry", before);
		pause_for(0.05);
	}
	put(SYSCTL "page_coloring", "1");
	ksft_print_msg("prctl(): %s; geometry: %s\n",
		       !shared->rounds ? "a set" : shared->rounds == EPERM ? "refused" : strerror(shared->rounds),
		       changed ? "changed" : strerror(error));
	ksft_test_result(changed && back, "%s set of an ordinary user keeps no geometry\n", strict ? "a strict" : "a");
}

int main(void)
{
	bool had;

	colors = begin();
	if (colors < 4)
		ksft_exit_skip("fewer than 4 colors\n");
	ksft_set_plan(9);
	find_blocks();
	had = contiguous();
	ksft_print_msg("%u blocks can go\n", block_count);
	ksft_test_result(had, "%d contiguous pages are to be had without sets\n", CONTIGUOUS);
	frames(BY_PRCTL);
	frames(BY_GROUP);
	geometry(false);
	geometry(true);
	blocks_as_before();
	ksft_finished();
}
