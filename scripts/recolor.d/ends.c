/* Children that fill memory, check it, and end at random moments: by exit, by a signal, by exec, with other threads still at work. After each
 * end all must be as it is alone: the status, what a shared file of theirs holds, that nobody has it mapped any more (its seal can be
 * set), and that the program's own file can be written again (no ETXTBSY). usage: ends SECONDS PAGES FOLDER */
#include "attack.h"
#include <sys/resource.h>

enum { SLOTS = 6 };

static char *memory;

static void *writer(void *unused)
{
    (void)unused;
    for (uint64_t version = 1;; version++)
        for (size_t page = pages / 2; page < pages; page++)
            fill(memory + page * PAGE, page, version), usleep(10);
    return NULL;
}

/* The part of a child: `how` to end, after how many microseconds, and the shared file. */
static void child(int how, unsigned after, int file)
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
    do {
        for (size_t page = 0; page < pages / 2; page++)
            check(memory + page * PAGE, page, 1, "a child about to end");
        usleep(5000);
    } while (now() < until);
    switch (how / 2) {
    case 0:
        _exit(40);
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

/* A child, and what it runs from and leaves. */
struct slot {
    pid_t pid;
    int how, execs, file;
    char own[300];
};

static unsigned long long started, busy, unsealed;

static void begin(struct slot *slot, uint64_t *random)
{
    /* One of four ends at once, the others after a while. */
    unsigned after = pick(random, 4) ? 500000 + pick(random, 2000000) : pick(random, 20000);
    slot->how = (int)pick(random, 8), slot->execs = (int)pick(random, 2);
    slot->file = memfd_create("ends", MFD_ALLOW_SEALING);
    SAME(slot->file >= 0 && ftruncate(slot->file, 16 * PAGE) == 0);
    slot->pid = fork();
    if (slot->pid == 0) {
        struct rlimit none = {0, 0};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setrlimit(RLIMIT_CORE, &none);
        if (slot->execs) {
            char words[5][24];
            snprintf(words[0], 24, "%d", slot->how), snprintf(words[1], 24, "%u", after), snprintf(words[2], 24, "%zu", (size_t)memory);
            snprintf(words[3], 24, "%zu", pages), snprintf(words[4], 24, "%d", slot->file);
            execl(slot->own, slot->own, "as", words[0], words[1], words[2], words[3], words[4], (char *)NULL);
            _exit(5);
        }
        child(slot->how, after, slot->file);
    }
    SAME(slot->pid > 0);
    started++;
}

/* Of one that has ended just now. */
static void look(struct slot *slot, int status)
{
    const int want[] = {W_EXITCODE(40, 0), SIGKILL, W_EXITCODE(0, 0), SIGABRT};
    if (slot->execs) {
        int again = open(slot->own, O_WRONLY | O_CLOEXEC);
        if (again < 0) {
            busy++;
            seen->odd++;
            tell("the file of a program that has ended cannot be written: %s", strerror(errno));
        }
        close(again);
    }
    if (fcntl(slot->file, F_ADD_SEALS, F_SEAL_WRITE) != 0) {
        unsealed++;
        seen->odd++;
        tell("the file that a program that has ended had mapped cannot be sealed: %s", strerror(errno));
    }
    if (!SAME((status & ~0x80) == want[slot->how / 2]))
        tell("how %d: status %x", slot->how, status);
    static char copy[PAGE] __attribute__((aligned(8)));
    for (size_t page = 0; page < 16; page++) {
        SAME(pread(slot->file, copy, PAGE, (off_t)page * PAGE) == PAGE);
        check(copy, page, 5, "what a child left in a shared file");
    }
    close(slot->file);
    slot->pid = 0;
}

int main(int count, char **arguments)
{
    if (count > 6 && !strcmp(arguments[1], "as")) {
        /* Started from a file of its own. */
        seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        memory = (char *)strtoul(arguments[4], NULL, 10), pages = strtoul(arguments[5], NULL, 10);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_DUMPABLE, 1);
        child(atoi(arguments[2]), (unsigned)atoi(arguments[3]), atoi(arguments[6]));
    }
    start(count, arguments, 256);
    struct slot slots[SLOTS] = {{0}};
    for (unsigned which = 0; which < SLOTS; which++) {
        snprintf(slots[which].own, sizeof slots[which].own, "%s/ends-%d-%u", count > 3 ? arguments[3] : ".", getpid(), which);
        copy_own("/proc/self/exe", slots[which].own);
    }
    memory = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    area(memory, pages);
    ready();
    uint64_t random = (uint64_t)getpid();
    for (;;) {
        int running = 0;
        for (unsigned which = 0; which < SLOTS; which++) {
            if (!slots[which].pid && !over())
                begin(&slots[which], &random);
            running += slots[which].pid != 0;
        }
        if (!running)
            break;
        int status = -1;
        pid_t pid = waitpid(-1, &status, 0);
        SAME(pid > 0);
        for (unsigned which = 0; which < SLOTS; which++)
            if (slots[which].pid == pid)
                look(&slots[which], status);
    }
    for (unsigned which = 0; which < SLOTS; which++)
        unlink(slots[which].own);
    return finish("\"started\": %llu, \"text_busy\": %llu, \"unsealed\": %llu, ", started, busy, unsealed);
}
