/* Children that fill memory, check it, and end at random moments: by exit, by a signal, by exec, with other threads still at work. After each
 * end all must be as it is alone: the status, what a shared file of theirs holds, that nobody has it mapped any more (its seal can be
 * set), and that the program's own file can be written again (no ETXTBSY). usage: ends SECONDS PAGES FOLDER */
#include "attack.h"
#include <sys/ioctl.h>

static char *memory;
static char *own;

static void *writer(void *unused)
{
    (void)unused;
    for (uint64_t version = 1;; version++)
        for (size_t page = pages / 2; page < pages; page++)
            fill(memory + page * PAGE, page, version);
    return NULL;
}

/* The part of a child: `how` to end, after how many microseconds, and the shared file. */
static int child(int how, unsigned after, int file, uint64_t random)
{
    memory = mmap(memory, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    char *shared = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED || shared == MAP_FAILED)
        _exit(3);
    madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
    for (size_t page = 0; page < 16; page++)
        fill(shared + page * PAGE, page, 5);
    for (size_t page = 0; page < pages; page++)
        fill(memory + page * PAGE, page, 1);
    pthread_t thread;
    if (how & 1)
        pthread_create(&thread, NULL, writer, NULL);
    double until = now() + after / 1e6;
    do
        for (size_t page = 0; page < pages / 2; page++)
            check(memory + page * PAGE, page, 1, "a child about to end");
    while (now() < until);
    switch (how / 2) {
    case 0:
        _exit(40 + (int)pick(&random, 1));
    case 1:
        raise(SIGKILL);
        break;
    case 2:
        execl("/bin/true", "true", (char *)NULL);
        break;
    case 3:
        abort();
    }
    _exit(4);
}

/* Copies the program's own file: what is run from there can be written again once it has ended. */
static void copy_own(const char *from, const char *to)
{
    char bytes[65536];
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (in < 0 || out < 0)
        skip(to);
    for (ssize_t some; (some = read(in, bytes, sizeof bytes)) > 0;)
        if (write(out, bytes, (size_t)some) != some)
            skip(to);
    close(in), close(out);
}

int main(int count, char **arguments)
{
    if (count > 6 && !strcmp(arguments[1], "as")) {
        /* Started from a file of its own. */
        seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        memory = (char *)strtoul(arguments[4], NULL, 10), pages = strtoul(arguments[5], NULL, 10);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_DUMPABLE, 1);
        child(atoi(arguments[2]), (unsigned)atoi(arguments[3]), atoi(arguments[6]), 1);
    }
    start(count, arguments, 256);
    char path[400];
    snprintf(path, sizeof path, "%s/ends-%d", count > 3 ? arguments[3] : ".", getpid());
    own = path;
    copy_own("/proc/self/exe", own);
    memory = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    area(memory, pages);
    ready();
    unsigned long long started = 0, busy = 0, unsealed = 0;
    uint64_t random = (uint64_t)getpid();
    const int want[] = {W_EXITCODE(40, 0), SIGKILL, W_EXITCODE(0, 0), SIGABRT};
    for (; !over(); started++) {
        int how = (int)pick(&random, 8), after = (int)pick(&random, 20000), execs = (int)pick(&random, 2);
        int file = memfd_create("ends", MFD_ALLOW_SEALING);
        SAME(file >= 0 && ftruncate(file, 16 * PAGE) == 0);
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            /* No core files. */
            prctl(PR_SET_DUMPABLE, 0), prctl(PR_SET_DUMPABLE, 1);
            if (execs) {
                char words[5][24];
                snprintf(words[0], 24, "%d", how), snprintf(words[1], 24, "%d", after), snprintf(words[2], 24, "%zu", (size_t)memory);
                snprintf(words[3], 24, "%zu", pages), snprintf(words[4], 24, "%d", file);
                execl(own, own, "as", words[0], words[1], words[2], words[3], words[4], (char *)NULL);
                _exit(5);
            }
            child(how, (unsigned)after, file, random);
        }
        int status = -1;
        SAME(pid > 0 && waitpid(pid, &status, 0) == pid);
        if (!SAME((status & ~0x80) == want[how / 2]))
            tell("how %d: status %x", how, status);
        if (execs) {
            int again = open(own, O_WRONLY | O_CLOEXEC);
            if (again < 0) {
                busy++;
                seen->odd++;
                tell("the file of a program that has ended cannot be written: %s", strerror(errno));
            }
            close(again);
        }
        if (fcntl(file, F_ADD_SEALS, F_SEAL_WRITE) != 0) {
            unsealed++;
            seen->odd++;
            tell("the file that a program that has ended had mapped cannot be sealed: %s", strerror(errno));
        }
        static char copy[PAGE] __attribute__((aligned(8)));
        for (size_t page = 0; page < 16; page++) {
            SAME(pread(file, copy, PAGE, (off_t)page * PAGE) == PAGE);
            check(copy, page, 5, "what a child left in a shared file");
        }
        close(file);
    }
    unlink(own);
    return finish("\"started\": %llu, \"text_busy\": %llu, \"unsealed\": %llu, ", started, busy, unsealed);
}
