/* Shared memory with holes on a small tmpfs, and one more object there later. usage: holes FOLDER MIB OF_20 IDLE_SECONDS AGAIN_MIB
 *
 * Of each 20 pages of the first object OF_20 are written. Prints a line "mark NAME" at each step. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void mark(const char *name)
{
    printf("mark %s\n", name);
    fflush(stdout);
    usleep(300000);
}

static volatile char *object(const char *folder, const char *name, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, (off_t)size) != 0)
        exit(3);
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        exit(3);
    return memory;
}

int main(int count, char **arguments)
{
    if (count != 6)
        return 2;
    size_t size = strtoull(arguments[2], NULL, 0) << 20, again = strtoull(arguments[5], NULL, 0) << 20, of_20 = strtoull(arguments[3], NULL, 0);
    volatile char *first = object(arguments[1], "first", size);
    for (size_t at = 0; at < size; at += 4096)
        if ((at >> 12) % 20 < of_20)
            first[at] = 1;
    mark("filled");
    long sum = 0;
    for (time_t end = time(NULL) + atoi(arguments[4]); time(NULL) < end; usleep(20000))
        for (size_t at = 0; at < size; at += 4096)
            if ((at >> 12) % 20 < of_20)
                sum += first[at];
    mark("idled");
    volatile char *second = object(arguments[1], "second", again);
    for (size_t at = 0; at < again; at += 4096)
        second[at] = 1;
    mark("grown");
    printf("%s\n", sum > 0 ? "ended well" : "wrong contents");
    return 0;
}
