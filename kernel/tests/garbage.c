// SPDX-License-Identifier: GPL-2.0-only
/*
 * Random nonsense, and what is nearly sense, for every file of page coloring and for its
 * prctl(), while a process in a group with colors uses memory. An errno at most; what a file shows
 * afterwards it takes again; and the free pages still add up.
 *
 *	garbage [SEED]
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kselftest.h"

#define PAGE		4096UL
#define BYTES		(4UL << 20)
#define WRITES		4000
#define CALLS		4000
#define MOST		6000

#define PR_PAGE_COLOR	0x50434f4c

#define GROUP		"/sys/fs/cgroup/garbage"
#define SYSCTL		"/proc/sys/vm/"

static const char *const patterns[] = {
	SYSCTL "page_color*", "/proc/page_color", "/proc/super_page", "/proc/self/page_color",
	"/sys/fs/cgroup/cpuset.colors*", GROUP "/cpuset.colors*", GROUP "/inner/cpuset.colors*",
};

/* What some file takes. */
static const char *const sense[] = {
	"0", "1", "all", "none", "off", "auto", "0-15", "3,5,7-9", "0-63", "16-31\n", "63", "", "\n", "L2", "512",
	"2048/16", "4096/16", "bits:12-17", "bits:12,14,16", "masks:0x1000", "masks:0x41000,0x82000,0x104000",
	"1-3:1/2", "0-1023", "1023", "64", "4294967295", "18446744073709551616", "-1", "0x10",
};

static uint64_t state;
/* Number of times that memory was written and found intact, by any owner. */
static volatile uint64_t *uses;

static uint64_t any(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % below;
}

/* Returns the length. */
static size_t make_text(char *text)
{
	static const char digits[] = "0123456789,-:/xX \t\n,,--999";
	size_t length = 0;

	if (any(8)) {
		for (unsigned int parts = 1 + !any(4) * any(3); parts; parts--) {
			const char *part = sense[any(ARRAY_SIZE(sense))];

			memcpy(text + length, part, strlen(part));
			length += strlen(part);
		}
		for (unsigned int changes = any(4); changes && length; changes--) {
			size_t at = any(length);

			if (any(2)) {
				text[at] = any(3) ? digits[any(sizeof(digits) - 1)] : (char)any(256);
			} else {
				memmove(text + at, text + at + 1, length - at - 1);
				length--;
			}
		}
	} else {
		length = any(4) ? any(40) : any(MOST);
		for (size_t i = 0; i < length; i++)
			text[i] = any(2) ? digits[any(sizeof(digits) - 1)] : (char)any(256);
	}
	return length;
}

static bool put(const char *path, const char *text, size_t length)
{
	int file = open(path, O_WRONLY);
	bool done = file >= 0 && write(file, text, length) == (ssize_t)length;

	if (file >= 0)
		close(file);
	return done;
}

static bool put_line(const char *path, const char *text)
{
	return put(path, *text ? text : "\n", *text ? strlen(text) : 1);
}

static ssize_t get(const char *path, char *text, size_t size)
{
	int file = open(path, O_RDONLY);
	ssize_t length;

	if (file < 0)
		return -1;
	length = pread(file, text, size - 1, 0);
	close(file);
	if (length >= 0)
		text[length] = '\0';
	while (length > 0 && text[length - 1] == '\n')
		text[--length] = '\0';
	return length;
}

/* In one go, in two, from the middle, from nowhere; or reads in strange ways. */
static void attack(const char *path)
{
	static char text[MOST + 256], back[MOST];
	size_t length = make_text(text), first = length ? any(length) : 0;
	int file = open(path, any(8) ? O_WRONLY : O_RDWR);

	if (file < 0)
		file = open(path, O_RDONLY);
	if (file < 0)
		return;
	switch (any(8)) {
	case 0:
		if (write(file, text, first) < 0 || write(file, text + first, length - first) < 0)
			errno = 0;
		break;
	case 1:
		if (pwrite(file, text, length, any(2) ? any(100) : any(1ULL << 62)) < 0)
			errno = 0;
		break;
	case 2:
		if (write(file, (void *)any(1ULL << 63), length) < 0)
			errno = 0;
		break;
	case 3:
		if (pread(file, back, any(sizeof(back)), any(2) ? any(100) : any(1ULL << 62)) < 0)
			errno = 0;
		break;
	default:
		if (write(file, text, length) < 0)
			errno = 0;
	}
	close(file);
}

/* What a file shows, written to it, leaves it as it is. */
static bool takes_what_it_shows(const char *path)
{
	static char before[MOST], after[MOST];

	if (get(path, before, sizeof(before)) < 0 || !put_line(path, before) || get(path, after, sizeof(after)) < 0)
		return false;
	return !strcmp(before, after);
}

static void as_before(void)
{
	put_line(SYSCTL "page_color_spread", "0");
	put_line(SYSCTL "page_color_unassigned", "");
	put_line(SYSCTL "page_coloring", "1");
}

