/* Windows of 2 MiB in states of all kinds, one mapping for each, by a seed. usage: states SEED WINDOWS
 *
 * Prints "at ADDRESS STATE" for each, then "ready"; checks its bytes when its standard input ends, and says "right". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define HUGE (2ul << 20)

static uint64_t state;

static uint64_t pick(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static const char *names[] = {"full", "holes", "sparse", "forbidden", "read-only", "lazily", "guarded", "watched", "shared", "misaligned", "half"};
enum { FULL, HOLES, SPARSE, FORBIDDEN, READ_ONLY, LAZILY, GUARDED, WATCHED, SHARED, MISALIGNED, HALF, STATES };

/* Whether a page is written. */
static int written(int kind, size_t page, unsigned salt)
{
    switch (kind) {
    case HOLES:
        return page % 10 != salt % 10;
    case SPARSE:
        return page % 5 == salt % 5;
    case GUARDED:
        return page != salt;
    case HALF:
        return page < 256;
    default:
        return 1;
    }
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    state = strtoull(arguments[1], NULL, 0) * 2654435761u + 88172645463325252ull;
    size_t windows = strtoull(arguments[2], NULL, 0);
    char **where = calloc(windows, sizeof *where);
    int *kinds = calloc(windows, sizeof *kinds);
    unsigned *salts = calloc(windows, sizeof *salts);
    int watcher = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {UFFD_API, 0, 0};
    if (watcher >= 0 && ioctl(watcher, UFFDIO_API, &api) != 0)
        watcher = -1;
    /* Far from anything else, with room between them, so that each is a mapping of its own. */
    char *base = (char *)(0x100000000000ul);
    /* Base pages, whatever the machine makes by itself. */
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    for (size_t at = 0; at < windows; at++) {
        int kind = kinds[at] = (int)pick(STATES);
        salts[at] = (unsigned)pick(512);
        char *place = base + at * 3 * HUGE;
        if (kind == WATCHED && watcher < 0)
            kind = kinds[at] = FULL;
        int file = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
        size_t offset = 0;
        if (kind == SHARED || kind == MISALIGNED) {
            file = memfd_create("states", MFD_CLOEXEC);
            if (file < 0 || ftruncate(file, 2 * HUGE) != 0)
                return 3;
            flags = MAP_SHARED;
            offset = kind == MISALIGNED ? HUGE / 2 : 0;
        }
        char *memory = mmap(place, HUGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, file, (off_t)offset);
        if (memory != place)
            return 3;
        where[at] = memory;
        if (kind == FORBIDDEN)
            madvise(memory, HUGE, MADV_NOHUGEPAGE);
        if (kind == GUARDED && madvise(memory + salts[at] * 4096ul, 4096, MADV_GUARD_INSTALL) != 0)
            kind = kinds[at] = FULL;
        for (size_t page = 0; page < 512; page++)
            if (written(kind, page, salts[at]))
                memset(memory + page * 4096, (int)(page % 250) + 1, 4096);
        if (kind == READ_ONLY)
            mprotect(memory, HUGE, PROT_READ);
        if (kind == LAZILY)
            madvise(memory + HUGE / 4, HUGE / 2, MADV_FREE);
        if (kind == WATCHED) {
            struct uffdio_register range = {{(size_t)memory, HUGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
            if (ioctl(watcher, UFFDIO_REGISTER, &range) != 0)
                return 3;
        }
        printf("at %p %s\n", (void *)memory, names[kind]);
    }
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    for (size_t at = 0; at < windows; at++)
        for (size_t page = 0; page < 512; page++) {
            int kind = kinds[at];
            if ((kind == GUARDED && page == salts[at]) || (kind == WATCHED && !written(kind, page, salts[at])) || (kind == LAZILY && page >= 128 && page < 384))
                continue;
            unsigned char wanted = written(kind, page, salts[at]) ? (unsigned char)(page % 250 + 1) : 0;
            volatile unsigned char *memory = (unsigned char *)where[at] + page * 4096;
            if (memory[0] != wanted || memory[4095] != wanted) {
                printf("wrong: window %zu (%s), page %zu\n", at, names[kind], page);
                return 4;
            }
        }
    printf("right\n");
    return 0;
}
