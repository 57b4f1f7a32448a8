/* Threads that allocate, hand over and free; also built with the address and the thread sanitizer, which know every byte of the
 * memory. */
#include "torture.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct item { size_t size; unsigned char fill; unsigned char *bytes; } shared[4096];
static atomic_int stop;

static void *work(void *argument)
{
    uint64_t random = (uintptr_t)argument;
    while (!stop) {
        for (int i = 0; i < 200; i++) {
            random = mix(random + 1);
            struct item item = {16 + random % (random >> 62 ? 3000 : 60000), (unsigned char)(random >> 40), NULL};
            item.bytes = malloc(item.size);
            MUST(item.bytes != NULL);
            memset(item.bytes, item.fill, item.size);
            pthread_mutex_lock(&lock);
            struct item old = shared[(random >> 20) % 4096];
            shared[(random >> 20) % 4096] = item;
            pthread_mutex_unlock(&lock);
            for (size_t k = 0; k < old.size; k += 61)
                if (old.bytes[k] != old.fill)
                    odd("a byte of the heap was lost");
            if (random >> 61 == 0 && old.bytes)
                old.bytes = realloc(old.bytes, old.size * 2);
            free(old.bytes);
        }
        rest(0.0005);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[4];
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < 4; i++)
        MUST(pthread_create(threads + i, NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
    rest(seconds());
    stop = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4096; i++)
        free(shared[i].bytes);
    return done();
}
