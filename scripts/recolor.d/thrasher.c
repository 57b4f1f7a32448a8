/* Streams over its memory, whole lines. usage: thrasher MIB [huge]   prints "filled" when all is there; ends after two minutes.
 * `huge`: on huge pages, which span all colors. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

int main(int count, char **arguments)
{
    size_t length = (count > 1 ? strtoul(arguments[1], NULL, 10) : 256) << 20, huge = 2 << 20;
    char *memory = mmap(NULL, length + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    memory = (char *)(((uintptr_t)memory + huge - 1) & ~(huge - 1));
    madvise(memory, length, count > 2 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    volatile uint64_t *words = (uint64_t *)memory;
    for (size_t at = 0; at < length / 8; at += 8)
        words[at] = at;
    if (count > 2)
        madvise(memory, length, MADV_COLLAPSE);
    puts("filled");
    fflush(stdout);
    for (time_t end = time(NULL) + 120; time(NULL) < end;)
        for (size_t at = 0; at < length / 8; at += 8)
            words[at]++;
    return 0;
}
