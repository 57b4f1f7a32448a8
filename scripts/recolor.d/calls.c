/* The kernel itself reads and writes the program's memory all the time: system calls, futexes of threads and processes, signal frames on a stack of
 * its own, threads whose stacks and thread-local data lie there, robust locks whose owner dies. No call may end early or otherwise.
 * usage: calls SECONDS PAGES */
#include "attack.h"
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

static char *memory;
static atomic_ullong calls, signals, handoffs, deaths, threads_run;

static void *transfers(void *unused)
{
    (void)unused;
    int pair[2], pipe_[2], file = memfd_create("calls", 0);
    char *at = memory, *to = memory + 64 * PAGE;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || pipe(pipe_) || file < 0)
        exit(2);
    uint64_t version = 1;
    for (; !over(); version++)
        for (size_t page = 0; page < 64; page++, calls += 6) {
            char *from = at + page * PAGE, *into = to + page * PAGE;
            fill(from, page, version);
            SAME(write(pipe_[1], from, PAGE) == PAGE && read(pipe_[0], into, PAGE) == PAGE);
            check(into, page, version, "through a pipe");
            memset(into, 0, PAGE);
            SAME(send(pair[0], from, PAGE, 0) == PAGE && recv(pair[1], into, PAGE, MSG_WAITALL) == PAGE);
            check(into, page, version, "through a socket");
            memset(into, 0, PAGE);
            SAME(pwrite(file, from, PAGE, 0) == PAGE && pread(file, into, PAGE, 0) == PAGE);
            check(into, page, version, "through a file");
            SAME(getrandom(into, PAGE, 0) == PAGE);
        }
    return NULL;
}

static void *sleeps(void *unused)
{
    (void)unused;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event *events = (struct epoll_event *)(memory + 128 * PAGE);
    struct timespec *span = (struct timespec *)(memory + 129 * PAGE), *left = (struct timespec *)(memory + 130 * PAGE);
    while (!over()) {
        double before = now();
        SAME(epoll_wait(epoll, events, 1, 3) == 0);
        SAME(now() - before > 0.0029);
        *span = (struct timespec){0, 2000000};
        before = now();
        SAME(nanosleep(span, left) == 0);
        SAME(now() - before > 0.0019);
        calls += 2;
    }
    return NULL;
}

/* Two threads and a process hand a word to and fro by futexes, in private and in shared memory. */
static uint32_t *ball;

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *time)
{
    return syscall(SYS_futex, word, operation, value, time, NULL, 0);
}

static void hand(uint32_t *word, uint32_t me, int private)
{
    int flag = private ? FUTEX_PRIVATE_FLAG : 0;
    struct timespec at_most = {1, 0};
    for (;;) {
        uint32_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if (value == ~0u)
            return;
        if (value % 2 != me) {
            if (futex(word, FUTEX_WAIT | flag, value, &at_most) != 0 && errno != EAGAIN && errno != EINTR) {
                seen->odd++;
                tell("futex: %s", errno == ETIMEDOUT ? "nobody woke it" : strerror(errno));
                __atomic_store_n(word, ~0u, __ATOMIC_RELEASE);
                return;
            }
            continue;
        }
        __atomic_store_n(word, over() ? ~0u : (value + 1) % 1000000, __ATOMIC_RELEASE);
        futex(word, FUTEX_WAKE | flag, 1, NULL);
        handoffs++;
    }
}

static void *partner(void *me)
{
    hand(ball, (uint32_t)(size_t)me, 1);
    return NULL;
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    if (info->si_code == SI_QUEUE && info->si_value.sival_int != 4711) {
        seen->odd++;
        tell("a signal came with another value");
    }
    signals++;
}

