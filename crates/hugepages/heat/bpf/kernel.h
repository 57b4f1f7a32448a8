/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0 */
/*
 * The few members of the kernel's structures that the walk reads. Their offsets are those of the
 * running kernel: the loader fills them in from its BTF (CO-RE), by the names below.
 */
#ifndef PTWALK_KERNEL_H
#define PTWALK_KERNEL_H

#include "ptwalk.h"

/* What bpf_helpers.h expects of linux/types.h and linux/bpf.h. */
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;
enum { BPF_MAP_TYPE_ARRAY = 2 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* arch/x86/include/asm/mmu.h */
typedef struct {
	u64 ctx_id;
} mm_context_t;

/* include/linux/mm_types.h */
struct mm_struct {
	void *pgd;
	mm_context_t context;
};

/* include/linux/sched.h */
struct task_struct {
	struct mm_struct *mm;
	u64 start_boottime;
};

#pragma clang attribute pop

#endif
