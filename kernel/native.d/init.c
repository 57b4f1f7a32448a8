// SPDX-License-Identifier: GPL-2.0-only
/*
 * The first program of the guest. It obeys lines on its console, and nothing else runs, so that nothing else allocates memory.
 *
 *   run ARM PROGRAM ARGUMENT...    runs /PROGRAM with the colors of ARM (see take_colors) and waits for it; "off" also disables
 *                                  coloring for that time
 *   keep PROGRAM ARGUMENT...       starts it, with coloring disabled, waits for its first line, and goes on
 *   drop                           ends what was kept
 *
 * Answers each line with "native done STATUS", where STATUS is 0 if all went well.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "guest.h"

#define MOST_WORDS 16

static pid_t kept;

/* Turns off the console's echo and its carriage returns. */
static void calm_console(void)
{
	struct termios console;

	if (tcgetattr(STDIN_FILENO, &console))
		die("the console");
	console.c_lflag &= ~(tcflag_t)ECHO;
	console.c_oflag &= ~(tcflag_t)OPOST;
	if (tcsetattr(STDIN_FILENO, TCSANOW, &console))
		die("the console");
}

/* Lists free pages by color, or forgets the lists. */
static void enable(int enabled)
{
	int file = open("/proc/sys/vm/page_coloring", O_WRONLY);

	if (file < 0 || write(file, enabled ? "1" : "0", 1) != 1)
		die("/proc/sys/vm/page_coloring");
	close(file);
}

static _Noreturn void become(const char *arm, char **words)
{
	char path[64];

	take_colors(arm);
	snprintf(path, sizeof(path), "/%s", words[0]);
	execv(path, words);
	die(path);
	_exit(1);
}

static int run(const char *arm, char **words)
{
	pid_t child;
	int status;

	enable(strcmp(arm, "off") != 0);
	child = fork();
	if (!child)
		become(arm, words);
	if (child < 0 || waitpid(child, &status, 0) != child)
		return 255;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 254;
}

static void drop(void)
{
	if (kept > 0) {
		kill(kept, SIGKILL);
		waitpid(kept, NULL, 0);
	}
	kept = 0;
}

static int keep(char **words)
{
	int ends[2];
	char byte = 0;

	drop();
	enable(0);
	if (pipe(ends))
		die("pipe");
	kept = fork();
	if (!kept) {
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
		close(ends[1]);
		become("off", words);
	}
	close(ends[1]);
	while (byte != '\n')
		if (read(ends[0], &byte, 1) != 1)
			break;
	close(ends[0]);
	return byte == '\n' ? 0 : 255;
}

static int obey(char **words, size_t count)
{
	if (count > 2 && !strcmp(words[0], "run"))
		return run(words[1], words + 2);
	if (count > 1 && !strcmp(words[0], "keep"))
		return keep(words + 1);
	if (count == 1 && !strcmp(words[0], "drop")) {
		drop();
		return 0;
	}
	return 255;
}

int main(void)
{
	char line[512];

	calm_console();
	if (mount("proc", "/proc", "proc", 0, NULL))
		die("/proc");
	printf("native ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		char *words[MOST_WORDS + 1] = { NULL };
		size_t count = 0;
		int status;

		for (char *word = strtok(line, " \n"); word && count < MOST_WORDS; word = strtok(NULL, " \n"))
			words[count++] = word;
		words[count] = NULL;
		status = obey(words, count);
		printf("native done %d\n", status);
		fflush(stdout);
	}
	/* The host ends the guest. */
	for (;;)
		pause();
}
