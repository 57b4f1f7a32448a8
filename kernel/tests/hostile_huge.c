// SPDX-License-Identifier: GPL-2.0-only
/*
 * Superpages on demand, by MADV_COLLAPSE and from the pool of hugetlb, under every policy: each succeeds or
 * fails with an error, what memory held is there, and of a strict set nothing is outside afterwards. Who has all
 * colors gets superpages, and so does everybody from the pool, which is filled before.
 */
#define _GNU_SOURCE
#include "hostile.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif
#define SUPERPAGE	(2 * MIB)
#define COUNT		8
#define POOL		"/proc/sys/vm/nr_hugepages"

static unsigned int colors;

enum policy { OFF, SPREAD, ALL, HALF, STRICT_HALF, ONE, STRICT_ONE, POLICIES };
static const char *const names[] = { "off", "spread", "a set of all", "a set of half", "a strict set of half",
				     "one color", "one color, strict" };

static int take(enum policy policy)
{
	switch (policy) {
	case OFF:
		return 0;
	case SPREAD:
		return prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SPREAD, 0, 0, 0) ? errno : 0;
	case ALL:
		return ask(0, colors, false);
	case HALF:
	case STRICT_HALF:
		return ask(0, colors / 2, policy == STRICT_HALF);
	default:
		return ask(colors / 2, 1, policy == STRICT_ONE);
	}
}

static bool is_strict(enum policy policy)
{
	return policy == STRICT_HALF || policy == STRICT_ONE;
}

/* True if a task that asks gets a huge page: one with all colors, and one in the pool, which has none. */
static bool has_superpages(enum policy policy, bool pooled)
{
	return pooled || policy == OFF || policy == SPREAD || policy == ALL;
}

/* What one has come to: the number of superpages, and a bit that says it went wrong. */
#define WRONG	0x40

static int collapse(enum policy policy)
{
	char *memory = mmap(NULL, (COUNT + 1) * SUPERPAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int collapsed = 0;

	if (memory == MAP_FAILED || take(policy))
		return WRONG;
	memory = (char *)(((uintptr_t)memory + SUPERPAGE - 1) & -SUPERPAGE);
	madvise(memory, COUNT * SUPERPAGE, MADV_NOHUGEPAGE);
	/* Every other one is full; the others have a page in eight. */
	for (unsigned int i = 0; i < COUNT; i++)
		for (size_t at = 0; at < SUPERPAGE; at += i % 2 ? 8 * PAGE : PAGE)
			*(volatile uint64_t *)(memory + i * SUPERPAGE + at) = at + i;
	madvise(memory, COUNT * SUPERPAGE, MADV_HUGEPAGE);
	for (unsigned int i = 0; i < COUNT; i++) {
		if (!madvise(memory + i * SUPERPAGE, SUPERPAGE, MADV_COLLAPSE))
			collapsed++;
		else if (errno != EINVAL && errno != ENOMEM && errno != EAGAIN && errno != EBUSY)
			return WRONG;
	}
	for (unsigned int i = 0; i < COUNT; i++)
		for (size_t at = 0; at < SUPERPAGE; at += i % 2 ? 8 * PAGE : PAGE)
			if (*(volatile uint64_t *)(memory + i * SUPERPAGE + at) != at + i)
				return WRONG;
	/* A superpage has all colors. */
	return is_strict(policy) && collapsed ? WRONG | collapsed : collapsed;
}

static int pool(enum policy policy)
{
	char *memory;

	if (take(policy))
		return WRONG;
	memory = mmap(NULL, COUNT / 2 * SUPERPAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (memory == MAP_FAILED)
		return 0;
	/* SIGBUS if there is none after all: the child's end says so. */
	for (size_t at = 0; at < COUNT / 2 * SUPERPAGE; at += PAGE)
		*(volatile uint64_t *)(memory + at) = at;
	for (size_t at = 0; at < COUNT / 2 * SUPERPAGE; at += PAGE)
		if (*(volatile uint64_t *)(memory + at) != at)
			return WRONG;
	return COUNT / 2;
}

static void test(const char *what, int (*body)(enum policy), enum policy policy, bool nobody)
{
	const char *who = nobody ? "nobody" : "root";
	bool right;
	pid_t child;
	int status;

	if (body == collapse && !has_thp()) {
		ksft_test_result_skip("%s, %s, %s: this kernel has no transparent superpages\n", what, names[policy], who);
		return;
	}
	child = fork();
	if (!child) {
		if (nobody) {
			be_nobody();
			/* What it may not have it cannot abuse. */
			if (take(policy) == EPERM)
				_exit(REFUSED);
		}
		_exit(body(policy));
	}
	status = await(child, 60);
	ksft_print_msg("%s, %s, %s: status %#x, %d superpages%s\n", what, names[policy], who, status,
		       refused(status) ? 0 : status >> 8 & 0x3f, refused(status) ? ", refused" : "");
	right = WIFEXITED(status) ? !(WEXITSTATUS(status) & WRONG) : status != -1 && WTERMSIG(status) == SIGBUS;
	/* Where superpages are to be had, that there are none is no success. */
	if (has_superpages(policy, body == pool))
		right = right && WIFEXITED(status) && WEXITSTATUS(status);
	ksft_test_result(refused(status) || right, "%s, %s, %s\n", what, names[policy], who);
}

int main(void)
{
	char before[32] = "0";

	colors = begin();
	if (colors < 4)
		ksft_exit_skip("fewer than 4 colors\n");
	snprintf(before, sizeof(before), "%ld", number_in("/proc/meminfo", "HugePages_Total:"));
	put(POOL, "8");
	if (number_in("/proc/meminfo", "HugePages_Free:") < COUNT / 2)
		ksft_exit_fail_msg("the pool cannot be filled\n");
	ksft_set_plan(4 * POLICIES);
	for (enum policy policy = OFF; policy < POLICIES; policy++) {
		test("MADV_COLLAPSE", collapse, policy, false);
		test("MADV_COLLAPSE", collapse, policy, true);
		test("hugetlb", pool, policy, false);
		test("hugetlb", pool, policy, true);
	}
	put(POOL, before);
	ksft_finished();
}
