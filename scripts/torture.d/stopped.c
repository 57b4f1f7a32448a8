/* A program that reads its input is stopped and continued (SIGSTOP, SIGCONT) by its parent, as a shell does it: it must be told
 * of exactly once each, a stopped program must stay stopped, and must not say anything until it goes on. */
#include "torture.h"

static char state(pid_t pid)
{
    char path[40], text[200] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY);
    if (file < 0 || read(file, text, 199) < 0)
        return '?';
    close(file);
    const char *end = strrchr(text, ')');
    return end ? end[2] : '?';
}

int main(void)
{
    int to[2], from[2];
    MUST(pipe(to) == 0 && pipe(from) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(to[1]);
        field_start(2, mib() << 20);
        char byte;
        ssize_t got;
        while ((got = read(to[0], &byte, 1)) == 1)
            MUST(write(from[1], &byte, 1) == 1);
        if (got < 0)
            odd("read: %s", strerror(errno));
        field_stop();
        fflush(stdout);
        _exit(odd_seen != 0);
    }
    fcntl(from[0], F_SETFL, O_NONBLOCK);
    int rounds = 0, traced = 0;
    for (double end = now() + seconds(); now() < end; rounds++) {
        int status = 0;
        char byte = (char)rounds, back = 0;
        siginfo_t info;
        MUST(kill(child, SIGSTOP) == 0);
        CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
        MUST(write(to[1], &byte, 1) == 1);
        for (int i = 0; i < 10; i++) {
            rest(0.005);
            char is = state(child);
            traced += is == 't';
            if (is != 'T' && is != 't') {
                odd("the stopped program runs");
                note("its state is %c", is);
            }
            if (read(from[0], &back, 1) != -1)
                odd("the stopped program says something");
            memset(&info, 0, sizeof info);
            CHECK(waitid(P_PID, (id_t)child, &info, WSTOPPED | WCONTINUED | WEXITED | WNOHANG | WNOWAIT) == 0);
            if (info.si_pid)
                odd("its parent is told of code %d", info.si_code);
        }
        MUST(kill(child, SIGCONT) == 0);
        CHECK(waitpid(child, &status, WCONTINUED) == child && WIFCONTINUED(status));
        for (double last = now() + 5; read(from[0], &back, 1) != 1;) {
            if (now() > last) {
                odd("the program does not go on");
                kill(child, SIGKILL);
                break;
            }
            rest(0.001);
        }
        CHECK(back == byte);
        rest(0.01);
    }
    close(to[1]);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    note("%d rounds, seen by a tracer %d times", rounds, traced);
    return done();
}
