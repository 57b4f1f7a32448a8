/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory as a kernel deals it to programs, and what is found about it: for frames.c and witness.c.
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
/* Of a word that tells a page frame: it is part of a superpage. */
#define SUPERPAGE (1U << 31)

/* Another sequence of random numbers for each text. */
void seed(const char *from);
uint64_t any(uint64_t below);

void die(const char *what);
/* Memory as malloc() has it, for which no frames are there yet. */
char *map(size_t size);
/* Has frames for it, in the order of the addresses. */
void touch(volatile char *memory, size_t size);
/* A word for each page of MEMORY: its frame number, and SUPERPAGE. ENTRIES is room for as many. */
void own_frames(const char *memory, size_t pages, int thp, uint64_t *entries, uint32_t *words);

void write_all(int file, const void *from, size_t size);
/* Writes to FILE, and adds it to the sum of all that was written so: FNV-1a. */
void put(int file, const void *from, size_t size);
uint64_t sum_of_put(void);
void wait_for(pid_t child);

/*
 * Mixes the free lists: a process has most of the memory and gives every other page back, in random
 * order. It lives until it is killed.
 */
pid_t age(void);
/* Writes a file of /proc or /sys. */
void set(const char *path, const char *value);
/* The disk with the serial number "frames". */
int open_disk(void);
/* What follows NAME (with its =) on the kernel's command line. */
char *asked(const char *name);

#endif
