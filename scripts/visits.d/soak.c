/* A program to be visited ten million times over: whatever can be done to memory is done to it, and every word is checked.
 *
 * usage: soak MIB   prints "area START PAGES" lines, then "ready"; "debugger on|off" on standard input says that interrupted waits
 * are no news for now; at its end prints one line of JSON.
 *
 *   pages 0..5 of 8   six writers: each word tells where it is and how often it was written
 *   page  6 of 8      system calls: through a pipe, a file in memory, and back
 *   page  7 of 8      read-mostly: checked by every forked child
 *   a second area     mapped, protected, moved in part, unmapped, all the time */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, WRITERS = 6, CHANGING = 256 };

static uint64_t *memory;
static size_t pages;
static char *changing;
static atomic_int stop, debugged, begun;
static atomic_ullong bad_words, rounds, calls, forks, changes, signals, waits;
static atomic_ullong eintr, early, eintr_debugged, failures;

static uint64_t word_of(size_t page, unsigned word, uint64_t round)
{
    return ((page * WORDS + word) ^ round << 40) * 0x9e3779b97f4a7c15ull;
}

static void fill(uint64_t *words, size_t page, uint64_t round)
{
    for (unsigned word = 0; word < WORDS; word++)
        ((volatile uint64_t *)words)[word] = word_of(page, word, round);
}

static unsigned long long wrong(const uint64_t *words, size_t page, uint64_t round)
{
    unsigned long long count = 0;
    for (unsigned word = 0; word < WORDS; word++)
        count += ((const volatile uint64_t *)words)[word] != word_of(page, word, round);
    return count;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void block_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
}

static void *writer(void *argument)
{
    size_t id = (size_t)argument;
    for (uint64_t round = 0; !stop; round++) {
        for (size_t page = id; page < pages; page += 8) {
            uint64_t *words = memory + page * WORDS;
            if (round > 0)
                bad_words += wrong(words, page, round - 1);
            fill(words, page, round);
        }
        if (round == 0)
            begun++;
        rounds++;
    }
    return NULL;
}

/* All of a page through a descriptor, whatever interrupts it. */
static void all_of(ssize_t (*call)(int, void *, size_t, off_t), int file, char *bytes)
{
    for (size_t done = 0; done < PAGE;) {
        ssize_t some = call(file, bytes + done, PAGE - done, (off_t)done);
        if (some <= 0) {
            failures++;
            return;
        }
        done += (size_t)some;
        calls++;
    }
}

static ssize_t pipe_write(int file, void *bytes, size_t length, off_t at)
{
    (void)at;
    return write(file, bytes, length);
}

static ssize_t pipe_read(int file, void *bytes, size_t length, off_t at)
{
    (void)at;
    return read(file, bytes, length);
}

static ssize_t file_write(int file, void *bytes, size_t length, off_t at)
{
    return pwrite(file, bytes, length, at);
}

static ssize_t file_read(int file, void *bytes, size_t length, off_t at)
{
    return pread(file, bytes, length, at);
}

static void *caller(void *unused)
{
    (void)unused;
    int ends[2], file = memfd_create("soak", 0);
    if (file < 0 || pipe(ends) != 0)
        exit(2);
    for (size_t page = 6; page < pages; page += 8)
        fill(memory + page * WORDS, page, 0);
    begun++;
    for (uint64_t round = 1; !stop; round++)
        for (size_t page = 6; page < pages && !stop; page += 8) {
            char *bytes = (char *)(memory + page * WORDS);
            fill((uint64_t *)bytes, page, round);
            all_of(page & 8 ? pipe_write : file_write, page & 8 ? ends[1] : file, bytes);
            memset(bytes, 0xee, PAGE);
            all_of(page & 8 ? pipe_read : file_read, page & 8 ? ends[0] : file, bytes);
            bad_words += wrong((uint64_t *)bytes, page, round);
        }
    return NULL;
}

static void *forker(void *unused)
{
    (void)unused;
    block_signals();
    for (size_t page = 7; page < pages; page += 8)
        fill(memory + page * WORDS, page, 0);
    begun++;
    for (uint64_t round = 0; !stop; round++) {
        pid_t child = fork();
        if (child < 0) {
            failures++;
            continue;
        }
        if (child == 0) {
            unsigned long long count = 0;
            for (size_t page = 7; page < pages; page += 8)
                count += wrong(memory + page * WORDS, page, round);
            /* Its own from here. */
            for (size_t page = 7; page < pages; page += 64) {
                fill(memory + page * WORDS, page, ~round);
                count += wrong(memory + page * WORDS, page, ~round);
            }
            _exit(count ? 1 : 0);
        }
        forks++;
        int status = 0;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        if (status != 0)
            bad_words++;
        for (size_t page = 7; page < pages; page += 8) {
            bad_words += wrong(memory + page * WORDS, page, round);
            fill(memory + page * WORDS, page, round + 1);
        }
        usleep(100000);
    }
    return NULL;
}

