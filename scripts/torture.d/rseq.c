/* Counters of each CPU by restartable sequences, which the kernel begins again when the thread is interrupted: a tracer that
 * moves the instruction pointer itself, or runs code in the middle of one, loses or doubles a count. */
#include "torture.h"
#ifdef __has_include
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define HAVE_RSEQ
#endif
#endif

#ifdef HAVE_RSEQ
static struct counter { uint64_t value; char rest[56]; } counters[1024] __attribute__((aligned(64)));
static atomic_long aborted, counted;
static atomic_int stop;

static int add(struct rseq *area)
{
    uint32_t cpu = *(volatile uint32_t *)&area->cpu_id_start;
    uint64_t *counter = &counters[cpu % 1024].value;
    int result;
    asm volatile(".pushsection .data.rel, \"aw\"\n.balign 32\n3:\n.long 0, 0\n.quad 1f, 2f-1f, 4f\n.popsection\n"
                 "lea 3b(%%rip), %%rax\nmov %%rax, %[cs]\n"
                 "1: cmpl %[cpu], %[id]\njne 5f\n"
                 /* A while between reading and writing, so that much falls into it. */
                 "mov (%[counter]), %%rax\nmov $300, %%ecx\n6: dec %%ecx\njnz 6b\nadd $1, %%rax\nmov %%rax, (%[counter])\n"
                 "2: xor %[result], %[result]\njmp 7f\n"
                 ".long 0x53053053\n4: nop\n5: mov $1, %[result]\n7:\n"
                 : [result] "=&r"(result), [cs] "=m"(area->rseq_cs)
                 : [cpu] "r"(cpu), [id] "m"(area->cpu_id), [counter] "r"(counter)
                 : "rax", "rcx", "memory", "cc");
    return result;
}

static void *work(void *argument)
{
    struct rseq *area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
    (void)argument;
    while (!stop) {
        for (int i = 0; i < 20000; i++)
            if (add(area) == 0)
                counted++;
            else
                aborted++;
        rest(0.001);
    }
    return NULL;
}
#endif

int main(void)
{
    errno = 0;
#ifdef HAVE_RSEQ
    if (__rseq_size == 0)
        skip("the C library has no rseq");
    block_signals();
    pthread_t threads[4];
    uint64_t sum = 0;
    field_start(1, mib() << 20);
    for (int i = 0; i < 4; i++)
        MUST(pthread_create(threads + i, NULL, work, NULL) == 0);
    rest(seconds());
    stop = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    field_stop();
    for (int i = 0; i < 1024; i++)
        sum += counters[i].value;
    note("counted %ld, begun again %ld", counted, aborted);
    if (sum != (uint64_t)counted)
        odd("counts were lost or doubled");
    CHECK(counted > 0);
    return done();
#else
    skip("no sys/rseq.h");
#endif
}
