// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whether the machine has what the other tests are about: pages that are swapped,
 * migrated, merged, taken offline, put into huge ones and read from a disk. With
 * coloring on, this is also what must go on as if it were not.
 *
 *	machine [FOLDER]	FOLDER is on a disk
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <linux/userfaultfd.h>

#include "kselftest.h"
#include "kernel_file.h"

#define PAGE		4096UL
#define HUGE		(2UL << 20)
#define PRESENT		(1ULL << 63)
#define SWAPPED		(1ULL << 62)
#define FRAME		((1ULL << 55) - 1)
#define EXT4		0xef53
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif
#define MOVE_ALL	2	/* MPOL_MF_MOVE of move_pages() */

/* The first line of a file, "" if it cannot be read. */
static const char *read_line(const char *path)
{
	static char line[4096];
	FILE *file = fopen(path, "r");

	if (!file || !fgets(line, sizeof(line), file))
		*line = '\0';
	if (file)
		fclose(file);
	line[strcspn(line, "\n")] = '\0';
	return line;
}

static uint64_t pagemap(const void *page)
{
	int file = open("/proc/self/pagemap", O_RDONLY);
	uint64_t entry = 0;

	if (file >= 0) {
		if (pread(file, &entry, sizeof(entry),
			  (uintptr_t)page / PAGE * sizeof(entry)) != sizeof(entry))
			entry = 0;
		close(file);
	}
	return entry;
}

static void *map(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
	return memory;
}

/* Base pages, each of which has its number in it. */
static char *map_numbered(size_t pages)
{
	char *memory = map(pages * PAGE);
	size_t i;

	madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
	for (i = 0; i < pages; i++)
		*(uint64_t *)(memory + i * PAGE) = i + 1;
	return memory;
}

static bool numbered(const char *memory, size_t pages)
{
	size_t i;

	for (i = 0; i < pages; i++)
		if (*(const uint64_t *)(memory + i * PAGE) != i + 1)
			return false;
	return true;
}

static void frames_are_shown(void)
{
	char *page = map_numbered(1);
	uint64_t entry = pagemap(page);

	ksft_test_result((entry & PRESENT) && (entry & FRAME),
			 "pagemap shows frame numbers\n");
	munmap(page, PAGE);
}

static void pages_are_swapped(void)
{
	enum { PAGES = 1024 };
	size_t swapped = 0, i;
	char *memory;

	if (number_in("/proc/meminfo", "SwapTotal:") <= 0) {
		ksft_test_result_skip("no swap\n");
		return;
	}
	memory = map_numbered(PAGES);
	if (madvise(memory, PAGES * PAGE, MADV_PAGEOUT))
		ksft_print_msg("MADV_PAGEOUT: %s\n", strerror(errno));
	for (i = 0; i < PAGES; i++)
		swapped += !!(pagemap(memory + i * PAGE) & SWAPPED);
	ksft_print_msg("%zu of %d pages were swapped out\n", swapped, PAGES);
	ksft_test_result(swapped > PAGES / 2 && numbered(memory, PAGES),
			 "pages go to swap and come back\n");
	munmap(memory, PAGES * PAGE);
}

static void files_are_read(const char *folder)
{
	enum { PAGES = 1024 };
	char path[4096], page[PAGE];
	bool same = true;
	struct statfs fs;
	int file;
	size_t i;

	if (!folder || statfs(folder, &fs) || fs.f_type != EXT4) {
		ksft_test_result_skip("no disk with ext4\n");
		return;
	}
	snprintf(path, sizeof(path), "%s/machine", folder);
	file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	for (i = 0; i < PAGES; i++) {
		memset(page, i % 251, PAGE);
		same = same && pwrite(file, page, PAGE, i * PAGE) == PAGE;
	}
	/* What was written is read again from the disk. */
	same = same && !fsync(file) && put("/proc/sys/vm/drop_caches", "3");
	for (i = 0; i < PAGES; i++)
		same = same && pread(file, page, PAGE, i * PAGE) == PAGE &&
		       page[0] == (char)(i % 251) &&
		       !memcmp(page, page + 1, PAGE - 1);
	close(file);
	unlink(path);
	ksft_test_result(same, "files are written to a disk and read from it\n");
}

