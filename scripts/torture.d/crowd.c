/* 500 threads that sleep, wake each other and use their memory; with the argument "churn" threads that come and go all the
 * time. */
#include "torture.h"

static atomic_int stop, rounds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int turn;

static void *member(void *argument)
{
    volatile uint64_t own[256];
    uint64_t number = (uintptr_t)argument;
    for (int i = 0; i < 256; i++)
        own[i] = mix(number + i);
    while (!stop) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_mutex_lock(&lock);
        if (turn % 10 == (int)(number % 10))
            turn++, pthread_cond_broadcast(&moved);
        else
            pthread_cond_timedwait(&moved, &lock, &until);
        pthread_mutex_unlock(&lock);
        rounds++;
        for (int i = 0; i < 256; i++)
            if (own[i] != mix(number + i))
                odd("a thread's stack was changed");
        rest(0.05);
    }
    return NULL;
}

static void *brief(void *argument)
{
    return argument;
}

int main(int count, char **arguments)
{
    int churn = count > 1 && !strcmp(arguments[1], "churn"), number = churn ? 20 : 500;
    pthread_t threads[500];
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    field_start(1, mib() << 20);
    for (int i = 0; i < number; i++)
        MUST(pthread_create(threads + i, &small, member, (void *)(uintptr_t)i) == 0);
    for (double end = now() + seconds(); now() < end;) {
        for (int i = 0; churn && i < 20; i++) {
            pthread_t thread;
            void *back = NULL;
            CHECK(pthread_create(&thread, &small, brief, (void *)(uintptr_t)(i + 1)) == 0);
            CHECK(pthread_join(thread, &back) == 0 && (uintptr_t)back == (uintptr_t)i + 1);
        }
        rest(churn ? 0.002 : 0.1);
    }
    stop = 1;
    for (int i = 0; i < number; i++)
        pthread_join(threads[i], NULL);
    field_stop();
    note("%d rounds", rounds);
    CHECK(rounds > number);
    return done();
}
