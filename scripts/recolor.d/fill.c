/* Fills so many MiB, says so, and goes on using them until standard input ends. usage: fill MIB */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    size_t length = (count > 1 ? strtoul(arguments[1], NULL, 10) : 2048) << 20;
    volatile uint64_t *memory = malloc(length);
    if (!memory)
        return 2;
    for (size_t at = 0; at < length / 8; at += 512)
        memory[at] = at;
    printf("filled %d\n", getpid());
    fflush(stdout);
    uint64_t random = 1;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 1) == 0)
        for (unsigned step = 0; step < 100000; step++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            memory[(random >> 20) % (length / 8)]++;
        }
    return 0;
}
