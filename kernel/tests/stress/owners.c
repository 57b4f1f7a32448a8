// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who allocated the pages that are in use, where the kernel records it (page_owner=on): by
 * the first functions that are not the allocator's own. Lines of show_stacks, of one stack:
 *
 *	 post_alloc_hook+0x1a/0x2b
 *	 ...
 *	nr_base_pages: 17
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stress.h"

#define STACKS	"/sys/kernel/debug/page_owner_stacks/show_stacks"
#define DEPTH	6

static bool is_allocator(const char *name)
{
	static const char *const names[] = {
		"post_alloc_hook", "prep_new_page", "get_page_from_freelist", "__alloc_pages",
		"alloc_pages", "__folio_alloc", "folio_alloc", "vma_alloc_folio",
		"__alloc_frozen_pages", "split_free_pages", "get_free_pages",
	};
	unsigned int i;

	for (i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (!strncmp(name, names[i], strlen(names[i])))
			return true;
	return false;
}

/* Which owner has a stack; as many as there are if none has. */
static unsigned int find(const struct owners *owners, const char *stack)
{
	unsigned int i;

	for (i = 0; i < owners->count; i++)
		if (!strcmp(owners->owner[i].stack, stack))
			break;
	return i;
}

static void add(struct owners *owners, const char *stack, unsigned long pages)
{
	unsigned int i = find(owners, stack);

	if (i == MAX_OWNERS)
		return;
	if (i == owners->count) {
		snprintf(owners->owner[i].stack, sizeof(owners->owner->stack), "%s", stack);
		owners->owner[i].pages = 0;
		owners->count++;
	}
	owners->owner[i].pages += pages;
}

void read_owners(struct owners *owners)
{
	FILE *file = fopen(STACKS, "re");
	char line[256], name[128], stack[sizeof(owners->owner->stack)] = "";
	unsigned int depth = 0;
	unsigned long pages;

	owners->count = 0;
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "nr_base_pages: %lu", &pages) == 1) {
			add(owners, stack, pages);
			*stack = '\0';
			depth = 0;
		} else if (depth < DEPTH && sscanf(line, " %127[a-zA-Z0-9_.]+", name) == 1 &&
			   !is_allocator(name) &&
			   strlen(stack) + strlen(name) + 2 < sizeof(stack)) {
			if (depth++)
				strcat(stack, "<");
			strcat(stack, name);
		}
	}
	if (file)
		fclose(file);
}

struct growth {
	const struct owner	*after;
	unsigned long		before;
	long			pages;
};

static int by_growth(const void *a, const void *b)
{
	const struct growth *one = a, *other = b;

	return (one->pages < other->pages) - (one->pages > other->pages);
}

void print_owners(const struct owners *before, const struct owners *after, unsigned int most)
{
	static struct growth growth[MAX_OWNERS];
	unsigned int i;

	for (i = 0; i < after->count; i++) {
		unsigned int old = find(before, after->owner[i].stack);

		growth[i].after = &after->owner[i];
		growth[i].before = old < before->count ? before->owner[old].pages : 0;
		growth[i].pages = growth[i].after->pages - growth[i].before;
	}
	qsort(growth, after->count, sizeof(*growth), by_growth);
	for (i = 0; i < after->count && i < most && growth[i].pages > 0; i++)
		printf("owner %lu %lu %s\n", growth[i].before, growth[i].after->pages,
		       growth[i].after->stack);
	fflush(stdout);
}
