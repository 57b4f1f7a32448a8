/* An application with colored memory: does what its first argument says. Exit status 0 if all was as it should be, 77 if
 * this machine cannot. The colors are made up (SUPERHUE_TEST_COLORS), eight of them. */
#define _GNU_SOURCE
#include <superhue.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            char why[400];                                                            \
            superhue_color_reason(why, sizeof why);                                   \
            fprintf(stderr, "line %d: %s (reason: %s)\n", __LINE__, #condition, why); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

enum { PAGE = 4096, SIZE = 100 * PAGE };

static int says(const char *words)
{
    char why[400];
    size_t length = superhue_color_reason(why, sizeof why);
    return length > 0 && strstr(why, words) != NULL;
}

static void fails(const char *set, size_t size, unsigned flags, int error, const char *words)
{
    errno = 42;
    CHECK(superhue_color_alloc(set, size, flags) == NULL);
    CHECK(superhue_color_error() == error && errno == 42);
    CHECK(says(words));
    CHECK(strlen(superhue_color_strerror(error)) > 10);
}

static void memory(void)
{
    struct superhue_color_verdict verdict;
    char *one, *two, *small;
    size_t i;

    CHECK(superhue_color_count() == 8);
    one = superhue_color_alloc("0-1", SIZE, SUPERHUE_COLOR_STRICT);
    two = superhue_color_alloc("2-7", SIZE, 0);
    small = superhue_color_alloc("2-7", 100, 0);
    CHECK(one && two && small && superhue_color_error() == 0);
    CHECK((size_t)one % PAGE == 0 && (size_t)small % 64 == 0);
    for (i = 0; i < SIZE; i++)
        CHECK(one[i] == 0 && two[i] == 0);
    memset(one, 1, SIZE);
    memset(two, 2, SIZE);
    memset(small, 3, 100);
    memset(&verdict, 0, sizeof verdict);
    verdict.size = sizeof verdict;
    CHECK(superhue_color_verify("0-1", one, SIZE, &verdict) == 1000);
    CHECK(verdict.size == sizeof verdict && verdict.resident == 100 && verdict.right == 100);
    CHECK(verdict.commonest == 50 && verdict.absent == 0);
    CHECK(superhue_color_verify("2-7", two, SIZE, NULL) == 1000);
    CHECK(superhue_color_verify("0-1", two, SIZE, NULL) == 0);
    verdict.size = 8;
    CHECK(superhue_color_verify("0-1", one, SIZE, &verdict) == -EINVAL);
    CHECK(superhue_color_free(one) == 0 && superhue_color_free(two) == 0 && superhue_color_free(NULL) == 0);
    CHECK(superhue_color_free(one) == -EINVAL && says("given back before"));
    CHECK(superhue_color_free(small + 16) == -EINVAL && superhue_color_free(&verdict) == -EINVAL);
    CHECK(small[99] == 3 && superhue_color_free(small) == 0);
    /* What is used again is zeroed again. */
    one = superhue_color_alloc("0-1", SIZE, SUPERHUE_COLOR_STRICT);
    for (i = 0; i < SIZE; i++)
        CHECK(one[i] == 0);
    CHECK(superhue_color_open() == 0);
    CHECK(superhue_color_free(one) == 0);
}

static void nonsense(void)
{
    fails("", 1, 0, -EINVAL, "names no colors");
    fails(NULL, 1, 0, -EINVAL, "NULL");
    fails("off", 1, 0, -EINVAL, "ordinary memory");
    fails("3-1", 1, 0, -EINVAL, "goes down");
    fails("0-3,2", 1, 0, -EINVAL, "comes after");
    fails("\xff", 1, 0, -EINVAL, "names no colors");
    fails("6-8", 1, 0, -ERANGE, "there is no color 8");
    fails("0", 0, 0, -EINVAL, "size 0");
    fails("0", SIZE_MAX, 0, -EOVERFLOW, "that large");
    fails("0", SIZE_MAX / 4, 0, -ENOMEM, "no memory");
    fails("0", 1, 8, -EINVAL, "flag");
    CHECK(superhue_color_place("0", NULL, 1, NULL) == -EINVAL);
    CHECK(superhue_color_place("9", &(char){0}, 1, NULL) == -ERANGE);
    CHECK(superhue_color_verify("0", NULL, 1, NULL) == -EINVAL);
    CHECK(superhue_color_reason(NULL, 0) > 0);
    CHECK(strcmp(superhue_color_strerror(0), superhue_color_strerror(7)) == 0);
}

static void place(void)
{
    struct superhue_color_placement placement = {.size = sizeof placement};
    unsigned char resident = 0;
    char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(memory != MAP_FAILED);
    madvise(memory, SIZE, MADV_NOHUGEPAGE);
    memset(memory, 5, SIZE / 2);
    /* A wrong size is refused before anything is done. */
    placement.size = 8;
    CHECK(superhue_color_place("3-4", memory, SIZE, &placement) == -EINVAL && says("size"));
    CHECK(mincore(memory + SIZE - PAGE, PAGE, &resident) == 0 && !(resident & 1));
    placement.size = sizeof placement;
    CHECK(superhue_color_place("3-4", memory + 10, SIZE - 10, &placement) == 0);
    CHECK(placement.placed + placement.already == 99 && placement.edges == PAGE - 10);
    CHECK(superhue_color_verify("3-4", memory + PAGE, SIZE - PAGE, NULL) == 1000);
    for (int i = 0; i < SIZE; i++)
        CHECK(memory[i] == (i < SIZE / 2 ? 5 : 0));
    munmap(memory, SIZE);
}

static void *thread(void *argument)
{
    char *parts[50] = {0};
    int number = *(int *)argument;

    for (int i = 0; i < 2000; i++) {
        int at = i * 7 % 50;
        size_t size = 1 + (size_t)(i * 131) % 9000;
        CHECK(superhue_color_free(parts[at]) == 0);
        parts[at] = superhue_color_alloc(number % 2 ? "0-3" : "spread", size, 0);
        CHECK(parts[at] && parts[at][size - 1] == 0);
        memset(parts[at], number, size);
    }
    for (int i = 0; i < 50; i++) {
        CHECK(!parts[i] || parts[i][0] == number);
        CHECK(superhue_color_free(parts[i]) == 0);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t threads[4];
    int numbers[4] = {1, 2, 3, 4};

    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, thread, &numbers[i]) == 0);
    /* No child finds a lock that a thread of its parent held. */
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        int status;
        if (child == 0) {
            int *number = superhue_color_alloc("0-3", sizeof *number, 0);
            _exit(!number || *number != 0 || superhue_color_free(number) != 0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t is_locked, forks;

static void before_fork(void)
{
    CHECK(sem_post(&forks) == 0);
    CHECK(pthread_mutex_lock(&lock) == 0);
}

static void after_fork(void)
{
    CHECK(pthread_mutex_unlock(&lock) == 0);
}

/* Allocates while it holds the lock, once the fork has begun. */
static void *holder(void *unused)
{
    CHECK(pthread_mutex_lock(&lock) == 0);
    CHECK(sem_post(&is_locked) == 0 && sem_wait(&forks) == 0);
    CHECK(superhue_color_free(superhue_color_alloc("0-3", 100, 0)) == 0);
    CHECK(pthread_mutex_unlock(&lock) == 0);
    return unused;
}

/* A fork handler of the program waits for a thread that allocates. */
static void fork_handlers(void)
{
    pthread_t thread;
    pid_t child;
    int status;

    CHECK(pthread_create(&thread, NULL, holder, NULL) == 0 && sem_wait(&is_locked) == 0);
    child = fork();
    if (child == 0)
        _exit(superhue_color_free(superhue_color_alloc("0-3", 100, 0)) != 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void private_memory(void)
{
    char *memory = superhue_color_alloc("0-3", SIZE, SUPERHUE_COLOR_PRIVATE);
    pid_t child;
    int status;

    CHECK(memory);
    memset(memory, 1, SIZE);
    child = fork();
    if (child == 0) {
        /* The parent's is not here, but another one can be had. */
        char *own = superhue_color_alloc("0-3", SIZE, SUPERHUE_COLOR_PRIVATE);
        _exit(!own || own[0] != 0 || superhue_color_free(own) != 0 || superhue_color_free(memory) != 0);
    }
    memset(memory, 2, SIZE);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(superhue_color_verify("0-3", memory, SIZE, NULL) == 1000);
}

static void locked(void)
{
    struct rlimit limit = {.rlim_cur = 16384, .rlim_max = 16384};

    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    CHECK(superhue_color_open() == 0);
    CHECK(setuid(65534) == 0);
    fails("0-3", SIZE, SUPERHUE_COLOR_LOCKED, -EPERM, "RLIMIT_MEMLOCK");
}

int main(int argc, char **argv)
{
    const char *role = argc > 1 ? argv[1] : "";
    int opened;

    CHECK(superhue_color_strerror(-EINVAL) != NULL);
    if (strcmp(role, "fork_handlers") == 0) {
        /* Ends a test that would hang. */
        alarm(300);
        CHECK(sem_init(&is_locked, 0, 0) == 0 && sem_init(&forks, 0, 0) == 0);
        CHECK(pthread_atfork(before_fork, after_fork, after_fork) == 0);
    }
    errno = 42;
    opened = superhue_color_open();
    CHECK(errno == 42);
    if (opened == 0 && !superhue_color_alloc("spread", 1, SUPERHUE_COLOR_STRICT))
        opened = superhue_color_error();
    if (opened < 0) {
        char why[400];
        superhue_color_reason(why, sizeof why);
        puts(why);
        CHECK(opened == -EOPNOTSUPP);
        return 77;
    }
    if (strcmp(role, "memory") == 0)
        memory();
    else if (strcmp(role, "nonsense") == 0)
        nonsense();
    else if (strcmp(role, "place") == 0)
        place();
    else if (strcmp(role, "threads") == 0)
        threads();
    else if (strcmp(role, "fork_handlers") == 0)
        fork_handlers();
    else if (strcmp(role, "private") == 0)
        private_memory();
    else if (strcmp(role, "locked") == 0)
        locked();
    else
        return 2;
    return 0;
}
