/* io_uring by its system calls, with registered buffers (whose pages the kernel keeps pinned) and ordinary reads into anonymous
 * memory: a page that is moved while the kernel still writes to the old one shows here. */
#include "torture.h"
#include <linux/io_uring.h>
#include <sys/uio.h>

#define DEPTH 32
#define BLOCK 16384

int main(void)
{
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    errno = 0;
    int ring = (int)syscall(SYS_io_uring_setup, DEPTH, &params);
    if (ring < 0)
        skip("no io_uring");
    size_t sq_size = params.sq_off.array + params.sq_entries * 4, cq_size = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *sq = mmap(NULL, sq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, cq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqes = mmap(NULL, params.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    MUST(sq != MAP_FAILED && cq != MAP_FAILED && (void *)sqes != MAP_FAILED);
    atomic_uint *sq_tail = (void *)(sq + params.sq_off.tail), *cq_head = (void *)(cq + params.cq_off.head), *cq_tail = (void *)(cq + params.cq_off.tail);
    unsigned mask = *(unsigned *)(sq + params.sq_off.ring_mask), cq_mask = *(unsigned *)(cq + params.cq_off.ring_mask);
    unsigned *array = (void *)(sq + params.sq_off.array);
    struct io_uring_cqe *cqes = (void *)(cq + params.cq_off.cqes);

    size_t size = mib() << 20, fixed = 4 << 20;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    memset(memory, 1, size);
    struct iovec registered = {memory, fixed};
    long got = syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &registered, 1);
    note("registered buffers: %s", got == 0 ? "yes" : strerror(errno));
    char path[] = "uring-XXXXXX";
    int file = mkstemp(path);
    MUST(file >= 0 && unlink(path) == 0);
    uint64_t *block = malloc(BLOCK), random = 1;
    for (uint64_t i = 0; i < 64; i++) {
        for (size_t k = 0; k < BLOCK / 8; k++)
            block[k] = mix(i * BLOCK + k);
        MUST(pwrite(file, block, BLOCK, (off_t)(i * BLOCK)) == BLOCK);
    }
    field_start(1, mib() << 19);
    size_t reads = 0, places[DEPTH];
    for (double end = now() + seconds(); now() < end; rest(0.0005)) {
        unsigned tail = *sq_tail;
        for (unsigned i = 0; i < DEPTH; i++) {
            random = mix(random + 1);
            int use = got == 0 && random >> 63;
            /* Every request a part of its own, so that no two of them meet. */
            size_t part = (use ? fixed : size - fixed) / DEPTH;
            places[i] = (use ? 0 : fixed) + i * part + random % (part / BLOCK) * BLOCK;
            struct io_uring_sqe *sqe = sqes + (tail & mask);
            memset(sqe, 0, sizeof *sqe);
            sqe->opcode = use ? IORING_OP_READ_FIXED : IORING_OP_READ;
            sqe->fd = file, sqe->addr = (uintptr_t)(memory + places[i]), sqe->len = BLOCK;
            sqe->off = (random >> 20) % 64 * BLOCK, sqe->user_data = i << 8 | (random >> 20) % 64;
            if (i % 4 == 0)
                sqe->flags = IOSQE_ASYNC;
            array[tail & mask] = tail & mask;
            tail++;
        }
        *sq_tail = tail;
        long entered = syscall(SYS_io_uring_enter, ring, DEPTH, DEPTH, IORING_ENTER_GETEVENTS, NULL, 0);
        if (entered != DEPTH)
            odd("io_uring_enter: %ld, %s", entered, strerror(errno));
        for (int i = 0; i < DEPTH; i++) {
            for (double last = now() + 10; *cq_head == *cq_tail && now() < last;)
                syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
            struct io_uring_cqe *cqe = cqes + (*cq_head & cq_mask);
            uint64_t *words = (void *)(memory + places[cqe->user_data >> 8]), from = cqe->user_data & 255;
            if (cqe->res != BLOCK)
                odd("a read gave %d", cqe->res);
            for (size_t k = 0; k < BLOCK / 8; k++)
                if (words[k] != mix(from * BLOCK + k)) {
                    odd("what was read is not there");
                    break;
                }
            reads++;
            (*cq_head)++;
        }
    }
    note("%zu reads", reads);
    CHECK(reads >= DEPTH);
    field_stop();
    return done();
}
