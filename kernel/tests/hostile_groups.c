// SPDX-License-Identifier: GPL-2.0-only
/*
 * Somebody without privileges uses up the colors of a strict set. That is to be his own problem: whatever
 * is reclaimed or killed for it belongs to his group, and others get on as before. Memory is there
 * in plenty all the time, it is only the colors that are not.
 */
#define _GNU_SOURCE
#include "hostile.h"

#define BYTES_HELD	(64 * MIB)

static unsigned int colors;
static struct shared *shared;

/* The colors are a sixteenth of all; so much memory they have. */
#define PART	16
static size_t part;

static void use_twice(void)
{
	char *memory = map(2 * part);

	fill(memory, part);
	/* From here on there is none of its colors. */
	shared->ready = 1;
	fill(memory + part, part);
	shared->spoilt = !intact(memory, part) || !intact(memory + part, part);
}

/*
 * Two groups hold memory, one of them protected by memory.min or memory.low. With as much memory free
 * as there is, nothing of them may be reclaimed, not even of the one that is not protected.
 */
static void protection(enum way way, const char *file)
{
	struct shared *min = share(), *other = share();
	long stolen, bystander;
	int status;

	shared = share();
	group_make("protected");
	group_make("bystander");
	group_put("protected", file, "%lu", 2 * BYTES_HELD);
	begin_victim("protected", BYTES_HELD, min);
	begin_victim("bystander", BYTES_HELD, other);
	make_hostile(way, "hostile", 0, colors / PART);
	status = await(begin_hostile(way, "hostile", 0, colors / PART, use_twice), 400);
	stolen = group_number("protected", "memory.swap.current", NULL) / (long)PAGE;
	bystander = group_number("bystander", "memory.swap.current", NULL) / (long)PAGE;
	ksft_print_msg("%s, %s: %ld pages reclaimed of the protected, %ld of another group%s, status %#x\n", file,
		       way_names[way], stolen, bystander, refused(status) ? ", refused" : "", status);
	/* On a slow machine it may not come to its end. */
	ksft_test_result((tried(status) || shared->ready) && !shared->spoilt && !stolen && !bystander &&
			 group_number("protected", "memory.events", "oom_kill") == 0 &&
			 group_number("bystander", "memory.events", "oom_kill") == 0,
			 "%s: a strict set %s takes nobody else's memory\n", file, way_names[way]);
	group_end("hostile", 20);
	group_end("protected", 20);
	group_end("bystander", 20);
}

/* Many small processes, none of which is worth killing beside a large one. */
static void be_many(void)
{
	for (size_t bytes = 0; bytes < 2 * part; bytes += 4 * MIB) {
		pid_t child = fork();

		if (!child) {
			fill(map(4 * MIB), 4 * MIB);
			shared->rounds++;
			pause();
		}
		if (child < 0)
			break;
		/* One after the other: all of them have their memory, or one is killed. */
		for (int tries = 200; tries; tries--) {
			unsigned long before = shared->rounds;

			pause_for(0.02);
			if (shared->rounds != before || waitpid(child, NULL, WNOHANG) == child)
				break;
		}
	}
}

/*
 * Others have memory of the same colors, some since they have a set that overlaps, some by chance. They
 * are larger than anything in the group whose colors are used up.
 */
static void killing(enum way way)
{
	struct shared *same = share(), *none = share();
	pid_t victim, bystander;
	long killed, own;
	bool alive;
	int status;

	shared = share();
	swap_switch(false);
	group_make("same");
	group_make("bystander");
	group_put("same", "cpuset.colors", "0-%u", colors / 4 - 1);
	victim = begin_victim("same", BYTES_HELD, same);
	bystander = begin_victim("bystander", BYTES_HELD, none);
	make_hostile(way, "hostile", 0, colors / PART);
	status = await(begin_hostile(way, "hostile", 0, colors / PART, be_many), 300);
	killed = group_number("same", "memory.events", "oom_kill") + group_number("bystander", "memory.events", "oom_kill");
	own = group_number("hostile", "memory.events", "oom_kill");
	alive = waitpid(victim, NULL, WNOHANG) == 0 && waitpid(bystander, NULL, WNOHANG) == 0;
	ksft_print_msg("%s: %ld of others killed, %ld of its own, others %s%s, status %#x, %lu had memory\n", way_names[way],
		       killed, own, alive ? "alive" : "dead", refused(status) ? ", refused" : "", status, shared->rounds);
	/* Unless one of its own is killed its colors were not used up. */
	ksft_test_result((refused(status) || own > 0) && alive && !killed, "a strict set %s kills nobody else\n",
			 way_names[way]);
	group_end("hostile", 20);
	group_end("same", 20);
	group_end("bystander", 20);
	swap_switch(true);
}

