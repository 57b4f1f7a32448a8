/*
 * A service under the kernel's `always` that gives nine tenths of its memory back, and serves from the rest.
 *
 *	bloated MIB KEPT SECONDS
 *
 * Fills MIB MiB, gives all but the first KEPT of each 512 pages back, prints `mark freed`, and then reads the kept pages at random for SECONDS:
 * `rate SECONDS READS` for each tenth of a second, by the monotonic clock.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096ul
#define HUGE (2ul << 20)

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **words)
{
	size_t size = count > 3 ? strtoul(words[1], NULL, 10) << 20 : 0;
	size_t stay = count > 3 ? strtoul(words[2], NULL, 10) : 0;
	double end = count > 3 ? atof(words[3]) : 0;
	unsigned long random = 88172645463325252ul, sum = 0;
	unsigned char *place;

	if (!size || !stay || stay >= 512) {
		fputs("bloated MIB KEPT SECONDS\n", stderr);
		return 2;
	}
	place = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (place == MAP_FAILED)
		return 1;
	place = (void *)(((unsigned long)place + HUGE - 1) & ~(HUGE - 1));
	memset(place, 1, size);
	for (size_t at = 0; at < size; at += HUGE)
		madvise(place + at + stay * PAGE, HUGE - stay * PAGE, MADV_DONTNEED);
	puts("mark freed");
	fflush(stdout);
	end += now();
	while (now() < end) {
		double begun = now();
		unsigned long reads = 0;

		while (now() < begun + 0.1) {
			for (int i = 0; i < 100000; i++) {
				random ^= random << 13;
				random ^= random >> 7;
				random ^= random << 17;
				sum += place[random % (size / HUGE) * HUGE + (random >> 32) % (stay * PAGE)];
			}
			reads += 100000;
		}
		printf("rate %.6f %.0f\n", begun, reads / (now() - begun));
		fflush(stdout);
	}
	printf("ended well\n");
	return sum == 0;
}
