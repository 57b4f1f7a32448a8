// A short program that uses memory in one way: brief full|holes|grow|fork MIB MILLISECONDS
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, REGION = 2 << 20 };

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// Goes on writing to the first `share` percent of every 2 MiB until it is time.
static void use(char *memory, size_t bytes, int share, long until) {
    do
        for (size_t at = 0; at < bytes; at += PAGE)
            if (at % REGION < (size_t)REGION / 100 * share)
                memory[at]++;
    while (now() < until && !usleep(5000));
}

int main(int count, char **words) {
    if (count < 4)
        return fprintf(stderr, "usage: brief full|holes|grow|fork MIB MILLISECONDS\n"), 2;
    size_t bytes = atol(words[2]) << 20;
    long begun = now(), until = begun + atol(words[3]);
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return perror("mmap"), 1;
    if (!strcmp(words[1], "grow")) {
        size_t step = bytes / 16;
        for (size_t at = 0; at < bytes; at += step, usleep(atol(words[3]) * 1000 / 32))
            use(memory + at, step, 100, 0);
        use(memory, bytes, 100, until);
        return 0;
    }
    if (!strcmp(words[1], "fork")) {
        use(memory, bytes, 100, begun + atol(words[3]) / 2);
        pid_t child = fork();
        if (child < 0)
            return perror("fork"), 1;
        // The child copies a half, the parent the other.
        use(memory + (child ? 0 : bytes / 2), bytes / 2, 100, until);
        if (!child)
            _exit(0);
        int status;
        return waitpid(child, &status, 0) != child || status != 0;
    }
    use(memory, bytes, strcmp(words[1], "holes") ? 100 : 80, until);
    return 0;
}
