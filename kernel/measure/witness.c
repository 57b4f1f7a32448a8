// SPDX-License-Identifier: GPL-2.0-only
/*
 * The loops of the papers as a program, whose references the lab's witness sees.
 *
 *	witness LOOP NUMBER PASSES	runs a loop here: for cachegrind
 *
 * and, as the first process of witness/run's emulated machine, the points that are named after witness= on the
 * kernel's command line, HOW;MACHINE:LOOP:NUMBER;... : HOW as in frames.c, MACHINE the one whose caches are to be
 * modelled. For each point a process of its own maps its memory, touches it, writes which frames it was dealt
 * to the disk (as frames.c does), and runs the loop once to fill the caches and once more that
 * counts; and the same again, with all of the program modelled and not just that memory.
 *
 * The loops are those of crates/lab/papers/src/workload.rs, with volatile accesses: each is made just once.
 */
#define _GNU_SOURCE
#include <emmintrin.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../witness/bell.h"
#include "dealt.h"

#define MOST_PAGES (64 * MIB / PAGE)

static volatile struct bell *bell;

/* The clients. */
static void ring(int what)
{
	if (bell)
		bell->ring = what;
}

static void transpose_load(volatile double *memory, size_t dim)
{
	volatile double *a = memory, *b = memory + dim * dim;

	for (size_t i = 0; i < dim; i++)
		for (size_t j = 0; j < dim; j++)
			a[i * dim + j] = b[j * dim + i];
}

static void transpose_store(volatile double *memory, size_t dim)
{
	volatile double *a = memory, *b = memory + dim * dim;

	for (size_t i = 0; i < dim; i++)
		for (size_t j = 0; j < dim; j++)
			a[j * dim + i] = b[i * dim + j];
}

static void sweep(volatile double *memory, size_t bytes)
{
	for (size_t i = 0; i < bytes / 8; i++)
		(void)memory[i];
}

/* Of 15.3 MiB, as p3-stride has it. */
#define SWEPT 16000000UL

static void strided(volatile double *memory, size_t stride)
{
	size_t columns = stride / 8 < 1 ? 1 : stride / 8 > 64 ? 64 : stride / 8;

	for (size_t column = 0; column < columns; column++)
		for (size_t at = column * 8 % stride; at < SWEPT; at += stride)
			(void)memory[at / 8];
}

static void product(volatile double *memory, size_t dim, size_t from, size_t to)
{
	volatile double *c = memory, *a = c + dim * dim, *b = a + dim * dim;

	for (size_t i = from; i < to; i++)
		for (size_t j = 0; j < dim; j++) {
			double sum = 0;

			for (size_t k = 0; k < dim; k++)
				sum += a[i * dim + k] * b[k * dim + j];
			c[i * dim + j] = sum;
		}
}

typedef volatile __m128d point;

static void step(point *in, point *factors, size_t points, size_t from, size_t stride, point *to)
{
	size_t quarter = points / 4;

	if (points <= 16) {
		__m128d held[16];

		for (size_t k = 0; k < points; k++)
			held[k] = in[from + k * stride];
		for (size_t k = 0; k < points; k++)
			to[k] = held[k];
		return;
	}
	for (size_t q = 0; q < 4; q++)
		step(in, factors, quarter, from + q * stride, stride * 4, to + q * quarter);
	for (size_t k = 0; k < quarter; k++) {
		__m128d sum = _mm_setzero_pd(), part[4];

		for (size_t q = 0; q < 4; q++)
			sum = _mm_add_pd(sum, part[q] = to[q * quarter + k]);
		for (size_t q = 0; q < 3; q++)
			part[q] = _mm_mul_pd(part[q], factors[quarter - 1 + k * 3 + q]);
		part[3] = sum;
		for (size_t q = 0; q < 4; q++)
			to[q * quarter + k] = part[q];
	}
}

static void fft(volatile double *memory, size_t points)
{
	point *in = (point *)memory;

	step(in, in + 2 * points, points, 0, 1, in + points);
}

