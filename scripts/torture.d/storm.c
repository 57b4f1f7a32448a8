/* Signals at 1 kHz, on an alternate stack, with SA_RESTART and without, while threads read pipes and work: every queued signal
 * must come exactly once, with what was sent; a read that is to be restarted must never say EINTR; and registers of the
 * interrupted code (kept in memory of the stack) must be what they were. */
#include "torture.h"
#include <sys/time.h>

static atomic_long profiled, alarmed, queued, sum, wrong_stack;
static char stacks[65536] __attribute__((aligned(4096)));
static int reading[2], writing[2];
static atomic_int stop;

static void handler(int signal, siginfo_t *info, void *context)
{
    int here;
    (void)context;
    if (signal == SIGPROF)
        profiled++;
    else if (signal == SIGALRM)
        alarmed++;
    else
        { queued++; sum += info->si_value.sival_int; }
    if (signal == SIGALRM && ((char *)&here < stacks || (char *)&here >= stacks + sizeof stacks))
        wrong_stack++;
}

static void *reader(void *argument)
{
    (void)argument;
    sigset_t none;
    char byte;
    /* Only signals whose handlers restart: SIGPROF and the queued ones. */
    sigemptyset(&none);
    sigaddset(&none, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &none, NULL);
    while (!stop) {
        ssize_t got = read(reading[0], &byte, 1);
        if (got != 1)
            odd("a read that is restarted gave %zd, %s", got, strerror(errno));
        if (write(writing[1], &byte, 1) != 1)
            odd("write: %s", strerror(errno));
    }
    return NULL;
}

int main(void)
{
    stack_t stack = {.ss_sp = stacks, .ss_size = sizeof stacks};
    MUST(sigaltstack(&stack, NULL) == 0 && pipe(reading) == 0 && pipe(writing) == 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGPROF, &action, NULL);
    sigaction(SIGRTMIN + 3, &action, NULL);
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGALRM, &action, NULL);
    field_start(1, mib() << 19);
    struct field *own = field_new(mib() << 19);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, reader, NULL) == 0);
    struct itimerval fast = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &fast, NULL);
    setitimer(ITIMER_PROF, &fast, NULL);
    long sent = 0, sent_sum = 0, bounced = 0;
    interrupts_expected = 1;
    for (double end = now() + seconds(); now() < end;) {
        union sigval value = {.sival_int = (int)(sent % 1000)};
        if (sigqueue(getpid(), SIGRTMIN + 3, value) == 0)
            sent++, sent_sum += value.sival_int;
        char byte = (char)bounced, back = 0;
        ssize_t got;
        while (write(reading[1], &byte, 1) != 1)
            CHECK(errno == EINTR);
        while ((got = read(writing[0], &back, 1)) != 1)
            CHECK(got == -1 && errno == EINTR);
        CHECK(back == byte);
        bounced++;
        field_step(own, 16);
        rest(0.0002);
    }
    memset(&fast, 0, sizeof fast);
    setitimer(ITIMER_REAL, &fast, NULL);
    setitimer(ITIMER_PROF, &fast, NULL);
    for (double end = now() + 5; queued != sent && now() < end;)
        rest(0.01);
    stop = 1;
    MUST(write(reading[1], "x", 1) == 1);
    pthread_join(thread, NULL);
    field_stop();
    field_check_all(own);
    note("sent %ld, came %ld; SIGALRM %ld, SIGPROF %ld, bounced %ld", sent, queued, alarmed, profiled, bounced);
    CHECK(sent > 0 && queued == sent && sum == sent_sum);
    CHECK(alarmed > 100 * seconds() && wrong_stack == 0);
    return done();
}
