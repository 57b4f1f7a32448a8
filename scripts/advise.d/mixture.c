/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A synthetic program on which the model of `superhue advise` was made: a mixture of loads of known kinds.
 *
 *   mixture MIB ROUNDS kind=COUNT... [hot=MIB] [skew=K]
 *
 * In each round, so many of each kind:
 *   gather  independent random loads from all memory          chase  random loads each of which waits for the one before
 *   store   independent random writes                         object four neighbouring lines at a random place
 *   skewed  loads whose page is n * u^K for a random u         hotter random loads from the first `hot` MIB
 *   scan    the next page, every line                         work   dependent multiplications, no memory
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, LINE = 64, HUGE = 2 << 20 };

static uint64_t state = 88172645463325252ull;

static inline uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static inline uint64_t below(uint64_t random, uint64_t count)
{
	return (uint64_t)(((unsigned __int128)random * count) >> 64);
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "gather", "chase", "store", "object", "skewed", "hotter", "scan", "work", "hot", "skew" };
	enum { GATHER, CHASE, STORE, OBJECT, SKEWED, HOTTER, SCAN, WORK, HOT, SKEW, COUNT };
	long value[COUNT] = { 0 };

	if (argc < 4)
		return 2;
	size_t mib = strtoul(argv[1], NULL, 10), length = mib << 20;
	uint64_t rounds = strtoull(argv[2], NULL, 10);
	value[HOT] = (long)mib;
	value[SKEW] = 3;
	for (int i = 3; i < argc; i++) {
		char *sign = strchr(argv[i], '=');
		int known = 0;
		if (!sign)
			return 2;
		for (int k = 0; k < COUNT; k++) {
			if (!strncmp(argv[i], names[k], (size_t)(sign - argv[i])) && !names[k][sign - argv[i]]) {
				value[k] = strtol(sign + 1, NULL, 10);
				known = 1;
			}
		}
		if (!known)
			return 2;
	}
	char *memory = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	memory += -(uintptr_t)memory & (HUGE - 1);
	for (size_t at = 0; at < length; at += PAGE)
		*(uint64_t *)(memory + at) = at;
	uint64_t *words = (uint64_t *)memory, count = length / 8, hot = ((uint64_t)value[HOT] << 20) / 8;
	uint64_t lines = length / LINE, pages = length / PAGE, place = 0, sum = 0, last = 0;
	double product = 1;
	/* Pages that are hot lie scattered. */
	uint32_t *order = malloc(pages * sizeof *order);
	if (!order)
		return 1;
	for (uint64_t i = 0; i < pages; i++)
		order[i] = (uint32_t)i;
	for (uint64_t i = pages - 1; i > 0; i--) {
		uint64_t j = below(draw(), i + 1);
		uint32_t other = order[i];
		order[i] = order[j];
		order[j] = other;
	}
	for (uint64_t round = 0; round < rounds; round++) {
		for (long i = 0; i < value[GATHER]; i++)
			sum += words[below(draw(), count)];
		for (long i = 0; i < value[STORE]; i++)
			words[below(draw(), count)] += 1;
		for (long i = 0; i < value[HOTTER]; i++)
			sum += words[below(draw(), hot)];
		for (long i = 0; i < value[CHASE]; i++)
			last = words[below(draw() ^ (last & 1), count)];
		for (long i = 0; i < value[SKEWED]; i++) {
			double u = (double)(draw() >> 11) * 0x1p-53, share = u;
			for (long k = 1; k < value[SKEW]; k++)
				share *= u;
			sum += words[order[(uint64_t)(share * (double)pages)] * (uint64_t)(PAGE / 8) + (draw() & 511)];
		}
		for (long i = 0; i < value[OBJECT]; i++) {
			uint64_t line = below(draw(), lines - 4);
			for (int k = 0; k < 4; k++)
				sum += words[(line + (uint64_t)k) * (LINE / 8)];
		}
		for (long i = 0; i < value[SCAN]; i++) {
			for (int k = 0; k < PAGE / LINE; k++)
				sum += words[(place + (uint64_t)k) * (LINE / 8)];
			place += PAGE / LINE;
			if (place >= lines)
				place = 0;
		}
		for (long i = 0; i < value[WORK]; i++)
			product = product * 1.0000001 + 1e-9;
	}
	printf("%llu %llu %f\n", (unsigned long long)sum, (unsigned long long)last, product);
	return 0;
}
