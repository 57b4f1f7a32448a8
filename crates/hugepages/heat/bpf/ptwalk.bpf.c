// SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
/*
 * Reads the page tables of a process, through the kernel's mapping of all memory (the direct map).
 *
 *   pgd ──> [p4d] ──> pud ──> pmd ──> table of 512 entries, copied out whole
 *    |        |        |       └ entry of 2 MiB, or a hole of 2 MiB
 *    |        |        └ entry of 1 GiB, or a hole of 1 GiB
 *    └────────┴ a hole of 512 GiB (256 TiB) is one step
 *
 * Nothing is locked and nothing is written. Tables may be changed, freed and used for something else
 * while they are read; so
 *   - bpf_probe_read_kernel never faults: a bad address is an error;
 *   - each copy is made under the RCU lock, which on kernels that free page tables by RCU (all with
 *     CONFIG_MMU_GATHER_RCU_TABLE_FREE) keeps what is reachable from being reused;
 *   - after each copy the way to it is walked anew from the task down. Only if every entry is what it
 *     was is the copy believed. Entries are compared without their accessed bits, which processors
 *     set at any time;
 *   - no address beyond the machine's memory is ever followed.
 *
 * Formats: Intel SDM volume 3, 4.5; arch/x86/include/asm/pgtable_types.h.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* Helpers that read kernel memory are for programs under its licence. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define PRESENT (1ULL << 0)
#define ACCESSED (1ULL << 5)
/* In an entry above the last level: it maps memory itself. Set too while a huge page is split. */
#define LEAF (1ULL << 7)
/* Without PRESENT: mapped, but any access faults (mprotect, NUMA balancing). */
#define PROTNONE (1ULL << 8)
/* Where an entry may hold an address: bits 12 to 51. Above lie protection keys and no-execute. */
#define ADDRESS 0x000ffffffffff000ULL

#define PAGE_SHIFT 12
#define PMD_SHIFT 21
#define PUD_SHIFT 30
#define P4D_SHIFT 39
#define PGD5_SHIFT 48
#define GIB (1ULL << PUD_SHIFT)
#define TABLE_BYTES (1 << PAGE_SHIFT)

/* Holes and entries looked at in one run, about a millisecond's worth. */
#define STEPS (64 * 1024)
/* How often one table is tried again when it changes meanwhile. */
#define TRIES 4

struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
/* Linux 6.13. Numbers as the caller's PID namespace does; the other as the initial one does. */
struct task_struct *bpf_task_from_vpid(s32 pid) __ksym __weak;
void bpf_task_release(struct task_struct *task) __ksym;
void bpf_rcu_read_lock(void) __ksym;
void bpf_rcu_read_unlock(void) __ksym;

struct ptwalk_request request;
struct ptwalk_response response;
u64 tables[PTWALK_TABLES][PTWALK_ENTRIES];

/* What was proven. Not in memory that user space maps: it tells where the kernel lies. */
struct machine {
	/* Virtual address of physical address 0. */
	u64 base;
	/* Bits of an entry that address the machine's memory. */
	u64 mask;
	/* What the other address bits of an entry must be: the bit that marks encrypted memory. */
	u64 encrypted;
	u64 limit;
	u32 levels;
	u32 padding;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct machine);
} machines SEC(".maps");

/* One way from the top down to a pmd table. */
struct path {
	u64 top; /* of five levels, else 0 */
	u64 upper;
	u64 pud;
	/* Address of the pmd table; 0 if the way ends before. */
	u64 pmds;
	/* Where it ends: size of the hole or entry, as a shift; 0 if it does not. */
	u32 stop;
	u32 beyond;
};

/* Where a walk is. In a map rather than on the stack, of which the verifier would follow every value. */
struct walk {
	struct machine m;
	u64 task;
	u64 mm;
	u64 pgd;
	u64 at;
	u64 end;
	/* at >> PUD_SHIFT of the snapshot; ~0 for none. */
	u64 gib;
	struct path path;
	/* The way as it is found when looked at again. */
	struct path again;
	u32 span;
	u32 spans;
	u32 tries;
	u32 status;
	u32 found;
	u32 tables;
	/* The pmd table at `path`, as it was. */
	u64 pmds[PTWALK_ENTRIES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct walk);
} walks SEC(".maps");

/*
 * Keeps the compiler from computing with a copy of `index`, of which the verifier then does not know
 * that it was checked.
 */
#define CHECKED(index) asm volatile("" : "+r"(index))