/* Anonymous memory and a file in memory, written and checked again and again. */
static void use_memory(void)
{
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int file = memfd_create("garbage", 0);

	if (memory == MAP_FAILED || file < 0)
		_exit(1);
	for (uint64_t round = 0;; round++) {
		for (size_t at = 0; at < BYTES; at += PAGE)
			*(uint64_t *)(memory + at) = round + at;
		if (pwrite(file, memory, BYTES / 4, 0) < 0)
			_exit(1);
		for (size_t at = 0; at < BYTES; at += PAGE)
			if (*(uint64_t *)(memory + at) != round + at)
				_exit(1);
		++*uses;
		if (round % 4 == 3)
			madvise(memory, BYTES, MADV_DONTNEED);
		if (ftruncate(file, 0))
			_exit(1);
	}
}

static pid_t start(const char *group)
{
	pid_t child = fork();

	if (!child) {
		/* A strict set that is full is nobody else's problem. */
		if (!put_line("/proc/self/oom_score_adj", "1000") || !put_line(group, "0"))
			_exit(1);
		use_memory();
	}
	return child;
}

/* Killed for want of memory it may be, but not have lost any. */
static bool well(pid_t *child)
{
	int status;

	if (waitpid(*child, &status, WNOHANG) != *child)
		return true;
	*child = start(GROUP "/inner/cgroup.procs");
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static void files(void)
{
	glob_t found = { 0 };
	bool fine = true, shown = true;
	pid_t child;

	uses = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (uses == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
	if (mkdir(GROUP, 0755) || !put_line(GROUP "/cgroup.subtree_control", "+cpuset") || mkdir(GROUP "/inner", 0755))
		ksft_print_msg("there are no groups\n");
	for (size_t i = 0; i < ARRAY_SIZE(patterns); i++)
		glob(patterns[i], i ? GLOB_APPEND : 0, NULL, &found);
	for (size_t i = 0; i < found.gl_pathc; i++)
		ksft_print_msg("%s\n", found.gl_pathv[i]);
	child = start(GROUP "/inner/cgroup.procs");
	for (unsigned int i = 0; i < WRITES; i++) {
		attack(found.gl_pathv[any(found.gl_pathc)]);
		if (i % 20 == 0)
			as_before();
		fine = well(&child) && fine;
	}
	as_before();
	ksft_print_msg("memory was used %llu times\n", (unsigned long long)*uses);
	ksft_test_result(fine && *uses, "%d writes to %zu files: memory is intact\n", WRITES, found.gl_pathc);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		const char *path = found.gl_pathv[i];
		struct stat stat;

		/* The geometry is in use. */
		if (!lstat(path, &stat) && (stat.st_mode & 0200) && !strstr(path, "geometry") && !takes_what_it_shows(path)) {
			ksft_print_msg("%s: %s\n", path, strerror(errno));
			shown = false;
		}
	}
	ksft_test_result(shown, "files take what they show\n");
	globfree(&found);
	for (int tries = 500; rmdir(GROUP "/inner") && tries; tries--)
		usleep(10000);
	rmdir(GROUP);
}

static unsigned long argument(char *memory)
{
	static const unsigned long edges[] = {
		0, 1, 7, 8, 9, 127, 128, 136, 4096, 0x7fffffff, 0x80000000, 0xffffffff, 1UL << 32, 1UL << 47, 1UL << 63,
		-1UL, -8UL, 0xffff888000000000UL,
	};

	switch (any(3)) {
	case 0:
		return edges[any(ARRAY_SIZE(edges))];
	case 1:
		return (unsigned long)memory + any(2 * PAGE);
	default:
		return any(200);
	}
}

static void calls(void)
{
	pid_t child = fork();
	int status = -1;

	if (!child) {
		/* The second page is gone: what begins in the first one may end there. */
		char *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (memory == MAP_FAILED)
			_exit(1);
		munmap(memory + PAGE, PAGE);
		for (unsigned int i = 0; i < CALLS; i++) {
			for (size_t at = 0; at < PAGE; at += 8)
				*(uint64_t *)(memory + at) = any(2) ? any(256) : any(1ULL << 63);
			prctl(PR_PAGE_COLOR, any(4) ? any(5) : argument(memory), argument(memory), argument(memory),
			      any(4) ? any(3) : argument(memory));
		}
		_exit(prctl(PR_PAGE_COLOR, 3, 0, 0, 0));
	}
	if (child > 0)
		waitpid(child, &status, 0);
	ksft_test_result(!status, "%d calls of prctl()\n", CALLS);
}

int main(int argc, char **argv)
{
	char geometry[256] = "", now[256] = "";

	ksft_print_header();
	if (access(SYSCTL "page_coloring", F_OK))
		ksft_exit_skip("the kernel has no page coloring\n");
	put_line("/proc/self/oom_score_adj", "-1000");
	state = (argc > 1 ? strtoull(argv[1], NULL, 0) : 1) * 0x9e3779b97f4a7c15ULL | 1;
	get(SYSCTL "page_color_geometry", geometry, sizeof(geometry));
	as_before();
	ksft_set_plan(4);
	files();
	calls();
	/* While coloring was disabled by chance, another geometry was taken. */
	for (int tries = 100; tries && strcmp(now, geometry); tries--) {
		put_line(SYSCTL "page_coloring", "0");
		if (!put_line(SYSCTL "page_color_geometry", geometry))
			usleep(50000);
		get(SYSCTL "page_color_geometry", now, sizeof(now));
	}
	put_line(SYSCTL "page_coloring", "1");
	ksft_test_result(!strcmp(now, geometry), "there is the geometry of before\n");
	ksft_finished();
}
