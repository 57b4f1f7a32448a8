/* Memory that several processes share: anonymous, memfd, System V, and private pages still shared since fork. Each process owns
 * every other word of a page, so that a copy instead of the page itself loses what the others write. */
#include "torture.h"
#include <sys/ipc.h>
#include <sys/shm.h>

static void sides(_Atomic uint64_t *words, size_t size, int side, double time)
{
    uint64_t *counts = calloc(size / PAGE, 8), random = (uint64_t)side;
    for (double end = now() + time; now() < end; rest(0.0005))
        for (int i = 0; i < 200; i++) {
            random = mix(random + 1);
            size_t page = random % (size / PAGE);
            for (unsigned k = (unsigned)side; k < WORDS; k += 2)
                if (atomic_fetch_add(words + page * WORDS + k, 1) != counts[page]) {
                    odd("a word of shared memory was lost");
                    break;
                }
            counts[page]++;
        }
}

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "anonymous";
    size_t size = mib() << 20;
    void *memory = MAP_FAILED;
    if (!strcmp(how, "anonymous")) {
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    } else if (!strcmp(how, "memfd")) {
        int file = memfd_create("shared", 0);
        MUST(file >= 0 && ftruncate(file, (off_t)size) == 0);
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    } else if (!strcmp(how, "sysv")) {
        int id = shmget(IPC_PRIVATE, size, 0600);
        MUST(id >= 0 && (memory = shmat(id, NULL, 0)) != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
    } else {
        /* Private: children keep what was when they were made, whatever the parent writes. */
        struct field *field = field_new(size);
        pid_t children[3];
        for (int i = 0; i < 3; i++) {
            fflush(stdout);
            if ((children[i] = fork()) == 0) {
                field_run(field, seconds());
                field_check_all(field);
                fflush(stdout);
                _exit(odd_seen != 0);
            }
            field_step(field, 2000);
        }
        field_run(field, seconds());
        for (int i = 0, status = 1; i < 3; i++)
            CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
        field_check_all(field);
        return done();
    }
    MUST(memory != MAP_FAILED);
    memset(memory, 0, size);
    pid_t child = fork();
    sides(memory, size, child == 0, seconds());
    fflush(stdout);
    if (child == 0)
        _exit(odd_seen != 0);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return done();
}
