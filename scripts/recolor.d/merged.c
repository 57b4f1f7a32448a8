/* Equal pages that the kernel may merge (KSM), and that are parted again by writes. usage: merged SECONDS PAGES */
#include "attack.h"

int main(int count, char **arguments)
{
    start(count, arguments, 512);
    char *memory = reserve(pages, MAP_PRIVATE);
    if (madvise(memory, pages * PAGE, MADV_MERGEABLE) != 0)
        skip("MADV_MERGEABLE");
    area(memory, pages);
    uint64_t *versions = calloc(pages, sizeof *versions), random = 1;
    /* Eight kinds of pages. */
    for (size_t page = 0; page < pages; page++)
        fill(memory + page * PAGE, page % 8, 0);
    ready();
    unsigned long long rounds = 0, most = 0;
    for (; !over(); rounds++) {
        for (size_t page = 0; page < pages; page++)
            check(memory + page * PAGE, page % 8, versions[page], "that may be merged");
        for (int turn = 0; turn < 16; turn++) {
            size_t page = pick(&random, (unsigned)pages);
            fill(memory + page * PAGE, page % 8, ++versions[page]);
        }
        /* Equal again, so that they are merged. */
        if (rounds % 64 == 63)
            for (size_t page = 0; page < pages; page++)
                if (versions[page])
                    versions[page] = 0, fill(memory + page * PAGE, page % 8, 0);
        random_rest(&random, 20000);
        char text[400] = "";
        int file = open("/proc/self/ksm_stat", O_RDONLY | O_CLOEXEC);
        if (file >= 0 && read(file, text, sizeof text - 1) > 0) {
            char *found = strstr(text, "ksm_merging_pages ");
            unsigned long long merged = found ? strtoull(found + 18, NULL, 10) : 0;
            most = merged > most ? merged : most;
        }
        close(file);
    }
    return finish("\"rounds\": %llu, \"most_merged_pages\": %llu, ", rounds, most);
}
