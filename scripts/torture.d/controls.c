/* What prctl can do to keep others out:
 *   dumpable   PR_SET_DUMPABLE 0: nobody but root may look at it
 *   reaper     a child subreaper, whose grandchildren's ends it is told of, and no other
 *   thp        PR_SET_THP_DISABLE: no huge pages, and it stays so
 *   nice       lives under SCHED_IDLE, on one CPU, and with its priority lowered: all stay */
#include "torture.h"
#include <sys/resource.h>

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
