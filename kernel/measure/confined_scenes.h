/* SPDX-License-Identifier: GPL-2.0-only */
/* Between a scene, inside of the group, and who looks after it, outside. */
#ifndef CONFINED_SCENES_H
#define CONFINED_SCENES_H

#include "confined.h"

#define INSIDE "--inside"

/* What a scene asks for, and where. */
enum wish { LOOK, LOOK_MAPPED, COMPACT, CROWD, UNCROWD, RECLAIM, TO_NODE, ALLOW_NODE, SWAP_OFF, WRITE, JOIN };

struct request {
	enum wish wish;
	pid_t pid;
	/* LOOK: how many pages something happened to, which `unit` says. */
	unsigned long value, size;
	char name[48], unit[48];
};

struct scene {
	void (*body)(void);
	const struct colors *colors;
	/* The group's strictness; whether the process is in the group from the beginning. */
	bool strict, joins;
};

extern const struct scene scenes[];
extern const unsigned int scene_count;

/* This program, and 32 MiB, in files that were not read yet. */
extern char program_path[256], data_path[256];
/* Asks for something without more to say about it, and waits until it is done. */
void ask(enum wish wish, unsigned long value);
/* Pipes: requests go out, a byte for each comes back. */
extern int wishes, answers;

/* Another program by now, whose file was not in memory: started with INSIDE and the pipes. */
void after_exec(void);

#endif
