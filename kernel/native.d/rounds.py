# SPDX-License-Identifier: GPL-2.0-only
"""The cases of kernel/native, each with three arms, in rounds of fresh memory."""

import math
import random
import statistics
import sys

# Rounds of resampling behind an interval.
RESAMPLES = 1000
# Pages of the guest that are taken to age its lists of free pages, and the percentage of them that is given back.
AGED, BACK = 25600, 66
# Pages that are taken before a round where lists are not aged, so that rounds begin at different frames.
MOST_SHIFT = 2048
# Percentages of the L2. Dimensions of matrices are those of which two fill it so far.
CHASED = (50, 75, 94, 100)
TRANSPOSED = (48, 69, 88, 96, 102, 125)
COPIED = (12.5, 25, 50, 75, 94, 100, 150, 300)
# The victim fills three quarters of its half of the cache; its partner is larger than all of it.
VICTIM, PARTNER, LOOPS = 37.5, 200, 300
UNITS = {"chase": "ns/load", "gather": "ns/load", "load": "MB/s", "store": "MB/s", "copy": "MB/s", "product": "Mflop/s", "fft": "Mflop/s"}
NAMES = {"load": "transposition, load stride", "store": "transposition, store stride"}


def of_cache(percent, size):
    """Bytes in whole pages."""
    return int(size * percent / 100) // 4096 * 4096


def works(size):
    """Cases of one program by itself."""
    sized = [(name, of_cache(percent, size), percent) for name in ("chase", "gather") for percent in CHASED]
    sized += [(name, math.isqrt(of_cache(percent, size) // 16), percent) for name in ("load", "store") for percent in TRANSPOSED]
    sized += [("copy", of_cache(percent, size), percent) for percent in COPIED]
    sized += [("product", 1000, 8e8 / size), *(("fft", points, 2400 * points / size) for points in (size // 32, size // 16))]
    for name, number, percent in sized:
        yield {"work": name, "name": NAMES.get(name, name), "size": number, "percent_of_l2": round(percent, 1), "unit": UNITS[name],
               "words": ["work", name, number]}


def pairs(size):
    """Cases of a program beside another one on the same CPU."""
    for victim, partner in (("chase", PARTNER), ("mcol", PARTNER), ("cnt", PARTNER), ("chase", 0)):
        beside = f"beside {partner} %" if partner else "alone"
        yield {"work": "pair", "name": f"{victim} {beside}", "size": of_cache(VICTIM, size), "percent_of_l2": VICTIM, "unit": "us", "loops": LOOPS,
               "words": ["pair", victim, of_cache(VICTIM, size), of_cache(partner, size)]}


def rounded(value):
    """Five digits, which is more than a clock that is a system call can give."""
    return float(f"{value:.5g}")


def draw(guest, host, case, arm, seed):
    """Runs a case once. Returns numbers by name."""
    half = host.colors // 2
    colors = f"0-{half - 1}" if arm == "set" else arm
    if case["work"] == "pair":
        partner = f"{half}-{host.colors - 1}" if arm == "set" else arm
        (line,) = guest.ask("run", colors, *case["words"], partner, LOOPS, seed)
        return {name: rounded(float(value) / 1e3) for name, value in zip(("worst", "p99", "median"), line, strict=True)}
    ((value, fullest),) = guest.ask("run", colors, *case["words"], host.colors, seed)
    # A time by unit, of which rates are made.
    value = float(value) if case["unit"] == "ns/load" else 1000 / float(value)
    return {"value": rounded(value), "fullest": int(fullest)}


def interval(off, arm, is_rate):
    """The ratio of medians, above 1 where `arm` is faster, with its bootstrap interval of 95 %."""
    rng = random.Random(1)
    less, more = (off, arm) if is_rate else (arm, off)
    drawn = sorted(
        statistics.median(rng.choices(more, k=len(more))) / statistics.median(rng.choices(less, k=len(less))) for _ in range(RESAMPLES))
    return [rounded(value) for value in (
        drawn[int(0.025 * RESAMPLES)], statistics.median(more) / statistics.median(less), drawn[int(0.975 * RESAMPLES) - 1])]


def run(guest, host, draws):
    """Runs all rounds. Returns the cases with all samples, and the ratio of each arm to `off`."""
    rng = random.Random(draws)
    arms = ("off", "spread", "set")
    cases = [case | {"lists": lists, "samples": {arm: [] for arm in arms}}
             for lists in ("fresh", "aged") for case in (*works(host.bytes), *pairs(host.bytes))]
    for lists in ("fresh", "aged"):
        for number in range(draws):
            print(f"kernel/native: {lists} lists, round {number + 1} of {draws}", file=sys.stderr)
            pages, percent = (AGED, BACK) if lists == "aged" else (1 + rng.randrange(MOST_SHIFT), 0)
            guest.ask("keep", "age", pages, percent, number)
            turns = [(case, arm) for case in cases if case["lists"] == lists for arm in arms]
            rng.shuffle(turns)
            for case, arm in turns:
                case["samples"][arm].append(draw(guest, host, case, arm, rng.randrange(1 << 30)))
            guest.ask("drop")
    for case in cases:
        del case["words"]
        names = list(case["samples"]["off"][0])
        case["samples"] = {arm: {name: [one[name] for one in samples] for name in names} for arm, samples in case["samples"].items()}
        off, is_rate = case["samples"]["off"], case["unit"].endswith("/s")
        case["times_as_fast"] = {
            arm: {name: interval(off[name], case["samples"][arm][name], is_rate) for name in names if name != "fullest"} for arm in arms[1:]}
    return cases
