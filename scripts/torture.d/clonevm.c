/* A process that shares the memory without being a thread (clone with CLONE_VM alone), and writes pages all the time that are
 * being moved. Memory has more users than its process has threads. */
#include "torture.h"

static struct field *theirs;
static atomic_int stop, peers_odd;

static int peer(void *argument)
{
    (void)argument;
    /* No threads' things of the C library: the thread's storage is the parent's. */
    while (!stop)
        for (int i = 0; i < 256; i++) {
            size_t page = mix(theirs->steps++) % theirs->pages;
            volatile uint64_t *words = theirs->words + page * WORDS;
            uint32_t writes = theirs->writes[page]++;
            for (unsigned k = 0; k < WORDS; k++) {
                if (words[k] != field_word(page, k, writes))
                    peers_odd = 1;
                words[k] = field_word(page, k, writes + 1);
            }
        }
    return 0;
}

int main(void)
{
    theirs = field_new(mib() << 20);
    field_start(2, mib() << 19);
    char *stack = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(stack != MAP_FAILED);
    pid_t child = clone(peer, stack + (1 << 20), CLONE_VM | SIGCHLD, NULL);
    MUST(child > 0);
    rest(seconds());
    stop = 1;
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    if (peers_odd)
        odd("the process that shares the memory lost a word");
    field_check_all(theirs);
    field_stop();
    note("%llu steps", (unsigned long long)theirs->steps);
    return done();
}