struct loop {
	const char *name;
	/* Bytes that it needs, and what it does in a pass. */
	size_t (*bytes)(size_t number);
	void (*pass)(volatile double *memory, size_t number, int counting);
};

static size_t transpose_bytes(size_t dim)
{
	return 2 * dim * dim * 8;
}

static size_t sweep_bytes(size_t bytes)
{
	return bytes;
}

static size_t stride_bytes(size_t stride)
{
	(void)stride;
	return SWEPT;
}

static size_t product_bytes(size_t dim)
{
	return 3 * dim * dim * 8;
}

static size_t fft_bytes(size_t points)
{
	return 3 * points * 16;
}

static void load_pass(volatile double *memory, size_t dim, int counting)
{
	(void)counting;
	transpose_load(memory, dim);
}

static void store_pass(volatile double *memory, size_t dim, int counting)
{
	(void)counting;
	transpose_store(memory, dim);
}

static void sweep_pass(volatile double *memory, size_t bytes, int counting)
{
	sweep(memory, bytes);
	if (counting)
		sweep(memory, bytes);
}

static void stride_pass(volatile double *memory, size_t stride, int counting)
{
	(void)counting;
	strided(memory, stride);
}

/* One row that does not count, and three that do. */
static void product_pass(volatile double *memory, size_t dim, int counting)
{
	product(memory, dim, counting ? 1 : 0, counting ? 4 : 1);
}

static void fft_pass(volatile double *memory, size_t points, int counting)
{
	(void)counting;
	fft(memory, points);
}

static const struct loop loops[] = {
	{ "load", transpose_bytes, load_pass }, { "store", transpose_bytes, store_pass },
	{ "sweep", sweep_bytes, sweep_pass },	{ "stride", stride_bytes, stride_pass },
	{ "product", product_bytes, product_pass }, { "fft", fft_bytes, fft_pass },
};

static const struct loop *loop_named(const char *name)
{
	for (size_t i = 0; i < sizeof(loops) / sizeof(*loops); i++)
		if (!strcmp(loops[i].name, name))
			return &loops[i];
	fprintf(stderr, "there is no loop %s\n", name);
	exit(2);
}

/*
 * What the emulator knows of translations, it has forgotten: a kernel does that where many pages lose their entries at a time.
 * What it has room for doubles whenever most of that was in use, so that a few passes later all pages of a loop fit; until then
 * it is itself what is slow.
 */
static void grow_emulator(char *spare)
{
	touch(spare, MIB);
	if (madvise(spare, MIB, MADV_DONTNEED))
		die("MADV_DONTNEED");
}

/* In a process of its own: to the pipe goes what frames it has, and the bell rings. */
static void point_in(const char *machine, const struct loop *loop, const char *number, int thp, int to)
{
	static uint64_t entries[MOST_PAGES];
	static uint32_t words[MOST_PAGES];
	size_t of = strtoul(number, NULL, 10), size = (loop->bytes(of) + PAGE - 1) / PAGE * PAGE, pages = size / PAGE;
	char *memory = map(size), *spare = map(MIB);

	touch((char *)entries, sizeof(*entries) * pages);
	touch((char *)words, sizeof(*words) * pages);
	bell = mmap((void *)BELL_ADDRESS, PAGE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_POPULATE, -1, 0);
	if (bell == MAP_FAILED || pages > MOST_PAGES)
		die("the memory of a point");
	if (madvise(memory, size, thp ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) && thp)
		die("MADV_HUGEPAGE");
	touch(memory, size);
	own_frames(memory, pages, thp, entries, words);
	snprintf((char *)bell->machine, sizeof(bell->machine), "%s", machine);
	snprintf((char *)bell->point, sizeof(bell->point), "%s:%s", loop->name, number);
	bell->from = (uintptr_t)memory;
	bell->to = (uintptr_t)memory + size;
	for (int i = 0; i < 5; i++) {
		loop->pass((volatile double *)memory, of, 0);
		grow_emulator(spare);
	}
	/* Once with the loop's memory alone, and once with all that the program refers to. */
	for (int whole = 0; whole < 2; whole++) {
		bell->whole = whole;
		ring(BELL_FILL);
		loop->pass((volatile double *)memory, of, 0);
		ring(BELL_COUNT);
		loop->pass((volatile double *)memory, of, 1);
		ring(BELL_END);
	}
	write_all(to, &(uint32_t){ (uintptr_t)memory / PAGE % 512 }, 4);
	write_all(to, words, pages * 4);
	/* They must be those that it was dealt. */
	own_frames(memory, pages, thp, entries, words);
	write_all(to, words, pages * 4);
}

