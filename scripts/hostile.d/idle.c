// idle NUMBER KIB SECONDS: so many processes that fill so much memory and wait. They end with this one.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static void fill(size_t bytes)
{
	size_t room = bytes + (2 << 20);
	char *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (start == MAP_FAILED)
		exit(1);
	start = (char *)(((unsigned long)start + (2 << 20) - 1) & ~((2UL << 20) - 1));
	for (size_t at = 0; at < bytes; at += 4096)
		start[at] = 1;
}

int main(int count, char **words)
{
	if (count < 4)
		return 2;
	size_t bytes = strtoul(words[2], NULL, 10) << 10;
	pid_t parent = getpid();
	for (int left = atoi(words[1]) - 1; left > 0; left--) {
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				return 1;
			fill(bytes);
			for (;;)
				pause();
		}
	}
	fill(bytes);
	puts("filled");
	fflush(stdout);
	sleep(atoi(words[3]));
	return 0;
}
