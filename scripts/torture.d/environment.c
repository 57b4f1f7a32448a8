/* Looks at what the kernel put on its stack: behind the environment's end lies the auxiliary vector, where Go and others read it.
 * Who takes a variable out of the environment moves its end away from there. No variable may have come or gone either. */
#include "torture.h"
#include <elf.h>
#include <sys/auxv.h>

extern char **environ;

int main(int count, char **arguments, char **environment)
{
    char **end = environment;
    while (*end)
        end++;
    /* The pointers' size is that of the vector's words. */
    const unsigned long *vector = (const unsigned long *)(end + 1);
    int pages = 0, entries = 0;
    for (; entries < 64 && vector[0] != AT_NULL; vector += 2, entries++) {
        if (vector[0] > 100)
            break;
        if (vector[0] == AT_PAGESZ)
            pages = vector[1] == PAGE;
    }
    if (!pages || vector[0] != AT_NULL)
        odd("behind the environment there is no auxiliary vector");
    CHECK(arguments[count] == NULL && environment == arguments + count + 1 && environ == environment);
    CHECK(getauxval(AT_PAGESZ) == PAGE && getauxval(AT_SECURE) == 0);
    CHECK(getauxval(AT_EXECFN) && !strcmp((char *)getauxval(AT_EXECFN), arguments[0]));
    unsigned long kept[128] = {0};
    int file = open("/proc/self/auxv", O_RDONLY);
    CHECK(read(file, kept, sizeof kept) > 0);
    /* The C library makes AT_HWCAP its own. */
    for (int i = 0; i < 128 && kept[i] != AT_NULL; i += 2)
        if (kept[i] != AT_HWCAP && kept[i] != AT_HWCAP2 && getauxval(kept[i]) != kept[i + 1])
            odd("the C library has another value of %lu than the kernel", kept[i]);
    static char text[1 << 17];
    file = open("/proc/self/environ", O_RDONLY);
    ssize_t length = read(file, text, sizeof text - 1);
    char *at = text;
    for (char **variable = environment; *variable; variable++) {
        printf("%.*s\n", (int)strcspn(*variable, "="), *variable);
        if (at >= text + length || strcmp(at, *variable))
            odd("/proc/self/environ has another variable than the program");
        at += strlen(at) + 1;
    }
    struct field *field = field_new(mib() << 20);
    field_run(field, seconds() / 2);
    field_check_all(field);
    return done();
}
