/* Pages are given to a pipe by `vmsplice`, which holds them by a plain reference (FOLL_GET). What the program writes afterwards must show
 * in the pipe, as it does alone. A thread looks at the pages meanwhile, another writes other words of them.
 * usage: splice SECONDS PAGES */
#include "attack.h"

static uint64_t *words;
static atomic_int stop;
static atomic_ullong sum;

static void *reader(void *unused)
{
    (void)unused;
    while (!stop)
        for (size_t page = 0; page < pages; page++)
            sum += ((volatile uint64_t *)words)[page * WORDS + 100];
    return NULL;
}

static void *writer(void *unused)
{
    (void)unused;
    for (uint64_t version = 1; !stop; version++) {
        for (size_t page = 0; page < pages; page++)
            ((volatile uint64_t *)words)[page * WORDS + 200] = version;
        usleep(50);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    start(count, arguments, 64);
    words = reserve(pages, MAP_PRIVATE);
    area(words, pages);
    int ends_[2];
    if (pipe(ends_) || fcntl(ends_[1], F_SETPIPE_SZ, pages * PAGE) < (int)(pages * PAGE))
        skip("a pipe of this size");
    for (size_t page = 0; page < pages; page++)
        fill(words + page * WORDS, page, 0);
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, reader, NULL);
    pthread_create(&threads[1], NULL, writer, NULL);
    ready();
    unsigned long long rounds = 0, given = 0, parted = 0;
    uint64_t random = 1;
    static uint64_t copy[WORDS];
    while (!over()) {
        rounds++;
        for (size_t page = 0; page < pages; page++) {
            struct iovec range = {words + page * WORDS, PAGE};
            given += SAME(vmsplice(ends_[1], &range, 1, 0) == PAGE);
        }
        random_rest(&random, 20000);
        for (size_t page = 0; page < pages; page++)
            ((volatile uint64_t *)words)[page * WORDS] = rounds << 32 | page;
        for (size_t page = 0; page < pages; page++) {
            size_t got = 0;
            while (got < PAGE) {
                ssize_t some = read(ends_[0], (char *)copy + got, PAGE - got);
                if (some <= 0)
                    return 2;
                got += (size_t)some;
            }
            seen->checks++;
            if (copy[0] != (rounds << 32 | page)) {
                parted++;
                seen->lost++;
                tell("a page given to a pipe has parted from the program's: round %llu page %zu", rounds, page);
            }
            if (((volatile uint64_t *)words)[page * WORDS] != (rounds << 32 | page))
                seen->lost++;
        }
    }
    stop = 1;
    pthread_join(threads[0], NULL), pthread_join(threads[1], NULL);
    return finish("\"rounds\": %llu, \"given\": %llu, \"parted\": %llu, ", rounds, given, parted);
}
