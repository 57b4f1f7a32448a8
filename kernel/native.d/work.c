// SPDX-License-Identifier: GPL-2.0-only
/*
 * work NAME SIZE COLORS SEED: nanoseconds of a load, of a byte or of an operation on fresh memory, and the number of pages of its
 * fullest color.
 *
 *   chase BYTES, gather BYTES     loads that wait for each other, and loads that do not, from random lines
 *   load DIM, store DIM           a transposition of DIM x DIM doubles that reads down the columns, or writes down them
 *   copy BYTES                    one half over the other
 *   product DIM                   ROWS rows of a product of matrices, rows by columns, not blocked
 *   fft POINTS                    complex, radix 2, in place
 *
 * The fastest of several passes counts: other work of the host only makes passes slower.
 */
#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest.h"

/* Rows of the product: each goes over all of one matrix, so that a few show what all cost. */
#define ROWS 32
/* Times taken of a pass, and the least nanoseconds of each: shorter passes are repeated. */
#define TIMES 7
#define LEAST 1e6
/* A pass of this many nanoseconds is timed twice only. */
#define LONG 3e7

static size_t size;
static char *memory;
static void **at;
static uint64_t count;
static volatile uint64_t sink;

static void chase(void)
{
	at = follow(at, size / LINE);
}

static void gather(void)
{
	uint64_t lines = size / LINE, last = count + lines, sum = 0;
	const uint64_t *words = (const uint64_t *)memory;

	for (; count < last; count++)
		sum += words[scattered(count, lines) * (LINE / 8)];
	sink += sum;
}

static void load(void)
{
	double *to = (double *)memory;
	const double *from = to + size * size;

	for (size_t i = 0; i < size; i++)
		for (size_t j = 0; j < size; j++)
			to[i * size + j] = from[j * size + i];
}

static void store(void)
{
	double *to = (double *)memory;
	const double *from = to + size * size;

	for (size_t i = 0; i < size; i++)
		for (size_t j = 0; j < size; j++)
			to[j * size + i] = from[i * size + j];
}

static void copy(void)
{
	memcpy(memory + size / 2, memory, size / 2);
}

static void product(void)
{
	const double *a = (const double *)memory, *b = a + ROWS * size;
	double *c = (double *)memory + (ROWS + size) * size;

	for (size_t i = 0; i < ROWS; i++)
		for (size_t j = 0; j < size; j++) {
			double sum = 0;

			for (size_t k = 0; k < size; k++)
				sum += a[i * size + k] * b[k * size + j];
			c[i * size + j] = sum;
		}
}

/* Behind the points there is half as many factors. */
static void fft(void)
{
	complex double *points = (complex double *)memory, *factors = points + size;

	for (size_t i = 1, j = 0; i < size; i++) {
		size_t bit = size >> 1;

		for (; j & bit; bit >>= 1)
			j ^= bit;
		j ^= bit;
		if (i < j) {
			complex double kept = points[i];

			points[i] = points[j];
			points[j] = kept;
		}
	}
	for (size_t half = 1; half < size; half *= 2)
		for (size_t first = 0; first < size; first += 2 * half)
			for (size_t i = 0; i < half; i++) {
				complex double factor = factors[i * (size / 2 / half)];
				complex double even = points[first + i], odd = points[first + i + half];
				/* By hand: the operator would look for infinities. */
				complex double turned = CMPLX(creal(odd) * creal(factor) - cimag(odd) * cimag(factor),
							      creal(odd) * cimag(factor) + cimag(odd) * creal(factor));

				/* Halved, so that the numbers stay as small as they are. */
				points[first + i] = (even + turned) / 2;
				points[first + i + half] = (even - turned) / 2;
			}
}

static void fill_fft(void)
{
	complex double *points = (complex double *)memory, *factors = points + size;

	for (size_t i = 0; i < size; i++)
		points[i] = i % 17;
	for (size_t i = 0; i < size / 2; i++)
		factors[i] = cexp(-2 * M_PI * I * i / size);
}

