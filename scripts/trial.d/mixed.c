// A server of known gain: rounds of random loads over much memory, and of arithmetic that no page size changes. How much of a round is loads
// decides what huge pages are worth. Counts rounds in a file.
//
//   mixed MIB LOADS STEPS FILE [PAUSE [SEED]]
//
// Runs until it is killed, and sleeps PAUSE microseconds after every 1000 rounds. With SEED it fills its pages in random order, which scatters
// their frames.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	size_t bytes = strtoull(argv[1], 0, 0) << 20, words = bytes / 8;
	long loads = atol(argv[2]), steps = atol(argv[3]), pause = argc > 5 ? atol(argv[5]) : 0;
	char *raw = mmap(0, bytes + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int file = open(argv[4], O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (raw == MAP_FAILED || file < 0 || ftruncate(file, 4096))
		return 1;
	volatile uint64_t *count = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (count == MAP_FAILED)
		return 1;
	uint64_t *memory = (uint64_t *)(((uintptr_t)raw + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1));
	uint64_t state = argc > 6 ? strtoull(argv[6], 0, 0) : 0, sum = 0;
	size_t pages = bytes >> 12, *order = malloc(pages * sizeof(*order));
	if (!order)
		return 1;
	for (size_t page = 0; page < pages; page++)
		order[page] = page;
	for (size_t last = pages - 1; state && last; last--) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		size_t chosen = (state >> 33) % (last + 1), other = order[chosen];
		order[chosen] = order[last];
		order[last] = other;
	}
	for (size_t page = 0; page < pages; page++)
		for (size_t at = order[page] << 9; at < (order[page] + 1) << 9; at++)
			memory[at] = at * 0x9e3779b97f4a7c15u;
	free(order);
	state = 1;
	puts("ready");
	fflush(stdout);
	for (;;) {
		for (long i = 0; i < loads; i++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			sum += memory[(state >> 20) % words];
		}
		for (long i = 0; i < steps; i++)
			sum = sum * 2862933555777941757u + 3037000493u;
		*count += 1;
		if (sum == 42)
			puts("");
		if (pause && *count % 1000 == 0)
			usleep(pause);
	}
}
