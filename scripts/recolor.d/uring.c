/* io_uring by its system calls: reads and writes of registered buffers, past the page cache where a folder is given, and, in turns, rings that lie
 * in the program's own memory. What is written into a buffer long after it was registered must arrive. usage: uring SECONDS PAGES FOLDER */
#include "attack.h"
#include <linux/io_uring.h>

#ifndef IORING_SETUP_NO_MMAP
#define IORING_SETUP_NO_MMAP (1u << 14)
#endif

enum { ENTRIES = 32 };

struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

static int open_ring(struct ring *ring, char *own)
{
    struct io_uring_params how;
    memset(&how, 0, sizeof how);
    if (own) {
        how.flags = IORING_SETUP_NO_MMAP;
        /* `user_addr`, the last word of each, which older headers call resv2. */
        uint64_t sqes = (uint64_t)(size_t)own, rings = (uint64_t)(size_t)(own + PAGE);
        memcpy((char *)&how.sq_off + sizeof how.sq_off - 8, &sqes, 8);
        memcpy((char *)&how.cq_off + sizeof how.cq_off - 8, &rings, 8);
    }
    ring->fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &how);
    if (ring->fd < 0)
        return -1;
    char *rings = own ? own + PAGE : NULL;
    ring->sqes = own ? (void *)own : NULL;
    if (!own) {
        size_t sq = how.sq_off.array + how.sq_entries * 4, cq = how.cq_off.cqes + how.cq_entries * sizeof(struct io_uring_cqe);
        rings = mmap(NULL, sq > cq ? sq : cq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
        ring->sqes = mmap(NULL, how.sq_entries * sizeof *ring->sqes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
        if (rings == MAP_FAILED || ring->sqes == MAP_FAILED)
            return -1;
    }
    ring->sq_tail = (unsigned *)(rings + how.sq_off.tail), ring->sq_mask = (unsigned *)(rings + how.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(rings + how.sq_off.array);
    ring->cq_head = (unsigned *)(rings + how.cq_off.head), ring->cq_tail = (unsigned *)(rings + how.cq_off.tail);
    ring->cq_mask = (unsigned *)(rings + how.cq_off.ring_mask), ring->cqes = (void *)(rings + how.cq_off.cqes);
    return 0;
}

static void put(struct ring *ring, int operation, int file, void *at, unsigned length, uint64_t offset)
{
    unsigned tail = *ring->sq_tail, slot = tail & *ring->sq_mask;
    struct io_uring_sqe *entry = ring->sqes + slot;
    memset(entry, 0, sizeof *entry);
    entry->opcode = (uint8_t)operation, entry->fd = file, entry->addr = (uint64_t)(size_t)at, entry->len = length, entry->off = offset;
    entry->user_data = length;
    ring->sq_array[slot] = slot;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
}

static void submit(struct ring *ring, unsigned count)
{
    unsigned got = 0;
    SAME(syscall(SYS_io_uring_enter, ring->fd, count, count, IORING_ENTER_GETEVENTS, NULL, 0) == count);
    while (got < count) {
        unsigned head = *ring->cq_head;
        if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) {
            SAME(syscall(SYS_io_uring_enter, ring->fd, 0, count - got, IORING_ENTER_GETEVENTS, NULL, 0) == 0);
            continue;
        }
        struct io_uring_cqe *entry = ring->cqes + (head & *ring->cq_mask);
        if (!SAME(entry->res == (int)entry->user_data))
            tell("a transfer of %llu ended with %d", (unsigned long long)entry->user_data, entry->res);
        __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
        got++;
    }
}

int main(int count, char **arguments)
{
    start(count, arguments, 256);
    char path[400];
    snprintf(path, sizeof path, "%s/uring-XXXXXX", count > 3 ? arguments[3] : ".");
    int file = mkstemp(path), direct = open(path, O_RDWR | O_DIRECT);
    unlink(path);
    if (file < 0 || direct < 0)
        skip("O_DIRECT");
    char *memory = reserve(pages + 8, MAP_PRIVATE);
    memset(memory, 1, (pages + 8) * PAGE);
    char *own = memory + pages * PAGE;
    struct ring ring, in_memory;
    if (open_ring(&ring, NULL) != 0)
        skip("io_uring_setup");
    int has_own = open_ring(&in_memory, own) == 0;
    struct iovec buffer = {memory, pages * PAGE};
    struct rlimit { unsigned long soft, hard; } unlimited = {~0ul, ~0ul};
    syscall(SYS_setrlimit, 8, &unlimited);
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &buffer, 1) != 0)
        skip("IORING_REGISTER_BUFFERS");
    if (has_own && syscall(SYS_io_uring_register, in_memory.fd, IORING_REGISTER_BUFFERS, &buffer, 1) != 0)
        skip("IORING_REGISTER_BUFFERS");
    area(memory, pages + 8);
    ready();
    unsigned long long transfers = 0;
    uint64_t random = 3;
    static char copy[PAGE] __attribute__((aligned(8)));
    for (uint64_t version = 1; !over(); version++) {
        struct ring *with = has_own && (version & 1) ? &in_memory : &ring;
        for (size_t page = 0; page < pages; page++)
            fill(memory + page * PAGE, page, version);
        random_rest(&random, 2000);
        for (size_t page = 0; page < pages; page += ENTRIES) {
            unsigned some = (unsigned)(pages - page < ENTRIES ? pages - page : ENTRIES);
            for (unsigned each = 0; each < some; each++)
                put(with, IORING_OP_WRITE_FIXED, direct, memory + (page + each) * PAGE, PAGE, (page + each) * PAGE);
            submit(with, some);
        }
        for (size_t page = 0; page < pages; page += 7) {
            SAME(pread(file, copy, PAGE, (off_t)page * PAGE) == PAGE);
            check(copy, page, version, "written from a registered buffer");
        }
        memset(memory, 0xee, pages * PAGE);
        for (size_t page = 0; page < pages; page += ENTRIES) {
            unsigned some = (unsigned)(pages - page < ENTRIES ? pages - page : ENTRIES);
            for (unsigned each = 0; each < some; each++)
                put(with, IORING_OP_READ_FIXED, direct, memory + (page + each) * PAGE, PAGE, (page + each) * PAGE);
            submit(with, some);
        }
        for (size_t page = 0; page < pages; page++)
            check(memory + page * PAGE, page, version, "read into a registered buffer");
        transfers += 2 * pages;
    }
    return finish("\"transfers\": %llu, \"rings_in_own_memory\": %d, ", transfers, has_own);
}
