/* Stacks of 4 KiB on the heap, in use to the last byte: below the red zone of the one lies what another owns. Whoever runs code
 * on a thread's stack (a guest, a signal's frame) writes over it. Some 100 of them by swapcontext, and one after the other with
 * the stack pointer 128 bytes above the end, for a while, by hand. */
#include "torture.h"
#include <ucontext.h>

#define STACK 4096
#define COROUTINES 100

static ucontext_t contexts[COROUTINES], home;
static char *stacks;
static int current;
static uint64_t turns;

static void coroutine(void)
{
    int number = current;
    for (uint64_t local[64], turn = 0;; turn++) {
        for (int i = 0; i < 64; i++)
            ((volatile uint64_t *)local)[i] = mix((uint64_t)number << 32 | (turn << 8) | (uint64_t)i);
        swapcontext(contexts + number, &home);
        for (int i = 0; i < 64; i++)
            if (((volatile uint64_t *)local)[i] != mix((uint64_t)number << 32 | (turn << 8) | (uint64_t)i))
                odd("a coroutine's stack has changed");
    }
}

/* Stands at `low` + 128 for `spins` rounds: the red zone ends at the stack's last byte. Nothing is called, nothing pushed. */
static void stand(char *low, long spins)
{
    asm volatile("mov %%rsp, %%rbx\nlea 128(%0), %%rsp\n1: dec %1\njnz 1b\nmov %%rbx, %%rsp\n"
                 : "+r"(low), "+r"(spins)::"rbx", "memory", "cc");
}

int main(void)
{
    block_signals();
    field_start(1, mib() << 19);
    size_t size = mib() << 19, number = size / STACK;
    stacks = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(stacks != MAP_FAILED);
    stacks = (char *)(((uintptr_t)stacks + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    for (int i = 0; i < COROUTINES; i++) {
        getcontext(contexts + i);
        contexts[i].uc_stack.ss_sp = malloc(STACK), contexts[i].uc_stack.ss_size = STACK;
        makecontext(contexts + i, coroutine, 0);
    }
    struct field canaries = {(uint64_t *)stacks, calloc(number, 4), number, 1, 0};
    for (size_t page = 0; page < number; page++)
        field_write(&canaries, page);
    for (double end = now() + seconds(); now() < end; rest(0.0005)) {
        for (int i = 0; i < 200; i++, turns++) {
            current = (int)(turns % COROUTINES);
            swapcontext(&home, contexts + current);
        }
        for (int i = 0; i < 20; i++) {
            size_t page = mix(turns * 20 + (uint64_t)i) % (number - 1) + 1;
            stand(stacks + page * STACK, 20000);
            field_check(&canaries, page - 1);
            field_check(&canaries, page);
        }
    }
    field_check_all(&canaries);
    field_stop();
    note("%llu turns", (unsigned long long)turns);
    return done();
}
