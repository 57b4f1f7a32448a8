/* A process that is hard to read or to change: strange HOW
 *
 * HOW is one of
 *   stopped      it has stopped itself
 *   traced       another one traces it, and does not let it go on
 *   zombie       it has a child that has ended and that nobody waits for
 *   leader       its first thread has ended, another one goes on
 *   forks        it forks all the time
 *   execs        it executes itself all the time
 *   mappings     it has as many mappings as it may, and changes them all the time
 *   userfaultfd  faults in its memory are announced to it, and it does not answer. Of every second region each second page is missing
 *
 * Each fills 8 MiB (userfaultfd: 64), says `ready`, and stays until it is told to end; then 42 says that memory has changed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define REGION (2UL << 20)

static volatile sig_atomic_t over;

static void end(int signal)
{
	(void)signal;
	over = 1;
}

/* Memory that begins at a region. */
static char *memory(size_t size)
{
	char *start = mmap(NULL, size + REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (start == MAP_FAILED)
		exit(1);
	return (char *)(((uintptr_t)start + REGION - 1) & ~(REGION - 1));
}

static int is_missing(size_t page)
{
	return page / (REGION / PAGE) % 2 && page % 2;
}

static void fill(char *start, size_t size, int with_holes)
{
	for (size_t page = 0; page < size / PAGE; page++)
		if (!with_holes || !is_missing(page))
			*(size_t *)(start + page * PAGE) = page + 1;
}

static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

static int stay(void)
{
	while (!over)
		usleep(20000);
	return 0;
}

static void *go_on(void *start)
{
	char *bytes = start;

	ready();
	for (;;) {
		for (size_t at = 0; at < 8 << 20; at += PAGE)
			bytes[at]++;
		usleep(20000);
	}
	return NULL;
}

static int change_mappings(void)
{
	size_t count = 1 << 16, made = 0;
	char *start = mmap(NULL, 2 * count * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	/* Until the kernel allows no more (vm.max_map_count). */
	while (made < count && !mprotect(start + 2 * made * PAGE, PAGE, PROT_READ | PROT_WRITE))
		start[2 * made++ * PAGE] = 1;
	ready();
	for (size_t at = 0; !over; at = (at + 7919) % made) {
		mprotect(start + 2 * at * PAGE, PAGE, PROT_NONE);
		mprotect(start + 2 * at * PAGE, PAGE, PROT_READ | PROT_WRITE);
		/* It leaves others some of the processor. */
		if (at % 64 == 0)
			usleep(1000);
	}
	return 0;
}

static int announce_faults(void)
{
	size_t size = 64UL << 20;
	char *start = memory(size);
	int descriptor = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .range = { (uintptr_t)start, size }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	fill(start, size, 1);
	if (descriptor < 0 || ioctl(descriptor, UFFDIO_API, &api) || ioctl(descriptor, UFFDIO_REGISTER, &range)) {
		perror("userfaultfd");
		return 1;
	}
	ready();
	stay();
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	for (size_t page = 0; page < size / PAGE; page++) {
		uint64_t entry = 0;

		if (is_missing(page)) {
			off_t at = ((uintptr_t)start / PAGE + page) * sizeof(entry);
			if (pread(pagemap, &entry, sizeof(entry), at) != sizeof(entry) || entry >> 62)
				return 42;
		} else if (*(size_t *)(start + page * PAGE) != page + 1) {
			return 42;
		}
	}
	return 0;
}

int main(int count, char **arguments)
{
	const char *how = count > 1 ? arguments[1] : "";
	char *start;

	/* A handler would forget a signal that comes before the next execution. */
	if (strcmp(how, "execs") && strcmp(how, "leader"))
		signal(SIGTERM, end);
	if (!strcmp(how, "userfaultfd"))
		return announce_faults();
	start = memory(8 << 20);
	fill(start, 8 << 20, 0);
	if (!strcmp(how, "mappings"))
		return change_mappings();
	if (!strcmp(how, "stopped")) {
		ready();
		raise(SIGSTOP);
		return stay();
	}
	if (!strcmp(how, "leader")) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, go_on, start))
			return 1;
		pthread_exit(NULL);
	}
	if (!strcmp(how, "execs")) {
		if (count == 2)
			ready();
		execl("/proc/self/exe", arguments[0], how, "again", (char *)NULL);
		return 1;
	}
	if (!strcmp(how, "forks")) {
		ready();
		while (!over) {
			pid_t child = fork();

			if (!child)
				_exit(0);
			waitpid(child, NULL, 0);
		}
		return 0;
	}
	pid_t child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!strcmp(how, "zombie"))
			_exit(0);
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		_exit(0);
	}
	siginfo_t info;
	waitid(P_PID, child, &info, (strcmp(how, "zombie") ? WSTOPPED : WEXITED) | WNOWAIT);
	ready();
	return stay();
}
