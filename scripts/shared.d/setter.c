// Writes to a redis server over a unix socket, over one connection.
//
//   setter SOCKET fill KEYS BYTES                 every key once, with random values, as fast as it goes
//   setter SOCKET rate KEYS BYTES PER_SECOND OUT  random keys at a fixed rate, until standard input ends
//
// A request of `rate` is sent when its time has come, whether or not others were answered. Its latency counts from the moment at which
// it should have been sent. OUT gets, for each: that moment (seconds, CLOCK_MONOTONIC, double) and its latency (microseconds, double).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { POOL = 1 << 20, BUFFER = 1 << 22, RING = 1 << 20, BATCH = 512 };

static char pool[POOL], out[BUFFER], in[1 << 16];
static double due[RING];
static uint64_t state = 88172645463325252ull;

static uint64_t random64(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static size_t request(char *at, uint64_t key, size_t bytes) {
    size_t head = sprintf(at, "*3\r\n$3\r\nSET\r\n$16\r\nkey:%012llu\r\n$%zu\r\n", (unsigned long long)key, bytes);
    memcpy(at + head, pool + random64() % (POOL - bytes), bytes);
    memcpy(at + head + bytes, "\r\n", 2);
    return head + bytes + 2;
}

// How many answers are among what could be read; an error ends it.
static size_t answers(int server) {
    ssize_t got = read(server, in, sizeof in);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0)
        fail("the server's answer");
    if (memchr(in, '-', got))
        fprintf(stderr, "%.*s\n", (int)got, in), exit(1);
    size_t lines = 0;
    for (char *at = in; (at = memchr(at, '\n', in + got - at)); at++)
        lines++;
    return lines;
}

static void write_all(int server, const char *from, size_t left) {
    while (left > 0) {
        ssize_t put = write(server, from, left);
        if (put < 0)
            fail("write");
        from += put, left -= put;
    }
}

static void fill(int server, uint64_t keys, size_t bytes) {
    for (uint64_t key = 0; key < keys;) {
        size_t used = 0, open = 0;
        for (; open < BATCH && key < keys; open++, key++)
            used += request(out + used, key, bytes);
        write_all(server, out, used);
        while (open > 0)
            open -= answers(server);
    }
}

static void rate(int server, uint64_t keys, size_t bytes, double per_second, FILE *samples) {
    uint64_t sent = 0, answered = 0;
    size_t begin = 0, end = 0;
    double start = now();
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    fcntl(server, F_SETFL, O_NONBLOCK);
    for (;;) {
        double at = now();
        for (; start + sent / per_second <= at; sent++) {
            if (end + bytes + 128 > BUFFER) {
                memmove(out, out + begin, end - begin);
                end -= begin, begin = 0;
            }
            // So far behind that nothing more can be kept: its time goes on to count.
            if (end + bytes + 128 > BUFFER || sent - answered == RING)
                break;
            due[sent % RING] = start + sent / per_second;
            end += request(out + end, random64() % keys, bytes);
        }
        if (begin < end) {
            ssize_t put = write(server, out + begin, end - begin);
            if (put < 0 && errno != EAGAIN)
                fail("write");
            begin += put > 0 ? put : 0;
            if (begin == end)
                begin = end = 0;
        }
        double wait = start + sent / per_second - now();
        struct timespec time = {0, wait > 0 ? (wait < 0.5 ? wait : 0.5) * 1e9 : 0};
        struct pollfd ready[] = {{server, POLLIN | (begin < end ? POLLOUT : 0), 0}, {0, POLLIN, 0}};
        if (ppoll(ready, 2, &time, NULL) < 0 && errno != EINTR)
            fail("poll");
        if (ready[0].revents & (POLLIN | POLLERR | POLLHUP)) {
            size_t got = answers(server);
            for (at = now(); got > 0; got--, answered++) {
                double each[] = {due[answered % RING], (at - due[answered % RING]) * 1e6};
                fwrite(each, sizeof each, 1, samples);
            }
        }
        if (ready[1].revents)
            return;
    }
}

int main(int count, char **words) {
    if (count < 5 || (strcmp(words[2], "fill") && count < 7))
        return fprintf(stderr, "usage: setter SOCKET fill KEYS BYTES | SOCKET rate KEYS BYTES PER_SECOND OUT\n"), 2;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, words[1], sizeof address.sun_path - 1);
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof address))
        fail(words[1]);
    state ^= (uint64_t)(now() * 1e9);
    for (size_t at = 0; at < POOL; at += 8) {
        uint64_t word = random64();
        memcpy(pool + at, &word, 8);
    }
    uint64_t keys = strtoull(words[3], NULL, 10);
    size_t bytes = strtoull(words[4], NULL, 10);
    if (!strcmp(words[2], "fill")) {
        fill(server, keys, bytes);
        return 0;
    }
    FILE *samples = fopen(words[6], "w");
    if (!samples)
        fail(words[6]);
    rate(server, keys, bytes, atof(words[5]), samples);
    return fclose(samples) ? 1 : 0;
}
