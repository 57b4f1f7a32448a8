/* Locks memory and unlocks it: while it is locked, every page of it must be there at any moment, and no access may cost a fault.
 * usage: locked SECONDS PAGES */
#include "attack.h"
#include <sys/resource.h>

static long faults_of_thread(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_majflt + usage.ru_minflt;
}

int main(int count, char **arguments)
{
    start(count, arguments, 256);
    char *memory = reserve(pages, MAP_PRIVATE);
    unsigned char *there = malloc(pages);
    struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_MEMLOCK, &unlimited);
    /* Stack and data stay locked all the time: what they would cost is not what is asked. */
    if (mlockall(MCL_CURRENT) != 0)
        skip("mlockall");
    area(memory, pages);
    for (size_t page = 0; page < pages; page++)
        fill(memory + page * PAGE, page, 0);
    munlock(memory, pages * PAGE);
    ready();
    unsigned long long locks = 0, looks = 0;
    uint64_t random = (uint64_t)getpid();
    for (uint64_t version = 0; !over(); version++, locks++) {
        SAME(mlock(memory, pages * PAGE) == 0);
        for (int turn = 0; turn < 4; turn++, looks++) {
            SAME(mincore(memory, pages * PAGE, there) == 0);
            for (size_t page = 0; page < pages; page++)
                SAME(there[page] & 1);
            long before = faults_of_thread();
            for (size_t page = 0; page < pages; page++)
                check(memory + page * PAGE, page, version, "locked");
            long cost = faults_of_thread() - before;
            if (!SAME(cost == 0))
                tell("%ld faults in locked memory", cost);
            random_rest(&random, 500);
        }
        SAME(munlock(memory, pages * PAGE) == 0);
        for (size_t page = 0; page < pages; page++) {
            check(memory + page * PAGE, page, version, "unlocked");
            fill(memory + page * PAGE, page, version + 1);
        }
        random_rest(&random, 1000);
    }
    return finish("\"locks\": %llu, \"looks\": %llu, ", locks, looks);
}
