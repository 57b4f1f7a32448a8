/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * hotcache: a key-value cache that speaks memcached's text protocol and takes part in the placement
 * of its memory.
 */
#define _GNU_SOURCE
#include "server.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: hotcache [OPTIONS]\n"
    "  -l ADDRESS          listen here (127.0.0.1)\n"
    "  -p PORT             TCP port, 0 for any that is free (11211)\n"
    "  -t N                threads that serve (4)\n"
    "  -m MIB              memory for items (64)\n"
    "  -c N                connections at most (1024)\n"
    "  -f FACTOR           growth from one size class to the next (1.25)\n"
    "  -n BYTES            least room for key and value (48)\n"
    "  --hps=off|thread|signal   be told by `superhue track` which memory is hot (off)\n"
    "  --hps-library=PATH  libsuperhue (libsuperhue.so.1)\n"
    "  --hot=MIB           of the memory, how much may be superpages (a twentieth of -m)\n"
    "  --hot-hits=N        accesses of late that make an item hot (4)\n"
    "  -V, -h              version, this text\n";

static void fail(const char *option, const char *wants)
{
    fprintf(stderr, "hotcache: %s wants %s\n", option, wants);
    exit(2);
}

static long whole(const char *option, const char *text, long least, long most)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < least || value > most) {
        char wants[80];
        snprintf(wants, sizeof wants, "a number from %ld to %ld", least, most);
        fail(option, wants);
    }
    return value;
}

int main(int argc, char **argv)
{
    enum { HPS = 256, LIBRARY, HOT, HOT_HITS };
    static const struct option options[] = {
        { "hps", required_argument, NULL, HPS },
        { "hps-library", required_argument, NULL, LIBRARY },
        { "hot", required_argument, NULL, HOT },
        { "hot-hits", required_argument, NULL, HOT_HITS },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'V' },
        { NULL, 0, NULL, 0 },
    };
    struct settings settings = {
        .address = "127.0.0.1", .port = 11211, .threads = 4, .connections = 1024, .min_slot = 48,
        .factor = 1.25, .min_heat = 4, .hps_library = "libsuperhue.so.1",
    };
    long megabytes = 64, hot = -1;
    int option;
    char *end;
    while ((option = getopt_long(argc, argv, "l:p:t:m:c:f:n:vVh", options, NULL)) != -1) {
        switch (option) {
        case 'l': settings.address = optarg; break;
        case 'p': settings.port = (uint16_t)whole("-p", optarg, 0, 65535); break;
        case 't': settings.threads = (int)whole("-t", optarg, 1, 256); break;
        case 'm': megabytes = whole("-m", optarg, 1, 1 << 20); break;
        case 'c': settings.connections = (int)whole("-c", optarg, 1, 1 << 20); break;
        case 'n': settings.min_slot = (uint32_t)whole("-n", optarg, 1, PAGE_BYTES / 4); break;
        case 'v': settings.verbose++; break;
        case 'f':
            settings.factor = strtod(optarg, &end);
            if (*end || !(settings.factor >= 1.01 && settings.factor <= 16))
                fail("-f", "a factor from 1.01 to 16");
            break;
        case HPS:
            if (strcmp(optarg, "off") == 0)
                settings.hps = HPS_OFF;
            else if (strcmp(optarg, "thread") == 0)
                settings.hps = HPS_THREAD;
            else if (strcmp(optarg, "signal") == 0)
                settings.hps = HPS_SIGNAL;
            else
                fail("--hps", "off, thread or signal");
            break;
        case LIBRARY: settings.hps_library = optarg; break;
        case HOT: hot = whole("--hot", optarg, 0, 1 << 20); break;
        case HOT_HITS: settings.min_heat = (unsigned)whole("--hot-hits", optarg, 1, 65535); break;
        case 'h': fputs(usage, stdout); return 0;
        case 'V': puts("hotcache " HOTCACHE_VERSION); return 0;
        default: fputs(usage, stderr); return 2;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "hotcache: `%s` is no option\n%s", argv[optind], usage);
        return 2;
    }
    if (hot < 0)
        hot = megabytes / 20;
    if (hot > megabytes)
        fail("--hot", "at most what -m has");
    settings.limit = (size_t)megabytes << 20;
    settings.hot = (size_t)hot << 20;
    return server_run(&settings);
}
