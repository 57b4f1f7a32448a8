/*
 * Memory that must stay as it is, by whatever huge pages are made.
 *
 *	guards KIND SECONDS
 *
 * ksm       equal pages that the kernel has merged (MADV_MERGEABLE) stay merged
 * guard     guard pages among others (MADV_GUARD_INSTALL) end in SIGSEGV, and the others do not
 * uffd      pages that a userfaultfd fills on demand are filled by it alone
 * frozen    contents of a process that its group freezes meanwhile
 * mappings  60,000 mappings, of which every other one is read-only
 *
 * Prints `mark filled`, waits, checks, and prints `ended well`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

#define PAGE 4096ul
#define HUGE (2ul << 20)

static unsigned int patience;

static void fail(const char *what)
{
	printf("failed: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	exit(1);
}

static void skip(const char *what)
{
	printf("skipped: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	exit(77);
}

static unsigned char *map(size_t size)
{
	unsigned char *place = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (place == MAP_FAILED)
		fail("mmap");
	return (void *)(((unsigned long)place + HUGE - 1) & ~(HUGE - 1));
}

static unsigned char content(size_t page)
{
	return page * 31 + page / 256 + 1;
}

static void wait_a_while(void)
{
	puts("mark filled");
	fflush(stdout);
	sleep(patience);
}

static long ksm_kib(void)
{
	FILE *smaps = fopen("/proc/self/smaps_rollup", "r");
	char line[256];
	long kib = -1;

	while (smaps && fgets(line, sizeof(line), smaps))
		sscanf(line, "KSM: %ld", &kib);
	if (smaps)
		fclose(smaps);
	return kib;
}

static void of_ksm(void)
{
	size_t size = 32ul << 20;
	unsigned char *place = map(size);
	long before, after;

	if (madvise(place, size, MADV_MERGEABLE))
		skip("MADV_MERGEABLE");
	for (size_t at = 0; at < size; at += PAGE)
		memset(place + at, at / PAGE % 16 + 1, PAGE);
	for (int tries = 0; tries < 600 && ksm_kib() < (long)(size >> 10) * 9 / 10; tries++)
		usleep(100000);
	before = ksm_kib();
	if (before < (long)(size >> 10) / 2)
		skip("nothing is merged (/sys/kernel/mm/ksm/run)");
	wait_a_while();
	after = ksm_kib();
	printf("merged %ld before, %ld after\n", before, after);
	for (size_t at = 0; at < size; at += PAGE)
		if (place[at + 7] != at / PAGE % 16 + 1)
			fail("contents");
	if (after < before)
		fail("pages are no longer merged");
}

static sigjmp_buf back;

static void on_fault(int number)
{
	(void)number;
	siglongjmp(back, 1);
}

static int faults(volatile unsigned char *at)
{
	if (sigsetjmp(back, 1))
		return 1;
	(void)*at;
	return 0;
}

static void of_guard(void)
{
	size_t size = 64ul << 20;
	unsigned char *place = map(size);

	for (size_t page = 0; page < size / PAGE; page++)
		place[page * PAGE] = content(page);
	for (size_t page = 63; page < size / PAGE; page += 64)
		if (madvise(place + page * PAGE, PAGE, MADV_GUARD_INSTALL))
			skip("MADV_GUARD_INSTALL");
	wait_a_while();
	signal(SIGSEGV, on_fault);
	for (size_t page = 0; page < size / PAGE; page++) {
		int is_guard = page % 64 == 63;

		if (faults(place + page * PAGE) != is_guard)
			fail(is_guard ? "a guard page does not guard" : "a page is gone");
		if (!is_guard && place[page * PAGE] != content(page))
			fail("contents");
	}
}

static int userfault;
static size_t filled_on_demand;

static void *fill_on_demand(void *start)
{
	static unsigned char page[PAGE];

	for (;;) {
		struct uffd_msg message;
		struct uffdio_copy copy = { 0 };

		if (read(userfault, &message, sizeof(message)) != sizeof(message))
			continue;
		copy.dst = message.arg.pagefault.address & ~(PAGE - 1);
		memset(page, content((copy.dst - (unsigned long)start) / PAGE), PAGE);
		copy.src = (unsigned long)page;
		copy.len = PAGE;
		__atomic_fetch_add(&filled_on_demand, 1, __ATOMIC_RELAXED);
		ioctl(userfault, UFFDIO_COPY, &copy);
	}
	return NULL;
}

static void of_uffd(void)
{
	size_t size = 32ul << 20;
	unsigned char *place = map(size);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register asked = { .range = { (unsigned long)place, size }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	pthread_t thread;

	userfault = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (userfault < 0 || ioctl(userfault, UFFDIO_API, &api) || ioctl(userfault, UFFDIO_REGISTER, &asked))
		skip("userfaultfd");
	pthread_create(&thread, NULL, fill_on_demand, place);
	for (size_t page = 0; page < size / PAGE; page++)
		if (page % 8 != 7 && place[page * PAGE] != content(page))
			fail("contents");
	wait_a_while();
	for (size_t page = 0; page < size / PAGE; page++)
		if (place[page * PAGE] != content(page))
			fail("a page was filled by somebody else");
	printf("filled on demand %zu of %zu\n", filled_on_demand, size / PAGE);
	if (filled_on_demand != size / PAGE)
		fail("pages filled on demand");
}

static void of_frozen(void)
{
	size_t size = 64ul << 20;
	unsigned char *place = map(size);

	for (size_t page = 0; page < size / PAGE; page++)
		memset(place + page * PAGE, content(page), PAGE);
	wait_a_while();
	for (size_t at = 0; at < size; at++)
		if (place[at] != content(at / PAGE))
			fail("contents");
}

static size_t count_mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	size_t lines = 0;
	int letter;

	while (maps && (letter = fgetc(maps)) != EOF)
		lines += letter == '\n';
	if (maps)
		fclose(maps);
	return lines;
}

static void of_mappings(void)
{
	size_t pages = 60000, before;
	unsigned char *place = map(pages * PAGE);

	for (size_t page = 0; page < pages; page++)
		place[page * PAGE] = content(page);
	for (size_t page = 0; page < pages; page += 2)
		if (mprotect(place + page * PAGE, PAGE, PROT_READ))
			skip("mprotect");
	before = count_mappings();
	wait_a_while();
	for (size_t page = 0; page < pages; page++)
		if (place[page * PAGE] != content(page))
			fail("contents");
	printf("mappings %zu before, %zu after\n", before, count_mappings());
	if (count_mappings() != before)
		fail("mappings");
}

int main(int count, char **words)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} kinds[] = { { "ksm", of_ksm }, { "guard", of_guard }, { "uffd", of_uffd }, { "frozen", of_frozen }, { "mappings", of_mappings } };

	patience = count > 2 ? atoi(words[2]) : 0;
	for (size_t kind = 0; count > 1 && kind < sizeof(kinds) / sizeof(*kinds); kind++)
		if (!strcmp(words[1], kinds[kind].name)) {
			kinds[kind].run();
			puts("ended well");
			return 0;
		}
	fputs("guards ksm|guard|uffd|frozen|mappings SECONDS\n", stderr);
	return 2;
}
