/* Storms of vfork, posix_spawn and fork from threads: children that share the memory for a moment, must exec at once, and whose
 * ends are all told. Each child's status carries a number that must come back. */
#include "torture.h"
#include <spawn.h>

extern char **environ;
static atomic_int stop, children;
static const char *self;

static void *storm(void *argument)
{
    int which = (int)(uintptr_t)argument;
    volatile int number = 0;
    while (!stop) {
        char text[8];
        number = (number + 1) % 100;
        snprintf(text, sizeof text, "%d", number);
        char *command[] = {(char *)self, "child", text, NULL};
        pid_t child = 0;
        int status = 0;
        if (which == 0) {
            child = vfork();
            if (child == 0) {
                execv(self, command);
                _exit(127);
            }
        } else if (which == 1) {
            CHECK(posix_spawn(&child, self, NULL, NULL, command, environ) == 0);
        } else {
            child = fork();
            if (child == 0)
                _exit(number);
        }
        CHECK(child > 0);
        pid_t ended = waitpid(child, &status, 0);
        if (ended != child || !WIFEXITED(status) || WEXITSTATUS(status) != number)
            odd("child of way %d: wait %s, status %x for %d", which, ended == child ? "right" : strerror(errno), status, number);
        children++;
        rest(0.002);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count > 2)
        return atoi(arguments[2]);
    self = "/proc/self/exe";
    pthread_t threads[3];
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    field_start(1, mib() << 19);
    for (int i = 0; i < 3; i++)
        MUST(pthread_create(threads + i, NULL, storm, (void *)(uintptr_t)i) == 0);
    rest(seconds());
    stop = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    field_stop();
    note("%d children", children);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    return done();
}
