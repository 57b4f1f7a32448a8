// SPDX-License-Identifier: GPL-2.0-only
/*
 * The memory that coloring takes when it is enabled: what the kernel allocates for the writer of page_coloring, by
 * its own tracepoints. With 64 colors, and with 1,024.
 *
 * Prints lines "memory COLORS ZONES ZONE CPU MARKS" in bytes: ZONE for each of so many zones, CPU for each
 * possible CPU in each of them, MARKS of all pages, two bits for each. They stay, so only the first line has
 * them, and only if KUnit's tests, which need them, were not run before.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "color_modes.h"
#include "dealt.h"

#define TRACING "/sys/kernel/tracing/"

/* Those of 128 MiB of memory: struct chunk of mm/page_color_mark.c. */
#define MARKS 8192

static const char *const events[] = { "kmem/kmalloc", "percpu/percpu_alloc_percpu", "vmalloc/alloc_vmap_area" };

static void trace(bool on)
{
	char path[128], pid[32];
	int file;

	if (on) {
		snprintf(pid, sizeof(pid), "%d", getpid());
		set(TRACING "set_event_pid", pid);
		set(TRACING "buffer_size_kb", "8192");
		/* Opened so it is emptied. */
		file = open(TRACING "trace", O_WRONLY | O_TRUNC);
		if (file < 0)
			die(TRACING "trace");
		close(file);
	}
	for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++) {
		snprintf(path, sizeof(path), TRACING "events/%s/enable", events[i]);
		set(path, on ? "1" : "0");
	}
}

static unsigned long word_of(const char *line, const char *name)
{
	const char *at = strstr(line, name);

	return at ? strtoul(at + strlen(name), NULL, 0) : 0;
}

/* Whether there was none to be had so: the kernel maps single pages then. */
static bool failed(const char *line)
{
	return strstr(line, "ptr=(null)") || strstr(line, "ptr=0000000000000000 ");
}

static void say(unsigned int colors)
{
	unsigned long zones = 0, zone = 0, cpu = 0, marks = 0, lost = 0;
	FILE *file = fopen(TRACING "trace", "re");
	bool mapped = false;
	char line[512];

	if (!file)
		die(TRACING "trace");
	while (fgets(line, sizeof(line), file)) {
		lost += !!strstr(line, "LOST");
		if (strstr(line, " percpu_alloc_percpu: ") && strstr(line, "page_color_pcp_alloc")) {
			zones++;
			cpu += word_of(line, " size=");
		} else if (strstr(line, " alloc_vmap_area: ") && mapped) {
			/* The last page of it has no memory. */
			zone += word_of(line, " size=") - PAGE;
			mapped = false;
		} else if (strstr(line, "call_site=__kvmalloc_node")) {
			bool mark = word_of(line, "bytes_req=") == MARKS;

			mapped = failed(line) && !mark;
			/* Before the first of them is a table of theirs. */
			if (mark && !marks) {
				marks = zone;
				zone = 0;
			}
			if (!failed(line))
				*(mark ? &marks : &zone) += word_of(line, "bytes_alloc=");
		}
	}
	fclose(file);
	if (!zones || lost) {
		fprintf(stderr, "%u colors: the trace tells of %lu zones, and %lu times of events that were lost\n", colors,
			zones, lost);
		exit(1);
	}
	printf("memory %u %lu %lu %lu %lu\n", colors, zones, zone / zones, cpu / zones, marks);
	fflush(stdout);
}

static void measure(const char *name)
{
	const struct color_mode *mode;

	/* Without what there was of another geometry. */
	take_mode(color_modes("off"));
	mode = color_modes(name);
	set("/proc/sys/vm/page_color_geometry", mode->geometry);
	trace(true);
	set("/proc/sys/vm/page_coloring", "1");
	trace(false);
	say(mode->colors);
}

int main(void)
{
	printf("TAP version 13\n1..1\n");
	measure("on");
	measure("1024_on");
	printf("ok 1 measured\n");
	return 0;
}
