// SPDX-License-Identifier: GPL-2.0-only
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "color_modes.h"
#include "dealt.h"

#define PR_PAGE_COLOR 0x50434f4c
#define PR_PAGE_COLOR_SET 1
#define PR_PAGE_COLOR_OFF 3
#define PR_PAGE_COLOR_STRICT 1

#define MOST_COLORS 1024U

#define FIELD "bits:12-17"
/* Every sixth bit of the address, in parity. */
#define HASHED "masks:0x41041000,0x82082000,0x104104000,0x208208000,0x410410000,0x820820000"
#define MANY "bits:12-21"

static const struct color_mode none[] = { { .name = "none" }, { 0 } };

static const struct color_mode modes[] = {
	{ "off", FIELD, 64 },
	{ "on", FIELD, 64, .enabled = true },
	{ "spread", FIELD, 64, .enabled = true, .spread = true },
	{ "set", FIELD, 64, .enabled = true, .set = true },
	{ "strict", FIELD, 64, .enabled = true, .set = true, .strict = true },
	{ "unassigned", FIELD, 64, .enabled = true, .unassigned = true },
	{ "hashed_on", HASHED, 64, .enabled = true },
	{ "hashed_spread", HASHED, 64, .enabled = true, .spread = true },
	{ "hashed_set", HASHED, 64, .enabled = true, .set = true },
	{ "hashed_unassigned", HASHED, 64, .enabled = true, .unassigned = true },
	{ "1024_on", MANY, 1024, .enabled = true },
	{ "1024_spread", MANY, 1024, .enabled = true, .spread = true },
	{ "1024_set", MANY, 1024, .enabled = true, .set = true },
	{ "1024_unassigned", MANY, 1024, .enabled = true, .unassigned = true },
	{ 0 }
};

const struct color_mode *color_modes(const char *names)
{
	static struct color_mode some[sizeof(modes) / sizeof(*modes)];
	size_t count = 0;
	char *copy, *name;

	if (access("/proc/sys/vm/page_coloring", F_OK))
		return none;
	if (!names)
		return modes;
	copy = strdup(names);
	for (name = strtok(copy, ","); name; name = strtok(NULL, ",")) {
		const struct color_mode *mode = modes;

		while (mode->name && strcmp(mode->name, name))
			mode++;
		if (!mode->name || count == sizeof(some) / sizeof(*some) - 1) {
			fprintf(stderr, "there is no mode %s, or there are too many\n", name);
			exit(1);
		}
		some[count++] = *mode;
	}
	free(copy);
	some[count] = (struct color_mode){ 0 };
	return some;
}

bool has_superpages(const struct color_mode *mode)
{
	return !mode->set && !mode->unassigned;
}

void take_mode(const struct color_mode *mode)
{
	static unsigned long half[MOST_COLORS / 64];
	char colors[32];

	if (!mode->geometry)
		return;
	/* Nobody may have a set while the geometry changes. */
	if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_OFF, 0, 0, 0) && errno != EOPNOTSUPP)
		die("prctl");
	set("/proc/sys/vm/page_color_spread", "0");
	set("/proc/sys/vm/page_color_unassigned", "\n");
	set("/proc/sys/vm/page_coloring", "0");
	set("/proc/sys/vm/page_color_geometry", mode->geometry);
	if (!mode->enabled)
		return;
	set("/proc/sys/vm/page_coloring", "1");
	if (mode->spread)
		set("/proc/sys/vm/page_color_spread", "1");
	snprintf(colors, sizeof(colors), "0-%u", mode->colors / 2 - 1);
	if (mode->unassigned)
		set("/proc/sys/vm/page_color_unassigned", colors);
	if (!mode->set)
		return;
	memset(half, 0, sizeof(half));
	for (unsigned int color = 0; color < mode->colors / 2; color++)
		half[color / 64] |= 1UL << color % 64;
	if (prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_SET, half, (mode->colors + 63) / 64 * 8,
		  mode->strict ? PR_PAGE_COLOR_STRICT : 0))
		die("prctl");
}
