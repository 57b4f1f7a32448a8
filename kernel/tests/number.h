/* SPDX-License-Identifier: GPL-2.0-only */
/* Numbers in the files that the kernel shows. */
#ifndef NUMBER_H
#define NUMBER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number after @key and a space at the beginning of a line, the last such line; -1 without one. */
static inline long number_in(const char *path, const char *key)
{
	FILE *file = fopen(path, "re");
	char line[256];
	long value = -1;

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, key, strlen(key)) && line[strlen(key)] == ' ')
			value = atol(line + strlen(key));
	if (file)
		fclose(file);
	return value;
}

/* The sum of the numbers after @key and a space at the beginning of lines. */
static inline long sum_in(const char *path, const char *key)
{
	FILE *file = fopen(path, "re");
	char line[256];
	long sum = 0;

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, key, strlen(key)) && line[strlen(key)] == ' ')
			sum += atol(line + strlen(key));
	if (file)
		fclose(file);
	return sum;
}

#endif