static __always_inline u64 load(u64 address)
{
	u64 value = 0;

	/* What cannot be read is left 0: not present. */
	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

static __always_inline u64 entry_of(u64 table, u64 at, u32 shift)
{
	return load(table + ((at >> shift) & 511) * 8);
}

/* Where the table that `entry` points to lies; 0 if it cannot be one. */
static __always_inline u64 table_of(const struct machine *m, u64 entry)
{
	u64 physical = entry & m->mask;

	if ((entry & ADDRESS & ~m->mask) != m->encrypted || physical >= m->limit)
		return 0;
	return m->base + physical;
}

/*
 * Takes one step down: the entry for `at` in `*table`, and the table it points to. Returns 0, and the
 * entry alone, where there is no such table: a hole, an entry that maps memory, or nonsense.
 */
static __always_inline int down(const struct machine *m, u64 *table, u64 at, u32 shift, u64 *entry)
{
	*entry = entry_of(*table, at, shift);
	if (!(*entry & PRESENT) || (*entry & LEAF))
		return 0;
	*table = table_of(m, *entry);
	return *table != 0;
}

/* The same on a way that is noted: where it ends, and whether that is beyond the machine's memory. */
static __always_inline int follow(const struct machine *m, struct path *path, u64 *table, u64 at,
				  u32 shift, u64 *entry)
{
	path->stop = shift;
	if (down(m, table, at, shift, entry))
		return 1;
	path->beyond = (*entry & (PRESENT | LEAF)) == PRESENT;
	return 0;
}

static __always_inline void descend(const struct machine *m, u64 table, u64 at, struct path *path)
{
	*path = (struct path){};
	if (m->levels == 5 && !follow(m, path, &table, at, PGD5_SHIFT, &path->top))
		return;
	if (!follow(m, path, &table, at, P4D_SHIFT, &path->upper))
		return;
	if (!follow(m, path, &table, at, PUD_SHIFT, &path->pud))
		return;
	path->stop = 0;
	path->pmds = table;
}

static __always_inline int same(u64 one, u64 other)
{
	return ((one ^ other) & ~ACCESSED) == 0;
}

/* The memory that `task` has now. */
static __always_inline u64 mm_of(u64 task)
{
	struct task_struct *t = (struct task_struct *)task;

	return (u64)BPF_CORE_READ(t, mm);
}

/* Whether the way down is still what `w->path` says, and the memory still the task's. */
static __always_inline int stands(struct walk *w, u64 at)
{
	u64 differs;

	descend(&w->m, w->pgd, at, &w->again);
	differs = (w->again.top ^ w->path.top) | (w->again.upper ^ w->path.upper) |
		  (w->again.pud ^ w->path.pud);
	return same(differs, 0) && mm_of(w->task) == w->mm;
}

/* Counts a try that found something changed. Returns 1 when there is no point in another. */
static __always_inline int unsettled(struct walk *w)
{
	u64 mm = mm_of(w->task);

	w->gib = ~0ULL;
	if (mm != w->mm) {
		/* Execution puts another in its place at once; without one it is exiting. */
		w->status = mm ? PTWALK_REPLACED : PTWALK_NO_MEMORY;
		return 1;
	}
	if (++w->tries >= TRIES) {
		w->tries = 0;
		w->at += 1ULL << PMD_SHIFT;
		response.moved++;
	}
	return 0;
}

static __always_inline int is_full(const struct walk *w)
{
	return w->found >= PTWALK_FOUND || w->tables >= PTWALK_TABLES;
}

static __always_inline void note(struct walk *w, u64 address, u64 entry, enum ptwalk_kind kind)
{
	u64 n = w->found;

	CHECKED(n);
	if (n >= PTWALK_FOUND)
		return;
	response.found[n].address = address;
	response.found[n].entry = entry;
	response.found[n].kind = kind;
	response.found[n].table = w->tables;
	w->found = n + 1;
}

static __always_inline void skip(struct walk *w, u32 shift)
{
	w->at = ((w->at >> shift) + 1) << shift;
	w->tries = 0;
}

/* Takes the way down to `w->at`, and a copy of the pmd table there. Returns 1 to stop. */
static __always_inline int enter(struct walk *w)
{
	int failed = 0;

	bpf_rcu_read_lock();
	descend(&w->m, w->pgd, w->at, &w->path);
	if (w->path.pmds)
		failed = bpf_probe_read_kernel(w->pmds, TABLE_BYTES, (void *)w->path.pmds);
	if (!stands(w, w->at))
		failed = 1;
	bpf_rcu_read_unlock();
	if (failed)
		return unsettled(w);
	response.beyond += w->path.beyond;
	if (!w->path.pmds) {
		if (w->path.stop == PUD_SHIFT && (w->path.pud & LEAF) && (w->path.pud & PRESENT))
			note(w, w->at >> PUD_SHIFT << PUD_SHIFT, w->path.pud, PTWALK_GIANT);
		skip(w, w->path.stop);
		return 0;
	}
	w->gib = w->at >> PUD_SHIFT;
	return 0;
}

/* Copies the table below `entry`. Returns 1 to stop. */
static __always_inline int copy(struct walk *w, u64 entry)
{
	u64 place = w->path.pmds + ((w->at >> PMD_SHIFT) & 511) * 8;
	u64 table = table_of(&w->m, entry);
	u64 n = w->tables;
	int failed;

	if (!table) {
		response.beyond++;
		skip(w, PMD_SHIFT);
		return 0;
	}
	CHECKED(n);
	if (n >= PTWALK_TABLES)
		return 1;
	bpf_rcu_read_lock();
	/* The snapshot may be some microseconds old: look before following. */
	failed = !same(load(place), entry);
	if (!failed)
		failed = bpf_probe_read_kernel(tables[n], TABLE_BYTES, (void *)table);
	if (!same(load(place), entry) || !stands(w, w->at))
		failed = 1;
	bpf_rcu_read_unlock();
	if (failed)
		return unsettled(w);
	note(w, w->at, entry, PTWALK_TABLE);
	w->tables = n + 1;
	skip(w, PMD_SHIFT);
	return 0;
}

static long step(u32 index, void *unused)
{
	u32 zero = 0;
	struct walk *w = bpf_map_lookup_elem(&walks, &zero);
	u64 entry;

	if (!w)
		return 1;
	if (w->at >= w->end) {
		u64 next = (u64)w->span + 1;

		CHECKED(next);
		if (next >= PTWALK_SPANS || next >= w->spans) {
			w->status = PTWALK_DONE;
			return 1;
		}
		w->span = next;
		w->at = request.span[next].start;
		w->end = request.span[next].end;
		return 0;
	}
	if (is_full(w))
		return 1;
	if (w->at >> PUD_SHIFT != w->gib)
		return enter(w);

	entry = w->pmds[(w->at >> PMD_SHIFT) & 511];
	if (entry & LEAF) {
		note(w, w->at, entry, PTWALK_HUGE);
	} else if (entry & PRESENT) {
		return copy(w, entry);
	}
	/* Else a hole, or a huge page that is being moved or is swapped out. */
	skip(w, PMD_SHIFT);
	return 0;
}

/* The request's task, to be released; notes when it started. */
static __always_inline struct task_struct *find(void)
{
	struct task_struct *task;

	if (bpf_ksym_exists(bpf_task_from_vpid))
		task = bpf_task_from_vpid(request.pid);
	else
		task = bpf_task_from_pid(request.pid);
	if (!task) {
		response.status = PTWALK_NO_TASK;
		return 0;
	}
	response.start_boottime = BPF_CORE_READ(task, start_boottime);
	return task;
}

/* Which memory the task has, in `response.context`. Returns its address, 0 for none. */
static __always_inline u64 memory(struct task_struct *task)
{
	struct mm_struct *mm = BPF_CORE_READ(task, mm), *now;
	u64 context;

	if (!mm) {
		response.status = PTWALK_NO_MEMORY;
		return 0;
	}
	context = BPF_CORE_READ(mm, context.ctx_id);
	now = BPF_CORE_READ(task, mm);
	if (now != mm || (request.context && request.context != context)) {
		response.status = now ? PTWALK_REPLACED : PTWALK_NO_MEMORY;
		return 0;
	}
	response.context = context;
	return (u64)mm;
}

static __always_inline void clear(void)
{
	response.status = PTWALK_NONE;
	response.found_count = 0;
	response.table_count = 0;
	response.moved = 0;
	response.beyond = 0;
	response.next_span = 0;
	response.next_at = 0;
	response.context = 0;
	response.start_boottime = 0;
	response.is_caller = 0;
	response.proven = 0;
}

/* Which memory a process has, and whether it is the caller's. */
SEC("syscall")
int who(void *unused)
{
	struct task_struct *caller = (struct task_struct *)bpf_get_current_task();
	struct task_struct *task;
	u64 mm;

	clear();
	task = find();
	if (!task)
		return 0;
	mm = memory(task);
	if (mm) {
		response.is_caller = mm == (u64)BPF_CORE_READ(caller, mm);
		response.status = PTWALK_DONE;
	}
	bpf_task_release(task);
	return 0;
}

SEC("syscall")
int walk(void *unused)
{
	struct machine *machine;
	struct task_struct *task;
	struct mm_struct *mm;
	struct walk *w;
	u32 zero = 0;
	u64 first;

	clear();
	machine = bpf_map_lookup_elem(&machines, &zero);
	w = bpf_map_lookup_elem(&walks, &zero);
	if (!machine || !w || !machine->levels) {
		response.status = PTWALK_UNPROVEN;
		return 0;
	}
	task = find();
	if (!task)
		return 0;
	first = request.first_span;
	CHECKED(first);
	mm = (struct mm_struct *)memory(task);
	if (mm && first < PTWALK_SPANS) {
		w->m = *machine;
		w->task = (u64)task;
		w->mm = (u64)mm;
		w->pgd = (u64)BPF_CORE_READ(mm, pgd);
		w->span = first;
		w->spans = request.spans;
		w->at = request.first_at;
		w->end = request.span[first].end;
		w->gib = ~0ULL;
		w->tries = 0;
		w->found = 0;
		w->tables = 0;
		w->status = PTWALK_MORE;
		bpf_loop(STEPS, step, 0, 0);
		response.found_count = w->found;
		response.table_count = w->tables;
		response.next_span = w->span;
		response.next_at = w->at;
		response.status = w->status;
	}
	bpf_task_release(task);
	return 0;
}

struct proof {
	struct machine m;
	u64 pgd;
	u64 at;
	u32 proven;
	u32 padding;
};

/*
 * Tries one base: does the way through the caller's own page tables, read by way of this base, lead to
 * the page with the magic words? By a wrong one it leads through other memory of the machine, or none.
 */
static long try_base(u32 index, struct proof *p)
{
	u32 shift = p->m.levels == 5 ? PGD5_SHIFT : P4D_SHIFT;
	u64 found[PTWALK_MAGIC] = {};
	u64 table = p->pgd, entry, physical, below;

	p->m.base = (p->pgd & ~(GIB - 1)) - (u64)index * GIB;
	entry = entry_of(table, p->at, shift);
	if (!(entry & PRESENT) || (entry & LEAF))
		return 1;
	/* The right number of levels shows which bit, if any, marks encrypted memory. */
	p->m.encrypted = entry & ADDRESS & ~p->m.mask;
	table = table_of(&p->m, entry);
	if (!table)
		return 1;
	if (p->m.levels == 5 && !down(&p->m, &table, p->at, P4D_SHIFT, &entry))
		return 0;
	shift = PUD_SHIFT;
	if (down(&p->m, &table, p->at, PUD_SHIFT, &entry)) {
		shift = PMD_SHIFT;
		if (down(&p->m, &table, p->at, PMD_SHIFT, &entry)) {
			shift = PAGE_SHIFT;
			entry = entry_of(table, p->at, PAGE_SHIFT);
		}
	}
	if (!(entry & PRESENT) || (shift != PAGE_SHIFT && !(entry & LEAF)))
		return 0;
	below = (1ULL << shift) - 1;
	physical = (entry & p->m.mask & ~below) | (p->at & below);
	if (physical >= p->m.limit)
		return 0;
	if (bpf_probe_read_kernel(found, sizeof(found), (void *)(p->m.base + physical)))
		return 0;
	if (found[0] != request.magic[0] || found[1] != request.magic[1] ||
	    found[2] != request.magic[2] || found[3] != request.magic[3])
		return 0;
	p->proven = 1;
	return 1;
}

/*
 * Finds out where the direct map begins, and proves it. No address of the kernel is known beforehand:
 * `pgd` is one of its addresses, and under KASLR its beginning is a multiple of 1 GiB at or below it, no
 * further away than the machine has memory (kernel_randomize_memory in arch/x86/mm/kaslr.c). The number
 * of levels is proven by the same token: with a wrong one the way leads nowhere.
 */
SEC("syscall")
int prove(void *unused)
{
	struct task_struct *caller = (struct task_struct *)bpf_get_current_task();
	struct machine *machine;
	struct proof p = {};
	u64 highest = request.limit - 1;
	u32 zero = 0;

	clear();
	machine = bpf_map_lookup_elem(&machines, &zero);
	if (!machine || !request.limit)
		return 0;
	highest |= highest >> 1;
	highest |= highest >> 2;
	highest |= highest >> 4;
	highest |= highest >> 8;
	highest |= highest >> 16;
	highest |= highest >> 32;
	p.m.mask = highest & ADDRESS;
	p.m.limit = request.limit;
	p.m.levels = request.levels;
	p.pgd = (u64)BPF_CORE_READ(caller, mm, pgd);
	p.at = request.magic_at;
	bpf_loop((request.limit >> PUD_SHIFT) + 2, try_base, &p, 0);
	if (p.proven)
		*machine = p.m;
	response.proven = p.proven;
	return 0;
}