/* Maps, fills, protects a part, moves a part away and back, gives a part back, and looks at what must be there. */
static void *changer(void *unused)
{
    (void)unused;
    block_signals();
    begun++;
    for (uint64_t round = 1; !stop; round++) {
        char *at = mmap(changing, CHANGING * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (at != changing) {
            failures++;
            return NULL;
        }
        for (size_t page = 0; page < CHANGING; page++)
            fill((uint64_t *)(changing + page * PAGE), page, round);
        size_t part = round * 7 % (CHANGING - 64), length = 8 + round % 48;
        char *away = mmap(NULL, length * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        failures += mprotect(changing + part * PAGE, length * PAGE, PROT_READ) != 0;
        usleep(200);
        failures += mprotect(changing + part * PAGE, length * PAGE, PROT_READ | PROT_WRITE) != 0;
        failures += mremap(changing + part * PAGE, length * PAGE, length * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
                           away) != away;
        usleep(200);
        for (size_t page = 0; page < length; page++)
            bad_words += wrong((uint64_t *)(away + page * PAGE), part + page, round);
        failures += mremap(away, length * PAGE, length * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
                           changing + part * PAGE) != changing + part * PAGE;
        size_t hole = round * 13 % (CHANGING - 8);
        failures += munmap(changing + hole * PAGE, 4 * PAGE) != 0;
        failures += madvise(changing + (hole + 4) * PAGE, 4 * PAGE, MADV_DONTNEED) != 0;
        for (size_t page = 0; page < CHANGING; page++) {
            const uint64_t *words = (const uint64_t *)(changing + page * PAGE);
            if (page >= hole + 4 && page < hole + 8)
                bad_words += words[0] != 0 || words[WORDS - 1] != 0;
            else if (page < hole || page >= hole + 4)
                bad_words += wrong(words, page, round);
        }
        changes++;
    }
    return NULL;
}

static void seen(int interrupted, int woken)
{
    waits++;
    if (debugged)
        eintr_debugged += interrupted || woken;
    else {
        eintr += interrupted;
        early += woken;
    }
}

/* Ends with EINTR whatever interrupts it, if nobody begins it again. */
static void *waiter(void *unused)
{
    (void)unused;
    block_signals();
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    begun++;
    while (!stop) {
        double before = now();
        struct epoll_event event;
        int was = debugged, got = epoll_wait(epoll, &event, 1, 30);
        int interrupted = got < 0 && errno == EINTR;
        if (was == debugged)
            seen(interrupted, !interrupted && now() - before < 0.029);
    }
    return NULL;
}

static void *sleeper(void *unused)
{
    (void)unused;
    block_signals();
    begun++;
    while (!stop) {
        double before = now();
        struct timespec time = {0, 20000000};
        int was = debugged, interrupted = nanosleep(&time, NULL) != 0;
        if (was == debugged)
            seen(interrupted, !interrupted && now() - before < 0.020);
    }
    return NULL;
}

static void tick(int number)
{
    (void)number;
    signals++;
}

int main(int count, char **arguments)
{
    pages = (count > 1 ? strtoul(arguments[1], NULL, 10) : 16) << 8;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    changing = mmap(NULL, CHANGING * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || changing == MAP_FAILED)
        return 2;
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    void *(*const work[])(void *) = {caller, forker, changer, waiter, sleeper};
    enum { OTHERS = sizeof work / sizeof *work };
    pthread_t threads[WRITERS + OTHERS];
    for (size_t id = 0; id < WRITERS; id++)
        pthread_create(&threads[id], NULL, writer, (void *)id);
    for (size_t id = 0; id < OTHERS; id++)
        pthread_create(&threads[WRITERS + id], NULL, work[id], NULL);
    block_signals();
    while (begun < WRITERS + OTHERS)
        usleep(1000);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    struct itimerspec often = {{0, 1000000}, {0, 1000000}};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &often, NULL) != 0)
        return 2;
    printf("area %zu %zu\narea %zu %d\nready\n", (size_t)memory, pages, (size_t)changing, (int)CHANGING);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        debugged = strcmp(line, "debugger on\n") == 0;
        puts("noted");
        fflush(stdout);
    }
    stop = 1;
    for (size_t id = 0; id < WRITERS + OTHERS; id++)
        pthread_join(threads[id], NULL);
    printf("{\"bytes_lost\": %llu, \"eintr\": %llu, \"early\": %llu, \"waits_interrupted_by_debuggers\": %llu, "
           "\"failed_calls\": %llu, \"rounds\": %llu, \"calls\": %llu, \"forks\": %llu, \"changes\": %llu, "
           "\"signals\": %llu, \"waits\": %llu}\n",
           (unsigned long long)bad_words * 8, (unsigned long long)eintr, (unsigned long long)early,
           (unsigned long long)eintr_debugged, (unsigned long long)failures, (unsigned long long)rounds,
           (unsigned long long)calls, (unsigned long long)forks, (unsigned long long)changes,
           (unsigned long long)signals, (unsigned long long)waits);
    return bad_words || eintr || early || failures;
}
