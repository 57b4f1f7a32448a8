/* What the hostile programs share: how long they run, how they say what they saw, and memory whose every word is checked.
 *
 * Lines that begin with "# " hold what may differ from run to run; all else must be the same with and without superhue.
 * Exit status: 0 nothing odd, 1 something odd was seen, 77 cannot run here (the line "skipped: why" says so).
 * Environment: TORTURE_SECONDS (2), TORTURE_MIB (64). */
#ifndef TORTURE_H
#define TORTURE_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define HUGE 0x200000
#define WORDS (PAGE / 8)

static atomic_int odd_seen;

__attribute__((unused, format(printf, 1, 2))) static void odd(const char *format, ...)
{
    if (atomic_fetch_add(&odd_seen, 1) >= 20)
        return;
    char line[400];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    printf("odd: %s\n", line);
    fflush(stdout);
}

__attribute__((unused, format(printf, 1, 2))) static void note(const char *format, ...)
{
    char line[400];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    printf("# %s\n", line);
}

__attribute__((unused, noreturn)) static void skip(const char *why)
{
    printf("skipped: %s%s%s\n", why, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(77);
}

__attribute__((unused)) static int done(void)
{
    if (!odd_seen)
        puts("nothing odd");
    fflush(stdout);
    return odd_seen != 0;
}

/* What has to work for the attack to make sense; that it does not is odd too. */
#define MUST(call)                                                                                       \
    do {                                                                                                 \
        errno = 0;                                                                                       \
        if (!(call)) {                                                                                   \
            odd("%s:%d: %s: %s", __FILE__, __LINE__, #call, strerror(errno));                            \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

#define CHECK(that)                                                                                      \
    do {                                                                                                 \
        if (!(that))                                                                                     \
            odd("%s:%d: not so: %s (errno %d)", __FILE__, __LINE__, #that, errno);                       \
    } while (0)

/* By the system call: where rdtsc faults, the vDSO's clock does too. */
__attribute__((unused)) static double now(void)
{
    struct timespec time;
#ifdef __NR_clock_gettime64
    long long wide[2];
    syscall(__NR_clock_gettime64, CLOCK_MONOTONIC, wide);
    time.tv_sec = wide[0], time.tv_nsec = wide[1];
#else
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &time);
#endif
    return time.tv_sec + time.tv_nsec / 1e9;
}

__attribute__((unused)) static double seconds(void)
{
    const char *text = getenv("TORTURE_SECONDS");
    return text ? atof(text) : 2;
}

__attribute__((unused)) static size_t mib(void)
{
    const char *text = getenv("TORTURE_MIB");
    return text ? strtoul(text, NULL, 10) : 64;
}

__attribute__((unused)) static uint64_t mix(uint64_t x)
{
    x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

/* Sleeps, and sees whether it was woken for no reason, unless the program gives reasons. */
static atomic_int interrupts_expected;
__attribute__((unused)) static void rest(double time)
{
    struct timespec span = {(time_t)time, (long)((time - (time_t)time) * 1e9)};
    if (nanosleep(&span, NULL) != 0 && !interrupts_expected)
        odd("nanosleep was interrupted: %s", strerror(errno));
}

__attribute__((unused)) static void block_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
}

/* Memory with a hot quarter. Every word of a page tells where it is and how often the page was written. */
struct field {
    uint64_t *words;
    uint32_t *writes;
    size_t pages;
    uint64_t random, steps;
};

static inline uint64_t field_word(size_t page, unsigned word, uint32_t writes)
{
    return (page * WORDS + word) * 0x9e3779b97f4a7c15ull + writes;
}

__attribute__((unused)) static void field_write(struct field *field, size_t page)
{
    volatile uint64_t *words = field->words + page * WORDS;
    uint32_t writes = ++field->writes[page];
    for (unsigned i = 0; i < WORDS; i++)
        words[i] = field_word(page, i, writes);
}

__attribute__((unused)) static void field_check(struct field *field, size_t page)
{
    volatile uint64_t *words = field->words + page * WORDS;
    for (unsigned i = 0; i < WORDS; i++) {
        uint64_t value = words[i], want = field_word(page, i, field->writes[page]);
        if (value != want) {
            odd("a word of memory was lost");
            note("page %zu word %u at %p: %llx for %llx, again %llx", page, i, (void *)(words + i), (unsigned long long)value,
                 (unsigned long long)want, (unsigned long long)words[i]);
            return;
        }
    }
}

__attribute__((unused)) static struct field *field_new(size_t size)
{
    struct field *field = calloc(1, sizeof *field);
    field->pages = size / PAGE;
    field->random = size;
    /* Aligned, so that huge pages fit. */
    char *memory = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    field->words = (uint64_t *)(((uintptr_t)memory + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    field->writes = calloc(field->pages, sizeof *field->writes);
    MUST(field->writes != NULL);
    for (size_t page = 0; page < field->pages; page++)
        field_write(field, page);
    return field;
}

__attribute__((unused)) static void field_step(struct field *field, unsigned steps)
{
    while (steps--) {
        field->random = mix(field->random + 1);
        size_t among = field->random >> 60 ? field->pages / 4 : field->pages;
        size_t page = field->random % (among ? among : 1);
        field_check(field, page);
        field_write(field, page);
        field->steps++;
    }
}

__attribute__((unused)) static void field_check_all(struct field *field)
{
    for (size_t page = 0; page < field->pages; page++)
        field_check(field, page);
}

/* Goes over a field for some time, with pauses: a machine has other things to do. */
__attribute__((unused)) static void field_run(struct field *field, double time)
{
    for (double end = now() + time; now() < end; rest(0.0005))
        field_step(field, 64);
}

/* The same by threads of their own until `field_stop`. */
static atomic_int field_stopped;
static pthread_t field_threads[16];
static int field_count;

static void *field_thread(void *argument)
{
    struct field *field = field_new((size_t)(uintptr_t)argument);
    while (!field_stopped) {
        field_step(field, 64);
        rest(0.0005);
    }
    field_check_all(field);
    return NULL;
}

__attribute__((unused)) static void field_start(int threads, size_t size)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    for (field_count = 0; field_count < threads; field_count++)
        MUST(pthread_create(field_threads + field_count, NULL, field_thread, (void *)(uintptr_t)(size / threads)) == 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

__attribute__((unused)) static void field_stop(void)
{
    field_stopped = 1;
    for (int i = 0; i < field_count; i++)
        pthread_join(field_threads[i], NULL);
}
#endif
