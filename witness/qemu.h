/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What of QEMU's plugin API, version 1 (QEMU 4.2 to 9), the plugins here use. Declared here because no package of
 * Debian 12 has the header; the functions are QEMU's own, but for the last.
 */
#ifndef WITNESS_QEMU_H
#define WITNESS_QEMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whatever QEMU passes along with an access. */
typedef uint32_t meminfo;
typedef void mem_callback(unsigned int cpu, meminfo info, uint64_t address, void *own);

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;

enum { CB_NO_REGS = 0 };
enum { MEM_RW = 3 };
enum { INLINE_ADD_U64 = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*callback)(uint64_t id, struct qemu_plugin_tb *tb));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int operation, void *counter, uint64_t add);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, mem_callback *callback, int flags, int which,
				      void *own);
bool qemu_plugin_mem_is_store(meminfo info);
unsigned int qemu_plugin_mem_size_shift(meminfo info);
void qemu_plugin_register_vcpu_syscall_cb(uint64_t id, void (*callback)(uint64_t id, unsigned int cpu, int64_t number,
									uint64_t a, uint64_t b, uint64_t c, uint64_t d,
									uint64_t e, uint64_t f, uint64_t g, uint64_t h));
void qemu_plugin_register_vcpu_syscall_ret_cb(uint64_t id, void (*callback)(uint64_t id, unsigned int cpu,
									    int64_t number, int64_t result));
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(meminfo info, uint64_t address);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *address);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *address);

/* What a plugin was given after NAME=; without it there is none. */
static inline const char *option(int count, char **given, const char *name)
{
	size_t length = strlen(name);

	for (int i = 0; i < count; i++)
		if (!strncmp(given[i], name, length) && given[i][length] == '=')
			return given[i] + length + 1;
	fprintf(stderr, "plugin: the option %s= is missing\n", name);
	exit(1);
}

#endif
