/* Blocking calls of all kinds, with timeouts and without, in threads that get no signal: none may end with EINTR, early, or a
 * second late. */
#include "torture.h"
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>

static int pair[2], datagram[2], tubes[2], epoll, event, listening, semaphore, queue, watch, word;
static aio_context_t aio;
static const struct timespec span = {0, 250000000};
static const struct timeval soon = {0, 250000};

/* Each gives 0 where it timed out as it should, else errno, or -1 where it gave something. */
static int failed(long result, int wanted) { return result >= 0 ? -1 : errno == wanted ? 0 : errno; }
static int nothing(long result) { return result == 0 ? 0 : result > 0 ? -1 : errno; }

static int w_epoll(void) { struct epoll_event e; return nothing(epoll_wait(epoll, &e, 1, 250)); }
static int w_epoll_pwait2(void) { struct epoll_event e; return nothing(syscall(SYS_epoll_pwait2, epoll, &e, 1, &span, NULL, 0)); }
static int w_poll(void) { struct pollfd f = {pair[0], POLLIN, 0}; return nothing(poll(&f, 1, 250)); }
static int w_ppoll(void) { struct pollfd f = {pair[0], POLLIN, 0}; return nothing(ppoll(&f, 1, &span, NULL)); }
static int w_select(void) { fd_set s; struct timeval t = soon; FD_ZERO(&s); FD_SET(pair[0], &s); return nothing(select(pair[0] + 1, &s, NULL, NULL, &t)); }
static int w_pselect(void) { fd_set s; FD_ZERO(&s); FD_SET(pair[0], &s); return nothing(pselect(pair[0] + 1, &s, NULL, NULL, &span, NULL)); }
static int w_nanosleep(void) { struct timespec left; return nothing(nanosleep(&span, &left)); }
static int w_clock_nanosleep(void) { return clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL); }
static int w_clock_absolute(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += span.tv_nsec;
    if (at.tv_nsec >= 1000000000)
        at.tv_sec++, at.tv_nsec -= 1000000000;
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}
static int w_futex(void) { return failed(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &span, NULL, 0), ETIMEDOUT); }
static int w_semop(void) { struct sembuf s = {0, -1, 0}; return failed(semtimedop(semaphore, &s, 1, &span), EAGAIN); }
static int w_sigtimedwait(void) { sigset_t s; sigemptyset(&s), sigaddset(&s, SIGUSR1); return failed(sigtimedwait(&s, NULL, &span), EAGAIN); }
static int w_recv(void) { char b; return failed(recv(pair[0], &b, 1, 0), EAGAIN); }
static int w_recvmsg(void) { char b; struct iovec v = {&b, 1}; struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1}; return failed(recvmsg(datagram[0], &m, 0), EAGAIN); }
static int w_accept(void) { return failed(accept(listening, NULL, NULL), EAGAIN); }
static int w_aio(void) { struct io_event e; struct timespec t = span; return nothing(syscall(SYS_io_getevents, aio, 1, 1, &e, &t)); }
static int w_cond(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += span.tv_nsec;
    if (at.tv_nsec >= 1000000000)
        at.tv_sec++, at.tv_nsec -= 1000000000;
    pthread_mutex_lock(&lock);
    int result = pthread_cond_timedwait(&never, &lock, &at);
    pthread_mutex_unlock(&lock);
    /* May wake for no reason by its definition; on Linux it does not. */
    return result == ETIMEDOUT ? 0 : result ? result : -1;
}
/* These have no timeout of their own: something comes after 250 ms from `waker`. */
static int w_msgrcv(void) { struct { long type; char text[8]; } m; return msgrcv(queue, &m, 8, 1, 0) == 8 ? 0 : errno; }
static int w_read_pipe(void) { char b; return read(tubes[0], &b, 1) == 1 ? 0 : errno; }
static int w_read_event(void) { uint64_t b; return read(event, &b, 8) == 8 ? 0 : errno; }
static int w_read_inotify(void) { char b[4096]; return read(watch, b, sizeof b) > 0 ? 0 : errno; }
static int w_sigwait(void) { sigset_t s; sigemptyset(&s), sigaddset(&s, SIGUSR2); siginfo_t i; return sigwaitinfo(&s, &i) == SIGUSR2 ? 0 : errno; }
static int w_timerfd(void)
{
    uint64_t times = 0;
    int timer = timerfd_create(CLOCK_MONOTONIC, 0), result;
    struct itimerspec once = {{0, 0}, span};
    timerfd_settime(timer, 0, &once, NULL);
    result = read(timer, &times, 8) == 8 && times == 1 ? 0 : errno;
    close(timer);
    return result;
}
static int w_waitpid(void)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        nanosleep(&span, NULL), _exit(3);
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3 ? 0 : errno ? errno : -1;
}

