/* Six threads write and check every word of TORTURE_MIB MiB (four times that with the argument "much"), and reach it by all that
 * reaches memory otherwise: pread and pwrite, pipes, process_vm_readv and _writev, vmsplice, fork, mremap, mprotect, madvise,
 * mlock. A page that is copied while somebody writes to it loses a word. Also built static, for 32 bits, and with musl. */
#include "torture.h"
#include <sys/uio.h>

static atomic_long counts[8];
static atomic_int stop;
static size_t each;
static const char *names[] = {"file", "pipe", "process_vm", "vmsplice", "mprotect", "mremap", "madvise", "mlock"};

/* Copies a page by a system call, compares, and zeroes and fills its first copy by another. */
static void by_file(struct field *field, size_t page, int file)
{
    char *at = (char *)(field->words + page * WORDS);
    MUST(pwrite(file, at, PAGE, 0) == PAGE);
    memset(at, 0, PAGE);
    MUST(pread(file, at, PAGE, 0) == PAGE);
}

static void by_pipe(struct field *field, size_t page, int *tube, int splice)
{
    char *at = (char *)(field->words + page * WORDS);
    struct iovec vector = {at, PAGE};
    uint64_t copy[WORDS];
    /* A page in a pipe is the page itself, until it is read. */
    if (splice)
        MUST(vmsplice(tube[1], &vector, 1, 0) == PAGE);
    else
        MUST(write(tube[1], at, PAGE) == PAGE);
    if (splice)
        sched_yield();
    MUST(read(tube[0], copy, PAGE) == PAGE);
    if (memcmp(copy, at, PAGE))
        odd("a pipe gave something else");
    MUST(write(tube[1], copy, PAGE) == PAGE);
    memset(at, 0, PAGE);
    MUST(read(tube[0], at, PAGE) == PAGE);
}

static void by_process(struct field *field, size_t page)
{
    uint64_t copy[WORDS];
    struct iovec here = {copy, PAGE}, there = {field->words + page * WORDS, PAGE};
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != PAGE)
        return;
    memset(there.iov_base, 0, PAGE);
    MUST(process_vm_writev(getpid(), &here, 1, &there, 1, 0) == PAGE);
}

static void *work(void *argument)
{
    uint64_t random = (uintptr_t)argument;
    struct field *field = field_new(each);
    char path[] = "words-XXXXXX", *memory = (char *)field->words;
    int tube[2], file = mkstemp(path);
    MUST(file >= 0 && unlink(path) == 0 && pipe(tube) == 0);
    while (!stop) {
        field_step(field, 64);
        random = mix(random + 1);
        size_t page = random % field->pages;
        char *at = memory + page * PAGE;
        int what = (random >> 40) % 8;
        field_check(field, page);
        if (what == 0) {
            by_file(field, page, file);
        } else if (what == 1 || what == 3) {
            by_pipe(field, page, tube, what == 3);
        } else if (what == 2) {
            by_process(field, page);
        } else if (what == 4) {
            MUST(mprotect(at, PAGE, PROT_READ) == 0);
            field_check(field, page);
            MUST(mprotect(at, PAGE, PROT_READ | PROT_WRITE) == 0);
        } else if (what == 5) {
            /* There and back again. */
            char *room = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            MUST(room != MAP_FAILED);
            MUST(mremap(at, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
            MUST(((uint64_t *)room)[3] == field_word(page, 3, field->writes[page]));
            MUST(mmap(at, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
            MUST(mremap(room, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
        } else if (what == 6) {
            MUST(madvise(at, PAGE, MADV_DONTNEED) == 0);
            for (int i = 0; i < WORDS; i++)
                if (((volatile uint64_t *)at)[i]) {
                    odd("memory that was given back is not zero");
                    break;
                }
            field_write(field, page);
        } else if (mlock(at, PAGE) == 0) {
            field_step(field, 8);
            MUST(munlock(at, PAGE) == 0);
        }
        counts[what]++;
        field_check(field, page);
        rest(0.0005);
    }
    field_check_all(field);
    return NULL;
}

int main(int count, char **arguments)
{
    block_signals();
    each = ((count > 1 && !strcmp(arguments[1], "much") ? mib() * 4 : mib()) << 20) / 8;
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
        MUST(pthread_create(threads + i, NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
    struct field *own = field_new(each * 2);
    int children = 0;
    for (double end = now() + seconds(); now() < end; children++) {
        field_run(own, seconds() / 20);
        pid_t child = fork();
        if (child == 0) {
            field_check_all(own);
            field_step(own, 1000);
            field_check_all(own);
            _exit(odd_seen ? 1 : 0);
        }
        field_step(own, 1000);
        int status = 1;
        if (waitpid(child, &status, 0) != child || status)
            odd("a child saw something odd, status %x", status);
    }
    stop = 1;
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    field_check_all(own);
    note("%d children", children);
    for (int i = 0; i < 8; i++)
        note("%s %ld", names[i], counts[i]);
    return done();
}