static void fill_doubles(void)
{
	double *all = (double *)memory;

	for (size_t i = 0; i < 2 * size * size; i++)
		all[i] = i % 17;
}

static void fill_product(void)
{
	double *all = (double *)memory;

	for (size_t i = 0; i < (ROWS + size) * size; i++)
		all[i] = i % 17;
}

static void fill_chase(void)
{
	at = link_memory(memory, size);
}

static void fill_bytes(void)
{
	memset(memory, 7, size);
}

static size_t bytes(void)
{
	return size;
}

static size_t bytes_of_two(void)
{
	return 2 * size * size * sizeof(double);
}

static size_t bytes_of_product(void)
{
	return (2 * ROWS + size) * size * sizeof(double);
}

static size_t bytes_of_fft(void)
{
	return (size + size / 2) * sizeof(complex double);
}

static double loads(void)
{
	return size / LINE;
}

static double bytes_moved(void)
{
	return 16.0 * size * size;
}

static double bytes_copied(void)
{
	return size / 2;
}

static double operations_of_product(void)
{
	return 2.0 * ROWS * size * size;
}

/* As FFTW counts them. */
static double operations_of_fft(void)
{
	return 5.0 * size * log2(size);
}

static const struct work {
	const char *name;
	size_t (*bytes)(void);
	double (*amount)(void);
	void (*fill)(void);
	void (*pass)(void);
} works[] = {
	{ "chase", bytes, loads, fill_chase, chase },
	{ "gather", bytes, loads, fill_bytes, gather },
	{ "load", bytes_of_two, bytes_moved, fill_doubles, load },
	{ "store", bytes_of_two, bytes_moved, fill_doubles, store },
	{ "copy", bytes, bytes_copied, fill_bytes, copy },
	{ "product", bytes_of_product, operations_of_product, fill_product, product },
	{ "fft", bytes_of_fft, operations_of_fft, fill_fft, fft },
};

/* Nanoseconds of so many passes, for each. */
static double time_of(void (*pass)(void), size_t passes)
{
	double begin = now();

	for (size_t i = 0; i < passes; i++)
		pass();
	return (now() - begin) / passes;
}

static double fastest(void (*pass)(void))
{
	double least, first;
	size_t passes, times;

	time_of(pass, 1);
	first = time_of(pass, 1);
	passes = first < LEAST ? LEAST / (first + 1) + 1 : 1;
	times = first < LONG ? TIMES : 2;
	least = time_of(pass, passes);
	while (--times) {
		double time = time_of(pass, passes);

		least = time < least ? time : least;
	}
	return least;
}

static size_t fullest(size_t pages, size_t colors)
{
	uint64_t *numbers = malloc(pages * sizeof(*numbers));
	size_t *of = calloc(colors, sizeof(*of)), most = 0;

	if (!numbers || !of)
		die("malloc");
	frames(memory, pages, numbers);
	for (size_t i = 0; i < pages; i++) {
		size_t here = ++of[numbers[i] % colors];

		most = here > most ? here : most;
	}
	return most;
}

int main(int argc, char **argv)
{
	const struct work *work = works;
	size_t pages;
	double time;

	if (argc != 5) {
		fprintf(stderr, "usage: work NAME SIZE COLORS SEED\n");
		return 2;
	}
	while (work < works + sizeof(works) / sizeof(*works) && strcmp(work->name, argv[1]))
		work++;
	if (work == works + sizeof(works) / sizeof(*works)) {
		fprintf(stderr, "there is no work %s\n", argv[1]);
		return 2;
	}
	size = number(argv[2]);
	seed(number(argv[4]));
	pages = (work->bytes() + PAGE - 1) / PAGE;
	memory = fresh(pages * PAGE);
	work->fill();
	time = fastest(work->pass) / work->amount();
	printf("native %.6g %zu\n", time, fullest(pages, number(argv[3])));
	return 0;
}
