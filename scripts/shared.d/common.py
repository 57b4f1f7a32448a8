"""What the subjects of scripts/shared have in common."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from programs import CHILDREN, SUPERHUE, changed, field, median, read, setting

SOURCES = pathlib.Path(__file__).resolve().parent
THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage")
HUGE_PAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")
# Debian's own, which has Debian's modules.
PYTHON = "/usr/bin/python3"
# The bar, where superhue is to place memory: of that which is looked at.
MAPPED = 0.9


class Skipped(Exception):
    """A sample that this machine cannot give."""


class Subject:
    """Something that is measured: made once, then a sample of each arm is taken in turn."""

    count = 8
    # Where `--count` says something else than how many samples are taken.
    turns = None
    # For the trial: how many samples of each arm.
    quick_count = 1
    # Whether free memory is touched beforehand.
    warmed = True
    arms = ()
    default_size = 0

    def __init__(self, options, folder):
        self.folder, self.quick = folder, options.quick
        self.size = options.size or (self.default_size // 8 if options.quick else self.default_size)

    def settings(self):
        """What was measured with."""
        return {"size": self.size}

    def prepare(self):
        """Done once."""

    def sample(self, arm):
        """Figures of one run, by name."""
        raise NotImplementedError

    def judged(self, samples):
        """Figures and bars; of an arm there may be no sample yet."""
        raise NotImplementedError

    def close(self):
        """Done once, however it went."""


def say(text):
    """A word on how far it is."""
    print(f"shared: {text}", file=sys.stderr, flush=True)


def wait_for(condition, seconds, what, every=0.02):
    """The first true value of a condition."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(every)
    return value


@contextlib.contextmanager
def held(**values):
    """Settings below transparent_hugepage, or nr_hugepages, that are changed for a while."""
    paths = {HUGE_PAGES if name == "nr_hugepages" else THP / name: str(value) for name, value in values.items()}
    with changed(paths):
        yield


def build(folder, name):
    """A C program of this folder."""
    program = folder / name
    subprocess.run(["gcc", "-O2", "-Wall", SOURCES / f"{name}.c", "-o", program], check=True)
    return program


def under(policy, report, *options):
    """The words before a command that is run under superhue."""
    return [SUPERHUE, "run", "-q", "--pages", policy, "--report", report, *options, "--"]


def attach(policy, report, *targets):
    """Superhue beside a program that runs already."""
    return CHILDREN.start([SUPERHUE, "attach", "--pages", policy, "--report", report, *targets], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=pathlib.Path(f"{report}.log").open("w", encoding="utf-8"))


def end(process, number=signal.SIGINT, seconds=30):
    """Ends a program that we started, by a signal if it will."""
    if process is None:
        return
    if process.poll() is None:
        process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    CHILDREN.end(process)


def end_server(pid, process, seconds=60, number=signal.SIGTERM):
    """Ends a server by its own number; then superhue, if it was started under it, ends too."""
    if pid and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    if pid and process.poll() is None and pid != process.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    CHILDREN.end(process)


def told(report):
    """What superhue's report says of collapses."""
    try:
        whole = json.loads(read(report))
    except ValueError:
        return {"no_report": read(f"{report}.log")[-400:]}
    collapses = whole.get("collapses") or {}
    kept = {name: collapses.get(name) for name in ("done", "failed", "skipped", "seconds", "longest_seconds")}
    misaligned = {each["name"]: each["misaligned_by_bytes"] for each in whole.get("objects") or [] if each.get("misaligned_by_bytes")}
    kept |= {"misaligned": misaligned} if misaligned else {}
    return kept | {"cpu_seconds": (whole.get("superhue") or {}).get("cpu_seconds"), "processes": whole.get("processes")}


def per_second(program, seconds):
    """What a program of ours does in a second, that works for as long as it is told to."""
    program.stdin.write(f"{seconds}\n")
    program.stdin.flush()
    return float(program.stdout.readline())


def medians(samples, names, share, wanted):
    """Figures of each arm, their medians by name; and bars of the arms that are `wanted`: that huge pages map the `share` in every run."""
    figures, bars = {}, {}
    for arm, runs in samples.items():
        if not runs:
            continue
        figures[arm] = {name: median([run[name] for run in runs if run[name] is not None]) for name in names}
        figures[arm]["longest_collapse_seconds"] = max((run.get("superhue") or {}).get("longest_seconds") or 0 for run in runs)
        if wanted(arm):
            bars[f"{arm}: at least {MAPPED:.0%} mapped by huge pages"] = min(run[share] for run in runs) >= MAPPED
    return figures, bars


def anonymous(pid):
    """Bytes of anonymous memory of a process, and of these in huge pages."""
    text = read(f"/proc/{pid}/smaps_rollup")
    return (field(text, "Anonymous") or 0) * 1024, (field(text, "AnonHugePages") or 0) * 1024


# As smaps names them.
FIELDS = {
    "Size": "size", "Rss": "resident", "ShmemPmdMapped": "pmd", "FilePmdMapped": "pmd", "AnonHugePages": "pmd",
    "Shared_Hugetlb": "hugetlb", "Private_Hugetlb": "hugetlb",
}


def mapped(pid, name, least=0, most=float("inf")):
    """Bytes of the mappings of a process whose name matches, of `least` to `most` bytes each, and of these in huge pages."""
    total = dict.fromkeys(FIELDS.values(), 0)
    for each in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", read(f"/proc/{pid}/smaps"), flags=re.MULTILINE):
        words = each.split("\n", 1)[0].split(None, 5)
        if len(words) < 5 or not re.search(name, words[5] if len(words) > 5 else ""):
            continue
        if not least <= (field(each, "Size") or 0) * 1024 <= most:
            continue
        for key, kept in FIELDS.items():
            total[kept] += (field(each, key) or 0) * 1024
    return total


def steady(look, seconds, wanted=0.95, still=3.0):
    """Waits until a share is as wanted, or has not grown for a while; that share, and how long it took."""
    begun = grown = time.monotonic()
    share = most = look()
    while share < wanted and (now := time.monotonic()) < begun + seconds and now < grown + still:
        time.sleep(0.25)
        share = look()
        if share > most + 0.005:
            most, grown = share, time.monotonic()
    return share, time.monotonic() - begun
