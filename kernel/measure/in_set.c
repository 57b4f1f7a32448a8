// SPDX-License-Identifier: GPL-2.0-only
/*
 * in_set COLORS COMMAND...: runs it in a strict set of colors, a bitmap of up to 64.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PR_PAGE_COLOR 0x50434f4c
#define PR_PAGE_COLOR_SET 1
#define PR_PAGE_COLOR_STRICT 1

int main(int argc, char **argv)
{
	unsigned long colors;

	if (argc < 3) {
		fprintf(stderr, "usage: in_set COLORS COMMAND...\n");
		return 125;
	}
	colors = strtoul(argv[1], NULL, 0);
	if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, &colors, sizeof(colors), PR_PAGE_COLOR_STRICT)) {
		perror("prctl");
		return 125;
	}
	execv(argv[2], argv + 2);
	perror(argv[2]);
	return 126;
}