static void run_point(const char *machine, const char *name, const char *number, int thp, int disk)
{
	const struct loop *loop = loop_named(name);
	size_t pages = (loop->bytes(strtoul(number, NULL, 10)) + PAGE - 1) / PAGE;
	size_t all = (1 + 2 * pages) * 4;
	uint32_t *words = (uint32_t *)map(all);
	char draw[128];
	pid_t child;
	int from;

	child = fork_heard(&from);
	if (!child) {
		execl("/proc/self/exe", "witness", "point", machine, name, number, thp ? "1" : "0", NULL);
		die("exec");
	}
	hear(child, from, words, all);
	if (memcmp(words + 1, words + 1 + pages, pages * 4)) {
		fprintf(stderr, "the pages of a point were moved\n");
		exit(1);
	}
	snprintf(draw, sizeof(draw), "%s:%s:%s", machine, name, number);
	put_draw(disk, draw, words, pages);
	munmap(words, all);
}

static void guest(void)
{
	char *how, *each, *rest;
	int aged, thp, disk;
	pid_t other = 0;

	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	if (mount("proc", "/proc", "proc", 0, NULL) || mount("sysfs", "/sys", "sysfs", 0, NULL))
		die("mount");
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	how = asked("witness=");
	rest = strchr(how, ';');
	if (!rest)
		die("witness= has no points");
	*rest++ = 0;
	aged = !!strstr(how, "aged");
	thp = !!strstr(how, "thp");
	seed(how);
	disk = open_disk();
	set("/sys/kernel/mm/transparent_hugepage/enabled", thp ? "always" : "never");
	if (aged)
		other = age();
	if (strstr(how, "spread"))
		set("/proc/sys/vm/page_color_spread", "1");
	begin_dump(disk, how);
	for (each = strtok(rest, ";"); each; each = strtok(NULL, ";")) {
		char *machine = each, *loop = strchr(each, ':'), *number = loop ? strchr(loop + 1, ':') : NULL;

		if (!number)
			die(each);
		*loop++ = 0;
		*number++ = 0;
		run_point(machine, loop, number, thp, disk);
	}
	end_dump(disk);
	if (other)
		kill(other, SIGKILL);
}

int main(int argc, char **argv)
{
	if (argc == 6 && !strcmp(argv[1], "point")) {
		point_in(argv[2], loop_named(argv[3]), argv[4], argv[5][0] == '1', STDOUT_FILENO);
		return 0;
	}
	if (argc == 4) {
		const struct loop *loop = loop_named(argv[1]);
		size_t number = strtoul(argv[2], NULL, 10);
		volatile double *memory = (double *)map(loop->bytes(number));

		touch((char *)memory, loop->bytes(number));
		for (int pass = 0; pass < atoi(argv[3]); pass++)
			loop->pass(memory, number, pass > 0);
		return 0;
	}
	if (getpid() != 1) {
		fprintf(stderr, "usage: witness LOOP NUMBER PASSES\n");
		return 2;
	}
	if (!fork()) {
		guest();
		return 0;
	}
	wait(NULL);
	sync();
	reboot(RB_AUTOBOOT);
	return 1;
}
