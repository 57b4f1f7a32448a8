/* Has capabilities from its file (the script gives it cap_net_bind_service): a tracer that is there when it is executed, or a
 * loader that loads something more, takes them away. */
#include "torture.h"
#include <sys/auxv.h>

int main(void)
{
    char line[300];
    unsigned long long effective = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "CapEff: %llx", &effective) == 1)
            break;
    printf("has cap_net_bind_service: %s, secure: %lu\n", effective >> 10 & 1 ? "yes" : "no", getauxval(AT_SECURE));
    field_start(2, mib() << 20);
    rest(seconds());
    field_stop();
    return done();
}
