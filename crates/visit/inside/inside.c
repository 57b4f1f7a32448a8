/*
 * Runs inside a stopped program, on one of its threads: obeys orders that the visitor lays on the desk.
 *
 * General registers only, no library, no relocation, no signal (all are blocked). No call that sleeps for a time, which
 * would overwrite how the kernel goes on with the thread's own interrupted call (struct restart_block). When no order
 * comes for PATIENCE the visitor is dead: what was made is undone, and the thread goes back to where it was, by itself;
 * the page that this code is in cannot unmap itself and stays (until Work::Tidy, src/visitor.rs).
 */
#include "desk.h"

#define SYS_rt_sigprocmask 14
#define SYS_ioctl 16
#define SYS_mprotect 10
#define SYS_munmap 11
#define SYS_sched_yield 24
#define SYS_mincore 27
#define SYS_madvise 28
#define SYS_close 3
#define SYS_recvmsg 47
#define SYS_socketpair 53
#define SYS_clock_gettime 228
#define SYS_fallocate 285
#define SYS_sched_setattr 314

#define EAGAIN 11
#define EINVAL 22
#define EEXIST 17

/* FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE */
#define PUNCH 3

#define UFFDIO_MOVE 0xc028aa05ul
#define UFFDIO_COPY 0xc028aa03ul

/* Nanoseconds without an order after which the visitor is taken for dead. */
#define PATIENCE 200000000l

/*
 * Looks for an order, about a millisecond's worth, before the CPU is given up: who wants it has it for several, and all wait for
 * this thread.
 */
#define SPIN 30000

struct move {
	u64 dst, src, len, mode;
	s64 moved;
};

#define STRING(x) #x
#define TEXT(x) STRING(x)

/*
 * Entered with rdi = base. Gets a desk and a stack, works, and goes home. On the way home the flags come first, while
 * signals are still blocked; then the stack pointer; then signals are let through; the other registers last, so that a
 * signal that comes on the way finds a stack it may use.
 */
__asm__(
	".section .text.entry,\"ax\",@progbits\n"
	".globl entry\n"
	"entry:\n"
	"	lea entry(%rip), %rbx\n"
	"	lea " TEXT(2 * 4096) "(%rbx), %rdi\n"
	"	mov $" TEXT(24 * 4096) ", %esi\n"
	"	mov $3, %edx\n"
	"	mov $" TEXT(SYS_mprotect) ", %eax\n"
	"	syscall\n"
	"	test %rax, %rax\n"
	"	jnz home\n"
	"	lea " TEXT(26 * 4096) "(%rbx), %rsp\n"
	"	lea " TEXT(2 * 4096) "(%rbx), %rdi\n"
	"	call serve\n"
	"home:\n"
	"	lea entry(%rip), %rbx\n"
	"	lea " TEXT(2 * 4096) "(%rbx), %rdi\n"
	"	mov $" TEXT(25 * 4096) ", %esi\n"
	"	mov $" TEXT(SYS_munmap) ", %eax\n"
	"	syscall\n"
	"	xor %edi, %edi\n"
	"	lea entry+4096+19*8(%rip), %rsi\n"
	"	xor %edx, %edx\n"
	"	mov $" TEXT(SYS_sched_setattr) ", %eax\n"
	"	syscall\n"
	"	lea entry+4096+17*8(%rip), %rsp\n"
	"	popfq\n"
	"	mov entry+4096+16*8(%rip), %rsp\n"
	"	lea entry+4096+18*8(%rip), %rsi\n"
	"	mov $2, %edi\n"
	"	mov $0, %edx\n"
	"	mov $8, %r10d\n"
	"	mov $14, %eax\n"
	"	syscall\n"
	"	mov entry+4096+0*8(%rip), %rax\n"
	"	mov entry+4096+1*8(%rip), %rbx\n"
	"	mov entry+4096+2*8(%rip), %rcx\n"
	"	mov entry+4096+3*8(%rip), %rdx\n"
	"	mov entry+4096+4*8(%rip), %rsi\n"
	"	mov entry+4096+5*8(%rip), %rdi\n"
	"	mov entry+4096+6*8(%rip), %rbp\n"
	"	mov entry+4096+7*8(%rip), %r8\n"
	"	mov entry+4096+8*8(%rip), %r9\n"
	"	mov entry+4096+9*8(%rip), %r10\n"
	"	mov entry+4096+10*8(%rip), %r11\n"
	"	mov entry+4096+11*8(%rip), %r12\n"
	"	mov entry+4096+12*8(%rip), %r13\n"
	"	mov entry+4096+13*8(%rip), %r14\n"
	"	mov entry+4096+14*8(%rip), %r15\n"
	"	jmp *entry+4096+15*8(%rip)\n"
	"	.text\n");