static void groups_can_be_made(void)
{
	const char *group = "/sys/fs/cgroup/machine";
	bool works = !mkdir(group, 0700) &&
		     !access("/sys/fs/cgroup/machine/cpuset.mems", F_OK) &&
		     !access("/sys/fs/cgroup/machine/memory.max", F_OK);

	ksft_test_result(works && !rmdir(group),
			 "groups have cpusets and limits of memory\n");
}

static void superpages_are_made(void)
{
	char *memory = map(4 * HUGE);
	const char *smaps = "/proc/self/smaps_rollup";
	long before = number_in(smaps, "AnonHugePages:"), after;
	bool gone;

	if (!has_thp()) {
		ksft_test_result_skip("this kernel has no transparent superpages\n");
		return;
	}
	if (strstr(read_line("/sys/kernel/mm/transparent_hugepage/enabled"), "[never]")) {
		ksft_test_result_skip("the kernel makes no superpages in so small a machine\n");
		return;
	}
	madvise(memory, 4 * HUGE, MADV_HUGEPAGE);
	memset(memory, 1, 4 * HUGE);
	after = number_in(smaps, "AnonHugePages:");
	/* A part of one is given back: it is split. */
	madvise(memory + 2 * HUGE, PAGE, MADV_DONTNEED);
	gone = !memory[2 * HUGE] && memory[2 * HUGE + PAGE] == 1;
	ksft_test_result(after > before && gone,
			 "superpages are made and split\n");
	munmap(memory, 4 * HUGE);
}

static void memory_is_compacted(void)
{
	char *memory = map_numbered(4096);

	ksft_test_result(put("/proc/sys/vm/compact_memory", "1") &&
			 numbered(memory, 4096), "memory is compacted\n");
	munmap(memory, 4096 * PAGE);
}

static void pages_go_to_other_nodes(void)
{
	enum { PAGES = 256 };
	int nodes[PAGES], status[PAGES];
	void *pages[PAGES];
	char *memory;
	size_t moved = 0, i;
	int target;

	if (number_in("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:") <= 0) {
		ksft_test_result_skip("there are no two nodes with memory\n");
		return;
	}
	memory = map_numbered(PAGES);
	for (target = 0; target < 2; target++) {
		for (i = 0; i < PAGES; i++) {
			pages[i] = memory + i * PAGE;
			nodes[i] = target;
			status[i] = -1;
		}
		if (syscall(SYS_move_pages, 0, PAGES, pages, nodes, status, MOVE_ALL))
			ksft_print_msg("move_pages: %s\n", strerror(errno));
		for (i = 0; i < PAGES; i++)
			moved += status[i] == target;
	}
	ksft_print_msg("%zu of %d pages were moved\n", moved, 2 * PAGES);
	ksft_test_result(moved == 2 * PAGES && numbered(memory, PAGES),
			 "pages go to other nodes\n");
	munmap(memory, PAGES * PAGE);
}

static void pages_are_merged(void)
{
	enum { PAGES = 512 };
	const char *ksm = "/sys/kernel/mm/ksm";
	char *memory;
	bool same;
	int i;

	if (access(ksm, F_OK)) {
		ksft_test_result_skip("no KSM\n");
		return;
	}
	memory = map_numbered(PAGES);
	memset(memory, 1, PAGES * PAGE);
	madvise(memory, PAGES * PAGE, MADV_MERGEABLE);
	put("/sys/kernel/mm/ksm/sleep_millisecs", "0");
	put("/sys/kernel/mm/ksm/pages_to_scan", "10000");
	put("/sys/kernel/mm/ksm/run", "1");
	for (i = 0; i < 300; i++) {
		if (atol(read_line("/sys/kernel/mm/ksm/pages_sharing")) > PAGES / 2)
			break;
		usleep(100000);
	}
	/* They become pages of their own again. */
	put("/sys/kernel/mm/ksm/run", "2");
	same = !memcmp(memory, memory + 1, PAGES * PAGE - 1);
	ksft_test_result(i < 300 && same, "pages are merged and unmerged\n");
	put("/sys/kernel/mm/ksm/run", "0");
	munmap(memory, PAGES * PAGE);
}

