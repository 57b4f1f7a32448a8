/* A program without threads relies on being one:
 *   unshare      unshare(CLONE_NEWUSER), then a mount namespace: EINVAL where there is a second thread
 *   fs           unshare(CLONE_FS | CLONE_FILES): no guest's thread may share them
 *   exit         raw exit of the only thread ends the process, with its status, seen by its parent
 *   leaves       the main thread goes, others stay; the last one ends the process
 *   setns        setns into its own user namespace's child is refused alike; of time namespaces only single-threaded */
#include "torture.h"

static void *last(void *argument)
{
    field_run(argument, seconds());
    field_check_all(argument);
    exit(done());
}

static int unshares(int flags)
{
    return syscall(SYS_unshare, flags) == 0 ? 0 : errno;
}

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "unshare";
    struct field *field = field_new(mib() << 20);
    field_run(field, seconds() / 2);
    if (!strcmp(how, "unshare")) {
        printf("user namespace: %s\n", strerror(unshares(CLONE_NEWUSER)));
        printf("mount namespace: %s\n", strerror(unshares(CLONE_NEWNS)));
    } else if (!strcmp(how, "fs")) {
        for (int i = 0; i < 20; i++) {
            int error = unshares(CLONE_FS | CLONE_FILES);
            if (error)
                odd("unshare: %s", strerror(error));
            /* With threads these need more than unshare: the kernel says EINVAL. */
            error = unshares(CLONE_THREAD | CLONE_SIGHAND | CLONE_VM);
            if (error)
                odd("not alone in its memory: %s", strerror(error));
            field_run(field, seconds() / 40);
        }
    } else if (!strcmp(how, "setns")) {
        printf("time namespace: %s\n", strerror(unshares(0x80)));
        int own = open("/proc/self/ns/time_for_children", O_RDONLY);
        if (own >= 0)
            printf("enter it: %s\n", strerror(syscall(SYS_setns, own, 0x80) ? errno : 0));
    } else if (!strcmp(how, "leaves")) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, last, field) == 0);
        syscall(SYS_exit, 5);
    } else {
        field_run(field, seconds() / 2);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            field_run(field, seconds() / 2);
            syscall(SYS_exit, odd_seen ? 1 : 42);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42);
        field_check_all(field);
        fflush(stdout);
        puts("nothing more");
        fflush(stdout);
        syscall(SYS_exit, odd_seen ? 1 : 0);
    }
    field_run(field, seconds() / 2);
    field_check_all(field);
    return done();
}
