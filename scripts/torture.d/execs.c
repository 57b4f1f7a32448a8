/* Executes itself again and again, now from its first thread and now from another, while others run: the memory is new, the
 * process is the same, and the thread that executes becomes the first. */
#include "torture.h"

static char *command[5], number[20], until[40];

static void *execute(void *argument)
{
    (void)argument;
    execv("/proc/self/exe", command);
    odd("execv: %s", strerror(errno));
    exit(1);
}

int main(int count, char **arguments)
{
    int generation = count > 1 ? atoi(arguments[1]) : 0;
    double end = count > 2 ? atof(arguments[2]) : now() + seconds();
    long pid = count > 3 ? atol(arguments[3]) : getpid();
    CHECK(pid == getpid() && syscall(SYS_gettid) == pid);
    field_start(2, mib() << 18);
    rest(generation % 4 ? 0.01 : 0.15);
    if (odd_seen)
        return 1;
    if (now() < end) {
        static char own[20];
        snprintf(number, sizeof number, "%d", generation + 1);
        snprintf(until, sizeof until, "%.3f", end);
        snprintf(own, sizeof own, "%ld", pid);
        command[0] = arguments[0], command[1] = number, command[2] = until, command[3] = own;
        pthread_t thread;
        if (generation % 2)
            execute(NULL);
        MUST(pthread_create(&thread, NULL, execute, NULL) == 0);
        pthread_join(thread, NULL);
    }
    field_stop();
    note("%d generations", generation);
    CHECK(generation > 0);
    return done();
}