static void use_much(void)
{
	size_t bytes = part;

	fill(map(bytes), bytes);
}

/* One color under memory.max: one of them is short all the time. */
static void one_color(enum way way)
{
	struct shared *other = share();
	unsigned long before;
	long stolen, killed;
	double took;
	int status;

	shared = share();
	group_make("bystander");
	begin_victim("bystander", BYTES_HELD, other);
	make_hostile(way, "hostile", colors - 1, 1);
	group_put("hostile", "memory.max", "%lu", part / 2);
	before = other->rounds;
	took = now();
	status = await(begin_hostile(way, "hostile", colors - 1, 1, use_much), 180);
	took = now() - took;
	stolen = group_number("bystander", "memory.swap.current", NULL) / (long)PAGE;
	killed = group_number("bystander", "memory.events", "oom_kill");
	ksft_print_msg("%s: status %#x%s after %.1f s, %ld pages of another group reclaimed, %ld killed, which did %lu rounds\n",
		       way_names[way], status, refused(status) ? ", refused" : "", took, stolen, killed,
		       other->rounds - before);
	ksft_test_result(tried(status) && !stolen && !killed && !other->spoilt && (took < 2 || other->rounds > before),
			 "one color under memory.max %s\n", way_names[way]);
	group_end("hostile", 20);
	group_end("bystander", 20);
}

/* Forks as much as it may, each with memory of its own, until it is killed. */
static void bomb(void)
{
	for (;;) {
		pid_t child = fork();

		if (child <= 0) {
			fill(map(MIB / 2), MIB / 2);
			shared->rounds++;
		}
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}

static void fork_bomb(enum way way)
{
	struct shared *other = share();
	unsigned long before, during;
	long stolen, killed;
	bool gone;
	int status;

	shared = share();
	group_make("bystander");
	begin_victim("bystander", BYTES_HELD, other);
	make_hostile(way, "hostile", 0, 2);
	if (!group_put("hostile", "pids.max", "200")) {
		ksft_test_result_skip("a fork bomb %s: no limit of processes\n", way_names[way]);
		goto end;
	}
	before = other->rounds;
	status = await(begin_hostile(way, "hostile", 0, 2, bomb), 30);
	during = other->rounds - before;
	gone = group_end("hostile", 30);
	stolen = group_number("bystander", "memory.swap.current", NULL) / (long)PAGE;
	killed = group_number("bystander", "memory.events", "oom_kill");
	ksft_print_msg("%s: %lu began%s, another group did %lu rounds, %ld pages of it reclaimed, %ld killed; the bomb is %s\n",
		       way_names[way], shared->rounds, refused(status) ? ", refused" : "", during, stolen, killed,
		       gone ? "gone" : "still there");
	ksft_test_result((refused(status) || (shared->rounds && during >= 3)) && gone && !stolen && !killed && !other->spoilt,
			 "a fork bomb with a strict set %s\n", way_names[way]);
end:
	group_end("hostile", 30);
	group_end("bystander", 20);
}

int main(void)
{
	static void (*const tests[])(enum way) = { killing, one_color, fork_bomb };

	colors = begin();
	if (colors < PART)
		ksft_exit_skip("fewer than %d colors\n", PART);
	put(GROUPS "cgroup.subtree_control", "+pids");
	part = sysconf(_SC_PHYS_PAGES) * PAGE / PART;
	ksft_set_plan(10);
	for (enum way way = BY_PRCTL; way <= BY_GROUP; way++) {
		protection(way, "memory.min");
		protection(way, "memory.low");
		for (unsigned int i = 0; i < ARRAY_SIZE(tests); i++)
			tests[i](way);
	}
	ksft_finished();
}
