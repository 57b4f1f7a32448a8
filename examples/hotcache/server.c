/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Sockets: the main thread accepts and deals connections to the workers in turn, each of which has
 * an epoll set. A connection that does not read its replies is not read from either, so what it can
 * make us hold is bounded: its input buffer, one item, and replies up to OUTPUT_PAUSE plus a value.
 */
#define _GNU_SOURCE
#include "server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, BACKLOG = 1024, MONTH = 60 * 60 * 24 * 30, KEEP_OUTPUT = 256 << 10 };

static time_t clock_base;

void server_start_clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    clock_base = time.tv_sec - 2;
}

uint32_t server_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return (uint32_t)(time.tv_sec - clock_base);
}

uint32_t server_expiry(int64_t given, uint32_t now)
{
    if (given == 0)
        return 0;
    if (given > MONTH)
        given -= time(NULL);
    /* Past, or so soon past: a second that is over. */
    if (given <= 0)
        return 1;
    return given > UINT32_MAX - now ? 0 : now + (uint32_t)given;
}

void reply(struct connection *c, const char *bytes, size_t len)
{
    if (c->output_room - c->output_end < len) {
        size_t room = c->output_room ? c->output_room : 4096;
        while (room - c->output_end < len)
            room *= 2;
        char *output = realloc(c->output, room);
        if (!output) {
            /* A reply with a hole would be a lie. */
            c->output_start = c->output_end = 0;
            c->ended = true;
            return;
        }
        c->output = output;
        c->output_room = room;
    }
    memcpy(c->output + c->output_end, bytes, len);
    c->output_end += len;
}

void reply_text(struct connection *c, const char *line)
{
    if (c->quiet)
        return;
    reply(c, line, strlen(line));
    reply(c, "\r\n", 2);
}

static void connection_close(struct connection *c)
{
    struct server *server = c->server;
    pthread_mutex_lock(&server->lock);
    if (c->previous)
        c->previous->next = c->next;
    else
        server->first = c->next;
    if (c->next)
        c->next->previous = c->previous;
    pthread_mutex_unlock(&server->lock);
    close(c->fd);
    if (c->item)
        cache_drop(server->cache, c->item);
    free(c->output);
    free(c);
    atomic_fetch_sub(&server->connections, 1);
}

/* Sends what it can. False if the connection broke. */
static bool send_output(struct connection *c)
{
    while (c->output_start < c->output_end) {
        ssize_t sent = send(c->fd, c->output + c->output_start, c->output_end - c->output_start,
                            MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            return errno == EAGAIN || errno == EWOULDBLOCK;
        }
        c->output_start += (size_t)sent;
        count(&c->worker->counters.bytes_written, (uint64_t)sent);
    }
    c->output_start = c->output_end = 0;
    if (c->output_room > KEEP_OUTPUT) {
        free(c->output);
        c->output = NULL;
        c->output_room = 0;
    }
    return true;
}

