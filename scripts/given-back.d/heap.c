/* A heap that grows, gives most of itself back, and grows again near its limit. The allocator is malloc's, or one that is preloaded.
 * usage: heap MIB KEEP_PERCENT IDLE_SECONDS AGAIN_MIB
 *
 * Objects of 64 B to 64 KiB. KEEP_PERCENT of them stay, at random, and are used now and then. Prints a line "mark NAME" at each step. */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t state = 88172645463325252ull;

static uint64_t pick(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static void mark(const char *name)
{
    printf("mark %s\n", name);
    fflush(stdout);
    /* Leaves time to read what the group is charged. */
    usleep(300000);
}

static size_t fill(char ***objects, size_t bytes)
{
    size_t count = 0, room = 0;
    for (size_t used = 0; used < bytes; count++) {
        size_t size = 64ull << pick(11);
        if (count == room)
            *objects = realloc(*objects, (room = room ? room * 2 : 1024) * sizeof **objects);
        char *object = malloc(size);
        if (!object || !*objects)
            exit(3);
        memset(object, (int)(count % 251) + 1, size);
        memcpy(object, &size, sizeof size);
        (*objects)[count] = object;
        used += size;
    }
    return count;
}

static void check(char **objects, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        size_t size;
        if (!objects[at])
            continue;
        memcpy(&size, objects[at], sizeof size);
        for (size_t byte = sizeof size; byte < size; byte += 61)
            if (objects[at][byte] != (char)((int)(at % 251) + 1)) {
                printf("wrong contents\n");
                exit(4);
            }
    }
}

int main(int count, char **arguments)
{
    if (count != 5)
        return 2;
    size_t bytes = strtoull(arguments[1], NULL, 0) << 20, again = strtoull(arguments[4], NULL, 0) << 20;
    unsigned keep = (unsigned)atoi(arguments[2]);
    char **objects = NULL, **more = NULL;
    size_t there = fill(&objects, bytes);
    mark("filled");
    double end = (double)time(NULL) + 2;
    while ((double)time(NULL) < end)
        check(objects, there);
    for (size_t at = 0; at < there; at++)
        if (pick(100) >= keep) {
            free(objects[at]);
            objects[at] = NULL;
        }
    malloc_trim(0);
    mark("freed");
    end = (double)time(NULL) + atof(arguments[3]);
    while ((double)time(NULL) < end) {
        check(objects, there);
        /* Some allocators give back only when they are called. */
        free(malloc(1 << 16));
        usleep(20000);
    }
    mark("idled");
    size_t new = fill(&more, again);
    mark("grown");
    check(objects, there);
    check(more, new);
    printf("ended well\n");
    return 0;
}
