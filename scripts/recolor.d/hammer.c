/* The mechanism of recoloring alone, without colors: pages of a program are taken out and read in again, over and over.
 *
 * Each page gets another frame: one of our own is freed on this CPU after the page was taken out, so it is the next that the CPU hands
 * out; what the page had comes to us. Between 16 pages and the next it rests for RESTS times as long as they took.
 * usage: hammer PID SECONDS RESTS read|willneed|children START:PAGES...
 * `children`: not of PID itself but of each of its children. Prints one line of JSON. */
#include "attack.h"
#include <dirent.h>

#define PRESENT (1ull << 63)
#define SWAPPED (1ull << 62)
#define FRAME ((1ull << 55) - 1)

enum { STOCK = 512, BATCH = 16 };

static struct { uint64_t outs, out_errors, ins, in_errors, moved, same, out_still, processes; } sums;
static char *stock;
static unsigned next;
static double rests;
static int willneed;

static void priority(int policy)
{
    struct sched_param how = {policy == SCHED_FIFO};
    sched_setscheduler(0, policy, &how);
}

/* One pass over a process; -1 once it has gone. */
static int pass(int pid, int areas, char **area)
{
    char name[64];
    int process = (int)syscall(SYS_pidfd_open, pid, 0), gone = 0;
    snprintf(name, sizeof name, "/proc/%d/mem", pid);
    int memory = open(name, O_RDONLY | O_CLOEXEC);
    snprintf(name, sizeof name, "/proc/%d/pagemap", pid);
    int map = open(name, O_RDONLY | O_CLOEXEC);

    if (process < 0 || memory < 0 || map < 0)
        gone = -1;
    sums.processes += !gone;
    for (int which = 0; which < areas && !gone && !over(); which++) {
        char *end;
        uintptr_t first = strtoul(area[which], &end, 0);
        size_t count = strtoul(end + 1, NULL, 0);
        for (size_t at = 0; at < count && !gone && !over(); at += BATCH) {
            size_t some = count - at < BATCH ? count - at : BATCH;
            uint64_t before[BATCH] = {0}, after[BATCH] = {0};
            double from = now();
            if (pread(map, before, some * 8, (off_t)((first / PAGE + at) * 8)) < 0)
                gone = -1;
            /* A call that is preempted holds the process's memory for as long as that lasts. */
            priority(SCHED_FIFO);
            for (size_t page = 0; page < some && !gone; page++) {
                uintptr_t address = first + (at + page) * PAGE;
                struct iovec one = {(void *)address, PAGE};
                uint64_t is = 0;
                char byte;
                if (!(before[page] & PRESENT))
                    continue;
                if (syscall(SYS_process_madvise, process, &one, 1, MADV_PAGEOUT, 0) != PAGE) {
                    sums.out_errors++, gone = errno == ESRCH ? -1 : 0;
                    continue;
                }
                sums.outs++;
                /* Only what is out is read: a read of what the program has given back meanwhile would map a page of zeroes there. */
                if (pread(map, &is, 8, (off_t)(address / PAGE * 8)) != 8 || !(is & SWAPPED))
                    continue;
                madvise(stock + next * PAGE, PAGE, MADV_DONTNEED);
                int in = willneed ? syscall(SYS_process_madvise, process, &one, 1, MADV_WILLNEED, 0) == PAGE
                                  : pread(memory, &byte, 1, (off_t)address) == 1;
                sums.ins += (unsigned)in, sums.in_errors += !in;
                /* What the program's page had, as a rule. */
                stock[next * PAGE] = 1;
                next = (next + 1) % STOCK;
            }
            priority(SCHED_OTHER);
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
            double rest = (now() - from) * rests;
            struct timespec span = {(time_t)rest, (long)((rest - (time_t)rest) * 1e9)};
            nanosleep(&span, NULL);
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
    rests = atof(arguments[3]);
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