static inline s64 call(u64 n, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	s64 r;

	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return r;
}

static inline s64 call3(u64 n, u64 a, u64 b, u64 c)
{
	return call(n, a, b, c, 0, 0, 0);
}

static s64 now(void)
{
	s64 time[2] = { 0, 0 };

	call3(SYS_clock_gettime, 1, (u64)time, 0);
	return time[0] * 1000000000l + time[1];
}

static void keep(struct desk *desk, u64 what, u64 at, u64 length)
{
	if (desk->keeps < KEPT_MAX) {
		struct kept *kept = &desk->kept[desk->keeps];

		kept->what = what;
		kept->at = at;
		kept->length = length;
		desk->keeps++;
	}
}

static void drop_fd(struct desk *desk, u64 fd)
{
	for (u64 i = 0; i < desk->keeps; i++)
		if (desk->kept[i].what == KEEP_FD && desk->kept[i].at == fd)
			desk->kept[i].what = KEEP_NOTHING;
	call3(SYS_close, fd, 0, 0);
}

/* Closing a userfaultfd ends its registrations. The last made goes first. */
static void undo(struct desk *desk)
{
	while (desk->keeps > 0) {
		struct kept *kept = &desk->kept[--desk->keeps];

		if (kept->what == KEEP_FD)
			call3(SYS_close, kept->at, 0, 0);
		else if (kept->what == KEEP_MAP)
			call3(SYS_munmap, kept->at, kept->length, 0);
	}
}

