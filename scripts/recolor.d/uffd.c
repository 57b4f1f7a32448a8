/* Memory under a userfaultfd. `missing`: a handler fills pages; no fault may arrive for a page that is there, and none for a page that nobody
 * of the program touches. `protect`: a write to a protected page must come to the handler, a write to another must not. `move`: pages
 * are moved to and fro by `UFFDIO_MOVE`. `source`: they are moved out of memory that is under no userfaultfd, and only that is recolored.
 * usage: uffd SECONDS PAGES missing|protect|move|source */
#include "attack.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

/* Since Linux 6.8, and not in older headers. */
#ifndef UFFDIO_MOVE
struct uffdio_move {
    __u64 dst, src, len, mode;
    __s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#define UFFD_FEATURE_MOVE (1 << 16)
#endif

enum { EMPTY, FULL };

static char *memory;
static int fd;
static _Atomic unsigned char *state, *touched;
static _Atomic double *filled_at;
static atomic_ullong events, uncalled, again;
static atomic_int stop;
static unsigned long long told_wrongly;
static char *mode;

static void *handler(void *unused)
{
    (void)unused;
    static char source[PAGE] __attribute__((aligned(PAGE)));
    while (!stop) {
        struct pollfd wait = {fd, POLLIN, 0};
        if (poll(&wait, 1, 50) <= 0)
            continue;
        struct uffd_msg message;
        if (read(fd, &message, sizeof message) != sizeof message)
            continue;
        if (message.event != UFFD_EVENT_PAGEFAULT)
            continue;
        events++;
        size_t page = (message.arg.pagefault.address - (size_t)memory) / PAGE;
        if (message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
            if (!SAME(state[page]))
                tell("a page that is not protected: %zu", page);
            state[page] = 0;
            struct uffdio_writeprotect open_ = {{(size_t)memory + page * PAGE, PAGE}, 0};
            SAME(ioctl(fd, UFFDIO_WRITEPROTECT, &open_) == 0);
            continue;
        }
        /* Two may wait for the same page; the second is told although the first was served just now. */
        if (state[page] == FULL) {
            if (now() - filled_at[page] > 0.5) {
                again++;
                seen->odd++;
                tell("a fault for a page that is there: %zu", page);
            }
            struct uffdio_range range = {(size_t)memory + page * PAGE, PAGE};
            ioctl(fd, UFFDIO_WAKE, &range);
            continue;
        }
        if (!touched[page]) {
            uncalled++;
            seen->odd++;
            tell("a fault for a page that nobody touched: %zu", page);
        }
        fill(source, page, 7);
        filled_at[page] = now();
        state[page] = FULL;
        struct uffdio_copy copy = {(size_t)memory + page * PAGE, (size_t)source, PAGE, 0, 0};
        SAME(ioctl(fd, UFFDIO_COPY, &copy) == 0 || errno == EEXIST);
    }
    return NULL;
}

static void register_(char *from, size_t count, unsigned how)
{
    struct uffdio_register range = {{(size_t)from, count * PAGE}, how, 0};
    if (ioctl(fd, UFFDIO_REGISTER, &range) != 0)
        skip("UFFDIO_REGISTER");
}

static void missing(uint64_t random)
{
    while (!over()) {
        size_t page = pick(&random, (unsigned)pages), length = 1 + pick(&random, 8);
        if (page + length > pages)
            continue;
        switch (pick(&random, 3)) {
        case 0:
            for (size_t at = page; at < page + length; at++) {
                touched[at] = 1;
                check(memory + at * PAGE, at, 7, "filled by the handler");
            }
            break;
        case 1:
            for (size_t at = page; at < page + length; at++)
                if (state[at] == FULL) {
                    /* The handler has filled it already, or is about to. */
                    touched[at] = 1;
                    check(memory + at * PAGE, at, 7, "filled by the handler");
                    touched[at] = 0;
                    state[at] = EMPTY;
                    SAME(madvise(memory + at * PAGE, PAGE, MADV_DONTNEED) == 0);
                }
            break;
        default:
            random_rest(&random, 300);
        }
    }
    for (size_t page = 0; page < pages; page++)
        touched[page] = 1;
    for (size_t page = 0; page < pages; page++)
        check(memory + page * PAGE, page, 7, "filled by the handler");
}

static void protect(uint64_t random)
{
    uint64_t *versions = calloc(pages, sizeof *versions);
    for (size_t page = 0; page < pages; page++)
        fill(memory + page * PAGE, page, 0);
    while (!over()) {
        size_t page = pick(&random, (unsigned)pages);
        check(memory + page * PAGE, page, versions[page], "protected or not");
        if (pick(&random, 2)) {
            state[page] = 1;
            struct uffdio_writeprotect shut = {{(size_t)memory + page * PAGE, PAGE}, UFFDIO_WRITEPROTECT_MODE_WP};
            SAME(ioctl(fd, UFFDIO_WRITEPROTECT, &shut) == 0);
            random_rest(&random, 200);
            check(memory + page * PAGE, page, versions[page], "protected");
        }
        unsigned long long before = events;
        int was = state[page];
        fill(memory + page * PAGE, page, ++versions[page]);
        SAME(events == before + (was ? 1 : 0));
        SAME(state[page] == 0);
    }
    free(versions);
}

static void moves(uint64_t random, unsigned long long *moved, unsigned long long *busy)
{
    char *other = memory + pages * PAGE;
    for (size_t page = 0; page < pages; page++)
        fill(memory + page * PAGE, page, 0);
    uint64_t version = 0;
    while (!over()) {
        size_t page = pick(&random, (unsigned)pages), length = 1 + pick(&random, 16);
        if (page + length > pages)
            continue;
        char *from = memory + page * PAGE, *to = other + page * PAGE;
        for (int turn = 0; turn < 2; turn++) {
            for (size_t done = 0; done < length && !over();) {
                struct uffdio_move move = {(size_t)to + done * PAGE, (size_t)from + done * PAGE, (length - done) * PAGE, 0, 0};
                int is = ioctl(fd, UFFDIO_MOVE, &move);
                int error = errno;
                if (move.move > 0)
                    done += (size_t)move.move / PAGE;
                if (is != 0 && error != EAGAIN && error != EBUSY) {
                    volatile uint64_t *there = (uint64_t *)(to + done * PAGE);
                    unsigned char here = 0, away = 0;
                    /* Linux 6.18 moves a page whose folio somebody else has locked just then (reclaim, compaction), fails with EAGAIN,
                     * and says EEXIST the next time. It does so without us, too. */
                    if (error == EEXIST && there[0] == word_of(page + done, 0, version)) {
                        told_wrongly++;
                        done++;
                        continue;
                    }
                    mincore(from + done * PAGE, PAGE, &here), mincore(to + done * PAGE, PAGE, &away);
                    seen->odd++;
                    tell("UFFDIO_MOVE of page %zu: %s; the old place is %s, the new one %s and holds %s", page + done, strerror(error),
                         here & 1 ? "there" : "empty", away & 1 ? "there" : "empty",
                         there[0] == word_of(page + done, 0, version) ? "the page" : there[0] ? "something" : "zeroes");
                    return;
                }
                *busy += is != 0;
                *moved += is == 0;
            }
            for (size_t at = 0; at < length && !over(); at++)
                check(to + at * PAGE, page + at, version, "moved");
            if (!strcmp(mode, "source")) {
                SAME(madvise(to, length * PAGE, MADV_DONTNEED) == 0);
                for (size_t at = 0; at < length; at++)
                    fill(from + at * PAGE, page + at, version);
                break;
            }
            char *swap = from;
            from = to, to = swap;
        }
        if (over())
            return;
        if (pick(&random, 64) == 0) {
            version++;
            for (size_t at = 0; at < pages; at++)
                fill(memory + at * PAGE, at, version);
        }
    }
}

int main(int count, char **arguments)
{
    start(count, arguments, 256);
    mode = count > 3 ? arguments[3] : "missing";
    int of_source = !strcmp(mode, "source"), of_move = of_source || !strcmp(mode, "move"), of_protect = !strcmp(mode, "protect");
    fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {UFFD_API, of_move ? UFFD_FEATURE_MOVE : of_protect ? UFFD_FEATURE_PAGEFAULT_FLAG_WP : 0, 0};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0)
        skip("userfaultfd");
    memory = reserve(pages * (of_move ? 2 : 1), MAP_PRIVATE);
    state = calloc(pages, 1), touched = calloc(pages, 1), filled_at = calloc(pages, sizeof *filled_at);
    area(memory, pages * (of_move && !of_source ? 2 : 1));
    register_(memory + (of_source ? pages * PAGE : 0), pages * (of_move && !of_source ? 2 : 1), of_protect || of_move ? UFFDIO_REGISTER_MODE_WP : UFFDIO_REGISTER_MODE_MISSING);
    pthread_t thread;
    pthread_create(&thread, NULL, handler, NULL);
    ready();
    unsigned long long moved = 0, busy = 0;
    if (of_move)
        moves((uint64_t)getpid(), &moved, &busy);
    else if (of_protect)
        protect((uint64_t)getpid());
    else
        missing((uint64_t)getpid());
    stop = 1;
    pthread_join(thread, NULL);
    return finish("\"events\": %llu, \"events_of_nobody\": %llu, \"moved\": %llu, \"busy\": %llu, \"told_wrongly\": %llu, ", (unsigned long long)events,
                  (unsigned long long)uncalled, moved, busy, told_wrongly);
}
