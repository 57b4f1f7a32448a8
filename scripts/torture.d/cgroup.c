/* Lives in a memory cgroup (v2 or v1) whose limit is little above what it uses, with another process that comes and goes: what
 * superhue makes for it is charged to it, and must not have it killed. */
#include "torture.h"

static int put(const char *folder, const char *name, const char *value)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_WRONLY);
    int good = file >= 0 && write(file, value, strlen(value)) == (ssize_t)strlen(value);
    if (file >= 0)
        close(file);
    return good;
}

int main(void)
{
    char folder[200], limit[30], pid[20];
    if (geteuid() != 0)
        errno = 0, skip("needs root");
    const char *tops[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}, *names[] = {"memory.limit_in_bytes", "memory.max"};
    int found = -1;
    for (int i = 0; i < 2 && found < 0; i++) {
        snprintf(folder, sizeof folder, "%s/torture-%d", tops[i], getpid());
        snprintf(limit, sizeof limit, "%zu", (mib() + 24) << 20);
        if (mkdir(folder, 0755) == 0) {
            if (put(folder, names[i], limit))
                found = i;
            else
                rmdir(folder);
        }
    }
    errno = 0;
    if (found < 0)
        skip("no memory cgroup here");
    pid_t child = fork();
    if (child == 0) {
        snprintf(pid, sizeof pid, "%d", getpid());
        MUST(put(folder, "cgroup.procs", pid));
        struct field *field = field_new(mib() << 20);
        field_run(field, seconds());
        field_check_all(field);
        fflush(stdout);
        _exit(odd_seen != 0);
    }
    int status = 1;
    MUST(waitpid(child, &status, 0) == child);
    if (status)
        odd("the process in the cgroup ended with status %x", status);
    for (int i = 0; i < 100 && rmdir(folder) != 0; i++)
        rest(0.02);
    return done();
}
