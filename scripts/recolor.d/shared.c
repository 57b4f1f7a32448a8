/* Memory of a memfd that two processes have mapped, which is also read and written by `pread` and `pwrite`, has holes punched into it, is cut
 * and made longer, and sealed. usage: shared SECONDS PAGES */
#include "attack.h"

static char *memory;
static int file;
static struct { atomic_ullong turn; atomic_int stop; } *common;

/* Takes turns with the other: what one wrote the other checks. */
static void partner(unsigned me)
{
    static char copy[PAGE] __attribute__((aligned(8)));
    while (!common->stop) {
        unsigned long long turn = common->turn;
        if (turn % 2 != me) {
            if (over() && me == 0)
                common->stop = 1;
            sched_yield();
            continue;
        }
        for (size_t page = 0; page < pages; page++) {
            char *at = memory + page * PAGE;
            if (turn > 0) {
                check(at, page, turn - 1, "written by the other process");
                SAME(pread(file, copy, PAGE, (off_t)page * PAGE) == PAGE);
                check(copy, page, turn - 1, "read from the file");
            }
            if (page % 3 == 0) {
                fill(copy, page, turn);
                SAME(pwrite(file, copy, PAGE, (off_t)page * PAGE) == PAGE);
                check(at, page, turn, "written to the file");
            } else
                fill(at, page, turn);
        }
        common->turn = turn + 1;
    }
}

static sigjmp_buf back;

static void on_fault(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

static int can_read(volatile char *at)
{
    if (sigsetjmp(back, 1))
        return 0;
    (void)*at;
    return 1;
}

/* Holes, lengths and seals of a file of its own. */
static void *changes(void *counts)
{
    unsigned long long *rounds = counts;
    size_t length = 64;
    uint64_t random = 5;
    for (; !over(); (*rounds)++) {
        int own = memfd_create("changes", MFD_ALLOW_SEALING);
        SAME(own >= 0 && ftruncate(own, (off_t)(length * PAGE)) == 0);
        char *at = mmap(memory + pages * PAGE, length * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, own, 0);
        SAME(at != MAP_FAILED);
        for (size_t page = 0; page < length; page++)
            fill(at + page * PAGE, page, *rounds);
        size_t hole = pick(&random, 32), some = 1 + pick(&random, 16);
        random_rest(&random, 1000);
        SAME(fallocate(own, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(hole * PAGE), (off_t)(some * PAGE)) == 0);
        for (size_t page = 0; page < length; page++)
            if (page < hole || page >= hole + some)
                check(at + page * PAGE, page, *rounds, "beside a hole");
            else
                SAME(*(volatile uint64_t *)(at + page * PAGE) == 0);
        SAME(ftruncate(own, (off_t)(48 * PAGE)) == 0);
        random_rest(&random, 1000);
        SAME(!can_read(at + 48 * PAGE) && !can_read(at + 63 * PAGE) && can_read(at + 47 * PAGE));
        SAME(ftruncate(own, (off_t)(length * PAGE)) == 0);
        SAME(*(volatile uint64_t *)(at + 48 * PAGE) == 0);
        random_rest(&random, 500);
        /* Its pages must be nobody else's now. */
        SAME(munmap(at, length * PAGE) == 0);
        SAME(fcntl(own, F_ADD_SEALS, F_SEAL_WRITE) == 0);
        static char copy[PAGE] __attribute__((aligned(8)));
        SAME(pread(own, copy, PAGE, 47 * PAGE) == PAGE);
        if (hole + some <= 47)
            check(copy, 47, *rounds, "sealed");
        SAME(mmap(at, length * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
        close(own);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    start(count, arguments, 256);
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    file = memfd_create("shared", 0);
    if (file < 0 || ftruncate(file, (off_t)(pages * PAGE)) != 0)
        skip("memfd_create");
    memory = mmap(NULL, (pages + 64) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mmap(memory, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != memory)
        skip("mmap");
    common = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, pages * PAGE);
    area(memory, pages + 64);
    ready();
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        partner(1);
        _exit(0);
    }
    unsigned long long rounds = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, changes, &rounds);
    partner(0);
    int status = -1;
    SAME(waitpid(child, &status, 0) == child && status == 0);
    pthread_join(thread, NULL);
    return finish("\"turns\": %llu, \"rounds\": %llu, ", (unsigned long long)common->turn, rounds);
}
