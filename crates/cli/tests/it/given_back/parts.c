/* Memory of which parts are given back, in each of the ways there are. usage: parts HOW MIB KEEP_PAGES IDLE_SECONDS AGAIN_MIB
 *
 * HOW: dontneed (MADV_DONTNEED), lazily (MADV_FREE), unmap (munmap), again (MADV_DONTNEED, then half of it is written again),
 * asked (as dontneed; the kernel was asked for huge pages), half (as dontneed, by another thread while it goes on),
 * remade (as dontneed; a second later, or a third of IDLE_SECONDS, it is huge again with holes, as khugepaged makes it).
 * It is filled for 3 s, or for IDLE_SECONDS if that is longer, before parts are given back.
 * Of each 2 MiB the first KEEP_PAGES stay and are used. Prints a line "mark NAME" at each step. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define HUGE (2ul << 20)
#define COLLAPSE 25 /* MADV_COLLAPSE, which older headers lack */

static volatile char *memory;
static size_t size, keep;
static int advice = MADV_DONTNEED, unmaps;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The step, and how many KiB of our memory are freed lazily and huge. */
static void mark(const char *name)
{
    long lazily = -1, huge = -1;
    char line[256];
    FILE *rollup = fopen("/proc/self/smaps_rollup", "r");
    while (rollup && fgets(line, sizeof line, rollup)) {
        sscanf(line, "LazyFree: %ld", &lazily);
        sscanf(line, "AnonHugePages: %ld", &huge);
    }
    if (rollup)
        fclose(rollup);
    printf("mark %s %ld %ld\n", name, lazily, huge);
    fflush(stdout);
    usleep(300000);
}

static void check(size_t part)
{
    for (size_t at = 0; at < size; at += HUGE)
        for (size_t byte = 0; byte < part; byte += 4096)
            if (memory[at + byte] != 7 || memory[at + byte + 4095] != (char)(byte >> 12)) {
                printf("wrong contents\n");
                exit(4);
            }
}

static void fill(size_t from, size_t to)
{
    for (size_t at = 0; at < size; at += HUGE)
        for (size_t byte = from; byte < to; byte += 4096)
            memory[at + byte] = 7, memory[at + byte + 4095] = (char)(byte >> 12);
}

static void *give_back(void *unused)
{
    (void)unused;
    for (size_t at = 0; at < size; at += HUGE) {
        char *from = (char *)memory + at + keep;
        if (unmaps ? munmap(from, HUGE - keep) : madvise(from, HUGE - keep, advice))
            perror("given back"), exit(3);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 6)
        return 2;
    const char *how = arguments[1];
    size = strtoull(arguments[2], NULL, 0) << 20, keep = strtoull(arguments[3], NULL, 0) << 12;
    size_t again = strtoull(arguments[5], NULL, 0) << 20;
    double idle = atof(arguments[4]);
    char *all = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 3;
    memory = (char *)(((size_t)all + HUGE - 1) & ~(HUGE - 1));
    advice = strcmp(how, "lazily") ? MADV_DONTNEED : MADV_FREE;
    unmaps = !strcmp(how, "unmap");
    if (!strcmp(how, "asked"))
        madvise((char *)memory, size, MADV_HUGEPAGE);
    fill(0, HUGE);
    mark("filled");
    /* Long enough for all of it to become huge. */
    for (double end = now() + (idle > 3 ? idle : 3); now() < end;)
        check(HUGE);
    if (!strcmp(how, "half")) {
        pthread_t thread;
        pthread_create(&thread, NULL, give_back, NULL);
        while (pthread_tryjoin_np(thread, NULL))
            check(keep);
    } else {
        give_back(NULL);
    }
    mark("freed");
    if (!strcmp(how, "again"))
        fill(HUGE / 2, HUGE / 2 + HUGE / 4);
    if (!strcmp(how, "remade")) {
        sleep(idle > 3 ? (unsigned)(idle / 3) : 1);
        for (size_t at = 0; at < size; at += HUGE)
            for (int tries = 0; madvise((char *)memory + at, HUGE, COLLAPSE); tries++) {
                /* The kernel may have no huge page at hand, or be busy with the memory. */
                if (tries == 100 || (errno != ENOMEM && errno != EAGAIN))
                    perror("made huge again"), exit(3);
                usleep(50000);
            }
        mark("remade");
    }
    for (double end = now() + idle; now() < end; usleep(20000))
        check(keep);
    mark("idled");
    char *more = mmap(NULL, again ? again : 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < again; at += 4096)
        more[at] = 1;
    mark("grown");
    check(keep);
    printf("ended well\n");
    return 0;
}
