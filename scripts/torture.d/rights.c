/* Gives rights up (setuid, capset, nnp, landlock) while threads run, and looks whether any task of the process keeps more: a
 * guest's thread that keeps the old rights would be a hole. Nor may there be a task that is not the program's. */
#include "torture.h"
#include <dirent.h>
#include <linux/capability.h>
#include <linux/landlock.h>

static int tasks(const char *field, const char *value)
{
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    if (!folder)
        return -1;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.')
            continue;
        count++;
        char path[300], line[300];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            if (!strncmp(line, field, strlen(field)) && strncmp(line + strlen(field), value, strlen(value)))
                odd("a task keeps %s for %s", strtok(line, "\n"), value);
        if (file)
            fclose(file);
    }
    closedir(folder);
    return count;
}

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "nnp", *field = "NoNewPrivs:\t", *value = "1";
    int threads = !strcmp(how, "setuid") ? 3 : 0;
    if ((!strcmp(how, "setuid") || !strcmp(how, "capset")) && geteuid() != 0)
        errno = 0, skip("has no rights to give up");
    struct field *own = field_new(mib() << 19);
    if (threads)
        field_start(threads, mib() << 19);
    field_run(own, seconds() / 2);
    if (!strcmp(how, "setuid")) {
        /* The C library tells its threads by a signal. */
        interrupts_expected = 1;
        MUST(setgid(12345) == 0 && setuid(12345) == 0);
        field = "Uid:\t", value = "12345\t12345\t12345\t12345";
        /* Its files in /proc are root's now. */
        prctl(PR_SET_DUMPABLE, 1);
    } else if (!strcmp(how, "capset")) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
        MUST(syscall(SYS_capset, &header, none) == 0);
        field = "CapEff:\t", value = "0000000000000000";
    } else {
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    }
    if (!strcmp(how, "landlock")) {
        struct landlock_ruleset_attr rules = {.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE};
        errno = 0;
        int set = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
        if (set < 0)
            skip("no Landlock");
        MUST(syscall(SYS_landlock_restrict_self, set, 0) == 0);
        CHECK(open("/etc/passwd", O_RDONLY) == -1);
    } else {
        for (int i = 0; i < 50; i++) {
            CHECK(tasks(field, value) == 1 + threads);
            field_run(own, seconds() / 150);
        }
    }
    field_run(own, seconds() / 2);
    if (threads)
        field_stop();
    field_check_all(own);
    return done();
}
