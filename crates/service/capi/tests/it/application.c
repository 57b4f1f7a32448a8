/* An application: does what its first argument says, talking with the test by lines. Exit status 0 if all
 * was as it should be. */
#define _GNU_SOURCE
#include <hps.h>

#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            char why[400];                                                            \
            hps_reason(why, sizeof why);                                              \
            fprintf(stderr, "line %d: %s (reason: %s)\n", __LINE__, #condition, why); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

static int expect(int line, int got, int wanted)
{
    if (got != wanted) {
        char why[400];
        hps_reason(why, sizeof why);
        fprintf(stderr, "line %d: %d (%s), expected %d; reason: %s\n", line, got, hps_strerror(got), wanted, why);
        exit(1);
    }
    return got;
}
#define EXPECT(call, wanted) expect(__LINE__, (call), (wanted))

enum { PATIENCE_MS = 60000 };

static void tell(const char *line)
{
    puts(line);
    fflush(stdout);
}

static void await_line(void)
{
    char line[64];
    CHECK(fgets(line, sizeof line, stdin));
}

static int open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* --- decisions ------------------------------------------------------------------------------------ */

struct seen {
    int regions, compacts;
    size_t pages;
    uint64_t first;
    int32_t suggestions[8];
};

static int decide(const struct hps_region *region, void *user)
{
    struct seen *seen = user;
    CHECK(region->size >= sizeof(struct hps_region));
    CHECK(region->address % HPS_REGION_SIZE == 0);
    CHECK(region->count >= 1 && region->count <= 512);
    for (size_t i = 0; i < region->count; i++) {
        CHECK(region->pages[i].address / HPS_REGION_SIZE == region->address / HPS_REGION_SIZE);
        CHECK(i == 0 || region->pages[i].address > region->pages[i - 1].address);
    }
    seen->suggestions[seen->regions++ % 8] = region->suggestion;
    /* Every function may be called here. */
    CHECK(hps_fetch(NULL, 0, NULL) <= 0);
    return region->suggestion;
}

static void compact(const struct hps_page *pages, size_t count, void *user)
{
    struct seen *seen = user;
    for (size_t i = 1; i < count; i++)
        CHECK(pages[i].heat <= pages[i - 1].heat);
    seen->compacts++;
    seen->pages = count;
    seen->first = pages[0].address;
}

static char *map_regions(size_t regions)
{
    size_t length = (regions + 1) * HPS_REGION_SIZE;
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memory += HPS_REGION_SIZE - (uintptr_t)memory % HPS_REGION_SIZE;
    return memory;
}

/* Two regions: the test calls the first dense and the second sparse. */
static void decisions(void)
{
    struct seen seen = {0};
    char *memory = map_regions(2);
    memset(memory, 1, 2 * HPS_REGION_SIZE);
    EXPECT(hps_set_functions(decide, compact, &seen), 0);
    EXPECT(hps_enable_track(NULL), 0);
    EXPECT(hps_enable_track(NULL), -EALREADY);
    printf("%ju\n", (uintmax_t)(uintptr_t)memory);
    fflush(stdout);
    EXPECT(hps_wait_signal(PATIENCE_MS), 128 + 3);
    EXPECT(seen.regions, 2);
    EXPECT(seen.suggestions[0], HPS_COLLAPSE);
    EXPECT(seen.suggestions[1], HPS_COMPACT);
    EXPECT(seen.compacts, 1);
    EXPECT((int)seen.pages, 3);
    CHECK(seen.first == (uint64_t)(uintptr_t)memory + HPS_REGION_SIZE + 2 * HPS_PAGE_SIZE);
    for (size_t i = 0; i < 2 * HPS_REGION_SIZE; i++)
        CHECK(memory[i] == 1);
    EXPECT(hps_wait_signal(0), 0);

    struct hps_statistics statistics = {.size = sizeof statistics};
    EXPECT(hps_get_statistics(&statistics), 0);
    CHECK(statistics.published == 1 && statistics.active == 131);

    struct hps_page pages[4];
    size_t available = 0;
    EXPECT(hps_fetch(pages, 4, &available), 4);
    EXPECT((int)available, 131);
    CHECK(pages[0].address == seen.first);
    struct hps_outcome outcome = {.size = sizeof outcome};
    EXPECT(hps_process(pages, 4, &outcome), 0);
    CHECK(outcome.regions == 2 && outcome.compacted == 4);
    outcome.size = 8;
    seen.regions = 0;
    EXPECT(hps_process(pages, 4, &outcome), -EINVAL);
    EXPECT(seen.regions, 0);
    pages[0].address++;
    EXPECT(hps_process(pages, 4, NULL), -EINVAL);
    EXPECT(hps_process(NULL, 4, NULL), -EINVAL);
    EXPECT(hps_fetch(NULL, 4, NULL), -EINVAL);
    /* Without functions the library decides, and nothing is compacted. */
    EXPECT(hps_set_functions(NULL, NULL, NULL), 0);
    pages[0].address--;
    outcome.size = sizeof outcome;
    EXPECT(hps_process(pages, 4, &outcome), 0);
    CHECK(outcome.compacted == 0 && outcome.left == 2);
}

/* --- signals -------------------------------------------------------------------------------------- */

static struct hps_page kept[4];
static volatile sig_atomic_t fetched, coded, valued;
static volatile size_t offered;

static void on_signal(int signo, siginfo_t *info, void *context)
{
    size_t available = 0;
    (void)signo;
    (void)context;
    coded = info->si_code;
    valued = info->si_value.sival_int;
    fetched = hps_fetch(kept, 4, &available);
    offered = available;
}

static void by_signal(void)
{
    struct hps_options options = HPS_OPTIONS_INIT;
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    options.signo = SIGRTMIN + 3;
    sigset_t ours, before;
    sigemptyset(&ours);
    sigaddset(&ours, options.signo);
    CHECK(sigprocmask(SIG_BLOCK, &ours, &before) == 0);
    CHECK(sigaction(options.signo, &action, NULL) == 0);
    EXPECT(hps_enable_track(&options), 0);
    tell("ready");
    for (int round = 0; round < 3; round++) {
        fetched = 0;
        while (fetched == 0)
            sigsuspend(&before);
        EXPECT(fetched, 4);
        EXPECT(coded, SI_QUEUE);
        EXPECT(valued, 10 + round);
        EXPECT((int)offered, 10 + round);
        tell("next");
    }
}

/* --- faults --------------------------------------------------------------------------------------- */

static void forked(void)
{
    int given[64];
    for (int fd = 0; fd < 64; fd++)
        given[fd] = fcntl(fd, F_GETFD);
    EXPECT(hps_enable_track(NULL), 0);
    tell("ready");
    EXPECT(hps_wait_signal(PATIENCE_MS), 10);
    int before = open_descriptors();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        EXPECT(hps_wait_signal(0), -ESRCH);
        EXPECT(hps_fetch(NULL, 0, NULL), -ESRCH);
        EXPECT(hps_disable_track(), -ESRCH);
        EXPECT(hps_enable_track(NULL), 0);
        EXPECT(open_descriptors(), before);
        EXPECT(hps_wait_signal(PATIENCE_MS), 10);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(hps_fetch(NULL, 0, NULL), 0);
    for (int fd = 0; fd < 64; fd++) {
        int flags = fcntl(fd, F_GETFD);
        CHECK(flags == given[fd] || (flags & FD_CLOEXEC));
    }
    EXPECT(hps_disable_track(), 0);
    EXPECT(hps_disable_track(), -ENOTCONN);
    EXPECT(open_descriptors(), before - 2);
}

/* In its first call. */
static void never_returns(const struct hps_page *pages, size_t count, void *user)
{
    (void)pages;
    (void)count;
    if (__atomic_fetch_add((int *)user, 1, __ATOMIC_SEQ_CST) > 0)
        return;
    tell("stuck");
    for (;;)
        pause();
}

static void *waiter(void *unused)
{
    hps_wait_signal(PATIENCE_MS);
    return unused;
}

static void stuck(void)
{
    pthread_t thread;
    int calls = 0;
    EXPECT(hps_set_functions(NULL, never_returns, &calls), 0);
    EXPECT(hps_enable_track(NULL), 0);
    CHECK(pthread_create(&thread, NULL, waiter, NULL) == 0);
    await_line();
    EXPECT(hps_wait_signal(PATIENCE_MS), 20);
    EXPECT(hps_fetch(NULL, 0, NULL), 0);
    EXPECT(hps_disable_track(), 0);
    EXPECT(hps_enable_track(NULL), 0);
    EXPECT(hps_disable_track(), 0);
}

/* As a program with a bug does it. */
static void crashes(const struct hps_page *pages, size_t count, void *user)
{
    (void)pages;
    (void)count;
    (void)user;
    raise(SIGSEGV);
}

static void crashed(void)
{
    EXPECT(hps_set_functions(NULL, crashes, NULL), 0);
    EXPECT(hps_enable_track(NULL), 0);
    tell("ready");
    hps_wait_signal(PATIENCE_MS);
    CHECK(!"the crash was survived");
}

static void *wait_forever(void *result)
{
    *(int *)result = hps_wait_signal(-1);
    return NULL;
}

static void woken(void)
{
    for (int round = 0; round < 20; round++) {
        pthread_t threads[3];
        int results[3];
        EXPECT(hps_enable_track(NULL), 0);
        for (int i = 0; i < 3; i++)
            CHECK(pthread_create(&threads[i], NULL, wait_forever, &results[i]) == 0);
        EXPECT(hps_disable_track(), 0);
        for (int i = 0; i < 3; i++) {
            CHECK(pthread_join(threads[i], NULL) == 0);
            EXPECT(results[i], -ENOTCONN);
        }
    }
}

static void restarted(void)
{
    EXPECT(hps_enable_track(NULL), 0);
    tell("ready");
    EXPECT(hps_wait_signal(PATIENCE_MS), -EPIPE);
    EXPECT(hps_wait_signal(PATIENCE_MS), -EPIPE);
    EXPECT(hps_fetch(NULL, 0, NULL), -EPIPE);
    EXPECT(hps_disable_track(), 0);
    await_line();
    EXPECT(hps_enable_track(NULL), -ENOENT);
    char why[64];
    CHECK(hps_reason(why, sizeof why) > sizeof why && strlen(why) == sizeof why - 1);
    tell("gone");
    await_line();
    EXPECT(hps_enable_track(NULL), 0);
    EXPECT(hps_wait_signal(PATIENCE_MS), 10);
}

/* Registrations of destructors of thread-local variables. glibc allocates for each. */
static _Thread_local int destructors;

int __cxa_thread_atexit_impl(void (*destructor)(void *), void *object, void *library)
{
    int (*real)(void (*)(void *), void *, void *);
    *(void **)&real = dlsym(RTLD_NEXT, "__cxa_thread_atexit_impl");
    destructors++;
    return real(destructor, object, library);
}

/* What signal handlers may call allocates nothing, also where it is the first call of the thread. */
static void *call_as_a_handler(void *unused)
{
    char why[8] = "none";
    EXPECT(hps_fetch(NULL, 0, NULL), -ENOTCONN);
    CHECK(hps_strerror(-ENOTCONN));
    int of_handler = destructors;
    EXPECT(hps_wait_signal(0), -ENOTCONN);
    int of_others = destructors;
    CHECK(hps_reason(why, sizeof why) > 0);
    EXPECT(hps_fetch(NULL, 0, NULL), -ENOTCONN);
    CHECK(hps_reason(why, sizeof why) == 0 && why[0] == 0);
    EXPECT(of_handler, 0);
    CHECK(of_others > 0);
    return unused;
}

static void alone(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_as_a_handler, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    struct hps_options options = HPS_OPTIONS_INIT;
    EXPECT(hps_wait_signal(0), -ENOTCONN);
    EXPECT(hps_fetch(NULL, 0, NULL), -ENOTCONN);
    EXPECT(hps_disable_track(), -ENOTCONN);
    options.socket = "/nonexistent/track.sock";
    EXPECT(hps_enable_track(&options), -ENOENT);
    options.size = 3;
    EXPECT(hps_enable_track(&options), -EINVAL);
    options.size = sizeof options;
    options.min_heat = 1001;
    EXPECT(hps_enable_track(&options), -EINVAL);
    options.min_heat = 0;
    options.signo = SIGKILL;
    EXPECT(hps_enable_track(&options), -EINVAL);
    options.signo = 0;
    options.timeout_ms = -1;
    EXPECT(hps_enable_track(&options), -EINVAL);
    /* A newer program: what this library does not know must be zero. */
    struct { struct hps_options known; uint64_t unknown; } newer = {HPS_OPTIONS_INIT, 0};
    newer.known.size = sizeof newer;
    newer.known.socket = "/nonexistent/track.sock";
    EXPECT(hps_enable_track(&newer.known), -ENOENT);
    newer.unknown = 1;
    EXPECT(hps_enable_track(&newer.known), -EINVAL);
    for (int n = -200; n < 3; n++)
        CHECK(strlen(hps_strerror(n)) > 0);
    CHECK(hps_strerror(-2147483647 - 1) != NULL);

    size_t huge = 1;
    char *memory = hps_huge_alloc(3 << 20, &huge);
    CHECK(memory && (uintptr_t)memory % HPS_REGION_SIZE == 0);
    CHECK(huge == SIZE_MAX || (huge <= 4 << 20 && huge % HPS_REGION_SIZE == 0));
    CHECK(memory[0] == 0 && memory[(4 << 20) - 1] == 0);
    memory[(4 << 20) - 1] = 1;
    EXPECT(hps_huge_free(memory + 4096, 3 << 20), -EINVAL);
    EXPECT(hps_huge_free(memory, 0), -EINVAL);
    EXPECT(hps_huge_free(memory, 3 << 20), 0);
    EXPECT(hps_huge_free(NULL, 0), 0);
    CHECK(!hps_huge_alloc(0, NULL) && !hps_huge_alloc(SIZE_MAX, NULL));
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } all[] = {
        {"decisions", decisions}, {"by_signal", by_signal}, {"forked", forked}, {"stuck", stuck},
        {"crashed", crashed}, {"woken", woken}, {"restarted", restarted}, {"alone", alone},
    };
    for (size_t i = 0; argc > 1 && i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].name, argv[1]) == 0) {
            all[i].run();
            return 0;
        }
    }
    return 2;
}
