/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the loads of kernel/stress have in common. Each is a process that does one
 * thing after another until it is told to end, counts what it did, and looks after
 * its own data: a byte that is not what was written is reported with wrong().
 */
#ifndef STRESS_H
#define STRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "page_color_lib.h"

#define MIB		(1UL << 20)
#define PAGE		4096UL
#define DISK		"/disk"			/* ext4, empty */
#define COMPILER	"/compiler"		/* ext4, with a compiler; may be empty */
#define GROUPS		"/sys/fs/cgroup/stress"
#define THP		"/sys/kernel/mm/transparent_hugepage/"

/* What is counted. */
#define OPERATIONS(OP)							\
	OP(files_compiled) OP(programs_linked) OP(programs_run)		\
	OP(processes_forked) OP(threads_started)			\
	OP(mib_written) OP(mib_verified)				\
	OP(mib_paged_out) OP(hot_sets_changed)				\
	OP(superpages_asked) OP(superpages_collapsed) OP(superpages_split) \
	OP(files_written) OP(file_pages_verified)			\
	OP(groups_made) OP(groups_removed) OP(group_colors_written)	\
	OP(group_strict_written) OP(processes_moved)			\
	OP(task_sets_changed) OP(task_strict_sets)			\
	OP(pages_moved_between_nodes)					\
	OP(coloring_switched) OP(spread_switched) OP(reservations_changed) \
	OP(compactions) OP(caches_dropped)				\
	OP(blocks_offlined) OP(blocks_onlined)				\
	OP(hugetlb_pages) OP(cma_allocations) OP(ksm_switched)		\
	OP(kills_provoked)						\
	OP(page_color_read) OP(pid_page_color_read) OP(super_page_read)

enum operation {
#define OP(name) DONE_##name,
	OPERATIONS(OP)
#undef OP
	NR_OPERATIONS
};

/* What all processes share. */
struct shared {
	unsigned long	done[NR_OPERATIONS];
	unsigned long	failures;
	int		stop;
	/* Held by who switches coloring or memory on or off, and by who counts pages. */
	int		settings_lock;
	/* How much memory pressure() takes, unless room is asked for. */
	size_t		pressure;
	int		room;
};

extern struct shared *shared;
/* Coloring stays off. */
extern bool uncolored;

void done(enum operation what, unsigned long count);
#define DONE(name)		done(DONE_##name, 1)
#define DONE_N(name, count)	done(DONE_##name, count)

/* Something that must not be: says it, and lets the stress fail. */
void __attribute__((format(printf, 1, 2))) wrong(const char *text, ...);

static inline bool stopping(void)
{
	return __atomic_load_n(&shared->stop, __ATOMIC_RELAXED);
}

/* Numbers that are the same for the same seed: 0 to @below - 1. */
unsigned int random_below(unsigned int *seed, unsigned int below);

/* Memory, all bytes of which say where they belong. */
void write_bytes(void *memory, size_t size, uint64_t mark);
bool check_bytes(const char *whose, const void *memory, size_t size, uint64_t mark);
/* Memory of base pages; or NULL. */
void *map(size_t size);

/* Other colors for the calling task: any but too few, sometimes strict. */
void change_own_set(unsigned int *seed);
/* As text, for cpuset.colors. */
void some_colors(unsigned int *seed, char *text, size_t size);

/*
 * Waits for a child: 0 if it ended by itself, and well. It may have been killed for want
 * of memory of its colors; any other end is reported.
 */
int reap(const char *whose, int pid);

struct load {
	const char	*name;
	void		(*body)(unsigned int seed);
	unsigned int	count;
};

void compile(unsigned int seed);
void fork_storm(unsigned int seed);
void threads(unsigned int seed);
void pressure(unsigned int seed);
void hot_set(unsigned int seed);
void superpages(unsigned int seed);
void files(unsigned int seed);
void shared_memory(unsigned int seed);
void groups(unsigned int seed);
void settings(unsigned int seed);
void readers(unsigned int seed);
void kills(unsigned int seed);

/* settings.c: has memory blocks back that were taken offline; how many there were. */
unsigned int return_blocks(void);

void settings_lock(void);
void settings_unlock(void);

/* checks.c: whether all is as it should be. */
bool check_zones(void);
/* Reads the kernel's log from where it was last read. */
bool check_log(void);

/* slab.c: the kernel's own memory, by caches. */
#define MAX_CACHES	400
struct cache {
	char		name[40];
	unsigned long	kb;
	unsigned long	objects;
};

struct caches {
	unsigned int	count;
	struct cache	cache[MAX_CACHES];
};

/* Gives back whole slabs that are empty, and what KASAN keeps of what was freed. */
void shrink_caches(void);
void read_caches(struct caches *caches);
/* Lines of WHEN, name, kB before and after, objects before and after: of those that grew most. */
void print_growth(const struct caches *before, const struct caches *after, const char *when,
		  unsigned int most);
/* Of stacks of who allocated and freed what: they are kept for good. */
unsigned long depot_kb(void);

/* owners.c: pages in use, by who allocated them. */
#define MAX_OWNERS	3000
struct owner {
	char		stack[200];
	unsigned long	pages;
};

struct owners {
	unsigned int	count;
	struct owner	owner[MAX_OWNERS];
};

void read_owners(struct owners *owners);
/* Lines of pages before and after, and the stack, of those that grew most. */
void print_owners(const struct owners *before, const struct owners *after, unsigned int most);

/* What is used when nobody uses anything, in kB. */
#define REST_USED	9
extern const char *const rest_names[REST_USED];

struct rest {
	unsigned long	free;
	/* After shrinking, and what that gave back. */
	unsigned long	slab;
	unsigned long	shrunk;
	unsigned long	depot;
	/* Addresses that were freed and are not given anew yet: KASAN's map of them stays. */
	unsigned long	unpurged;
	unsigned long	unknown;
	/* By the names in rest_names. */
	unsigned long	used[REST_USED];
	/* Groups that were removed, and to which something is charged still. */
	unsigned long	dying;
	struct caches	caches;
};
void look_at_rest(struct rest *rest);

#endif /* STRESS_H */