#define WAIT(name, exact) {#name, w_##name, exact, 0}
static struct wait { const char *name; int (*call)(void); int exact; atomic_long times; } waits[] = {
    WAIT(epoll, 1), WAIT(epoll_pwait2, 1), WAIT(poll, 1), WAIT(ppoll, 1), WAIT(select, 1), WAIT(pselect, 1), WAIT(nanosleep, 1),
    WAIT(clock_nanosleep, 1), WAIT(clock_absolute, 1), WAIT(futex, 1), WAIT(semop, 1), WAIT(sigtimedwait, 1), WAIT(recv, 1),
    WAIT(recvmsg, 1), WAIT(accept, 1), WAIT(aio, 1), WAIT(cond, 1), WAIT(timerfd, 1), WAIT(waitpid, 1), WAIT(msgrcv, 0),
    WAIT(read_pipe, 0), WAIT(read_event, 0), WAIT(read_inotify, 0), WAIT(sigwait, 0)};
#define WAITS (sizeof waits / sizeof *waits)

static atomic_int stop, running;

static void *waiter(void *argument)
{
    struct wait *wait = argument;
    while (!stop) {
        double begin = now();
        errno = 0;
        int error = wait->call();
        double took = now() - begin;
        wait->times++;
        if (error)
            odd("%s: %s", wait->name, error < 0 ? "gave something" : strerror(error));
        /* A socket's and select's timeout is rounded to the kernel's ticks. */
        else if (wait->exact && took < 0.235) {
            odd("%s ended early", wait->name);
            note("after %.4f s", took);
        } else if (took > 1.3) {
            odd("%s ended more than a second late", wait->name);
            note("after %.4f s", took);
        }
    }
    running--;
    return NULL;
}

int main(void)
{
    block_signals();
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "wakeups.socket"};
    char folder[] = "wakeups-XXXXXX", path[40];
    MUST(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/file", folder);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram) == 0 && pipe(tubes) == 0);
    MUST((epoll = epoll_create1(0)) >= 0 && (event = eventfd(0, 0)) >= 0 && (watch = inotify_init()) >= 0);
    struct epoll_event wanted = {.events = EPOLLIN};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &wanted) == 0 && inotify_add_watch(watch, folder, IN_CREATE) >= 0);
    unlink(name.sun_path);
    MUST((listening = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
    MUST(bind(listening, (void *)&name, sizeof name) == 0 && listen(listening, 1) == 0);
    unlink(name.sun_path);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    setsockopt(datagram[0], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    setsockopt(listening, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    MUST((semaphore = semget(IPC_PRIVATE, 1, 0600)) >= 0 && (queue = msgget(IPC_PRIVATE, 0600)) >= 0);
    MUST(syscall(SYS_io_setup, 1, &aio) == 0);
    field_start(2, mib() << 20);
    pthread_t thread;
    for (unsigned i = 0; i < WAITS; i++) {
        running++;
        MUST(pthread_create(&thread, NULL, waiter, waits + i) == 0);
    }
    double end = now() + seconds();
    for (int round = 0; running; round++) {
        rest(0.25);
        stop = now() > end;
        struct { long type; char text[8]; } message = {1, "message"};
        uint64_t one = 1;
        MUST(msgsnd(queue, &message, 8, 0) == 0 && write(tubes[1], "x", 1) == 1 && write(event, &one, 8) == 8);
        MUST(kill(getpid(), SIGUSR2) == 0);
        close(open(path, O_CREAT | O_RDWR, 0600));
        unlink(path);
        if (now() > end + 10) {
            odd("a call does not end");
            break;
        }
    }
    semctl(semaphore, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
    rmdir(folder);
    field_stop();
    for (unsigned i = 0; i < WAITS; i++) {
        note("%s: %ld times", waits[i].name, waits[i].times);
        CHECK(waits[i].times > 0);
    }
    return done();
}
