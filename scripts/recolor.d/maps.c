/* Changes its mappings all the time and looks at what must be there: moves (`mremap`, also so that the old place stays), grows, shrinks, gives
 * back (`MADV_DONTNEED`, `munmap`), takes rights away and gives them again (an access without them must fail, here and in the kernel).
 * usage: maps SECONDS PAGES */
#include "attack.h"

static sigjmp_buf back;
static atomic_ullong faults;

static void on_fault(int number)
{
    (void)number;
    faults++;
    siglongjmp(back, 1);
}

/* Whether a byte can be read, or written. */
static int can(volatile char *at, int write)
{
    if (sigsetjmp(back, 1))
        return 0;
    if (write)
        *at = *at;
    else
        (void)*at;
    return 1;
}

static int null;

static int kernel_can_read(const char *at)
{
    ssize_t got = write(null, at, 1);
    return got == 1 ? 1 : errno == EFAULT ? 0 : -1;
}

int main(int count, char **arguments)
{
    start(count, arguments, 512);
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    int pipe_[2];
    if (pipe(pipe_) != 0)
        return 2;
    null = pipe_[1];
    fcntl(pipe_[0], F_SETFL, O_NONBLOCK), fcntl(null, F_SETFL, O_NONBLOCK);
    /* Behind each half there is room for it to move to. */
    char *memory = reserve(pages * 2, MAP_PRIVATE);
    area(memory, pages * 2);
    ready();
    unsigned long long moves = 0, flips = 0, returns = 0, kept = 0;
    uint64_t random = (uint64_t)getpid();
    for (uint64_t version = 1; !over(); version++) {
        if (!SAME(mmap(memory, pages * 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory))
            return 2;
        madvise(memory, pages * 2 * PAGE, MADV_NOHUGEPAGE);
        for (size_t page = 0; page < pages; page++)
            fill(memory + page * PAGE, page, version);
        for (int turn = 0; turn < 12; turn++) {
            size_t length = 1 + pick(&random, 64), first = pick(&random, (unsigned)(pages - length));
            char *part = memory + first * PAGE, *away = memory + (pages + first) * PAGE;
            size_t bytes = length * PAGE;
            switch (pick(&random, 5)) {
            case 0: /* There and back. */
                SAME(mremap(part, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, away) == away);
                random_rest(&random, 200);
                for (size_t page = 0; page < length; page++)
                    check(away + page * PAGE, first + page, version, "moved");
                SAME(!can(part, 0));
                SAME(mremap(away, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, part) == part);
                SAME(mmap(away, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == away);
                moves++;
                break;
            case 1: /* The old place stays, empty. */
                SAME(mremap(part, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, away) == away);
                random_rest(&random, 200);
                for (size_t page = 0; page < length; page++) {
                    volatile uint64_t *old = (uint64_t *)(part + page * PAGE);
                    SAME(old[0] == 0 && old[WORDS - 1] == 0);
                    check(away + page * PAGE, first + page, version, "moved, the old place kept");
                    fill(part + page * PAGE, first + page, version);
                }
                kept++;
                break;
            case 2: /* Rights. */
                SAME(mprotect(part, bytes, PROT_NONE) == 0);
                random_rest(&random, 200);
                SAME(!can(part + pick(&random, (unsigned)bytes), 0));
                SAME(kernel_can_read(part + pick(&random, (unsigned)bytes)) == 0);
                SAME(mprotect(part, bytes, PROT_READ) == 0);
                SAME(can(part + pick(&random, (unsigned)bytes), 0));
                SAME(!can(part + pick(&random, (unsigned)bytes), 1));
                SAME(kernel_can_read(part) == 1);
                random_rest(&random, 200);
                SAME(mprotect(part, bytes, PROT_READ | PROT_WRITE) == 0);
                SAME(can(part + pick(&random, (unsigned)bytes), 1));
                flips++;
                break;
            case 3: /* Given back, and taken again. */
                SAME(madvise(part, bytes, MADV_DONTNEED) == 0);
                random_rest(&random, 100);
                for (size_t page = 0; page < length; page++) {
                    volatile uint64_t *words = (uint64_t *)(part + page * PAGE);
                    for (unsigned word = 0; word < WORDS; word++)
                        if (words[word] != 0) {
                            seen->lost++;
                            tell("given back, and not empty: page %zu word %u", first + page, word);
                        }
                    fill(part + page * PAGE, first + page, version);
                }
                returns++;
                break;
            case 4: /* A hole, in which nothing may be. */
                SAME(munmap(part, bytes) == 0);
                random_rest(&random, 100);
                SAME(!can(part, 0) && !can(part + bytes - 1, 1));
                SAME(kernel_can_read(part) == 0);
                SAME(mmap(part, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == part);
                for (size_t page = 0; page < length; page++)
                    fill(part + page * PAGE, first + page, version);
                break;
            }
            char drained[4096];
            while (read(pipe_[0], drained, sizeof drained) > 0)
                ;
        }
        for (size_t page = 0; page < pages; page++)
            check(memory + page * PAGE, page, version, "in the end");
    }
    return finish("\"moves\": %llu, \"kept\": %llu, \"flips\": %llu, \"returns\": %llu, \"faults\": %llu, ", moves, kept, flips, returns,
                  (unsigned long long)faults);
}
