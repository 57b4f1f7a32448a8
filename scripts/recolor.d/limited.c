/* Children in a memory cgroup (v1 or v2) of 16 MiB: those that use less must never be ended for it, and must find all that they wrote; those
 * that want more must be ended, as they are without swap (the limit counts swap too). How long it takes at most until the memory of one that
 * has ended is given back is told, in seconds. usage: limited SECONDS */
#include "attack.h"

static char folder[200];

static int set(const char *name, const char *value)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    int is = file >= 0 && write(file, value, strlen(value)) > 0;
    if (file >= 0)
        close(file);
    return is;
}

/* What the group is charged, in bytes. */
static long charged(void)
{
    const char *names[] = {"memory.current", "memory.usage_in_bytes"};
    char path[300], text[32] = "";
    for (int at = 0; at < 2; at++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[at]);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = file >= 0 ? read(file, text, sizeof text - 1) : -1;
        if (file >= 0)
            close(file);
        if (length > 0)
            return atol(text);
    }
    return 0;
}

static void use(char *memory, size_t count, double until, uint64_t random)
{
    for (uint64_t version = 1; now() < until; version++) {
        size_t some = count / 2 + pick(&random, (unsigned)(count / 2));
        if (mmap(memory, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != memory)
            _exit(3);
        madvise(memory, count * PAGE, MADV_NOHUGEPAGE);
        for (size_t page = 0; page < some; page++)
            fill(memory + page * PAGE, page, version);
        random_rest(&random, 20000);
        for (size_t page = 0; page < some; page++)
            check(memory + page * PAGE, page, version, "below a limit");
    }
}

int main(int count, char **arguments)
{
    start(count, arguments, 4096);
    pages = 4096;
    snprintf(folder, sizeof folder, "/sys/fs/cgroup/memory/recolor-%d", getpid());
    int v1 = mkdir(folder, 0755) == 0;
    if (!v1) {
        snprintf(folder, sizeof folder, "/sys/fs/cgroup/recolor-%d", getpid());
        if (mkdir(folder, 0755) != 0)
            skip(folder);
    }
    int limited = v1 ? set("memory.limit_in_bytes", "16777216") && set("memory.memsw.limit_in_bytes", "16777216")
                     : set("memory.max", "16777216") && set("memory.swap.max", "0");
    if (!limited) {
        rmdir(folder);
        skip("a limit of memory and swap");
    }
    char *memory = reserve(pages * 2, MAP_PRIVATE);
    area(memory, pages * 2);
    ready();
    unsigned long long inside = 0, beyond = 0, survived = 0;
    double longest = 0;
    uint64_t random = (uint64_t)getpid();
    for (int turn = 0; !over(); turn++) {
        int greedy = turn % 4 == 3;
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (!set("cgroup.procs", "0"))
                _exit(2);
            /* 11 of 16 MiB: what superhue may bring into the group for a moment is little. */
            use(memory, greedy ? pages * 2 : pages * 11 / 16, now() + (greedy ? 2 : 0.5), random + (uint64_t)turn);
            _exit(0);
        }
        int status = -1;
        SAME(child > 0 && waitpid(child, &status, 0) == child);
        if (greedy) {
            beyond++;
            if (!SAME(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
                survived++, tell("one that wanted twice its limit ended with %x", status);
        } else {
            inside++;
            if (!SAME(status == 0))
                tell("one that used less than its limit ended with %x", status);
        }
        /* A reader of a process in /proc that ends just then holds its memory until the read is done, and then gives it back instead of it.
         * The next one must find the group empty. */
        double ended = now();
        while (charged() > 1 << 20 && now() - ended < 2)
            usleep(200);
        longest = now() - ended > longest ? now() - ended : longest;
    }
    for (int again = 0; rmdir(folder) != 0 && again < 100; again++)
        usleep(10000);
    return finish("\"inside\": %llu, \"beyond\": %llu, \"survived\": %llu, \"longest_until_given_back\": %.4f, ", inside, beyond, survived, longest);
}