static s64 any_call(struct desk *desk)
{
	u64 *a = desk->arguments;
	s64 r;

	if (a[7] == DROP_FD) {
		drop_fd(desk, a[1]);
		return 0;
	}
	/* Nothing is made that could not be undone. */
	if (a[7] != KEEP_NOTHING && desk->keeps >= KEPT_MAX)
		return -EAGAIN;
	r = call(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
	if (r < 0 && r > -4096)
		return r;
	if (a[7] == KEEP_FD)
		keep(desk, KEEP_FD, r, 0);
	else if (a[7] == KEEP_MAP)
		keep(desk, KEEP_MAP, r, a[2]);
	return r;
}

/* madvise of [0] ranges: start, length, advice in, an error number out in place of the start; until the clock says [1]. */
static s64 advise(struct desk *desk)
{
	u64 n = desk->arguments[0], i;

	for (i = 0; i < n && (i == 0 || now() < (s64)desk->arguments[1]); i++) {
		u64 *range = &desk->paper[3 * i];

		range[0] = -call3(SYS_madvise, range[0], range[1], range[2]);
	}
	return i;
}

static inline u64 clock(u32 *cpu)
{
	u32 low, high;

	__asm__ volatile("lfence\n\trdtscp\n\tlfence" : "=a"(low), "=d"(high), "=c"(*cpu) : : "memory");
	return (u64)high << 32 | low;
}

static inline void touch(u64 address)
{
	u32 byte;

	__asm__ volatile("movzbl (%1), %0" : "=r"(byte) : "r"(address));
}

/*
 * The experiment of crates/colors/color/src/oracles/hardware.rs, with the same steps: load, push there and back, time a chain of
 * loads. Paper: 8 offsets and a spare one, [0] targets, [1] evictors; the targets are replaced by their times.
 */
static s64 trial(struct desk *desk)
{
	u64 *offsets = desk->paper, spare = desk->paper[8];
	u64 *targets = desk->paper + 9, n = desk->arguments[0];
	u64 *evictors = targets + n, m = desk->arguments[1];
	u32 cpu, ignored;

	desk->ticks[0] = clock(&cpu);
	desk->cpu[0] = cpu;
	for (u64 i = 0; i < n; i++)
		for (int k = 0; k < 8; k++)
			touch(targets[i] + offsets[k]);
	for (int k = 0; k < 8; k++) {
		for (u64 i = 0; i < m; i++)
			touch(evictors[i] + offsets[k]);
		for (u64 i = m; i-- > 0;)
			touch(evictors[i] + offsets[k]);
	}
	for (u64 i = 0; i < n; i++) {
		u64 page = targets[i], zero = 0, begin;

		touch(page + spare);
		begin = clock(&ignored);
		for (int k = 0; k < 8; k++)
			__asm__ volatile("movzbl (%1,%0), %k0\n\tand $0, %k0" : "+r"(zero) : "r"(page + offsets[k]));
		targets[i] = clock(&ignored) - begin;
	}
	desk->ticks[1] = clock(&cpu);
	desk->cpu[1] = cpu;
	return 0;
}

static int is_there(u64 page)
{
	unsigned char there = 0;

	return call3(SYS_mincore, page, PAGE, (u64)&there) == 0 && (there & 1);
}

/*
 * Which of [0] pages can be read: a 1 in its place, else 0. The program may have unmapped or locked them since they were seen, and a
 * fault of ours would cost it its handler of SIGSEGV: the kernel drops that when the signal is blocked. The kernel reads the
 * set of signals, then refuses how it is to be used.
 */
static s64 look(struct desk *desk)
{
	u64 n = desk->arguments[0], i;

	for (i = 0; i < n; i++) {
		u64 page = desk->paper[i];

		desk->paper[i] = is_there(page) && call(SYS_rt_sigprocmask, -1ul, page, 0, 8, 0, 0) == -EINVAL;
	}
	return n;
}

/* Moves one page. What the kernel says of a failure is not believed (EEXIST comes after success, too): looks. */
static s64 move(u64 fd, u64 to, u64 from)
{
	s64 r = 0;

	for (int attempt = 0; attempt < 8; attempt++) {
		struct move move = { to, from, PAGE, 0, 0 };

		r = call3(SYS_ioctl, fd, UFFDIO_MOVE, (u64)&move);
		if (r == 0 && move.moved == (s64)PAGE)
			return 0;
		if (is_there(to) && !is_there(from))
			return 0;
		if (r != -EAGAIN && r != -EEXIST)
			break;
	}
	return r ? r : -EAGAIN;
}

static void copy(u64 to, u64 from)
{
	u64 n = PAGE / 8;

	__asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

/*
 * Exchanges the frames of [0] pages through userfaultfd [1], with the staging pages from [2] on, until the clock says [3].
 * Paper: page, fresh page of the same program; an error number comes back in place of the fresh page.
 *
 *   page ----move----> staging ----copy----> fresh ----move----> page          a hole for as long as the copy takes
 */
static s64 exchange(struct desk *desk)
{
	u64 n = desk->arguments[0], fd = desk->arguments[1], staging = desk->arguments[2], i;

	for (i = 0; i < n && (i == 0 || now() < (s64)desk->arguments[3]); i++) {
		u64 *pair = &desk->paper[2 * i], page = pair[0], fresh = pair[1], aside = staging + PAGE * i;
		s64 r = move(fd, aside, page);

		if (r == 0) {
			copy(fresh, aside);
			r = move(fd, page, fresh);
			if (r != 0 && move(fd, page, aside) != 0) {
				/* Neither frame goes in: a third one, which the kernel takes from wherever it can. */
				struct move copied = { page, aside, PAGE, 0, 0 };

				while (call3(SYS_ioctl, fd, UFFDIO_COPY, (u64)&copied) == -EAGAIN)
					;
				if (!is_there(page)) {
					/* Without the userfaultfd a hole is filled by its first touch. */
					drop_fd(desk, fd);
					copy(page, aside);
					pair[1] = -r;
					return i + 1;
				}
			}
		}
		pair[1] = -r;
	}
	return i;
}

/*
 * Touches [0] fresh pages from [2] on. Before each, a page of the visitor's file [1] is given back to the kernel, at the offset
 * that the paper has for it (all ones: none): the frame that was freed last is the one that the kernel hands out next.
 */
static s64 deal(struct desk *desk)
{
	u64 n = desk->arguments[0], fd = desk->arguments[1], fresh = desk->arguments[2], i;

	for (i = 0; i < n; i++) {
		if (desk->paper[i] != ~0ul)
			call(SYS_fallocate, fd, PUNCH, desk->paper[i], PAGE, 0, 0);
		*(volatile char *)(fresh + PAGE * i) = 0;
	}
	return i;
}

/* A pair of sockets; [0] and [1] say which. */
static s64 pair(struct desk *desk)
{
	int fds[2] = { -1, -1 };
	s64 r;

	if (desk->keeps + 2 > KEPT_MAX)
		return -EAGAIN;
	r = call(SYS_socketpair, 1, 5 | 02000000, 0, (u64)fds, 0, 0);
	if (r == 0) {
		keep(desk, KEEP_FD, fds[0], 0);
		keep(desk, KEEP_FD, fds[1], 0);
		desk->arguments[0] = fds[0];
		desk->arguments[1] = fds[1];
	}
	return r;
}

/* Takes up to three descriptors from socket [0]; they stand in [1] to [3]. */
static s64 fetch(struct desk *desk)
{
	struct {
		u64 length;
		int level, type, fds[4];
	} control = { 0 };
	char byte = 0;
	u64 part[2] = { (u64)&byte, 1 };
	struct {
		u64 name, name_length, parts, part_count, control, control_length;
		int flags;
	} message = { 0, 0, (u64)part, 1, (u64)&control, sizeof(control), 0 };
	s64 r = call3(SYS_recvmsg, desk->arguments[0], (u64)&message, 0x40 | 0x40000000);

	if (r < 0)
		return r;
	r = control.length > 16 ? (control.length - 16) / 4 : 0;
	for (s64 i = 0; i < r && i < 3; i++) {
		keep(desk, KEEP_FD, control.fds[i], 0);
		desk->arguments[1 + i] = control.fds[i];
	}
	return r;
}

__attribute__((used)) void serve(struct desk *desk)
{
	u64 done = 0, idle = 0;
	s64 since = now();

	for (;;) {
		if (desk->asked == done) {
			__asm__ volatile("pause");
			if (++idle < SPIN)
				continue;
			call3(SYS_sched_yield, 0, 0, 0);
			if (idle % 64 == 0 && now() - since > PATIENCE)
				break;
			continue;
		}
		__asm__ volatile("" : : : "memory");
		switch ((u32)desk->order) {
		case CALL:
			desk->result = any_call(desk);
			break;
		case ADVISE:
			desk->result = advise(desk);
			break;
		case TRIAL:
			desk->result = trial(desk);
			break;
		case EXCHANGE:
			desk->result = exchange(desk);
			break;
		case PAIR:
			desk->result = pair(desk);
			break;
		case FETCH:
			desk->result = fetch(desk);
			break;
		case DEAL:
			desk->result = deal(desk);
			break;
		case LOOK:
			desk->result = look(desk);
			break;
		case CLEAR:
			undo(desk);
			desk->result = 0;
			break;
		default:
			desk->result = 0;
		}
		__asm__ volatile("" : : : "memory");
		done = desk->asked;
		desk->answered = done;
		idle = 0;
		since = now();
	}
	desk->left = 1;
	undo(desk);
}

/* src/desk.rs and the assembly above count on these. */
#define AT(member, offset) _Static_assert(__builtin_offsetof(struct desk, member) == (offset), #member)
AT(asked, 0);
AT(answered, 8);
AT(left, 16);
AT(order, 24);
AT(arguments, 32);
AT(result, 96);
AT(ticks, 104);
AT(cpu, 120);
AT(keeps, 136);
AT(paper, 528);
_Static_assert(sizeof(struct desk) + 16384 <= DESK_SIZE, "room for the stack");
_Static_assert(sizeof(struct home) == 25 * 8, "home");
_Static_assert(__builtin_offsetof(struct home, scheduling) == 19 * 8, "scheduling");
