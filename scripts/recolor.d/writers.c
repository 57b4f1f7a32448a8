/* Threads write and check every word of the same pages: of each page every thread has its own words, side by side with the others'.
 * usage: writers SECONDS PAGES [THREADS [shared|huge]] */
#include "attack.h"

static volatile uint64_t *words;
static unsigned threads;
static atomic_ullong rounds;

static void *work(void *argument)
{
    unsigned id = (unsigned)(uintptr_t)argument;
    for (uint64_t version = 0; !over(); version++) {
        unsigned long long wrong = 0;
        for (size_t page = 0; page < pages; page++)
            for (unsigned word = id; word < WORDS; word += threads) {
                volatile uint64_t *at = words + page * WORDS + word;
                if (version && *at != word_of(page, word, version - 1)) {
                    if (!wrong++)
                        tell("page %zu word %u version %llu", page, word, (unsigned long long)version);
                }
                *at = word_of(page, word, version);
            }
        seen->lost += wrong;
        seen->checks += pages * WORDS / threads;
        rounds++;
    }
    return NULL;
}

int main(int count, char **arguments)
{
    start(count, arguments, 512);
    threads = count > 3 ? (unsigned)atoi(arguments[3]) : 3;
    pthread_t thread[16];
    if (threads < 1 || threads > 16)
        return 2;
    int is_huge = count > 4 && !strcmp(arguments[4], "huge"), is_shared = count > 4 && !is_huge;
    if (is_huge) {
        /* Of base pages that are taken out of huge ones each, these are split. */
        char *memory = reserve(pages + 512, MAP_PRIVATE);
        words = (uint64_t *)(((uintptr_t)memory + 0x1fffff) & ~(uintptr_t)0x1fffff);
        madvise((void *)words, pages * PAGE, MADV_HUGEPAGE);
    } else
        words = reserve(pages, is_shared ? MAP_SHARED : MAP_PRIVATE);
    area((void *)words, pages);
    for (size_t page = 0; page < pages; page++)
        words[page * WORDS] = 1;
    ready();
    for (unsigned id = 0; id < threads; id++)
        pthread_create(&thread[id], NULL, work, (void *)(uintptr_t)id);
    for (unsigned id = 0; id < threads; id++)
        pthread_join(thread[id], NULL);
    return finish("\"rounds\": %llu, ", (unsigned long long)rounds);
}
