/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory as a kernel deals it to programs, and what is found about it.
 *
 * All of these end the program, with a message, if they cannot do what they are for.
 */
#ifndef DEALT_H
#define DEALT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PAGE 4096UL
#define KIB 1024UL
#define MIB (1UL << 20)
#define HUGE (2 * MIB)
/* Of a word that tells a page frame: it is part of a superpage. */
#define SUPERPAGE (1U << 31)

/* Another sequence of random numbers for each text. */
void seed(const char *from);
uint64_t any(uint64_t below);

void die(const char *what);
/* The least first. */
void sort(double *values, size_t count);
/* Memory as malloc() has it, for which no frames are there yet. */
char *map(size_t size);
/*
 * Memory that begins and ends within superpages: HEAD bytes before the first that fits, MIDDLE in whole
 * ones, and TAIL behind the last. Nothing else is near it.
 *
 *	|        |########|########|########|        |
 *	     head          middle            tail
 */
char *map_joined(size_t head, size_t middle, size_t tail);
/* Has frames for it, in the order of the addresses. */
void touch(volatile char *memory, size_t size);
/* A word for each page of MEMORY: its frame number, and SUPERPAGE. ENTRIES is room for as many. */
void own_frames(const char *memory, size_t pages, int thp, uint64_t *entries, uint32_t *words);

void write_all(int file, const void *from, size_t size);
void wait_for(pid_t child);
/* Forks: what the child writes to its standard output is to be read from *FROM. */
pid_t fork_heard(int *from);
/* Reads SIZE bytes that CHILD writes, no less and no more; then it ends. */
void hear(pid_t child, int from, void *to, size_t size);

/*
 * Mixes the free lists: a process has most of the memory and gives every other page back, in random
 * order. It lives until it is killed.
 */
pid_t age(void);
/* Writes a file of /proc or /sys. */
void set(const char *path, const char *value);
/*
 * The disk with the serial number "frames". What is found goes there as crates/lab/cachesim/src/dump.rs
 * describes it: how the machine was set up, draw by draw the WORDS of its pages, behind one that says where
 * superpages could begin, and a sum of the draws.
 */
int open_disk(void);
void begin_dump(int disk, const char *how);
void put_draw(int disk, const char *name, const uint32_t *words, size_t pages);
void end_dump(int disk);
/* What follows NAME (with its =) on the kernel's command line. */
char *asked(const char *name);

#endif
