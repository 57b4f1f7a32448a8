/* All that a thread has in registers must stay: general ones, flags, the vector registers of any width, mask registers, MXCSR,
 * the x87 control word and stack, FS and GS. Nothing here is a system call for long whiles; then there are many. */
#include "torture.h"
#include <cpuid.h>
#include <immintrin.h>

static atomic_int stop;
static atomic_long rounds;

#define VECTORS(name, isa, kind, number, ...)                                                            \
    __attribute__((target(isa), noinline)) static void name(uint64_t seed)                               \
    {                                                                                                    \
        uint64_t in[number][8] __attribute__((aligned(64))), out[number][8] __attribute__((aligned(64))); \
        for (int i = 0; i < number; i++)                                                                 \
            for (int k = 0; k < 8; k++)                                                                  \
                in[i][k] = mix(seed + i * 8 + k);                                                        \
        memcpy(out, in, sizeof out);                                                                     \
        __VA_ARGS__;                                                                                     \
        if (memcmp(in, out, sizeof in))                                                                  \
            odd("a " kind " register has changed");                                                      \
    }

#define LOAD(op, reg, n) op " 64*" #n "(%0), %%" reg #n "\n"
#define STORE(op, reg, n) op " %%" reg #n ", 64*" #n "(%1)\n"
#define EIGHT(m, op, reg) m(op, reg, 0) m(op, reg, 1) m(op, reg, 2) m(op, reg, 3) m(op, reg, 4) m(op, reg, 5) m(op, reg, 6) m(op, reg, 7)
#define SIXTEEN(m, op, reg) EIGHT(m, op, reg) m(op, reg, 8) m(op, reg, 9) m(op, reg, 10) m(op, reg, 11) m(op, reg, 12) m(op, reg, 13) m(op, reg, 14) m(op, reg, 15)
#define MORE(m, op, reg) m(op, reg, 16) m(op, reg, 17) m(op, reg, 18) m(op, reg, 19) m(op, reg, 20) m(op, reg, 21) m(op, reg, 22) m(op, reg, 23) m(op, reg, 24) m(op, reg, 25) m(op, reg, 26) m(op, reg, 27) m(op, reg, 28) m(op, reg, 29) m(op, reg, 30) m(op, reg, 31)
#define SPIN "mov $20000, %%ecx\n1: dec %%ecx\njnz 1b\n"
#define LOW "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define HIGH "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"

#define SPAN ::"r"(in), "r"(out), "a"(0xa5c3) : "rcx", "memory", "cc", LOW
VECTORS(sse, "sse2", "SSE", 16, asm volatile(SIXTEEN(LOAD, "movdqa", "xmm") SPIN SIXTEEN(STORE, "movdqa", "xmm") SPAN))
VECTORS(avx, "avx", "AVX", 16, asm volatile(SIXTEEN(LOAD, "vmovdqa", "ymm") SPIN SIXTEEN(STORE, "vmovdqa", "ymm") SPAN))
VECTORS(avx512, "avx512f", "AVX-512", 32,
        asm volatile(SIXTEEN(LOAD, "vmovdqa64", "zmm") MORE(LOAD, "vmovdqa64", "zmm") "kmovw %%eax, %%k1\n" SPIN
                     SIXTEEN(STORE, "vmovdqa64", "zmm") MORE(STORE, "vmovdqa64", "zmm")
                     "kmovw %%k1, %%ecx\ncmp %%cx, %%ax\nje 2f\nnotq (%1)\n2:\n" SPAN, HIGH, "k1"))

/* All general registers but the stack pointer, and the flags. */
static void general(uint64_t seed)
{
    uint64_t bad = 0;
    asm volatile("push %%rbp\nmov %1, %%rbp\nlea 1(%%rbp), %%rbx\nlea 2(%%rbp), %%rcx\nlea 3(%%rbp), %%rdx\nlea 4(%%rbp), %%rsi\n"
                 "lea 5(%%rbp), %%rdi\nlea 6(%%rbp), %%r8\nlea 7(%%rbp), %%r9\nlea 8(%%rbp), %%r10\nlea 9(%%rbp), %%r11\n"
                 "lea 10(%%rbp), %%r12\nlea 11(%%rbp), %%r13\nlea 12(%%rbp), %%r14\nlea 13(%%rbp), %%r15\n"
                 "mov $20000, %%eax\n1: dec %%eax\njnz 1b\n"
                 "stc\nsbb %%rax, %%rax\nnot %%rax\n"
#define SAME(reg, n) "sub %%rbp, %%" reg "\nsub $" #n ", %%" reg "\nor %%" reg ", %%rax\n"
                 SAME("rbx", 1) SAME("rcx", 2) SAME("rdx", 3) SAME("rsi", 4) SAME("rdi", 5) SAME("r8", 6) SAME("r9", 7) SAME("r10", 8)
                 SAME("r11", 9) SAME("r12", 10) SAME("r13", 11) SAME("r14", 12) SAME("r15", 13) "pop %%rbp\n"
                 : "=&a"(bad) : "r"(seed) : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
    if (bad)
        odd("a general register has changed");
}

static void control(void)
{
    unsigned before = _mm_getcsr() ^ 0x6000, after;
    unsigned short word = 0x0c7f, seen;
    double one = 0;
    _mm_setcsr(before);
    asm volatile("fninit\nfldcw %2\nfld1\nfldpi\nmov $20000, %%ecx\n1: dec %%ecx\njnz 1b\nfstp %%st(0)\nfstpl %1\nfnstcw %0\n" : "=m"(seen), "=m"(one) : "m"(word) : "rcx", "cc");
    after = _mm_getcsr();
    _mm_setcsr(before ^ 0x6000);
    asm volatile("fninit");
    if (seen != word || one != 1)
        odd("the x87 state has changed");
    if ((after ^ before) & 0xffc0)
        odd("MXCSR has changed");
}

static void *work(void *argument)
{
    uint64_t seed = (uintptr_t)argument;
    unsigned long fs, gs_before = 0x123456000 + seed, gs;
    static __thread uint64_t own;
    own = seed;
    syscall(SYS_arch_prctl, 0x1001, gs_before);
    while (!stop) {
        for (int i = 0; i < 20; i++) {
            seed++;
            general(seed), sse(seed), control();
            if (__builtin_cpu_supports("avx"))
                avx(seed);
            if (__builtin_cpu_supports("avx512f"))
                avx512(seed);
        }
        syscall(SYS_arch_prctl, 0x1004, &gs);
        syscall(SYS_arch_prctl, 0x1003, &fs);
        if (gs != gs_before || fs != (unsigned long)pthread_self() || own != (uintptr_t)argument)
            odd("FS or GS has changed");
        rounds += 20;
        /* In and out of the kernel, too: the result of a system call must be its own. */
        for (int i = 0; i < 2000; i++)
            if (syscall(SYS_getppid, 1, 2, 3, 4, 5, 6) != getppid() || syscall(-1l) != -1)
                odd("a system call gave something else");
        rest(0.001);
    }
    return NULL;
}

int main(void)
{
    block_signals();
    pthread_t threads[2];
    field_start(1, mib() << 20);
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(threads + i, NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
    rest(seconds());
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    field_stop();
    note("%ld rounds", rounds);
    return done();
}