/* Signals, whose frames lie on a stack in pages that are recolored. */
static void *signalled(void *unused)
{
    (void)unused;
    stack_t stack = {.ss_sp = memory + 140 * PAGE, .ss_size = 16 * PAGE};
    SAME(sigaltstack(&stack, NULL) == 0);
    register uint64_t a = 0x1234567, b = 0x7654321;
    while (!over()) {
        union sigval value = {.sival_int = 4711};
        double half = 0.5 * (double)a;
        SAME(pthread_sigqueue(pthread_self(), SIGUSR1, value) == 0);
        asm volatile("" : "+r"(a), "+r"(b), "+x"(half));
        SAME(a == 0x1234567 && b == 0x7654321 && half == 0.5 * 0x1234567);
    }
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, NULL);
    return NULL;
}

static void *brief(void *argument)
{
    volatile uint64_t on_stack[2 * WORDS];
    static __thread uint64_t own;
    own = (uint64_t)(size_t)argument;
    for (unsigned word = 0; word < 2 * WORDS; word++)
        on_stack[word] = word_of(own, word, 1);
    sched_yield();
    for (unsigned word = 0; word < 2 * WORDS; word++)
        SAME(on_stack[word] == word_of(own, word, 1));
    return (void *)(size_t)(own + 1);
}

/* Threads with stacks in those pages begin and end; a process dies with a robust lock that lies there. */
static void *beginnings(void *lock_)
{
    pthread_mutex_t *lock = lock_;
    uint64_t number = 0;
    while (!over()) {
        pthread_attr_t how;
        pthread_attr_init(&how);
        pthread_attr_setstack(&how, memory + 160 * PAGE, 32 * PAGE);
        pthread_t thread;
        void *result = NULL;
        if (SAME(pthread_create(&thread, &how, brief, (void *)(size_t)++number) == 0))
            SAME(pthread_join(thread, &result) == 0 && result == (void *)(size_t)(number + 1));
        threads_run++;
        if (number % 16 == 0) {
            pid_t child = fork();
            if (child == 0) {
                pthread_mutex_lock(lock);
                _exit(0);
            }
            int status = -1;
            SAME(waitpid(child, &status, 0) == child && status == 0);
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 5;
            SAME(pthread_mutex_timedlock(lock, &until) == EOWNERDEAD);
            pthread_mutex_consistent(lock);
            pthread_mutex_unlock(lock);
            deaths++;
        }
    }
    return NULL;
}

int main(int count, char **arguments)
{
    start(count, arguments, 200);
    pages = 200;
    memory = reserve(pages, MAP_PRIVATE);
    char *shared = reserve(8, MAP_SHARED);
    memset(memory, 1, pages * PAGE), memset(shared, 0, 8 * PAGE);
    area(memory, pages);
    area(shared, 8);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_ONSTACK | SA_SIGINFO | SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutex_t *lock = (pthread_mutex_t *)shared;
    pthread_mutex_init(lock, &how);
    ball = (uint32_t *)(memory + 135 * PAGE);
    *ball = 0;
    uint32_t *common = (uint32_t *)(shared + PAGE);
    ready();
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hand(common, 1, 0);
        _exit(0);
    }
    pthread_t threads[6];
    pthread_create(&threads[0], NULL, transfers, NULL), pthread_create(&threads[1], NULL, sleeps, NULL);
    pthread_create(&threads[2], NULL, partner, (void *)0), pthread_create(&threads[3], NULL, partner, (void *)1);
    pthread_create(&threads[4], NULL, signalled, NULL), pthread_create(&threads[5], NULL, beginnings, lock);
    hand(common, 0, 0);
    for (int which = 0; which < 6; which++)
        pthread_join(threads[which], NULL);
    int status = -1;
    SAME(waitpid(child, &status, 0) == child && status == 0);
    return finish("\"calls\": %llu, \"signals\": %llu, \"handoffs\": %llu, \"threads\": %llu, \"deaths\": %llu, ", (unsigned long long)calls,
                  (unsigned long long)signals, (unsigned long long)handoffs, (unsigned long long)threads_run, (unsigned long long)deaths);
}