static void bad_pages_are_replaced(void)
{
	const char *path = "/sys/devices/system/memory/soft_offline_page";
	char *memory = map_numbered(1), text[32];
	uint64_t before = pagemap(memory) & FRAME;
	int error;

	snprintf(text, sizeof(text), "%#llx",
		 (unsigned long long)before * PAGE);
	error = access(path, W_OK) ? ENOENT : put(path, text) ? 0 : errno;
	if (error == ENOENT)
		ksft_test_result_skip("no soft_offline_page\n");
	else
		ksft_test_result(!error && numbered(memory, 1) &&
				 (pagemap(memory) & FRAME) != before,
				 "a page that goes bad is replaced\n");
	munmap(memory, PAGE);
	/* It becomes good again: a block with a bad page goes, and does not come back. */
	snprintf(text, sizeof(text), "%#llx", (unsigned long long)before);
	if (!error && !put("/sys/kernel/debug/hwpoison/unpoison-pfn", text))
		ksft_print_msg("the page stays bad: %s\n", strerror(errno));
}

/*
 * Memory blocks are taken off and brought back. Some have pages that stay, buffers
 * of a file system that is mounted for example.
 */
static void memory_goes_and_comes(void)
{
	const char *folder = "/sys/devices/system/memory";
	char *memory = map_numbered(4096), path[512];
	unsigned int gone = 0, back = 0, tries = 0;
	DIR *blocks = opendir(folder);
	struct dirent *block;

	while (blocks && (block = readdir(blocks)) && gone < 4 && tries < 12) {
		unsigned int number;
		int error;

		if (sscanf(block->d_name, "memory%u", &number) != 1)
			continue;
		snprintf(path, sizeof(path), "%s/%s/state", folder, block->d_name);
		if (strcmp(read_line(path), "online"))
			continue;
		tries++;
		if (switch_block(number, "offline", 5))
			continue;
		gone++;
		error = switch_block(number, "online", 60);
		if (error)
			ksft_print_msg("block %u does not come back: %s\n", number,
				       strerror(error));
		back += !error;
	}
	if (blocks)
		closedir(blocks);
	ksft_print_msg("%u memory blocks went, %u came back\n", gone, back);
	if (!gone)
		ksft_test_result_skip("no memory block can go\n");
	else
		ksft_test_result(gone == back && numbered(memory, 4096),
				 "memory goes and comes\n");
	munmap(memory, 4096 * PAGE);
}

static void faults_can_be_handled(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int file = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	ksft_test_result(file >= 0 && !ioctl(file, UFFDIO_API, &api),
			 "there is userfaultfd\n");
	if (file >= 0)
		close(file);
}

static void events_are_traced(void)
{
	ksft_test_result(!access("/sys/kernel/tracing/events/kmem/mm_page_alloc/enable",
				 W_OK), "there are tracepoints\n");
}

int main(int argc, char **argv)
{
	ksft_print_header();
	ksft_set_plan(12);
	frames_are_shown();
	pages_are_swapped();
	files_are_read(argc > 1 ? argv[1] : NULL);
	groups_can_be_made();
	superpages_are_made();
	memory_is_compacted();
	pages_go_to_other_nodes();
	pages_are_merged();
	memory_goes_and_comes();
	/* Last of those: the block with the bad page would not come back any more. */
	bad_pages_are_replaced();
	faults_can_be_handled();
	events_are_traced();
	ksft_finished();
}
