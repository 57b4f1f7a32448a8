/* What the programs share that are recolored: memory each word of which is known, and how they say what they saw.
 *
 * Usage of each: PROGRAM SECONDS PAGES [more]. Each prints a line "area START PAGES" for memory that may be recolored, then "ready", and
 * in the end one line of JSON: `bytes_lost` (words that are not what was written), `odd_calls` (calls that ended otherwise than they do
 * alone), `odd` (the first of both, by words), `checks` (how many words or calls were looked at), and counts of its own. It ends after
 * SECONDS; status 0: all as alone, 1: something lost or odd, 77: cannot run here (`skipped` says why). */
#ifndef ATTACK_H
#define ATTACK_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
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
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

/* In shared memory: children count too. */
static struct {
    atomic_ullong lost, odd, checks;
    atomic_int told;
    char lines[8][160];
} *seen;

static double begun, ends;
static size_t pages;

__attribute__((unused)) static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

__attribute__((unused)) static int over(void)
{
    return now() >= ends;
}

__attribute__((unused, format(printf, 1, 2))) static void tell(const char *format, ...)
{
    int line = atomic_fetch_add(&seen->told, 1);
    if (line >= 8)
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(seen->lines[line], sizeof *seen->lines, format, list);
    va_end(list);
    for (char *at = seen->lines[line]; *at; at++)
        if (*at == '"' || *at == '\\' || *at < ' ')
            *at = '\'';
}

/* A call that must end so. */
#define SAME(that)                                                                                       \
    ({                                                                                                   \
        errno = 0;                                                                                       \
        int same_ = !!(that);                                                                            \
        seen->checks++;                                                                                  \
        if (!same_) {                                                                                    \
            int error_ = errno;                                                                          \
            seen->odd++;                                                                                 \
            tell("%s:%d: not so: %s: %s", strrchr("/" __FILE__, '/') + 1, __LINE__, #that, strerror(error_)); \
        }                                                                                                \
        same_;                                                                                           \
    })

__attribute__((unused)) static void random_rest(uint64_t *random, unsigned most_us)
{
    *random = *random * 6364136223846793005ull + 1442695040888963407ull;
    struct timespec span = {0, (long)((*random >> 33) % most_us) * 1000};
    nanosleep(&span, NULL);
}

__attribute__((unused)) static unsigned pick(uint64_t *random, unsigned among)
{
    *random = *random * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((*random >> 33) % among);
}

static inline uint64_t word_of(size_t page, unsigned word, uint64_t version)
{
    return ((page * WORDS + word) ^ version << 40) * 0x9e3779b97f4a7c15ull;
}

__attribute__((unused)) static void fill(void *memory, size_t page, uint64_t version)
{
    volatile uint64_t *words = memory;
    for (unsigned word = 0; word < WORDS; word++)
        words[word] = word_of(page, word, version);
}

/* Counts what is wrong. */
__attribute__((unused)) static unsigned check(const void *memory, size_t page, uint64_t version, const char *what)
{
    const volatile uint64_t *words = memory;
    unsigned wrong = 0;
    for (unsigned word = 0; word < WORDS; word++) {
        uint64_t is = words[word], want = word_of(page, word, version);
        if (is == want)
            continue;
        if (!wrong++)
            tell("%s: page %zu word %u version %llu: %llx for %llx, again %llx", what, page, word, (unsigned long long)version,
                 (unsigned long long)is, (unsigned long long)want, (unsigned long long)words[word]);
    }
    seen->checks += WORDS;
    seen->lost += wrong;
    return wrong;
}

__attribute__((unused)) static void *reserve(size_t count, int flags)
{
    void *memory = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    /* Pages of huge ones are split before they are taken out; that is tried elsewhere. */
    madvise(memory, count * PAGE, MADV_NOHUGEPAGE);
    return memory;
}

__attribute__((unused)) static void area(const void *start, size_t count)
{
    printf("area %zu %zu\n", (size_t)start, count);
}

__attribute__((unused)) static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

__attribute__((unused, noreturn)) static void skip(const char *why)
{
    printf("{\"skipped\": \"%s: %s\"}\n", why, strerror(errno));
    fflush(stdout);
    _exit(77);
}

__attribute__((unused)) static void start(int count, char **arguments, size_t pages_unless)
{
    seen = mmap(NULL, sizeof *seen + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED)
        exit(2);
    begun = now();
    ends = begun + (count > 1 ? atof(arguments[1]) : 5);
    pages = count > 2 ? strtoul(arguments[2], NULL, 10) : 0;
    if (!pages)
        pages = pages_unless;
    setvbuf(stdout, NULL, _IOFBF, 0);
}

/* The last line, with counts of the program's own: `"name": 1, ` and so on. */
__attribute__((unused, format(printf, 1, 2))) static int finish(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("{");
    vprintf(format, list);
    va_end(list);
    printf("\"seconds\": %.1f, \"checks\": %llu, \"bytes_lost\": %llu, \"odd_calls\": %llu, \"odd\": [", now() - begun,
           (unsigned long long)seen->checks, (unsigned long long)seen->lost * 8, (unsigned long long)seen->odd);
    for (int line = 0; line < seen->told && line < 8; line++)
        printf("%s\"%s\"", line ? ", " : "", seen->lines[line]);
    puts("]}");
    fflush(stdout);
    return seen->lost || seen->odd;
}
#endif
