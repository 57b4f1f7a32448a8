/* Memory that is given back lazily (`MADV_FREE`): until it is written again a page may be as it was or empty, never anything between;
 * what is written afterwards must stay. `empty` counts how many were empty: alone that happens only when memory is short.
 * usage: lazy SECONDS PAGES */
#include "attack.h"

int main(int count, char **arguments)
{
    start(count, arguments, 512);
    char *memory = reserve(pages, MAP_PRIVATE);
    area(memory, pages);
    ready();
    unsigned long long old = 0, empty = 0, written = 0;
    uint64_t random = (uint64_t)getpid();
    for (uint64_t version = 1; !over(); version++) {
        for (size_t page = 0; page < pages; page++)
            fill(memory + page * PAGE, page, version);
        random_rest(&random, 500);
        SAME(madvise(memory, pages * PAGE, MADV_FREE) == 0);
        /* A third is written at once, a third is looked at before it is written, a third after a while. */
        for (size_t page = 0; page < pages; page += 3)
            fill(memory + page * PAGE, page, version + 1), written++;
        for (int turn = 1; turn < 3; turn++) {
            if (turn == 2)
                random_rest(&random, 3000);
            for (size_t page = (size_t)turn; page < pages; page += 3) {
                volatile uint64_t *words = (uint64_t *)(memory + page * PAGE);
                /* One word is written: from here on the page is what it is now. */
                words[7] = word_of(page, 7, version + 1);
                int is_old = words[0] == word_of(page, 0, version);
                for (unsigned word = 0; word < WORDS; word++) {
                    uint64_t want = word == 7 ? word_of(page, 7, version + 1) : is_old ? word_of(page, word, version) : 0;
                    if (words[word] != want) {
                        seen->lost++;
                        tell("neither old nor empty: page %zu word %u: %llx", page, word, (unsigned long long)words[word]);
                    }
                }
                seen->checks += WORDS;
                old += (unsigned)is_old, empty += !is_old;
                fill(memory + page * PAGE, page, version + 1), written++;
            }
        }
        random_rest(&random, 2000);
        for (size_t page = 0; page < pages; page++)
            check(memory + page * PAGE, page, version + 1, "written after it was given back");
    }
    return finish("\"old\": %llu, \"empty\": %llu, \"written\": %llu, ", old, empty, written);
}
