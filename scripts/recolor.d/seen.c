/* What a program can see of being recolored, if it looks: pages that are not there for a moment (`mincore`), memory in swap, and faults that count as
 * major. No fault of recoloring, but nothing that it sees alone. usage: seen SECONDS PAGES */
#include "attack.h"
#include <sys/resource.h>

int main(int count, char **arguments)
{
    start(count, arguments, 512);
    char *memory = reserve(pages, MAP_PRIVATE);
    unsigned char *there = malloc(pages);
    area(memory, pages);
    for (size_t page = 0; page < pages; page++)
        fill(memory + page * PAGE, page, 1);
    ready();
    unsigned long long looks = 0, absent = 0, most = 0;
    while (!over()) {
        unsigned long long out = 0;
        SAME(mincore(memory, pages * PAGE, there) == 0);
        for (size_t page = 0; page < pages; page++)
            out += !(there[page] & 1);
        absent += out, most = out > most ? out : most, looks += pages;
        for (size_t page = 0; page < pages; page++)
            check(memory + page * PAGE, page, 1, "looked at");
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return finish("\"looks\": %llu, \"absent\": %llu, \"most_absent_at_once\": %llu, \"major_faults\": %ld, \"minor_faults\": %ld, ", looks,
                  absent, most, usage.ru_majflt, usage.ru_minflt);
}
