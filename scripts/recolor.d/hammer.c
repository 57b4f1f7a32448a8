/* The mechanism of recoloring alone, as fast as it goes, without colors: pages of a program are taken out and read in again, over and over.
 *
 * Each page gets another frame: one of our own is freed on this CPU after the page was taken out, so it is the next that the CPU hands
 * out; what the page had comes to us. usage: hammer PID SECONDS BATCH read|willneed|children START:PAGES...
 * `children`: not of PID itself but of each of its children. Prints one line of JSON. */
#include "attack.h"
#include <dirent.h>

#define PRESENT (1ull << 63)
#define SWAPPED (1ull << 62)
#define FRAME ((1ull << 55) - 1)

enum { STOCK = 512 };

static struct { uint64_t outs, out_errors, ins, in_errors, moved, same, out_still, processes; } sums;
static char *stock;
static unsigned next;
static size_t batch;
static int willneed;

/* One pass over a process; -1 once it has gone. */
static int pass(int pid, int areas, char **area)
{
    char name[64];
    int process = (int)syscall(SYS_pidfd_open, pid, 0), gone = 0;
    snprintf(name, sizeof name, "/proc/%d/mem", pid);
    int memory = open(name, O_RDONLY | O_CLOEXEC);
    snprintf(name, sizeof name, "/proc/%d/pagemap", pid);
    int map = open(name, O_RDONLY | O_CLOEXEC);
    static uint64_t before[1024], after[1024];

    if (process < 0 || memory < 0 || map < 0)
        gone = -1;
    sums.processes += !gone;
    for (int which = 0; which < areas && !gone && !over(); which++) {
        char *end;
        uintptr_t first = strtoul(area[which], &end, 0);
        size_t count = strtoul(end + 1, NULL, 0);
        for (size_t at = 0; at < count && !gone && !over(); at += batch) {
            size_t some = count - at < batch ? count - at : batch;
            struct iovec range = {(void *)(first + at * PAGE), some * PAGE};
            memset(before, 0, sizeof before), memset(after, 0, sizeof after);
            if (pread(map, before, some * 8, (off_t)((first / PAGE + at) * 8)) < 0)
                gone = -1;
            ssize_t took = syscall(SYS_process_madvise, process, &range, 1, MADV_PAGEOUT, 0);
            if (took < 0)
                sums.out_errors++, gone = errno == ESRCH ? -1 : gone;
            else
                sums.outs += (size_t)took / PAGE;
            for (size_t page = 0; page < some; page++) {
                uintptr_t address = first + (at + page) * PAGE;
                uint64_t is = 0;
                char byte;
                if (!(before[page] & PRESENT))
                    continue;
                /* Only what is out is read: a read of what the program has given back meanwhile would map a page of zeroes there. */
                if (pread(map, &is, 8, (off_t)(address / PAGE * 8)) != 8 || !(is & SWAPPED))
                    continue;
                madvise(stock + next * PAGE, PAGE, MADV_DONTNEED);
                if (willneed) {
                    struct iovec one = {(void *)address, PAGE};
                    if (syscall(SYS_process_madvise, process, &one, 1, MADV_WILLNEED, 0) == PAGE)
                        sums.ins++;
                    else
                        sums.in_errors++;
                } else if (pread(memory, &byte, 1, (off_t)address) == 1)
                    sums.ins++;
                else
                    sums.in_errors++;
                /* What the program's page had, as a rule. */
                stock[next * PAGE] = 1;
                next = (next + 1) % STOCK;
            }
            if (pread(map, after, some * 8, (off_t)((first / PAGE + at) * 8)) < 0)
                gone = -1;
            for (size_t page = 0; page < some; page++)
                if (before[page] & PRESENT) {
                    if (!(after[page] & PRESENT))
                        sums.out_still++;
                    else if ((after[page] ^ before[page]) & FRAME)
                        sums.moved++;
                    else
                        sums.same++;
                }
        }
    }
    close(process), close(memory), close(map);
    return gone;
}

static void children(int pid, int areas, char **area)
{
    char name[64], text[8192] = "";
    snprintf(name, sizeof name, "/proc/%d/task/%d/children", pid, pid);
    int file = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return;
    for (char *word = strtok(text, " "); word && !over(); word = strtok(NULL, " "))
        pass(atoi(word), areas, area);
}

int main(int count, char **arguments)
{
    if (count < 6)
        return 2;
    /* Words of the others: SECONDS is the second of ours. */
    start(2, arguments + 1, 1);
    int pid = atoi(arguments[1]), of_children = !strcmp(arguments[4], "children");
    batch = strtoul(arguments[3], NULL, 10);
    if (batch < 1 || batch > 1024)
        return 2;
    willneed = !strcmp(arguments[4], "willneed");
    stock = reserve(STOCK, MAP_PRIVATE);
    memset(stock, 1, STOCK * PAGE);
    while (!over() && kill(pid, 0) == 0)
        if (of_children)
            children(pid, count - 5, arguments + 5);
        else if (pass(pid, count - 5, arguments + 5) < 0)
            break;
    printf("{\"outs\": %llu, \"out_errors\": %llu, \"ins\": %llu, \"in_errors\": %llu, \"moved\": %llu, \"same\": %llu, "
           "\"out_still\": %llu, \"processes\": %llu, \"seconds\": %.1f}\n",
           (unsigned long long)sums.outs, (unsigned long long)sums.out_errors, (unsigned long long)sums.ins,
           (unsigned long long)sums.in_errors, (unsigned long long)sums.moved, (unsigned long long)sums.same,
           (unsigned long long)sums.out_still, (unsigned long long)sums.processes, now() - begun);
    return 0;
}
