/* What prctl can do to keep others out:
 *   dumpable   PR_SET_DUMPABLE 0: nobody but root may look at it
 *   mdwe       PR_SET_MDWE: no mapping may become executable, or be written to and executed
 *   tsc        PR_SET_TSC: rdtsc ends the program
 *   traceme    a child makes its parent its tracer, is stopped and goes on
 *   traces     a parent traces a child of its own all the time and counts its stops
 *   reaper     a child subreaper, whose grandchildren's ends it is told of, and no other
 *   thp        PR_SET_THP_DISABLE: no superpages, and it stays so
 *   nice       lives under SCHED_IDLE, on one CPU, and with its priority lowered: all stay */
#include "torture.h"
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/user.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#endif

/* Goes on when a byte comes. */
static pid_t waiting(struct field *field, int *tube)
{
    pid_t child = fork();
    if (child == 0) {
        char byte;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (read(tube[0], &byte, 1) != 1)
            _exit(2);
        for (int i = 0; i < 1000; i++)
            field_step(field, 4), syscall(SYS_getppid);
        _exit(odd_seen ? 1 : 9);
    }
    return child;
}

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "dumpable";
    struct field *field = field_new(mib() << 20);
    field_run(field, seconds() / 4);
    if (!strcmp(how, "dumpable")) {
        MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
        field_start(2, mib() << 19);
        field_run(field, seconds());
        CHECK(prctl(PR_GET_DUMPABLE) == 0);
        field_stop();
    } else if (!strcmp(how, "mdwe")) {
        errno = 0;
        if (prctl(PR_SET_MDWE, 1, 0, 0, 0) != 0)
            skip("no PR_SET_MDWE");
        field_run(field, seconds());
        CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
        CHECK(prctl(PR_GET_MDWE, 0, 0, 0, 0) == 1);
    } else if (!strcmp(how, "tsc")) {
        MUST(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0);
        field_start(2, mib() << 19);
        field_run(field, seconds());
        field_stop();
        MUST(prctl(PR_SET_TSC, PR_TSC_ENABLE) == 0);
    } else if (!strcmp(how, "traceme") || !strcmp(how, "traces")) {
        int seize = !strcmp(how, "traces"), rounds = 0, tube[2];
        MUST(pipe(tube) == 0);
        for (double end = now() + seconds(); now() < end; rounds++) {
            int status = 0;
            pid_t child;
            if (seize) {
                child = waiting(field, tube);
                errno = 0;
                if (ptrace(PTRACE_SEIZE, child, NULL, (void *)PTRACE_O_TRACESYSGOOD) != 0) {
                    odd("PTRACE_SEIZE of its own child: %s", strerror(errno));
                    kill(child, SIGKILL), waitpid(child, &status, 0);
                    close(tube[0]), close(tube[1]);
                    MUST(pipe(tube) == 0);
                    continue;
                }
                CHECK(ptrace(PTRACE_INTERRUPT, child, NULL, NULL) == 0);
                CHECK(waitpid(child, &status, __WALL) == child && WIFSTOPPED(status));
                CHECK(ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0);
                MUST(write(tube[1], "x", 1) == 1);
            } else {
                child = fork();
                if (child == 0) {
                    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
                        _exit(77);
                    raise(SIGSTOP);
                    for (int i = 0; i < 1000; i++)
                        field_step(field, 4), syscall(SYS_getppid);
                    _exit(odd_seen ? 1 : 9);
                }
            }
            int calls = 0, set = 0;
            while (waitpid(child, &status, __WALL) == child && !WIFEXITED(status) && !WIFSIGNALED(status)) {
                if (!set && !seize)
                    set = ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)PTRACE_O_TRACESYSGOOD) == 0;
                struct user_regs_struct regs;
                if (WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80)) {
                    CHECK(ptrace(PTRACE_GETREGS, child, NULL, &regs) == 0);
                    calls += regs.orig_rax == SYS_getppid;
                }
                CHECK(ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0);
            }
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 9)
                odd("the traced child ended with status %x", status);
            /* One stop when it begins, one when it ends. */
            if (calls != 2000)
                odd("%d stops at 1000 system calls", calls);
        }
        note("%d rounds", rounds);
    } else if (!strcmp(how, "reaper")) {
        MUST(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
        int rounds = 0;
        for (double end = now() + seconds(); now() < end; rounds++) {
            int status, sum = 0, told = 0;
            if (fork() == 0) {
                if (fork() == 0)
                    field_step(field, 100), _exit(odd_seen ? 50 : 3);
                _exit(4);
            }
            for (; told < 2 && wait(&status) > 0; told++)
                sum += WEXITSTATUS(status);
            CHECK(told == 2 && sum == 7);
            field_step(field, 100);
        }
        CHECK(wait(NULL) == -1 && errno == ECHILD);
        note("%d rounds", rounds);
    } else if (!strcmp(how, "thp")) {
        MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
        field_run(field, seconds());
        CHECK(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1);
    } else {
        struct sched_param none = {0};
        cpu_set_t one, seen;
        CPU_ZERO(&one);
        CPU_SET(0, &one);
        MUST(setpriority(PRIO_PROCESS, 0, 10) == 0 && sched_setaffinity(0, sizeof one, &one) == 0);
        MUST(sched_setscheduler(0, SCHED_IDLE, &none) == 0);
        for (double end = now() + seconds(); now() < end;) {
            field_run(field, 0.02);
            CHECK(sched_getscheduler(0) == SCHED_IDLE && getpriority(PRIO_PROCESS, 0) == 10);
            CHECK(sched_getaffinity(0, sizeof seen, &seen) == 0 && CPU_EQUAL(&one, &seen) && sched_getcpu() == 0);
        }
    }
    field_check_all(field);
    return done();
}