/* Reads once: into the item if its value is what is to come next, else into the buffer. */
static bool receive(struct connection *c)
{
    if (c->input_start > 0) {
        memmove(c->input, c->input + c->input_start, c->input_end - c->input_start);
        c->input_end -= c->input_start;
        c->input_start = 0;
    }
    bool direct = c->state == READ_VALUE && c->input_end == 0 && c->filled < c->item->bytes;
    char *into = direct ? item_value(c->item) + c->filled : c->input + c->input_end;
    size_t room = direct ? c->item->bytes - c->filled : INPUT_BYTES - c->input_end;
    if (room == 0)
        return true;
    ssize_t got;
    do {
        got = recv(c->fd, into, room, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK;
    if (got == 0)
        return false;
    if (direct)
        c->filled += (size_t)got;
    else
        c->input_end += (size_t)got;
    count(&c->worker->counters.bytes_read, (uint64_t)got);
    return true;
}

/* Serves a connection on which something happened. */
static void serve(struct connection *c, uint32_t events)
{
    bool fine = !(events & EPOLLERR);
    if (fine && (events & (EPOLLIN | EPOLLHUP)) && !c->waits_to_write)
        fine = receive(c);
    c->now = server_now();
    while (fine) {
        size_t start = c->input_start;
        if (!c->ended)
            protocol_advance(c);
        fine = send_output(c);
        if (c->output_end > 0 || c->ended || c->input_start == c->input_end ||
            c->input_start == start)
            break;
    }
    bool pending = c->output_end > c->output_start;
    if (!fine || (c->ended && !pending)) {
        connection_close(c);
        return;
    }
    if (pending != c->waits_to_write) {
        struct epoll_event event = { .events = pending ? EPOLLOUT : EPOLLIN, .data.ptr = c };
        epoll_ctl(c->worker->epoll, EPOLL_CTL_MOD, c->fd, &event);
        c->waits_to_write = pending;
    }
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct epoll_event events[EVENTS];
    for (;;) {
        int ready = epoll_wait(worker->epoll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            if (!events[i].data.ptr)
                return NULL; /* the stop descriptor */
            serve(events[i].data.ptr, events[i].events);
        }
    }
}

static void take_connection(struct server *server, int fd)
{
    struct connection *c = NULL;
    if (atomic_load(&server->connections) < (uint64_t)server->settings.connections)
        c = calloc(1, sizeof *c);
    if (!c) {
        static const char busy[] = "ERROR Too many open connections\r\n";
        (void)!send(fd, busy, sizeof busy - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
        atomic_fetch_add(&server->refused, 1);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    uint64_t nth = atomic_fetch_add(&server->connections_total, 1);
    c->fd = fd;
    c->server = server;
    c->worker = &server->workers[nth % (uint64_t)server->settings.threads];
    atomic_fetch_add(&server->connections, 1);
    pthread_mutex_lock(&server->lock);
    c->next = server->first;
    if (c->next)
        c->next->previous = c;
    server->first = c;
    pthread_mutex_unlock(&server->lock);
    /* From here on it is the worker's, which may have closed it before this returns. */
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };
    if (epoll_ctl(c->worker->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        connection_close(c);
}

/* Accepts until told to stop. */
static void accept_all(struct server *server, int signals)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = { .events = EPOLLIN, .data.fd = server->listener };
    epoll_ctl(epoll, EPOLL_CTL_ADD, server->listener, &event);
    event.data.fd = signals;
    epoll_ctl(epoll, EPOLL_CTL_ADD, signals, &event);
    for (;;) {
        int ready = epoll_wait(epoll, &event, 1, 1000);
        cache_tick(server->cache, server_now());
        if (ready <= 0)
            continue;
        if (event.data.fd == signals)
            break;
        int fd = accept4(server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            take_connection(server, fd);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            usleep(10000); /* the connection waits in the backlog; do not spin on it */
    }
    close(epoll);
}

static int listen_at(const char *address, uint16_t port)
{
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(port) };
    bool is_four = inet_pton(AF_INET, address, &four.sin_addr) == 1;
    if (!is_four && inet_pton(AF_INET6, address, &six.sin6_addr) != 1) {
        errno = EINVAL;
        return -1;
    }
    int fd = socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
    int bound = is_four ? bind(fd, (struct sockaddr *)&four, sizeof four)
                        : bind(fd, (struct sockaddr *)&six, sizeof six);
    if (bound != 0 || listen(fd, BACKLOG) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static uint16_t port_of(int listener)
{
    union { struct sockaddr_in four; struct sockaddr_in6 six; } name;
    socklen_t len = sizeof name;
    if (getsockname(listener, (struct sockaddr *)&name, &len) != 0)
        return 0;
    return ntohs(name.four.sin_port); /* the same place in both */
}

static bool start_workers(struct server *server)
{
    for (int i = 0; i < server->settings.threads; i++) {
        struct worker *worker = &server->workers[i];
        worker->server = server;
        worker->epoll = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };
        if (worker->epoll < 0 ||
            epoll_ctl(worker->epoll, EPOLL_CTL_ADD, server->stop, &event) != 0 ||
            pthread_create(&worker->thread, NULL, work, worker) != 0)
            return false;
    }
    return true;
}

int server_run(const struct settings *settings)
{
    struct server server = { .settings = *settings, .started = time(NULL) };
    server_start_clock();
    pthread_mutex_init(&server.lock, NULL);
    server.listener = listen_at(settings->address, settings->port);
    if (server.listener < 0) {
        fprintf(stderr, "hotcache: cannot listen at %s port %u: %s\n", settings->address,
                settings->port, strerror(errno));
        return 1;
    }
    server.port = port_of(server.listener);
    size_t hot = settings->hps == HPS_OFF ? 0 : settings->hot;
    server.cache = cache_create(settings->limit, hot, settings->min_slot, settings->factor);
    server.workers = calloc((size_t)settings->threads, sizeof *server.workers);
    if (!server.cache || !server.workers) {
        fprintf(stderr, "hotcache: no memory for its tables: lower -m\n");
        return 1;
    }
    /* Blocked in every thread: these two are read from a descriptor, the third by the thread that
     * waits for it. */
    sigset_t mask, stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    mask = stop;
    sigaddset(&mask, hps_signal());
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    int signals = signalfd(-1, &stop, SFD_CLOEXEC);
    server.stop = eventfd(0, EFD_CLOEXEC);
    if (signals < 0 || server.stop < 0 || !start_workers(&server)) {
        fprintf(stderr, "hotcache: cannot start: %s\n", strerror(errno));
        return 1;
    }
    server.hps = hps_thread_start(settings->hps, settings->hps_library, server.cache,
                                  settings->min_heat);
    printf("hotcache: listening at %s port %u\n", settings->address, server.port);
    fflush(stdout);

    accept_all(&server, signals);

    close(server.listener);
    uint64_t one = 1;
    (void)!write(server.stop, &one, sizeof one); /* never read, so every worker sees it */
    for (int i = 0; i < settings->threads; i++)
        pthread_join(server.workers[i].thread, NULL);
    hps_thread_stop(server.hps);
    while (server.first)
        connection_close(server.first);
    for (int i = 0; i < settings->threads; i++)
        close(server.workers[i].epoll);
    close(signals);
    close(server.stop);
    cache_destroy(server.cache);
    hps_thread_free(server.hps);
    free(server.workers);
    pthread_mutex_destroy(&server.lock);
    return 0;
}
