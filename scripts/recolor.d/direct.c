/* Reads and writes past the page cache (O_DIRECT), whole pages and halves, while a thread writes the other halves of those pages.
 * usage: direct SECONDS PAGES FOLDER */
#include "attack.h"

static char *memory;
static atomic_int stop;
static atomic_ullong half_rounds;

/* The second half of each odd page is this thread's. */
static void *halves(void *unused)
{
    (void)unused;
    for (uint64_t version = 0; !stop; version++, half_rounds++)
        for (size_t page = 1; page < pages; page += 2) {
            volatile uint64_t *words = (uint64_t *)(memory + page * PAGE);
            for (unsigned word = WORDS / 2; word < WORDS; word++) {
                if (version && words[word] != word_of(page, word, version - 1)) {
                    seen->lost++;
                    tell("the half beside a direct transfer: page %zu word %u", page, word);
                }
                words[word] = word_of(page, word, version);
            }
        }
    return NULL;
}

static unsigned half_wrong(size_t page, uint64_t version)
{
    volatile uint64_t *words = (uint64_t *)(memory + page * PAGE);
    unsigned wrong = 0;
    for (unsigned word = 0; word < WORDS / 2; word++)
        wrong += words[word] != word_of(page, word, version);
    seen->checks += WORDS / 2;
    seen->lost += wrong;
    return wrong;
}

int main(int count, char **arguments)
{
    start(count, arguments, 256);
    char path[400];
    snprintf(path, sizeof path, "%s/direct-XXXXXX", count > 3 ? arguments[3] : ".");
    int file = mkstemp(path);
    if (file < 0)
        skip(path);
    close(file);
    file = open(path, O_RDWR | O_DIRECT);
    unlink(path);
    if (file < 0)
        skip("O_DIRECT");
    memory = reserve(pages, MAP_PRIVATE);
    memset(memory, 1, pages * PAGE);
    area(memory, pages);
    pthread_t thread;
    pthread_create(&thread, NULL, halves, NULL);
    ready();
    unsigned long long transfers = 0;
    for (uint64_t version = 1; !over(); version++) {
        for (size_t page = 0; page < pages; page++) {
            char *at = memory + page * PAGE;
            off_t where = (off_t)page * PAGE;
            if (page & 1) {
                for (unsigned word = 0; word < WORDS / 2; word++)
                    ((volatile uint64_t *)at)[word] = word_of(page, word, version);
                SAME(pwrite(file, at, PAGE / 2, where) == PAGE / 2);
                memset(at, 0xee, PAGE / 2);
            } else {
                fill(at, page, version);
                SAME(pwrite(file, at, PAGE, where) == PAGE);
                memset(at, 0xee, PAGE);
            }
        }
        /* Many at once. */
        for (size_t page = 0; page < pages; page += 2) {
            char *at = memory + page * PAGE;
            struct iovec ranges[2] = {{at, PAGE}, {at + PAGE, PAGE / 2}};
            int parts = page + 1 < pages ? 2 : 1;
            SAME(preadv(file, ranges, parts, (off_t)page * PAGE) == (parts == 2 ? PAGE + PAGE / 2 : PAGE));
            check(at, page, version, "direct read");
            if (parts == 2 && half_wrong(page + 1, version))
                tell("a direct read of a half: page %zu", page + 1);
            transfers += 3;
        }
    }
    stop = 1;
    pthread_join(thread, NULL);
    return finish("\"transfers\": %llu, \"half_rounds\": %llu, ", transfers, (unsigned long long)half_rounds);
}
