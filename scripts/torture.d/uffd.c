/* Has a userfaultfd of its own: a thread serves its faults with pages of known content, the rest takes them away again. A page
 * must be asked for exactly once: who brings pages in for the program, or takes them away, is in the way. */
#include "torture.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

static int uffd;
static char *memory;
static atomic_int stop;
static atomic_long served, twice;

static void *server(void *argument)
{
    uint64_t *page = aligned_alloc(PAGE, PAGE);
    (void)argument;
    while (!stop) {
        struct pollfd ready = {uffd, POLLIN, 0};
        struct uffd_msg message;
        if (poll(&ready, 1, 100) < 0)
            odd("poll: %s", strerror(errno));
        if (read(uffd, &message, sizeof message) != sizeof message || message.event != UFFD_EVENT_PAGEFAULT)
            continue;
        uint64_t at = message.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
        for (int i = 0; i < WORDS; i++)
            page[i] = field_word((at - (uintptr_t)memory) / PAGE, (unsigned)i, 0);
        struct uffdio_copy copy = {at, (uintptr_t)page, PAGE, 0, 0};
        while (ioctl(uffd, UFFDIO_COPY, &copy) != 0) {
            if (errno == EEXIST) {
                struct uffdio_range range = {at, PAGE};
                ioctl(uffd, UFFDIO_WAKE, &range);
                twice++;
                break;
            }
            MUST(errno == EAGAIN);
            copy.copy = 0;
        }
        served++;
    }
    return NULL;
}

int main(void)
{
    size_t size = mib() << 20;
    errno = 0;
    uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (uffd < 0)
        skip("no userfaultfd");
    block_signals();
    struct uffdio_api api = {UFFD_API, 0, 0};
    MUST(ioctl(uffd, UFFDIO_API, &api) == 0);
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    struct uffdio_register range = {{(uintptr_t)memory, size}, UFFDIO_REGISTER_MODE_MISSING, 0};
    MUST(ioctl(uffd, UFFDIO_REGISTER, &range) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, server, NULL) == 0);
    field_start(1, mib() << 19);
    struct field field = {(uint64_t *)memory, calloc(size / PAGE, 4), size / PAGE, 1, 0};
    uint64_t random = 3;
    for (double end = now() + seconds(); now() < end; rest(0.0005)) {
        field_step(&field, 64);
        for (int i = 0; i < 8; i++) {
            random = mix(random + 1);
            size_t page = random % field.pages;
            MUST(madvise(memory + page * PAGE, PAGE, MADV_DONTNEED) == 0);
            field.writes[page] = 0;
        }
    }
    field_check_all(&field);
    stop = 1;
    pthread_join(thread, NULL);
    field_stop();
    note("served %ld, %ld twice", served, twice);
    CHECK(served > 0);
    return done();
}
