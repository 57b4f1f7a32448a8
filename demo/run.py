#!/usr/bin/python3
"""Compares real programs under several huge page policies and prints one table.

    demo/run.py --runs 10 --keep DIR     all programs, results and plots kept in DIR
    demo/run.py --table DIR              the table again, from kept results

Every figure comes from `superhue compare`; this script only chooses programs and lays out the table. The demonstration is
decide.py: fewer programs, measured as they run.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("SUPERHUE_BIN", ROOT / "target/release"))
PYTHON = "/usr/bin/python3"
# Where the input files of programs are made.
INPUTS = "target/demo"
# `always` is the kernel's own mode, at faults and by khugepaged; the others are superhue's policies under the machine's settings.
ARMS = ["never", "always=--pages kernel --system enabled=always", "auto", "resident", "hot"]
# What the kernel charges to the control group of a run; the resident set where no group can be made.
MEMORY = ["max_charged", "max_rss"]


class Program:
    """A program to compare: a command, or a server with a load.

    `further` are more arguments, of the load if there is one.
    """

    def __init__(self, name, command, metric, unit, further=(), load=None, port=None):
        self.name = name
        self.command = command
        self.metric = metric
        self.unit = unit
        self.further = list(further)
        self.load = load
        self.port = port

    def arguments(self):
        """What follows the arms on the command line of `superhue compare`."""
        arguments = []
        if self.metric != "wall":
            arguments += ["--metric", f"{self.metric}={self.metric} ([0-9.]+)"]
        if self.load:
            load = shlex.join(self.load + self.further)
            return arguments + ["--load", load, "--ready", f"tcp:{self.port}", "--", *self.command]
        return arguments + ["--", *self.command, *self.further]


def programs():
    """Every program; relative paths are below the project."""
    # By name and relative to the project, so that results do not depend on where it lies.
    workload = "superhue-workload"
    demo = "demo"
    # As in the paper: 800,000 items of 512 bytes, read only, zipfian. Large batches, so that the
    # server's time goes into memory and not into system calls.
    zipf = ["--items", "800000", "--value-size", "512", "--connections", "1", "--pipeline", "128",
            "--settle", "1s"]
    return [
        Program("numpy gather, 1 GiB", [PYTHON, f"{demo}/gather.py"], "gather_mops", "M/s"),
        Program("sqlite join, 1 GiB", [PYTHON, f"{demo}/join.py"], "rows_per_second", "rows/s"),
        Program("memcached, zipf 800k x 512",
                ["memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", "22211", "-m", "2048",
                 "-t", "1"],
                "throughput_ops", "op/s", further=["--requests", "3000000"],
                load=[workload, "load", "memcached", "--port", "22211", *zipf], port=22211),
        Program("redis, zipf 800k x 512",
                ["redis-server", "--bind", "127.0.0.1", "--port", "22212", "--save", "",
                 "--appendonly", "no"],
                "throughput_ops", "op/s", further=["--requests", "3000000"],
                load=[workload, "load", "redis", "--port", "22212", *zipf], port=22212),
        Program("python dict, 2.5 M", [PYTHON, f"{demo}/dict.py"], "lookups_per_second", "/s"),
        Program("awk count, 3 M keys",
                ["awk", "{ n[$1]++ } END { print length(n) }", f"{INPUTS}/keys"], "wall", "s"),
        Program("sort, 300 MiB",
                ["env", "LC_ALL=C", "sort", "-S", "2G", "--parallel=1", "-o", "/dev/null",
                 f"{INPUTS}/lines"], "wall", "s"),
        Program("sparse, 4 GiB (4 KiB in 2 MiB)", [workload, "sparse", "--size", "4G"],
                "throughput_mops", "M/s", further=["--seconds", "2"]),
    ]


def generate(program):
    """Makes the input file a program reads, if it is not there yet."""
    for what in ["keys", "lines"]:
        path = ROOT / INPUTS / what
        if f"{INPUTS}/{what}" in program.command and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".unfinished")
            with unfinished.open("wb") as out:
                subprocess.run([PYTHON, ROOT / "demo/generate.py", what], stdout=out, check=True)
            unfinished.rename(path)


def stem_of(program):
    """The name of its results, without the ending."""
    return program.name.split(",")[0].replace(" ", "-")


def speed(program, document, arm):
    """Of an arm relative to the first one; None if either is unknown."""
    base, value = (median(document, index, program.metric) for index in (0, arm))
    if not base or not value:
        return None
    return base / value if program.metric == "wall" else value / base


def compare(program, options, into):
    """Runs one comparison; returns its JSON document."""
    stem = into / stem_of(program)
    command = [BIN / "superhue", "compare", "--runs", str(options.runs),
               # Memory was touched once, and input files are in the page cache.
               "--warmup", "0", "--report", f"{stem}.json", "--plot", f"{stem}.svg"]
    for arm in ARMS:
        command += ["--arm", arm]
    command += program.arguments()
    print(f"{program.name} ...", file=sys.stderr, flush=True)
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run([str(part) for part in command], stdout=subprocess.DEVNULL, cwd=ROOT,
                          env=environment)
    if done.returncode != 0:
        print(f"{program.name}: superhue compare ended with status {done.returncode}",
              file=sys.stderr)
    try:
        return json.loads(Path(f"{stem}.json").read_text())
    except (OSError, ValueError):
        return None


def median(document, arm, metric):
    """Median of a metric over the good runs of an arm; None if it was never measured."""
    values = [run["values"].get(metric) for run in document["samples"]
              if run["arm"] == arm and not run["warmup"] and not run["failed"]]
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def memory_of(document):
    """The metric that its memory is told by."""
    return next((name for name in MEMORY if median(document, 0, name)), MEMORY[-1])


def rows(program, document):
    """One row for each arm."""
    name = program.metric
    base = median(document, 0, name)
    memory = memory_of(document)
    base_memory = median(document, 0, memory)
    for index, arm in enumerate(document["arms"]):
        value = median(document, index, name)
        used = median(document, index, memory)
        if value is None or not base:
            yield [program.name if index == 0 else "", arm["name"], "failed", "", "", "", "", ""]
            continue
        coverage = median(document, index, "coverage_peak")
        seconds = median(document, index, "seconds_to_95")
        yield [
            program.name if index == 0 else "",
            arm["name"],
            f"{value:,.2f} {program.unit}" if value < 1000 else f"{value:,.0f} {program.unit}",
            f"{speed(program, document, index):.2f}x",
            verdict(program, document, index),
            f"{used / 2**20:,.0f} MiB ({used / base_memory:.2f}x)" if used and base_memory else "?",
            "?" if coverage is None else f"{coverage * 100:.0f} %",
            "-" if not seconds and not coverage else "?" if seconds is None else f"{seconds:.2f} s",
        ]


def verdict(program, document, arm):
    """What `superhue compare` said of an arm, in a word or two."""
    summary = next(s for s in document["summaries"] if s["metric"] == program.metric)
    against = summary["arms"][arm]["against"]
    if against is None:
        return "(reference)"
    said = against["verdict"]["is"]
    return {"no-difference-shown": "no difference shown", "too-few-runs": "too few runs"}.get(said, said)


def table(all_rows):
    """Lays rows out in columns."""
    header = ["PROGRAM", "ARM", "FIGURE", "SPEED", "VERDICT", "PEAK MEMORY", "COVERAGE", "95 % AFTER"]
    grid = [header, *all_rows]
    widths = [max(len(row[column]) for row in grid) for column in range(len(header))]
    right = {2, 3, 5, 6, 7}
    lines = []
    for row in grid:
        cells = [cell.rjust(width) if column in right else cell.ljust(width)
                 for column, (cell, width) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="measured runs of each arm (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep results and plots there")
    parser.add_argument("--table", type=Path, metavar="DIR", help="only print the table of results kept")
    parser.add_argument("--only", metavar="WORD", help="only programs whose name has this word")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="superhue-") as scratch:
        chosen = [p for p in programs() if not options.only or options.only in p.name]
        if not chosen:
            parser.error(f"no program has {options.only!r} in its name")
        into = (options.table or options.keep or Path(scratch)).resolve()
        into.mkdir(parents=True, exist_ok=True)
        if not options.table:
            print("touching memory once, so that no run pays for the host's", file=sys.stderr)
            subprocess.run([BIN / "superhue-workload", "hold", "--size", "5G", "--seconds", "0"],
                           stdout=subprocess.DEVNULL, check=True)
        all_rows, memories = [], set()
        for program in chosen:
            if options.table:
                path = into / f"{stem_of(program)}.json"
                document = json.loads(path.read_text()) if path.exists() else None
            else:
                generate(program)
                document = compare(program, options, into)
            if document:
                all_rows.extend(rows(program, document))
                memories.add({"max_charged": "the most that the kernel charged", "max_rss": "the largest resident set"}[memory_of(document)])
    print(table(all_rows))
    print(f"\nSpeed and memory against `never`; medians. Memory: {' or '.join(sorted(memories))}. Coverage: share of anonymous memory on huge pages.")
    if not all_rows:
        sys.exit("nothing was measured")


if __name__ == "__main__":
    main()
