/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A control loop beside a greedy neighbour on the same CPU, first in ordinary memory, then each in colors of its own:
 *
 *     control [OWN [OTHERS]]      sets of colors; default: the upper half for the loop, the lower for the neighbour
 *
 * Prints how long a step of the loop took, median and worst of many. */
#define _GNU_SOURCE
#include <superhue.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STATE = 256 << 10, NEIGHBOUR = 4 << 20, STEPS = 2000, LINE = 64 };

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* One step: every cache line of the state is read and written. */
static void step(volatile unsigned char *memory, size_t size)
{
    for (size_t i = 0; i < size; i += LINE)
        memory[i]++;
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static void run(const char *name, unsigned char *state, unsigned char *neighbour)
{
    static uint64_t times[STEPS];
    for (int i = 0; i < STEPS; i++) {
        step(neighbour, NEIGHBOUR);
        uint64_t start = now();
        step(state, STATE);
        times[i] = now() - start;
    }
    qsort(times, STEPS, sizeof *times, ascending);
    printf("%-9s median %7.1f us  worst of a thousand %7.1f us\n", name, (double)times[STEPS / 2] / 1e3,
           (double)times[STEPS - STEPS / 1000] / 1e3);
}

static _Noreturn void give_up(const char *what)
{
    char why[512];
    superhue_color_reason(why, sizeof why);
    fprintf(stderr, "control: %s: %s\n", what, why);
    exit(1);
}

int main(int argc, char **argv)
{
    int colors = superhue_color_count();
    char upper[32], lower[32];
    if (colors < 0)
        give_up("colors");
    snprintf(upper, sizeof upper, "%d-%d", colors / 2, colors - 1);
    snprintf(lower, sizeof lower, "0-%d", colors > 1 ? colors / 2 - 1 : 0);
    const char *own = argc > 1 ? argv[1] : upper;
    const char *others = argc > 2 ? argv[2] : lower;

    unsigned char *ordinary = calloc(1, STATE), *greedy = calloc(1, NEIGHBOUR);
    unsigned char *state = superhue_color_alloc(own, STATE, SUPERHUE_COLOR_STRICT);
    if (!state)
        give_up("the loop's memory");
    unsigned char *tamed = superhue_color_alloc(others, NEIGHBOUR, 0);
    if (!tamed || !ordinary || !greedy)
        give_up("the neighbour's memory");
    printf("%d colors: the loop has %s, %.1f %% of its pages confirmed\n", colors, own,
           superhue_color_verify(own, state, STATE, NULL) / 10.0);

    run("ordinary", ordinary, greedy);
    run("colored", state, tamed);

    superhue_color_free(state);
    superhue_color_free(tamed);
    free(ordinary);
    free(greedy);
    return 0;
}
