/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0 */
/*
 * What user space and the page-table walk tell each other.
 *
 * The only definition: the Rust side is generated from the compiled program's type information, and
 * asserts sizes and offsets.
 *
 *   request: whose memory, which spans, where to go on      response: what was found, where it stopped
 *
 * One run fills at most PTWALK_TABLES page tables or PTWALK_FOUND entries. Their memory is small
 * enough to stay in a core's second-level cache until user space has read it.
 */
#ifndef PTWALK_H
#define PTWALK_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef signed long long s64;

#define PTWALK_SPANS 128
#define PTWALK_TABLES 64
#define PTWALK_FOUND 1024
#define PTWALK_ENTRIES 512
#define PTWALK_MAGIC 4

enum ptwalk_status {
	/* Nothing ran. */
	PTWALK_NONE = 0,
	/* All spans were walked. */
	PTWALK_DONE = 1,
	/* The response is full, or the run long enough: go on from `next_span`, `next_at`. */
	PTWALK_MORE = 2,
	/* No task has this number. */
	PTWALK_NO_TASK = 3,
	/* The task has no memory: a zombie, or a thread of the kernel. */
	PTWALK_NO_MEMORY = 4,
	/* Its memory is not the one of `request.context` any more (exec). */
	PTWALK_REPLACED = 5,
	/* No base of the direct map was proven yet. */
	PTWALK_UNPROVEN = 6,
};

enum ptwalk_kind {
	/* `entry` is of the third-last level and points to a table, copied to `tables[table]`. */
	PTWALK_TABLE = 0,
	/* `entry` maps 2 MiB. */
	PTWALK_HUGE = 1,
	/* `entry` maps 1 GiB. */
	PTWALK_GIANT = 2,
};

/* Addresses [start, end), both multiples of 2 MiB. */
struct ptwalk_span {
	u64 start;
	u64 end;
};

struct ptwalk_request {
	/* The process, numbered as user space numbers it. */
	u32 pid;
	/* How many of `span` are filled. */
	u32 spans;
	/* The memory it must still have (`mm_context_t.ctx_id`); 0 for any. */
	u64 context;
	/* Where to begin: index of a span, and an address within it. */
	u32 first_span;
	/* prove: 4 or 5 levels. */
	u32 levels;
	u64 first_at;
	/* prove: bytes behind the end of the highest memory of the machine. */
	u64 limit;
	/* prove: address of the caller's own that holds `magic`. */
	u64 magic_at;
	u64 magic[PTWALK_MAGIC];
	struct ptwalk_span span[PTWALK_SPANS];
};

struct ptwalk_found {
	/* First address that `entry` maps. */
	u64 address;
	/* The entry of the table above, as it was. */
	u64 entry;
	enum ptwalk_kind kind;
	/* Which of `tables`, for PTWALK_TABLE. */
	u32 table;
};

struct ptwalk_response {
	enum ptwalk_status status;
	u32 found_count;
	u32 table_count;
	/* Tables given up because they kept changing under the walk. */
	u32 moved;
	/* Entries that point beyond `limit`: memory was added since it was found out. */
	u32 beyond;
	u32 next_span;
	u64 next_at;
	/* Never used twice while the machine runs (`mm_context_t.ctx_id`). */
	u64 context;
	/* When the task started, in nanoseconds since boot. */
	u64 start_boottime;
	/* who: 1 if its memory is the caller's. */
	u32 is_caller;
	/* prove: 1 if a base was proven. */
	u32 proven;
	struct ptwalk_found found[PTWALK_FOUND];
};

#endif
