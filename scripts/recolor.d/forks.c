/* Forks all the time, while a thread goes on writing another part. Each child checks what it got, writes a part of it, checks that twice,
 * and forks one that checks the child's; the parent's must not change. usage: forks SECONDS PAGES */
#include "attack.h"

static uint64_t *mine, *others;
static atomic_ullong forks, rounds;

static void *writer(void *unused)
{
    (void)unused;
    for (size_t page = 0; page < pages; page++)
        fill(others + page * WORDS, page, 0);
    for (uint64_t version = 0; !over(); version++)
        for (size_t page = 0; page < pages; page++) {
            check(others + page * WORDS, page, version, "the thread beside forks");
            fill(others + page * WORDS, page, version + 1);
        }
    return NULL;
}

static void child(uint64_t version, uint64_t random)
{
    for (size_t page = 0; page < pages; page++)
        check(mine + page * WORDS, page, version, "child");
    for (size_t page = pick(&random, 8); page < pages; page += 8)
        fill(mine + page * WORDS, page, ~version);
    random_rest(&random, 5000);
    pid_t grandchild = fork();
    for (size_t page = 0; page < pages; page++) {
        uint64_t first = mine[page * WORDS];
        check(mine + page * WORDS, page, first == word_of(page, 0, version) ? version : ~version, grandchild ? "child again" : "grandchild");
    }
    if (grandchild == 0)
        _exit(0);
    int status = -1;
    SAME(grandchild < 0 || (waitpid(grandchild, &status, 0) == grandchild && status == 0));
    _exit(0);
}

int main(int count, char **arguments)
{
    start(count, arguments, 512);
    pages /= 2;
    mine = reserve(pages * 2, MAP_PRIVATE);
    others = mine + pages * WORDS;
    area(mine, pages * 2);
    for (size_t page = 0; page < pages; page++)
        fill(mine + page * WORDS, page, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, writer, NULL);
    ready();
    uint64_t random = (uint64_t)getpid();
    for (uint64_t version = 0; !over(); version++, rounds++) {
        pid_t started[3];
        for (int which = 0; which < 3; which++) {
            started[which] = fork();
            if (started[which] == 0)
                child(version, random + (uint64_t)which);
            SAME(started[which] > 0);
            forks++;
            random_rest(&random, 300);
        }
        for (size_t page = 0; page < pages; page++) {
            check(mine + page * WORDS, page, version, "parent");
            fill(mine + page * WORDS, page, version + 1);
        }
        for (int which = 0; which < 3; which++) {
            int status = -1;
            SAME(started[which] < 0 || (waitpid(started[which], &status, 0) == started[which] && status == 0));
        }
    }
    pthread_join(thread, NULL);
    return finish("\"forks\": %llu, \"rounds\": %llu, ", (unsigned long long)forks, (unsigned long long)rounds);
}
