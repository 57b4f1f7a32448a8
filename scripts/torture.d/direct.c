/* O_DIRECT reads and writes, and AIO by its system calls, from and into anonymous memory that is being moved: the disk writes to
 * pages by their frames. Between two transfers the memory is written by the CPU. */
#include "torture.h"
#include <linux/aio_abi.h>

#define BLOCK 65536
#define DEPTH 8

int main(int count, char **arguments)
{
    int aio = count > 1 && !strcmp(arguments[1], "aio");
    char path[] = "direct-XXXXXX";
    MUST(close(mkstemp(path)) == 0);
    errno = 0;
    int file = open(path, O_RDWR | O_DIRECT);
    unlink(path);
    if (file < 0)
        skip("no O_DIRECT here");
    size_t size = mib() << 20, blocks = size / BLOCK, transfers = 0;
    uint64_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), random = 7;
    MUST((void *)memory != MAP_FAILED);
    memset(memory, 1, size);
    aio_context_t context = 0;
    errno = 0;
    if (aio && syscall(SYS_io_setup, DEPTH, &context) != 0)
        skip("no AIO");
    for (double end = now() + seconds(); now() < end; rest(0.001)) {
        uint64_t *at[DEPTH], from[DEPTH];
        struct iocb requests[DEPTH], *list[DEPTH];
        struct io_event events[DEPTH];
        for (int way = 0; way < 2; way++) {
            for (int i = 0; i < DEPTH; i++) {
                random = mix(random + 1);
                /* Read to elsewhere than it was written from. */
                at[i] = memory + ((random >> 8) % (blocks / DEPTH) + blocks / DEPTH * (size_t)i) * (BLOCK / 8);
                if (way == 0)
                    from[i] = random;
                for (size_t k = 0; k < BLOCK / 8; k++)
                    at[i][k] = way == 0 ? mix(from[i] + k) : 0;
                memset(requests + i, 0, sizeof *requests);
                requests[i].aio_lio_opcode = way == 0 ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
                requests[i].aio_fildes = (uint32_t)file, requests[i].aio_buf = (uintptr_t)at[i], requests[i].aio_nbytes = BLOCK;
                requests[i].aio_offset = i * BLOCK;
                list[i] = requests + i;
                if (!aio) {
                    ssize_t moved = way == 0 ? pwrite(file, at[i], BLOCK, i * BLOCK) : pread(file, at[i], BLOCK, i * BLOCK);
                    if (moved != BLOCK)
                        odd("moved %zd: %s", moved, strerror(errno));
                }
            }
            if (aio) {
                CHECK(syscall(SYS_io_submit, context, DEPTH, list) == DEPTH);
                CHECK(syscall(SYS_io_getevents, context, DEPTH, DEPTH, events, NULL) == DEPTH);
                for (int i = 0; i < DEPTH; i++)
                    if (events[i].res != BLOCK)
                        odd("a transfer gave %lld", (long long)events[i].res);
            }
            transfers += DEPTH;
        }
        for (int i = 0; i < DEPTH; i++)
            for (size_t k = 0; k < BLOCK / 8; k++)
                if (at[i][k] != mix(from[i] + k)) {
                    odd("what was written is not what was read");
                    break;
                }
    }
    note("%zu transfers", transfers);
    CHECK(transfers > 0);
    return done();
}
