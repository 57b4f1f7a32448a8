/* A victim: sleeps, wakes, does one job over its working set, and tells how long that took.
 * usage: victim KIB SECONDS   prints "area START PAGES", then "at SECONDS ns NANOSECONDS" of each job */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    size_t lines = strtoul(arguments[1], NULL, 10) * 1024 / 64;
    double seconds = atof(arguments[2]);
    uint64_t(*memory)[8] = mmap(NULL, lines * 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    uint32_t *order = malloc(lines * sizeof *order);
    uint64_t random = 1;
    for (size_t at = 0; at < lines; at++)
        order[at] = at;
    for (size_t last = lines - 1; last > 0; last--) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        size_t other = (random >> 33) % (last + 1);
        uint32_t kept = order[last];
        order[last] = order[other], order[other] = kept;
    }
    for (size_t at = 0; at < lines; at++)
        memory[order[at]][0] = order[(at + 1) % lines];
    free(order);
    printf("area %zu %zu\n", (size_t)memory, lines / 64);
    fflush(stdout);
    double begun = now(CLOCK_MONOTONIC);
    uint64_t at = 0;
    while (now(CLOCK_MONOTONIC) < begun + seconds) {
        struct timespec rest = {0, 5000000};
        nanosleep(&rest, NULL);
        /* CPU time: on the same core the partner's turns are not the victim's. */
        double before = now(CLOCK_THREAD_CPUTIME_ID);
        for (size_t step = 0; step < lines; step++)
            at = ((volatile uint64_t *)memory[at])[0];
        double took = now(CLOCK_THREAD_CPUTIME_ID) - before;
        printf("at %.4f ns %.0f\n", now(CLOCK_MONOTONIC) - begun, took * 1e9);
    }
    fflush(stdout);
    return at == lines;
}
