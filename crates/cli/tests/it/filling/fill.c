/* Memory that is filled in each of the ways there are. usage: fill HOW MIB IDLE_SECONDS
 *
 * HOW: forwards, backwards, randomly, forks (a child checks and changes what is filled, eight times), again (half is given back and filled anew), uses (what
 * is filled is read meanwhile), never (nothing is used after it was filled), shared (two children fill an object that all map).
 * Prints the huge KiB of the memory once it is filled and after IDLE_SECONDS, in which a byte of each page is read four times a second, and checks each
 * page at the end. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE (2ul << 20)
#define PAGE 4096ul

static volatile uint64_t *memory;
static size_t pages;
static uint64_t seed = 1;

static volatile uint64_t *word(size_t page)
{
    return &memory[page * PAGE / 8 + page % 512];
}

static void check(size_t from, size_t to)
{
    for (size_t page = from; page < to; page++)
        if (*word(page) != (page ^ seed)) {
            printf("wrong contents of page %zu\n", page);
            fflush(stdout);
            _exit(4);
        }
}

static void fill(size_t page)
{
    *word(page) = page ^ seed;
}

/* The huge KiB of the memory, by its mapping. */
static long huge(void)
{
    char line[512];
    long kib, sum = 0;
    int is_ours = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            is_ours = start >= (unsigned long)memory && end <= (unsigned long)memory + pages * PAGE;
        else if (is_ours && (sscanf(line, "AnonHugePages: %ld", &kib) == 1 || sscanf(line, "ShmemPmdMapped: %ld", &kib) == 1))
            sum += kib;
    }
    if (maps)
        fclose(maps);
    return sum;
}

static void wait_for_children(void)
{
    int status;
    while (wait(&status) > 0)
        if (status != 0) {
            printf("a child failed\n");
            exit(5);
        }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const char *how = argv[1];
    size_t size = (size_t)atol(argv[2]) << 20;
    int idle = atoi(argv[3]), object = -1;
    pages = size / PAGE;
    int is_shared = strcmp(how, "shared") == 0;
    if (is_shared) {
        object = memfd_create("filled", MFD_CLOEXEC);
        if (object < 0 || ftruncate(object, (off_t)size))
            return 3;
    }
    /* The mapping begins at a boundary of 2 MiB. */
    char *room = mmap(NULL, size + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return 3;
    char *start = (char *)(((uintptr_t)room + HUGE - 1) & ~(HUGE - 1));
    int flags = MAP_FIXED | (is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
    memory = mmap(start, size, PROT_READ | PROT_WRITE, flags, object, 0);
    if (memory == MAP_FAILED)
        return 3;

    if (is_shared) {
        for (int half = 0; half < 2; half++)
            if (fork() == 0) {
                for (size_t page = pages / 2 * half; page < pages / 2 * (half + 1); page++)
                    fill(page);
                _exit(0);
            }
        wait_for_children();
    } else if (strcmp(how, "backwards") == 0) {
        for (size_t page = pages; page-- > 0;)
            fill(page);
    } else if (strcmp(how, "randomly") == 0) {
        /* An odd factor visits each page of a power of two once. */
        for (size_t step = 0; step < pages; step++)
            fill(step * 40503 % pages);
    } else {
        for (size_t page = 0; page < pages; page++) {
            fill(page);
            if (strcmp(how, "forks") == 0 && page % (pages / 8) == pages / 16 && fork() == 0) {
                check(0, page + 1);
                seed = 7;
                for (size_t own = 0; own < page; own += 3)
                    fill(own);
                for (size_t own = 0; own < page; own += 3)
                    check(own, own + 1);
                _exit(0);
            }
            if (strcmp(how, "uses") == 0 && page % 1024 == 1023)
                check(0, page + 1);
        }
        wait_for_children();
        if (strcmp(how, "again") == 0) {
            check(0, pages);
            madvise((void *)memory, size / 2, MADV_DONTNEED);
            for (size_t page = 0; page < pages / 2; page++)
                fill(page);
        }
    }
    printf("filled %ld\n", huge());
    fflush(stdout);
    for (int quarter = 0; quarter < 4 * idle; quarter++) {
        if (strcmp(how, "never") != 0)
            check(0, pages);
        usleep(250000);
    }
    printf("idled %ld\n", huge());
    check(0, pages);
    printf("ended well\n");
    return 0;
}
