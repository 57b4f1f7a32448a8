/* Streams over its memory, whole lines, for ever. usage: thrasher MIB [SECONDS]   prints "filled" when all is there */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int count, char **arguments)
{
    size_t words = (count > 1 ? strtoul(arguments[1], NULL, 10) : 256) << 17;
    volatile uint64_t *memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < words; at += 8)
        memory[at] = at;
    puts("filled");
    fflush(stdout);
    for (;;)
        for (size_t at = 0; at < words; at += 8)
            memory[at]++;
}
