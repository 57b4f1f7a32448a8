/*
 * What the visitor and the code inside a program tell each other. The same in src/desk.rs; sizes and offsets are compared
 * when either is compiled.
 *
 *   base          code      read and execute; the visitor writes it through /proc/PID/mem
 *   base + 4096   home      read only: how to go back to where the thread was
 *   base + 8192   desk      orders, answers, what is to be undone; below its end the stack
 *   its end       guard     a page that cannot be written: else the kernel would make the desk one mapping with memory of the
 *                           program's that may follow, and what is done to that would be done to the desk as well
 */
#ifndef SUPERHUE_DESK_H
#define SUPERHUE_DESK_H

typedef unsigned int u32;
typedef unsigned long u64;
typedef long s64;

#define PAGE 4096ul
#define HOME_OFFSET PAGE
#define DESK_OFFSET (2 * PAGE)
#define DESK_SIZE (24 * PAGE)
/* Words that carry the pages and the results of an order. */
#define PAPER_WORDS 8192
#define KEPT_MAX 16

/* How to go back. Registers as the thread had them, or as the call that was interrupted is begun again with. */
struct home {
	u64 rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15;
	u64 rip, rsp, flags, mask;
	/* struct sched_attr as the thread had it: it goes before others while all wait for it. */
	u64 scheduling[6];
};

enum order { IDLE, CALL, ADVISE, TRIAL, EXCHANGE, PAIR, FETCH, DEAL, CLEAR, LOOK };

/* What CALL has made that must be undone, should nobody else do it. */
enum keep { KEEP_NOTHING, KEEP_FD, KEEP_MAP, DROP_FD };

struct kept {
	u64 what, at, length;
};

struct desk {
	/* Counts orders; the visitor writes it last. */
	volatile u64 asked;
	/* Follows `asked` when the order is done. */
	volatile u64 answered;
	/* 1 once the code has given up waiting and is on its way out. */
	volatile u64 left;
	u64 order;
	u64 arguments[8];
	s64 result;
	/* Of TRIAL: the clock and the CPU before and after. */
	u64 ticks[2], cpu[2];
	u64 keeps;
	struct kept kept[KEPT_MAX];
	u64 paper[PAPER_WORDS];
};

#endif
