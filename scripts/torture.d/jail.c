/* Goes where there is no /proc, no /tmp, no library: chroot into an empty folder, every descriptor closed. */
#include "torture.h"

int main(void)
{
    char folder[] = "jail-XXXXXX";
    if (geteuid() != 0)
        errno = 0, skip("needs root");
    struct field *field = field_new(mib() << 20);
    field_run(field, seconds() / 3);
    MUST(mkdtemp(folder) != NULL);
    MUST(chroot(folder) == 0 && chdir("/") == 0);
    close(0);
    CHECK(open("/proc/self/maps", O_RDONLY) == -1);
    CHECK(open("/dev/null", O_RDONLY) == -1);
    field_start(2, mib() << 19);
    field_run(field, seconds() * 2 / 3);
    field_stop();
    field_check_all(field);
    return done();
}
