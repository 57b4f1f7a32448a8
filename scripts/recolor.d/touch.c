/* Checks every word of its memory all the time, as long as standard input is open: 8 blocks of 512 KiB, of which twice a second one is
 * given back and the next one of a gigabyte taken. Prints its number first, "right" or "wrong" at its end. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 8, LENGTH = 512 << 10, WORDS = LENGTH / 8, PLACES = (1 << 30) / LENGTH };

static uint64_t word_of(unsigned word, uint64_t block)
{
    return (word ^ block << 32) * 0x9e3779b97f4a7c15ull;
}

int main(void)
{
    char *memory = mmap(NULL, 1 << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    printf("%d\n", getpid());
    fflush(stdout);
    uint64_t wrong = 0, newest = 0;
    for (uint64_t round = 0;; round++) {
        if (newest < BLOCKS || round % 50 == 0) {
            newest++;
            volatile uint64_t *words = (uint64_t *)(memory + newest % PLACES * LENGTH);
            for (unsigned word = 0; word < WORDS; word++)
                words[word] = word_of(word, newest);
            if (newest > BLOCKS)
                madvise(memory + (newest - BLOCKS) % PLACES * LENGTH, LENGTH, MADV_DONTNEED);
        }
        uint64_t oldest = newest > BLOCKS ? newest - BLOCKS + 1 : 1;
        for (uint64_t block = oldest; block <= newest; block++) {
            volatile uint64_t *words = (uint64_t *)(memory + block % PLACES * LENGTH);
            for (unsigned word = 0; word < WORDS; word++)
                wrong += words[word] != word_of(word, block);
        }
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (poll(&input, 1, 8) > 0)
            break;
    }
    puts(wrong ? "wrong" : "right");
    return wrong != 0;
}
