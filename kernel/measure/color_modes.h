/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What coloring is set to while something is measured.
 *
 *	off		it is not enabled
 *	on		free pages are listed by color, nobody asks for one
 *	spread		all tasks take colors in turn
 *	set		the program has half of the colors
 *	strict		and rather fails than leave them
 *	unassigned	the kernel's own memory and programs without a set have half of them
 *
 * of 64 colors, by bits 12 to 17 of the address. With "hashed_" before it the 64 colors are parities of four bits
 * of the address each, with "1024_" there are 1,024. A kernel without the patches has `none`.
 */
#ifndef COLOR_MODES_H
#define COLOR_MODES_H

#include <stdbool.h>
#include <stddef.h>

struct color_mode {
	const char *name;
	const char *geometry;
	unsigned int colors;
	bool enabled, spread, set, strict, unassigned;
};

/* Those that this kernel has, or of these the NAMES with commas between; the last is followed by one without a name. */
const struct color_mode *color_modes(const char *names);
/* Sets the system and the calling program to it, or ends the program. */
void take_mode(const struct color_mode *mode);
/* Whether there are superpages: a set of half of the colors by bits inside of them has none. */
bool has_superpages(const struct color_mode *mode);

#endif
