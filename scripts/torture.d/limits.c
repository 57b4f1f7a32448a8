/* Limits that leave no room for anything but the program:
 *   as        RLIMIT_AS as high as what is mapped and 2 MiB: half of that must still be had, twice not
 *   nofile    RLIMIT_NOFILE as high as the next descriptor, which must be 3
 *   memlock   RLIMIT_MEMLOCK of 1 MiB: what the program locks must count, and nothing else
 *   stack     RLIMIT_STACK of 256 KiB, nearly all of it in use
 *   data, nproc, fsize, cpu: set low and lived with
 *   maps      vm.max_map_count used up: not one mapping can be made; then memory goes on being used */
#include "torture.h"
#include <sys/resource.h>

static long status(const char *field)
{
    char line[300];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field)))
            value = atol(line + strlen(field));
    if (file)
        fclose(file);
    return value;
}

static void limit(int what, rlim_t value)
{
    struct rlimit limit;
    MUST(getrlimit(what, &limit) == 0);
    limit.rlim_cur = value;
    MUST(setrlimit(what, &limit) == 0);
}

static char *map(size_t size)
{
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void deep(struct field *field)
{
    volatile char stack[160 << 10];
    memset((char *)stack, 7, sizeof stack);
    field_run(field, seconds());
    for (size_t i = 0; i < sizeof stack; i++)
        if (stack[i] != 7)
            odd("the stack has changed");
}

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "as";
    struct field *field = field_new(mib() << 20);
    field_run(field, seconds() / 4);
    if (!strcmp(how, "as")) {
        limit(RLIMIT_AS, ((rlim_t)status("VmSize:") << 10) + (2 << 20));
        for (double end = now() + seconds(); now() < end;) {
            char *half = map(1 << 20);
            CHECK(half != NULL);
            CHECK(map(4 << 20) == NULL);
            if (half)
                memset(half, 1, 1 << 20), munmap(half, 1 << 20);
            field_run(field, 0.02);
        }
    } else if (!strcmp(how, "nofile")) {
        limit(RLIMIT_NOFILE, 3);
        for (double end = now() + seconds(); now() < end;) {
            CHECK(open("/dev/null", O_RDONLY) == -1 && errno == EMFILE);
            field_run(field, 0.02);
        }
        limit(RLIMIT_NOFILE, 4);
        CHECK(open("/dev/null", O_RDONLY) == 3);
    } else if (!strcmp(how, "memlock")) {
        limit(RLIMIT_MEMLOCK, 1 << 20);
        char *memory = map(8 << 20);
        CHECK(mlock(memory, 1 << 20) == 0);
        for (double end = now() + seconds(); now() < end;) {
            CHECK(status("VmLck:") == 1024);
            if (geteuid())
                CHECK(mlock(memory + (4 << 20), PAGE) == -1);
            memset(memory, 5, 8 << 20);
            field_run(field, 0.02);
        }
    } else if (!strcmp(how, "stack")) {
        limit(RLIMIT_STACK, 256 << 10);
        deep(field);
    } else if (!strcmp(how, "low")) {
        limit(RLIMIT_NPROC, 1), limit(RLIMIT_FSIZE, 1 << 20), limit(RLIMIT_CORE, 0), limit(RLIMIT_CPU, 600);
        limit(RLIMIT_DATA, ((rlim_t)status("VmData:") << 10) + (64 << 10)), limit(RLIMIT_SIGPENDING, 0), limit(RLIMIT_MSGQUEUE, 0);
        field_run(field, seconds());
    } else {
        FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
        long most = 0, made = 0;
        MUST(file && fscanf(file, "%ld", &most) == 1);
        fclose(file);
        if (most > 300000)
            errno = 0, skip("vm.max_map_count is too high to be reached");
        char *many = mmap(NULL, (size_t)most * 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(many != MAP_FAILED);
        for (long i = 0; i < most; i++, made++)
            if (mprotect(many + i * 2 * PAGE, PAGE, PROT_READ | PROT_WRITE) != 0)
                break;
        note("%ld pieces made of at most %ld mappings", made, most);
        CHECK(made < most && made > most / 2 - 200);
        for (double end = now() + seconds(); now() < end;) {
            CHECK(mmap(NULL, PAGE, PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED || made > 0);
            field_run(field, 0.05);
        }
        CHECK(munmap(many, (size_t)most * 2 * PAGE) == 0);
        CHECK(map(PAGE) != NULL);
    }
    field_run(field, seconds() / 4);
    field_check_all(field);
    return done();
}
