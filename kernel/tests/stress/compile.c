// SPDX-License-Identifier: GPL-2.0-only
/*
 * A load of real programs: a compiler, whose root is the disk COMPILER. What it makes
 * is compared with what the same compiler made of the same files elsewhere.
 *
 *	/src/NAME.c, /src/NAME.o, /src/stress	the sources, and what comes of them
 *	/src/compile NAME, /src/link		scripts that make /tmp/NAME.o; and /tmp/stress of the objects in /src
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stress.h"

#define MAX_FILES	16
#define NAME_SIZE	64
#define PATH_SIZE	(2 * NAME_SIZE)

static bool same_files(const char *one, const char *other)
{
	static char a[65536], b[65536];
	int first = open(one, O_RDONLY | O_CLOEXEC), second = open(other, O_RDONLY | O_CLOEXEC);
	ssize_t got = -1;
	bool same = first >= 0 && second >= 0;

	while (same && got) {
		got = read(first, a, sizeof(a));
		same = got >= 0 && read(second, b, sizeof(b)) == got && !memcmp(a, b, got);
	}
	close(first);
	close(second);
	return same;
}

/* 0 if it ended well; -1 if it was killed, or had no memory. */
static int run(unsigned int *seed, const char *program, const char *argument)
{
	int child = fork(), status;

	if (!child) {
		char *env[] = { "PATH=/usr/bin:/bin", "TMPDIR=/tmp", "LC_ALL=C", NULL };
		int log = open("/tmp/compiler.log", O_WRONLY | O_CREAT | O_TRUNC, 0600);

		dup2(log, STDOUT_FILENO);
		dup2(log, STDERR_FILENO);
		change_own_set(seed);
		if (chroot(COMPILER) || chdir("/src"))
			_exit(1);
		execle(program, program, argument, NULL, env);
		_exit(1);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	return status;
}

/* A compiler of which a part was killed says so, which is no failure. */
static bool was_killed(void)
{
	char text[4096];

	return pc_read("/tmp/compiler.log", text, sizeof(text)) ||
	       strstr(text, "Killed") || strstr(text, "emory");
}

static void report(const char *what, int status)
{
	char text[300] = "";

	if (status == -1 || was_killed())
		return;
	pc_read("/tmp/compiler.log", text, sizeof(text));
	wrong("compile: %s: status %#x: %s", what, status, text);
}

static unsigned int find_sources(char names[][NAME_SIZE])
{
	DIR *folder = opendir(COMPILER "/src");
	unsigned int count = 0;
	struct dirent *entry;

	while (folder && (entry = readdir(folder)) && count < MAX_FILES) {
		size_t length = strlen(entry->d_name);

		if (length > 2 && length < NAME_SIZE && !strcmp(entry->d_name + length - 2, ".c"))
			snprintf(names[count++], NAME_SIZE, "%.*s", (int)length - 2, entry->d_name);
	}
	if (folder)
		closedir(folder);
	return count;
}

static void compile_one(unsigned int *seed, const char *name)
{
	char made[PATH_SIZE], wanted[PATH_SIZE];
	int status = run(seed, "/src/compile", name);

	if (stopping())
		return;
	if (status) {
		report(name, status);
		return;
	}
	snprintf(made, sizeof(made), COMPILER "/tmp/%.*s.o", NAME_SIZE,
		 name);
	snprintf(wanted, sizeof(wanted), COMPILER "/src/%.*s.o", NAME_SIZE,
		 name);
	if (!same_files(made, wanted)) {
		wrong("compile: %s.o is not what it should be", name);
		return;
	}
	DONE(files_compiled);
}

static void link_and_run(unsigned int *seed)
{
	int status = run(seed, "/src/link", NULL);

	if (stopping())
		return;
	if (status) {
		report("link", status);
		return;
	}
	if (!same_files(COMPILER "/tmp/stress", COMPILER "/src/stress"))
		wrong("compile: the program is not what it should be");
	DONE(programs_linked);
	status = run(seed, "/tmp/stress", "--self-test");
	if (status && !stopping())
		report("run", status);
	else
		DONE(programs_run);
}

void compile(unsigned int seed)
{
	char names[MAX_FILES][NAME_SIZE];
	unsigned int count = find_sources(names);

	/* A compiler takes long in an emulated machine: it shall not wait for others. */
	setpriority(PRIO_PROCESS, 0, -10);
	/* There may be none. */
	while (count && !stopping()) {
		compile_one(&seed, names[random_below(&seed, count)]);
		if (!stopping() && random_below(&seed, 3) == 0)
			link_and_run(&seed);
	}
}
