/* A tracer of the user's own (gdb or strace, by argument) comes in the middle, stays, and goes: superhue must neither keep it
 * out nor suffer from it, and every thread must run on afterwards. */
#include "torture.h"

/* Attaches and stays for a while; how it ended. */
static int trace(const char *tracer)
{
    char pid[20], stay[60];
    snprintf(pid, sizeof pid, "%d", getpid());
    snprintf(stay, sizeof stay, "shell sleep %.1f", seconds() / 2);
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR), log = open("tracer.log", O_RDWR | O_CREAT | O_TRUNC, 0666);
        dup2(null, 0), dup2(log, 1), dup2(log, 2);
        if (!strcmp(tracer, "gdb"))
            execlp("gdb", "gdb", "-nx", "-batch", "-p", pid, "-ex", "info threads", "-ex", stay, "-ex", "detach", (char *)NULL);
        snprintf(stay, sizeof stay, "%.1f", seconds() / 2);
        execlp("timeout", "timeout", "-s", "INT", stay, "strace", "-f", "-qq", "-o", "/dev/null", "-p", pid, (char *)NULL);
        _exit(127);
    }
    int status;
    while (waitpid(child, &status, 0) != child)
        CHECK(errno == EINTR);
    return status;
}

int main(int count, char **arguments)
{
    const char *tracer = count > 1 ? arguments[1] : "gdb";
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    field_start(3, mib() << 20);
    rest(seconds() / 4);
    int status = trace(tracer);
    /* Who comes in the very moment that the program is stopped is refused; not again and again. */
    for (int i = 0; i < 3 && WIFEXITED(status) && WEXITSTATUS(status) == 1; i++) {
        note("refused");
        rest(0.05);
        status = trace(tracer);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        errno = 0, skip("no such tracer");
    /* timeout says 124 where it had to end strace, as it should. */
    printf("the tracer ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    rest(seconds() / 4);
    char line[200];
    FILE *file = fopen("tracer.log", "r");
    for (int i = 0; i < 30 && !(WIFEXITED(status) && WEXITSTATUS(status) % 124 == 0) && fgets(line, sizeof line, file); i++)
        note("tracer: %s", strtok(line, "\n"));
    fclose(file);
    file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "TracerPid:", 10))
            note("%s", strtok(line, "\n"));
    field_stop();
    return done();
}
