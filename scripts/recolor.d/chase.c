/* Fills memory, then follows pointers over pages that lie scattered in it, and times what it does itself.
 *
 * usage: chase MIB HOT_PAGES SECONDS SEED. Prints "fill_seconds N", then a line "at SECONDS ns NS longest_ns NS" for each window of 100 ms:
 * of its first 75 ms nanoseconds for each load and the longest block of 64 loads, in the rest each load is timed by itself. In the end
 * one line of JSON: how often a single load took so long (lower bounds in ns; a step is an eighth of a power of two), and what the timing costs. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

enum { PAGE = 4096, LINES = PAGE / 64, STEPS = 64 * 8 };

static uint64_t counts[STEPS], random_state;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static size_t pick(size_t among)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (size_t)((random_state >> 20) % among);
}

static unsigned step_of(uint64_t cycles)
{
    if (cycles < 8)
        return (unsigned)cycles;
    unsigned power = 63 - (unsigned)__builtin_clzll(cycles);
    return power * 8 + (unsigned)(cycles >> (power - 3) & 7);
}

static uint64_t bound_of(unsigned step)
{
    return step < 24 ? step : (uint64_t)(8 + step % 8) << (step / 8 - 3);
}

int main(int count, char **arguments)
{
    if (count < 5)
        return 2;
    size_t length = strtoul(arguments[1], NULL, 10) << 20, hot = strtoul(arguments[2], NULL, 10);
    double seconds = atof(arguments[3]);
    random_state = strtoul(arguments[4], NULL, 10) * 77 + 1;
    double begun = now();
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || hot > length / PAGE)
        return 2;
    for (size_t at = 0; at < length; at += 64)
        *(volatile uint64_t *)(memory + at) = at;
    printf("fill_seconds %.4f\n", now() - begun);
    fflush(stdout);
    /* Different pages, anywhere; all their lines, in random order. */
    size_t lines = hot * LINES, *page = malloc(hot * sizeof *page);
    uint32_t *order = malloc(lines * sizeof *order);
    char *taken = calloc(length / PAGE, 1);
    for (size_t each = 0; each < hot; each++) {
        do
            page[each] = pick(length / PAGE);
        while (taken[page[each]]);
        taken[page[each]] = 1;
    }
    free(taken);
    for (size_t line = 0; line < lines; line++)
        order[line] = (uint32_t)line;
    for (size_t last = lines - 1; last > 0; last--) {
        size_t other = pick(last + 1);
        uint32_t kept = order[last];
        order[last] = order[other], order[other] = kept;
    }
#define LINE(which) ((void **)(memory + page[(which) / LINES] * PAGE + (which) % LINES * 64))
    for (size_t line = 0; line < lines; line++)
        *LINE(order[line]) = LINE(order[(line + 1) % lines]);
    void **at = LINE(order[0]);
    free(order), free(page);
    unsigned unused;
    /* How long a cycle is, and what timing one load costs. */
    double from = now();
    uint64_t first = __rdtscp(&unused);
    while (now() < from + 0.02)
        ;
    double ns = (now() - from) * 1e9 / (double)(__rdtscp(&unused) - first);
    uint64_t least = ~0ull;
    for (int turn = 0; turn < 1000; turn++) {
        uint64_t before = __rdtscp(&unused), after = __rdtscp(&unused);
        least = after - before < least ? after - before : least;
    }
    uint64_t window = (uint64_t)(1e8 / ns), plain = window * 3 / 4, singles = 0, longest_ever = 0;
    begun = now();
    while (now() < begun + seconds) {
        uint64_t start = __rdtscp(&unused), before = start, longest = 0, loads = 0;
        while (before - start < plain) {
            for (int step = 0; step < 64; step++)
                at = *(void *volatile *)at;
            /* It must have come before it is timed. */
            asm volatile("" : "+r"(at));
            uint64_t after = __rdtscp(&unused);
            longest = after - before > longest ? after - before : longest;
            before = after, loads += 64;
        }
        printf("at %.3f ns %.3f longest_ns %.0f\n", now() - begun, (double)(before - start) * ns / (double)loads, (double)longest * ns);
        longest_ever = longest > longest_ever ? longest : longest_ever;
        before = __rdtscp(&unused);
        while (before - start < window) {
            at = *(void *volatile *)at;
            asm volatile("" : "+r"(at));
            uint64_t after = __rdtscp(&unused), took = after - before;
            counts[step_of(took > least ? took - least : 0)]++;
            before = after, singles++;
        }
    }
    printf("{\"singles\": %llu, \"longest_block_ns\": %.0f, \"timer_ns\": %.2f, \"counts\": [", (unsigned long long)singles,
           (double)longest_ever * ns, (double)least * ns);
    int some = 0;
    for (unsigned step = 0; step < STEPS; step++)
        if (counts[step])
            printf("%s[%.2f, %llu]", some++ ? ", " : "", (double)bound_of(step) * ns, (unsigned long long)counts[step]);
    printf("], \"last\": %d}\n", (int)((size_t)at & 1));
    return 0;
}
