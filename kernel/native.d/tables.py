# SPDX-License-Identifier: GPL-2.0-only
"""The tables of docs/results/kernel-native.md, and the picture beside it, from what kernel/native has kept."""

import json
import statistics
import sys
import textwrap

import kept
import panels

BEGIN, END = "<!-- kernel-native: made by kernel/native table -->\n", "<!-- end of kernel-native -->\n"
LISTS = {"aged": "Aged lists of free pages", "fresh": "Lists that nothing has aged"}
# Ends of the picture's scale; intervals beyond end in an arrow.
SCALE = (0.7, 2.0)
MEASURES = {"worst": "worst loop", "p99": "99 % of loops", "median": "median loop"}


def figure(value):
    """Three digits."""
    text = f"{value:.3g}"
    return f"{value:,.0f}" if "e" in text or value >= 1000 else text


def label(case, name):
    """The first cell of a row."""
    size = f"{case['size']:,} points" if case["work"] == "fft" else f"{case['size']} x {case['size']}" if case["unit"] == "Mflop/s" else (
        f"dim {case['size']}" if case["work"] in ("load", "store") else f"{case['size'] >> 10} KiB")
    measure = f", {MEASURES[name]}" if name in MEASURES else ""
    return f"{case['name']}{measure}, {size}"


def ratio(interval):
    """A ratio with its interval, in bold where that leaves 1 out."""
    low, estimate, high = interval
    text = f"{estimate:.2f} [{low:.2f}, {high:.2f}]"
    return f"**{text}**" if low > 1 or high < 1 else text


def rows_of(document, lists):
    """The rows of a table: case and name of the measure."""
    return [(case, name) for case in document["cases"] if case["lists"] == lists for name in case["times_as_fast"]["spread"]]


def table(document, lists):
    """One table."""
    lines = ["| | % of L2 | unit | off | spread | set | spread, times as fast | set, times as fast | pages of the fullest color: off, spread |",
             "|---|---|---|---|---|---|---|---|---|"]
    for case, name in rows_of(document, lists):
        medians = [figure(statistics.median(case["samples"][arm][name])) for arm in ("off", "spread", "set")]
        gains = [ratio(case["times_as_fast"][arm][name]) for arm in ("spread", "set")]
        full = [f"{statistics.median(case['samples'][arm]['fullest']):g}" for arm in ("off", "spread") if "fullest" in case["samples"][arm]]
        cells = [label(case, name), f"{case['percent_of_l2']:.3g}", case["unit"], *medians, *gains, ", ".join(full) or "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def counted(document, lists, arm, is_pair):
    """Counts the rows of programs alone, or of pairs, in which an arm is faster, slower, and neither."""
    rows = [(case, name) for case, name in rows_of(document, lists) if (case["work"] == "pair") == is_pair]
    intervals = [case["times_as_fast"][arm][name] for case, name in rows]
    faster, slower = sum(low > 1 for low, _, _ in intervals), sum(high < 1 for _, _, high in intervals)
    best, worst = (end(rows, key=lambda row: row[0]["times_as_fast"][arm][row[1]][1]) for end in (max, min))
    ends = [f"{case['times_as_fast'][arm][name][1]:.2f} ({label(case, name)})" for case, name in (best, worst)]
    return (f"- {lists} lists, `{arm}`, {'pairs' if is_pair else 'programs by themselves'}: faster in {faster} of {len(rows)} rows, "
            f"slower in {slower}, no difference shown in {len(rows) - faster - slower}; at most {ends[0]}, at least {ends[1]} times as fast.")


def about(document):
    """The machine, and the proof."""
    cache, dealt, before, after = (document[name] for name in ("cache", "dealt", "cliff_before", "cliff_after"))
    ways = cache["ways"]
    said = (
        f"{document['machine']['cpu']}, host kernel {document['kernel']}, L2 of {cache['bytes'] >> 10} KiB with {ways} ways and "
        f"{cache['colors']} colors; guest Linux {document['linux']} with the patches {document['patches_sha256']}, {document['guest_mib']} MiB; "
        f"commit {document['commit']}; {document['draws']} draws of each arm; {document['seconds'] / 60:.0f} minutes. Timing classified "
        f"{dealt['known_pages']:,} of {dealt['stock_pages']:,} frames; {dealt['right_pages']:,} of {dealt['pages']:,} pages of the guest got a "
        f"frame of their color. With {ways + 2} pages of one color a load takes {before['ratio_of_one_color']:.2f} times as long as with {ways - 2} "
        f"before the measurement and {after['ratio_of_one_color']:.2f} times after it ({before['colors_with_cliff']} and "
        f"{after['colors_with_cliff']} of {before['colors']} colors show the cliff); with pages of all colors in turn "
        f"{before['ratio_of_all_in_turn']:.2f} and {after['ratio_of_all_in_turn']:.2f} times. Intervals are of 95 %.")
    return textwrap.fill(said, 150, break_on_hyphens=False)


def section(document):
    """The text between the markers."""
    lines = [about(document), ""]
    for lists in LISTS:
        for arm, is_pair in (("spread", False), ("set", True)):
            lines.append(textwrap.fill(counted(document, lists, arm, is_pair), 150, break_on_hyphens=False, subsequent_indent="  "))
    for lists, title in LISTS.items():
        lines += ["", f"## {title}", "", *table(document, lists)]
    return "\n".join(lines) + "\n"


def short(case, name):
    """The name of a row in the picture, which has room for 20 letters."""
    if case["work"] != "pair":
        return f"{case['work']} {case['percent_of_l2']:.3g} %"
    victim, beside = case["name"].split()[:2]
    return f"alone, {name}" if beside == "alone" else f"{victim} pair, {name}"


def draw(document, path):
    """The gain of `spread` with aged lists, as intervals; of pairs, that of `set`."""
    rows = []
    for case, name in rows_of(document, "aged"):
        low, estimate, high = case["times_as_fast"]["set" if case["work"] == "pair" else "spread"][name]
        rows.append((short(case, name), low, estimate, high, f"{estimate:.2f}"))
    heading = "Times as fast as with coloring off: spread, and in pairs a set each; aged lists, % of the L2"
    panels.forest(path, heading, rows, *SCALE)


def write(result, is_checked):
    """Puts the tables in their place and draws the picture; status 1 if they were not there and only to be compared."""
    try:
        document = json.loads(result.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print(f"kernel/native: there is no {result}: measure first", file=sys.stderr)
        return 1
    page = result.with_suffix(".md")
    same = kept.write_between(page, BEGIN, END, section(document), is_checked)
    if not same:
        print(f"kernel/native: the tables of {page.name} are not those of {result.name}: kernel/native table", file=sys.stderr)
    if not is_checked:
        draw(document, result.with_suffix(".svg"))
    return 0 if same else 1
