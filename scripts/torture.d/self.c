/* Looks at itself: its mappings, descriptors, tasks, signals, memory locked and children must stay what they were but for what it
 * does itself, and no tracer may ever be there. */
#include "torture.h"
#include <dirent.h>

static int entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;
    MUST(folder != NULL);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static char *text(const char *path)
{
    static char buffers[2][1 << 20];
    static int next;
    char *buffer = buffers[next ^= 1];
    int file = open(path, O_RDONLY);
    size_t length = 0;
    MUST(file >= 0);
    for (ssize_t got; (got = read(file, buffer + length, (1 << 20) - 1 - length)) > 0;)
        length += (size_t)got;
    buffer[length] = 0;
    close(file);
    return buffer;
}

static void field_of(const char *status, const char *name, char *value)
{
    const char *at = strstr(status, name);
    snprintf(value, 100, "%.*s", at ? (int)strcspn(at, "\n") : 0, at ? at : "");
}

/* The heap, stacks and alike grow; that of mappings of files, and their number, is to stay. */
static void mappings(char *kept, size_t size)
{
    char *maps = text("/proc/self/maps"), *save = NULL;
    size_t length = 0;
    kept[0] = 0;
    for (char *line = strtok_r(maps, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (length + 200 < size)
            length += (size_t)snprintf(kept + length, 200, "%s\n", line);
}

int main(void)
{
    static const char *names[] = {"Threads:", "SigBlk:", "SigIgn:", "SigCgt:", "SigPnd:", "ShdPnd:", "VmLck:", "VmPin:", "Seccomp:", "NoNewPrivs:", "Cpus_allowed:", "FDSize:", "Uid:", "CapEff:", "Groups:", "NStgid:", "untag_mask:", "x86_Thread_features:"};
    enum { NAMES = sizeof names / sizeof *names };
    static char first[NAMES][100], kept[1 << 18], later[1 << 18];
    struct field *field = field_new(mib() << 20);
    setvbuf(stdout, malloc(65536), _IOFBF, 65536);
    field_run(field, 0.05);
    text("/proc/self/status");
    int descriptors = entries("/proc/self/fd"), tasks = entries("/proc/self/task"), traced = 0, looks = 0;
    char *status = text("/proc/self/status"), now_is[100];
    for (int i = 0; i < NAMES; i++)
        field_of(status, names[i], first[i]);
    mappings(kept, sizeof kept);
    printf("%d descriptors, %d task\n", descriptors - 2, tasks - 2);
    printf("%s %s %s %s\n", first[0], first[1], first[3], first[8]);
    if (strstr(kept, "superhue"))
        note("a mapping names superhue");
    int reported = 0;
    for (double end = now() + seconds(); now() < end; looks++) {
        CHECK(entries("/proc/self/fd") == descriptors);
        CHECK(entries("/proc/self/task") == tasks);
        status = text("/proc/self/status");
        for (int i = 0; i < NAMES; i++) {
            field_of(status, names[i], now_is);
            if (strcmp(now_is, first[i]))
                odd("was %s, is %s", first[i], now_is);
        }
        const char *tracer = strstr(status, "TracerPid:");
        traced += tracer && atoi(tracer + 10) != 0;
        mappings(later, sizeof later);
        if (strcmp(kept, later) && !reported++) {
            odd("the mappings have changed");
            /* Lines that were not there. */
            char *save = NULL;
            for (char *line = strtok_r(later, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
                if (!strstr(kept, line))
                    note("new: %s", line);
        }
        CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
        field_step(field, 256);
        rest(0.001);
    }
    note("%d looks", looks);
    if (traced)
        odd("it is traced");
    field_check_all(field);
    return done();
}
