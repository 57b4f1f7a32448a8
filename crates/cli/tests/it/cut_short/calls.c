/*
 * Makes system calls that a stop of the calling thread cuts short, and says which of them ended early though no signal ever came.
 *
 *   calls all SECONDS [FILE]  every kind at once, each in threads of its own. FILE lies on a file system that waits in close(2) and ends
 *                             it with EINTR when it is disturbed (closing.c)
 *   calls write               64 blocks of 1 MiB to standard output, each by one write(2), while memory grows
 *   calls count               one thread that makes the same calls every time, for a tracer to count
 *
 * With WAIT in the environment it begins when a line comes in. What it prints depends on nothing but what the calls returned.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define CROWD 48

static volatile int is_over;
static const char *closing;

/* What became of the calls of one kind. */
struct kind {
	const char *name;
	void (*run)(struct kind *);
	long calls, early, failed;
	int last_errno;
	char note[96];
};

static void need(int holds, const char *what)
{
	if (holds)
		return;
	perror(what);
	exit(2);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Counts a call that was to return `wanted`. */
static void count(struct kind *k, long long got, long long wanted)
{
	k->calls++;
	if (got < 0) {
		k->failed++;
		k->last_errno = errno;
	} else if (got != wanted) {
		k->early++;
	}
}

/* Counts a wait that ends by its timeout alone, and not before. `got` is what it returned, `begun` when it began. */
static void count_wait(struct kind *k, int is_timeout, double begun, double seconds)
{
	int error = errno;
	k->calls++;
	if (!is_timeout) {
		k->failed++;
		k->last_errno = error;
	} else if (now() - begun < seconds * 0.999) {
		k->early++;
	}
}

/* Leaves the CPUs to the other kinds, and to superhue. */
static void rest(int milliseconds)
{
	struct timespec t = { 0, milliseconds * 1000000 };
	nanosleep(&t, NULL);
}

/* At least three calls, however slow they are. */
static int goes_on(const struct kind *k)
{
	return !is_over || k->calls < 3;
}

static pthread_t start(void *(*function)(void *), void *argument)
{
	pthread_t thread;
	need(!pthread_create(&thread, NULL, function, argument), "pthread_create");
	return thread;
}

static char *filled(size_t size)
{
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(at != MAP_FAILED, "mmap");
	memset(at, 1, size);
	return at;
}

/* ---- Reads and writes that check for a stop between pages. ---- */

static void random_bytes(struct kind *k)
{
	char *buffer = filled(4 * MIB);
	for (; goes_on(k); rest(15))
		count(k, getrandom(buffer, 4 * MIB, 0), 4 * MIB);
}

static void device(struct kind *k, const char *path, size_t size)
{
	char *buffer = filled(size);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	need(file >= 0, path);
	for (; goes_on(k); rest(15))
		count(k, read(file, buffer, size), size);
	close(file);
}

static void urandom(struct kind *k) { device(k, "/dev/urandom", 4 * MIB); }
static void zero(struct kind *k) { device(k, "/dev/zero", 8 * MIB); }

/* Takes whatever comes, in small pieces. */
static void *drain(void *argument)
{
	static __thread char buffer[1 << 16];
	while (read((int)(long)argument, buffer, sizeof buffer) > 0)
		;
	return NULL;
}

/* Writes of 1 MiB into something that holds less. */
static void written(struct kind *k, int from, int to)
{
	char *buffer = filled(MIB);
	pthread_t reader = start(drain, (void *)(long)from);
	for (; goes_on(k); rest(1))
		count(k, write(to, buffer, MIB), MIB);
	shutdown(to, SHUT_WR);
	close(to);
	pthread_join(reader, NULL);
	close(from);
}

static void pipes(struct kind *k)
{
	int ends[2];
	need(!pipe2(ends, O_CLOEXEC), "pipe2");
	written(k, ends[0], ends[1]);
}

static void local(struct kind *k)
{
	int ends[2];
	need(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair");
	written(k, ends[0], ends[1]);
}

/* Two ends of a connection over the loopback device; 0 if there is none. */
static int connected(int ends[2])
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof at;
	int waiting = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	if (waiting < 0 || bind(waiting, (void *)&at, size) || listen(waiting, 1) || getsockname(waiting, (void *)&at, &size))
		return 0;
	ends[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (ends[1] < 0 || connect(ends[1], (void *)&at, size))
		return 0;
	ends[0] = accept4(waiting, NULL, NULL, SOCK_CLOEXEC);
	close(waiting);
	setsockopt(ends[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return ends[0] >= 0;
}

static void tcp(struct kind *k)
{
	int ends[2];
	if (connected(ends))
		written(k, ends[0], ends[1]);
	else
		strcpy(k->note, "no network");
}

/* ---- Reads that wait until there is enough. ---- */

/* Writes a byte at a time until nobody reads any more. */
static void *drip(void *argument)
{
	struct timespec moment = { 0, 200 * 1000 };
	while (write((int)(long)argument, "x", 1) == 1)
		nanosleep(&moment, NULL);
	return NULL;
}

static void dripping(struct kind *k, int how)
{
	int ends[2], enough = 16;
	char buffer[16];
	if (!connected(ends)) {
		strcpy(k->note, "no network");
		return;
	}
	setsockopt(ends[0], SOL_SOCKET, SO_RCVLOWAT, &enough, sizeof enough);
	pthread_t writer = start(drip, (void *)(long)ends[1]);
	while (goes_on(k))
		count(k, recv(ends[0], buffer, sizeof buffer, how), sizeof buffer);
	close(ends[0]);
	pthread_join(writer, NULL);
	close(ends[1]);
}

static void low_water(struct kind *k) { dripping(k, 0); }
static void wait_all(struct kind *k) { dripping(k, MSG_WAITALL); }

static void terminal(struct kind *k)
{
	int main_end = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	struct termios modes;
	char name[64], buffer[16];
	need(main_end >= 0 && !grantpt(main_end) && !unlockpt(main_end) && !ptsname_r(main_end, name, sizeof name), "posix_openpt");
	int other = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
	need(other >= 0 && !tcgetattr(other, &modes), name);
	cfmakeraw(&modes);
	modes.c_cc[VMIN] = sizeof buffer;
	modes.c_cc[VTIME] = 0;
	tcsetattr(other, TCSANOW, &modes);
	/* Nobody can write to it any more once the other end is closed: EIO. */
	pthread_t writer = start(drip, (void *)(long)main_end);
	while (goes_on(k))
		count(k, read(other, buffer, sizeof buffer), sizeof buffer);
	fcntl(main_end, F_SETFL, O_NONBLOCK);
	close(other);
	while (write(main_end, buffer, sizeof buffer) > 0)
		;
	pthread_join(writer, NULL);
	close(main_end);
}

/* ---- io_uring: waits for two completions, of which one takes its time. ---- */

static void uring(struct kind *k)
{
	struct io_uring_params p = { 0 };
	int ring = syscall(SYS_io_uring_setup, 8, &p);
	if (ring < 0) {
		strcpy(k->note, "no io_uring");
		return;
	}
	int how = PROT_READ | PROT_WRITE;
	char *sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, how, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	char *cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), how, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	struct io_uring_sqe *entries = mmap(NULL, p.sq_entries * sizeof *entries, how, MAP_SHARED, ring, IORING_OFF_SQES);
	need(sq != MAP_FAILED && cq != MAP_FAILED && entries != MAP_FAILED, "mmap of a ring");
	unsigned *tail = (void *)(sq + p.sq_off.tail), mask = *(unsigned *)(sq + p.sq_off.ring_mask), *order = (void *)(sq + p.sq_off.array);
	unsigned *head = (void *)(cq + p.cq_off.head), *done = (void *)(cq + p.cq_off.tail);
	struct __kernel_timespec moment = { 0, 3000000 };
	while (goes_on(k)) {
		for (int i = 0; i < 2; i++) {
			struct io_uring_sqe *entry = &entries[*tail & mask];
			memset(entry, 0, sizeof *entry);
			entry->opcode = i ? IORING_OP_TIMEOUT : IORING_OP_NOP;
			entry->addr = i ? (unsigned long)&moment : 0;
			entry->len = i;
			order[*tail & mask] = *tail & mask;
			__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
		}
		int sent = syscall(SYS_io_uring_enter, ring, 2, 2, IORING_ENTER_GETEVENTS, NULL, 0);
		unsigned have = __atomic_load_n(done, __ATOMIC_ACQUIRE) - *head;
		count(k, sent < 0 ? -1 : (long long)have, 2);
		while (__atomic_load_n(done, __ATOMIC_ACQUIRE) - *head < 2)
			syscall(SYS_io_uring_enter, ring, 0, 2, IORING_ENTER_GETEVENTS, NULL, 0);
		__atomic_store_n(head, *head + 2, __ATOMIC_RELEASE);
	}
	close(ring);
}

/* ---- Waits with a timeout, which a stop ends with EINTR, or before the time. ---- */

static const struct timespec MOMENT = { 0, 3000000 };

static void sleeps(struct kind *k)
{
	while (goes_on(k)) {
		double begun = now();
		count_wait(k, !nanosleep(&MOMENT, NULL), begun, 3e-3);
	}
}

static void polls(struct kind *k)
{
	int ends[2], queue = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN };
	need(!pipe2(ends, O_CLOEXEC) && queue >= 0 && !epoll_ctl(queue, EPOLL_CTL_ADD, ends[0], &event), "epoll");
	while (goes_on(k)) {
		double begun = now();
		count_wait(k, !epoll_wait(queue, &event, 1, 3), begun, 3e-3);
		struct pollfd one = { .fd = ends[0], .events = POLLIN };
		begun = now();
		count_wait(k, !poll(&one, 1, 3), begun, 3e-3);
		fd_set set;
		FD_ZERO(&set);
		FD_SET(ends[0], &set);
		struct timeval time = { 0, 3000 };
		begun = now();
		count_wait(k, !select(ends[0] + 1, &set, NULL, NULL, &time), begun, 3e-3);
	}
}

static void signals(struct kind *k)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	while (goes_on(k)) {
		double begun = now();
		count_wait(k, sigtimedwait(&set, NULL, &MOMENT) < 0 && errno == EAGAIN, begun, 3e-3);
	}
}

static void futexes(struct kind *k)
{
	unsigned word = 0;
	while (goes_on(k)) {
		double begun = now();
		long got = syscall(SYS_futex, &word, FUTEX_WAIT, 0, &MOMENT, NULL, 0);
		count_wait(k, got < 0 && errno == ETIMEDOUT, begun, 3e-3);
	}
}

static void semaphores(struct kind *k)
{
	int set = semget(IPC_PRIVATE, 1, 0600);
	if (set < 0) {
		strcpy(k->note, "no semaphores");
		return;
	}
	struct sembuf take = { 0, -1, 0 };
	while (goes_on(k)) {
		double begun = now();
		count_wait(k, semtimedop(set, &take, 1, &MOMENT) < 0 && errno == EAGAIN, begun, 3e-3);
	}
	semctl(set, 0, IPC_RMID);
}

static void receive_timeouts(struct kind *k)
{
	int ends[2];
	struct timeval time = { 0, 4000 };
	char byte;
	need(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair");
	setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
	while (goes_on(k)) {
		double begun = now();
		/* In jiffies, so it may take up to one less. */
		count_wait(k, recv(ends[0], &byte, 1, 0) < 0 && errno == EAGAIN, begun, 0);
	}
}

/* ---- Closes. ---- */

/* A connection whose peer does not read: close waits for SO_LINGER, here a second. */
static void *lingering(void *argument)
{
	struct kind *k = argument;
	static __thread char buffer[1 << 16];
	struct linger linger = { 1, 1 };
	int ends[2];
	if (!connected(ends)) {
		strcpy(k->note, "no network");
		return NULL;
	}
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	while (write(ends[1], buffer, sizeof buffer) > 0)
		;
	fcntl(ends[1], F_SETFL, 0);
	setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
	double begun = now();
	int got = close(ends[1]);
	double took = now() - begun;
	/* In jiffies: one may be gone already. */
	__atomic_add_fetch(&k->calls, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&k->early, took < 0.98, __ATOMIC_RELAXED);
	__atomic_add_fetch(&k->failed, got != 0, __ATOMIC_RELAXED);
	close(ends[0]);
	return NULL;
}

static void lingers(struct kind *k)
{
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		threads[i] = start(lingering, k);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

/* Its number is likely to be the one that `closes` has just given back. Nobody but this thread may close it. */
static void *keeps_its_own(void *argument)
{
	struct kind *k = argument;
	struct timespec moment = { 0, 300000 };
	while (!is_over) {
		int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
		struct stat found;
		nanosleep(&moment, NULL);
		int is_lost = fcntl(file, F_GETFD) < 0 || fstat(file, &found) || !S_ISCHR(found.st_mode);
		if (is_lost)
			__atomic_add_fetch(&k->failed, 1, __ATOMIC_RELAXED);
		close(file);
	}
	return NULL;
}

static void closes(struct kind *k)
{
	pthread_t others[3];
	if (!closing)
		return;
	for (int i = 0; i < 3; i++)
		others[i] = start(keeps_its_own, k);
	while (goes_on(k)) {
		int file = open(closing, O_RDONLY | O_CLOEXEC);
		need(file >= 0, closing);
		int got = close(file);
		__atomic_add_fetch(&k->failed, got != 0, __ATOMIC_RELAXED);
		if (got)
			k->last_errno = errno;
		k->calls++;
	}
	for (int i = 0; i < 3; i++)
		pthread_join(others[i], NULL);
}

/* ---- Pages that others hold. ---- */

#define LENT 512
#define TO_A_PIPE 16

/* Hot pages in pipes, by vmsplice(2): what is written to them afterwards is what a reader of the pipe gets. */
static void lent_pages(struct kind *k)
{
	static int pipes[LENT / TO_A_PIPE][2];
	struct timespec moment = { 0, 500000 };
	char *memory = filled(LENT * 4096);
	for (int i = 0; i < LENT; i++) {
		int *to = pipes[i / TO_A_PIPE];
		if (i % TO_A_PIPE == 0)
			need(!pipe2(to, O_CLOEXEC), "pipe2");
		struct iovec page = { memory + i * 4096, 4096 };
		need(vmsplice(to[1], &page, 1, 0) == 4096, "vmsplice");
	}
	do {
		for (size_t at = 0; at < LENT * 4096; at += 64)
			(void)*(volatile char *)(memory + at);
		nanosleep(&moment, NULL);
	} while (!is_over);
	for (int i = 0; i < LENT; i++)
		memory[i * 4096] = 2;
	for (int i = 0; i < LENT; i++) {
		char page[4096];
		int have = 0, got = 1;
		while (have < 4096 && got > 0)
			have += got = read(pipes[i / TO_A_PIPE][0], page + have, 4096 - have);
		count(k, page[0], 2);
	}
}

/* ---- Many threads, each of which is as it was. ---- */

static void *one_of_many(void *argument)
{
	struct kind *k = argument;
	struct timespec moment = { 0, 2000000 };
	long calls = 0, changed = 0, failed = 0;
	int slack = prctl(PR_GET_TIMERSLACK), class = sched_getscheduler(0), nice = getpriority(PRIO_PROCESS, syscall(SYS_gettid));
	while (!is_over || calls < 3) {
		calls++;
		failed += nanosleep(&moment, NULL) != 0;
		changed += prctl(PR_GET_TIMERSLACK) != slack || sched_getscheduler(0) != class ||
			   getpriority(PRIO_PROCESS, syscall(SYS_gettid)) != nice;
	}
	__atomic_add_fetch(&k->calls, calls, __ATOMIC_RELAXED);
	__atomic_add_fetch(&k->early, changed, __ATOMIC_RELAXED);
	__atomic_add_fetch(&k->failed, failed, __ATOMIC_RELAXED);
	return NULL;
}

static void crowd(struct kind *k)
{
	pthread_t threads[CROWD];
	for (int i = 0; i < CROWD; i++)
		threads[i] = start(one_of_many, k);
	for (int i = 0; i < CROWD; i++)
		pthread_join(threads[i], NULL);
	snprintf(k->note, sizeof k->note, "timer slack %d, class %d, nice %d", prctl(PR_GET_TIMERSLACK), sched_getscheduler(0),
		 getpriority(PRIO_PROCESS, 0));
}

/* ---- Memory that gives a policy something to do all the time. ---- */

#define LENGTH (8 * MIB)
#define PIECES 8

static void memory(struct kind *k)
{
	char *pieces[PIECES] = { 0 };
	for (int i = 0; goes_on(k) || i < PIECES; i++) {
		char **piece = &pieces[i % PIECES];
		if (*piece) {
			int is_whole = 1;
			for (size_t at = 0; at < LENGTH; at += 4096)
				is_whole &= (*piece)[at] == 1;
			count(k, is_whole, 1);
			munmap(*piece, LENGTH);
		}
		*piece = filled(LENGTH);
		rest(20);
	}
}

static struct kind KINDS[] = {
	{ "getrandom", random_bytes },
	{ "/dev/urandom", urandom },
	{ "/dev/zero", zero },
	{ "pipe", pipes },
	{ "unix socket", local },
	{ "tcp socket", tcp },
	{ "SO_RCVLOWAT", low_water },
	{ "MSG_WAITALL", wait_all },
	{ "terminal", terminal },
	{ "io_uring", uring },
	{ "nanosleep", sleeps },
	{ "epoll, poll, select", polls },
	{ "sigtimedwait", signals },
	{ "futex", futexes },
	{ "semtimedop", semaphores },
	{ "SO_RCVTIMEO", receive_timeouts },
	{ "SO_LINGER", lingers },
	{ "close", closes },
	{ "vmsplice", lent_pages },
	{ "threads", crowd },
	{ "memory", memory },
};
#define COUNT (sizeof KINDS / sizeof *KINDS)

static void *run_kind(void *argument)
{
	struct kind *k = argument;
	k->run(k);
	return NULL;
}

static int all(double seconds)
{
	pthread_t threads[COUNT];
	int is_bad = 0;
	for (size_t i = 0; i < COUNT; i++)
		threads[i] = start(run_kind, &KINDS[i]);
	struct timespec left = { (time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9) };
	while (nanosleep(&left, &left))
		;
	is_over = 1;
	for (size_t i = 0; i < COUNT; i++)
		pthread_join(threads[i], NULL);
	for (size_t i = 0; i < COUNT; i++) {
		const struct kind *k = &KINDS[i];
		printf("%s: ", k->name);
		if (k->early || k->failed)
			printf("of %ld calls %ld ended early, %ld failed (%s)", k->calls, k->early, k->failed,
			       k->last_errno ? strerror(k->last_errno) : "-");
		else
			printf("whole");
		printf(k->note[0] ? " (%s)\n" : "\n", k->note);
		is_bad |= k->early || k->failed;
	}
	return is_bad;
}

static int blocks(void)
{
	char *buffer = filled(MIB);
	long long wanted = 0, got = 0;
	for (int i = 0; i < 64; i++) {
		if (i % 4 == 0)
			filled(4 * MIB);
		ssize_t one = write(1, buffer, MIB);
		need(one >= 0, "write");
		wanted += MIB;
		got += one;
	}
	fprintf(stderr, "%lld of %lld bytes were written\n", got, wanted);
	return got != wanted;
}

static int counted(void)
{
	struct timespec moment = { 0, 1000000 };
	char *buffer = filled(MIB);
	int ends[2], file = open("/dev/null", O_WRONLY | O_CLOEXEC);
	need(!pipe2(ends, O_CLOEXEC) && file >= 0, "pipe2");
	for (int i = 0; i < 100; i++) {
		if (i % 8 == 0)
			filled(4 * MIB);
		need(getrandom(buffer, MIB, 0) == (ssize_t)MIB, "getrandom");
		need(write(file, buffer, MIB) == (ssize_t)MIB, "write");
		need(write(ends[1], buffer, 4096) == 4096 && read(ends[0], buffer, 4096) == 4096, "pipe");
		need(!nanosleep(&moment, NULL), "nanosleep");
	}
	puts("counted");
	return 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	signal(SIGPIPE, SIG_IGN);
	if (getenv("WAIT"))
		need(getchar() == '\n', "no line came in");
	closing = argc > 3 ? argv[3] : NULL;
	if (!strcmp(mode, "all") && argc > 2)
		return all(atof(argv[2]));
	if (!strcmp(mode, "write"))
		return blocks();
	if (!strcmp(mode, "count"))
		return counted();
	fprintf(stderr, "calls all SECONDS [FILE] | write | count\n");
	return 2;
}
