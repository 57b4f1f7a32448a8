/* Ages the lists of free pages: a fresh guest hands out pages in order, which spreads them over the colors by accident. Touches so many MiB, gives
 * two thirds back page by page in random order, and holds the rest until standard input ends. usage: age MIB   prints "aged" when done */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    size_t pages = (count > 1 ? strtoul(arguments[1], NULL, 10) : 4096) << 8;
    char *memory = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *order = malloc(pages * sizeof *order);
    uint64_t random = 3;
    if (memory == MAP_FAILED || !order)
        return 2;
    madvise(memory, pages << 12, MADV_NOHUGEPAGE);
    for (size_t page = 0; page < pages; page++)
        memory[page << 12] = 1, order[page] = (uint32_t)page;
    for (size_t last = pages - 1; last > 0; last--) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        size_t other = (size_t)((random >> 20) % (last + 1));
        uint32_t kept = order[last];
        order[last] = order[other], order[other] = kept;
    }
    for (size_t each = 0; each < pages * 2 / 3; each++)
        madvise(memory + ((size_t)order[each] << 12), 4096, MADV_DONTNEED);
    free(order);
    puts("aged");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
