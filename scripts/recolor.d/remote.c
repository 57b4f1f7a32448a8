/* Another process reads and writes the pages (`process_vm_readv`, `process_vm_writev`, /proc/PID/mem) and checks what it gets: the whole of
 * it, each time. usage: remote SECONDS PAGES */
#include "attack.h"

static char *memory;
static struct { atomic_ullong written, read, stop; } *turn;

static void target(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint64_t version = 1; !turn->stop; version++) {
        for (size_t page = 0; page < pages; page++) {
            if (version > 1)
                check(memory + page * PAGE, page, version - 1 + 1000000 * (page & 1), "written from outside");
            fill(memory + page * PAGE, page, version);
        }
        turn->written = version;
        while (turn->read != version && !turn->stop)
            sched_yield();
    }
    _exit(0);
}

int main(int count, char **arguments)
{
    start(count, arguments, 256);
    memory = reserve(pages, MAP_PRIVATE);
    turn = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        memset(memory, 1, pages * PAGE);
        turn->written = ~0ull;
        while (turn->read != ~0ull)
            sched_yield();
        target();
    }
    while (turn->written != ~0ull)
        sched_yield();
    char name[40];
    snprintf(name, sizeof name, "/proc/%d/mem", child);
    int file = open(name, O_RDWR);
    if (file < 0)
        skip(name);
    printf("pid %d\n", child);
    area(memory, pages);
    ready();
    turn->read = ~0ull;
    char *copy = malloc(pages * PAGE);
    unsigned long long reads = 0;
    for (uint64_t version = 1; !over(); version++) {
        while (turn->written != version && !over())
            sched_yield();
        if (over())
            break;
        struct iovec ours = {copy, pages * PAGE}, theirs = {memory, pages * PAGE};
        for (int again = 0; again < 4; again++, reads++) {
            memset(copy, 0xee, pages * PAGE);
            if (again & 1)
                SAME(pread(file, copy, pages * PAGE, (off_t)(size_t)memory) == (ssize_t)(pages * PAGE));
            else
                SAME(process_vm_readv(child, &ours, 1, &theirs, 1, 0) == (ssize_t)(pages * PAGE));
            for (size_t page = 0; page < pages; page++)
                check(copy + page * PAGE, page, version, "read from outside");
        }
        for (size_t page = 1; page < pages; page += 2) {
            fill(copy, page, version + 1000000);
            struct iovec one = {copy, PAGE}, there = {memory + page * PAGE, PAGE};
            if (page & 2)
                SAME(pwrite(file, copy, PAGE, (off_t)(size_t)there.iov_base) == PAGE);
            else
                SAME(process_vm_writev(child, &one, 1, &there, 1, 0) == PAGE);
        }
        turn->read = version;
    }
    turn->stop = 1;
    int status = -1;
    SAME(waitpid(child, &status, 0) == child && status == 0);
    return finish("\"reads\": %llu, ", reads);
}
