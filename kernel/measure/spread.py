#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""What kernel/measure/spread.c said, as JSON with a picture: see kernel/spread.

    spread.py RELEASE PATCHES UNPATCHED PATCHED JSON

RELEASE is that of Linux and PATCHES the sum of the patches; the next two are what the machines said. The picture is
JSON with .svg instead of .json. Ends with 1 if a program of the patched kernel is further from flat than it should be, or
what was to be looked at is missing.
"""

import json
import sys
from math import log2
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from panels import BLUE, RED, Picture  # noqa: E402 # the path is set here

# Each program touches its memory in one contiguous run: one page for each color is what it may be off.
LIMIT = 1
KINDS = {
    "touch": "memory touched for the first time",
    "copy": "copies made after fork",
    "file": "a file in memory",
    "joined": "head and tail of memory in superpages, by the size of these",
}


def read(kernel, path):
    """A row for each size of program in each state of memory."""
    rows = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words or words[0] != "spread":
            continue
        state, kind, mib = words[1], words[2], int(words[3])
        counts = [int(count) for count in words[6:]]
        row = rows.setdefault((state, kind, mib), {
            "kernel": kernel, "memory": state, "kind": kind, "mib": mib, "base_pages": [], "superpages": [], "deviations": []})
        row["base_pages"].append(sum(counts))
        row["superpages"].append(int(words[4]))
        row["deviations"].append(float(words[5]))
        if kind == "touch" and row["deviations"][-1] == max(row["deviations"]):
            row["histogram_of_worst"] = counts
    return list(rows.values())


def worst(rows, **wanted):
    """The largest deviation of those rows that are as wanted."""
    return max(max(row["deviations"]) for row in rows if all(row[key] == value for key, value in wanted.items()))


def superpages(rows, kernel):
    """How many the joined programs had, in each state of memory."""
    return {row["memory"]: sum(sum(other["superpages"]) for other in rows
                               if (other["kernel"], other["kind"], other["memory"]) == (kernel, "joined", row["memory"]))
            for row in rows}


def programs(rows, kernel):
    """How many programs of each kind and size there were in each state of memory."""
    return {(row["memory"], row["kind"], row["mib"]): len(row["deviations"]) for row in rows if row["kernel"] == kernel}


def curve(rows, **wanted):
    """The largest deviation by size; sizes are shown by their powers of two."""
    sizes = sorted({row["mib"] for row in rows if row["kind"] == wanted["kind"]})
    return [(log2(mib), worst(rows, mib=mib, **wanted)) for mib in sizes]


def draw(rows, path):
    """One panel for each kind of program."""
    picture = Picture(170, "Pages by which the worst of 64 colors differs from flat. Unpatched: aged memory, and after boot")
    for kind, title in KINDS.items():
        curves = [curve(rows, kernel="patched", kind=kind),
                  curve(rows, kernel="unpatched", memory="fresh", kind=kind),
                  curve(rows, kernel="unpatched", memory="aged", kind=kind)]
        right = log2(max(row["mib"] for row in rows))
        panel = picture.panel(title, right, max(value for points in curves for _, value in points))
        # A name goes up where it would lie on another one.
        names, taken = ["patched", "after boot", "unpatched"], []
        for points, name, colour in zip(curves, names, [BLUE, "#ddaa33", RED]):
            y = panel.down(points[-1][1])
            while any(abs(y - other) < 13 for other in taken):
                y -= 13
            taken.append(y)
            panel.curve(points, colour)
            panel.text(panel.across(points[-1][0]) + 6, y + 4, name, colour=colour)
        for at in range(int(right) + 1):
            panel.text(panel.across(at), panel.top + panel.height + 17, f"{2 ** at} MiB", "middle")
    picture.save(path)


def main():
    """Writes both, and says the worst."""
    release, patches, unpatched, patched, out = sys.argv[1:]
    rows = read("unpatched", unpatched) + read("patched", patched)
    found = worst(rows, kernel="patched")
    head = {
        "what": "base pages by which the worst of 64 colors differs from flat; programs of one contiguous run each",
        "linux": release,
        "patches_sha256": patches,
        "command": "kernel/spread",
        "geometry": "bits:12-17, vm.page_color_spread=1",
        "memory": "fresh: after boot; aged: another process has 1,200 of 2,048 MiB and gave half of its pages back, in random order",
        "limit": LIMIT,
        "patched_worst": found,
        "unpatched_worst": worst(rows, kernel="unpatched"),
        "unpatched_superpages": superpages(rows, "unpatched"),
        "patched_superpages": superpages(rows, "patched"),
        "patched_programs": sum(len(row["deviations"]) for row in rows if row["kernel"] == "patched"),
    }
    # A line for each row, so that two results can be compared.
    text = json.dumps(head, indent=2)[:-2] + ',\n  "rows": [\n'
    text += ",\n".join("    " + json.dumps(row) for row in rows) + "\n  ]\n}\n"
    Path(out).write_text(text, encoding="utf-8")
    draw(rows, Path(out).with_suffix(".svg"))
    print(f"the worst of {head['patched_programs']} programs is {found:g} pages off, unpatched {head['unpatched_worst']:g}")
    missing = []
    if programs(rows, "patched") != programs(rows, "unpatched") or {kind for _, kind, _ in programs(rows, "patched")} != set(KINDS):
        missing.append("not all programs were measured in both kernels")
    # Without any, a head and a tail are all of it.
    if not head["patched_superpages"].get("fresh"):
        missing.append("the joined programs had no superpages after boot")
    for what in missing:
        print(what)
    return int(found > LIMIT or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
