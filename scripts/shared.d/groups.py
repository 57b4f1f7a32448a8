"""Short programs, each in a control group that leaves it a tenth more memory than it needs."""

import collections
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import threading

import cgroups
from common import PYTHON, Skipped, Subject, build, held, under
from programs import CHILDREN, read

PROGRAMS, QUICK_PROGRAMS, TURNS = 2000, 40, 8
# Of what a program needs at most in so many runs.
ROOM, LOOKS = 1.1, 8
MILLISECONDS = 400
WORKERS = 2 * (os.cpu_count() or 1)
LONGEST = 60

LIST = "import time; kept = [str(i) for i in range(200000)]; time.sleep(0.2); kept += [i * 1.5 for i in range(200000)]; time.sleep(0.1)"
# An arm: what `enabled` is, and superhue's policy.
ARMS = {
    "plain": ("madvise", None), "kernel's always": ("always", None),
    "resident": ("madvise", "resident"), "hot": ("madvise", "hot"), "always": ("madvise", "always"),
}
EVENTS = ("high", "max", "oom", "oom_kill")


class Control:
    """The memory controller, of whichever version: what its files are called."""

    def __init__(self, folder):
        mounts = [line.split() for line in read("/proc/self/mounts").splitlines()]
        first = next((pathlib.Path(words[1]) for words in mounts if words[2] == "cgroup" and "memory" in words[3].split(",")), None)
        second = cgroups.mount()
        self.version, self.mounted, self.enabled = (1 if first else 2), None, None
        if not first and not second:
            second = self.mounted = folder / "cgroup"
            second.mkdir()
            subprocess.run(["mount", "-t", "cgroup2", "superhue-shared", second], check=True)
        root = first or second
        self.folder = root / f"superhue-shared-{os.getpid()}"
        if self.version == 2:
            if "memory" not in read(root / "cgroup.controllers").split():
                self.close()
                raise Skipped("there is no memory controller")
            if "memory" not in read(root / "cgroup.subtree_control").split():
                (root / "cgroup.subtree_control").write_text("+memory\n", encoding="utf-8")
                self.enabled = root / "cgroup.subtree_control"
        self.folder.mkdir()
        if self.version == 2:
            (self.folder / "cgroup.subtree_control").write_text("+memory\n", encoding="utf-8")

    def limit(self, group, most):
        """Bounds a group."""
        names = ["memory.limit_in_bytes"] if self.version == 1 else ["memory.high", "memory.max"]
        for name in names:
            (group / name).write_text(f"{most}\n", encoding="utf-8")

    def peak(self, group):
        """What a group has used at most."""
        return int(read(group / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")))

    def events(self, group):
        """How often the group was at its limits. Version 1 counts neither `high` nor `oom`."""
        if self.version == 1:
            kills = [words[1] for line in read(group / "memory.oom_control").splitlines() if (words := line.split())[0] == "oom_kill"]
            return {"max": int(read(group / "memory.failcnt")), "oom_kill": int(kills[0]) if kills else 0}
        found = dict(line.split() for line in read(group / "memory.events").splitlines())
        return {name: int(found.get(name, 0)) for name in EVENTS}

    def close(self):
        """Takes away what was made."""
        cgroups.remove_tree(self.folder)
        if self.enabled:
            with contextlib.suppress(OSError):
                self.enabled.write_text("-memory\n", encoding="utf-8")
        if self.mounted:
            subprocess.run(["umount", self.mounted], check=False)


class Groups(Subject):
    """2,000 short programs, each in a control group of 1.1 times what it needs: how often it is at its limits"""

    arms = tuple(ARMS)
    warmed = False
    control = None

    def __init__(self, options, folder):
        super().__init__(options, folder)
        self.programs = options.count or (QUICK_PROGRAMS if self.quick else PROGRAMS)
        self.turns = 1 if self.quick else min(TURNS, self.programs)
        self.kinds, self.needs = {}, {}
        self.numbers = itertools.count()
        self.lock = threading.Lock()

    def settings(self):
        return {
            "programs": self.programs, "room": ROOM, "at_a_time": WORKERS, "needs_bytes": self.needs,
            "controller": self.control and f"version {self.control.version}",
        }

    def prepare(self):
        self.folder.chmod(0o755)
        brief = build(self.folder, "brief")
        ways = itertools.product(("full", "holes", "grow", "fork"), (8, 24, 64))
        self.kinds = {f"{how} {mib} MiB": [brief, how, mib, MILLISECONDS] for how, mib in ways}
        self.kinds["python"] = [PYTHON, "-c", LIST]
        self.control = Control(self.folder)
        with held(enabled="madvise"):
            for kind in self.kinds:
                self.needs[kind] = max(self.one(None, kind, None)["peak"] for _ in range(2 if self.quick else LOOKS))

    def one(self, policy, kind, most):
        """One program in a group of its own."""
        with self.lock:
            number = next(self.numbers)
        group, report = self.control.folder / str(number), self.folder / f"report-{number}"
        group.mkdir()
        try:
            if most:
                self.control.limit(group, most)
            # Superhue stays outside: what it uses is not the program's.
            command = ["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh", *self.kinds[kind]]
            before = under(policy, report) if policy else []
            process = CHILDREN.start([*before, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LONGEST)
            ended = process.poll()
            seen = {"status": ended, "peak": self.control.peak(group), "events": self.control.events(group)}
            CHILDREN.end(process)
            if policy:
                whole = json.loads(read(report) or "{}")
                seen["collapses"] = whole.get("collapses") or {}
            return seen
        finally:
            report.unlink(missing_ok=True)
            for word in read(group / "cgroup.procs").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(word), signal.SIGKILL)
            cgroups.remove(group)

    def sample(self, arm):
        enabled, policy = ARMS[arm]
        kinds = [kind for kind, _ in zip(itertools.cycle(self.kinds), range(-(-self.programs // self.turns)))]
        pool = concurrent.futures.ThreadPoolExecutor(WORKERS)
        try:
            with held(enabled=enabled):
                tasks = [pool.submit(self.one, policy, kind, self.room(kind)) for kind in kinds]
                seen = [task.result() for task in tasks]
        finally:
            pool.shutdown(cancel_futures=True)
        events, by_kind, troubled, collapses, left = (collections.Counter() for _ in range(5))
        for kind, one in zip(kinds, seen):
            events.update(one["events"])
            by_kind[kind] += sum(one["events"].values())
            troubled[kind] += any(one["events"].values())
            collapses.update({name: one.get("collapses", {}).get(name, 0) for name in ("tried", "done")})
            for part in ("failed", "skipped"):
                left.update(one.get("collapses", {}).get(part, {}))
        return {
            "programs": len(seen), "failures": sum(one["status"] != 0 for one in seen), "events": dict(events),
            "events_by_kind": {kind: number for kind, number in by_kind.items() if number},
            "programs_with_events_by_kind": {kind: number for kind, number in troubled.items() if number},
            "collapses": dict(collapses), "left": dict(left),
            "largest_share_of_room": max(one["peak"] / self.room(kind) for kind, one in zip(kinds, seen)),
        }

    def room(self, kind):
        """What a program of a kind may use, in whole pages."""
        return int(self.needs[kind] * ROOM) // 4096 * 4096

    def judged(self, samples):
        figures, bars = {}, {}
        for arm, runs in samples.items():
            if not runs:
                continue
            events = collections.Counter()
            for run in runs:
                events.update(run["events"])
            figures[arm] = {name: sum(run[name] for run in runs) for name in ("programs", "failures")} | {"events": dict(events)}
            figures[arm]["programs_with_events"] = sum(sum(run["programs_with_events_by_kind"].values()) for run in runs)
            figures[arm]["collapses"] = sum(run["collapses"].get("done", 0) for run in runs)
        plain = figures.get("plain")
        for arm, (_, policy) in ARMS.items():
            if not policy or not plain or arm not in figures:
                continue
            here = figures[arm]
            # An interrupted turn may have left one arm with fewer programs.
            share = here["programs"] / plain["programs"]
            more = sum(here["events"].values()) - share * sum(plain["events"].values())
            bars[f"{arm}: no event of memory.events more than without"] = more <= 0
            bars[f"{arm}: no kill, no failure"] = here["failures"] == 0 and here["events"].get("oom_kill", 0) == 0
        return figures, bars

    def close(self):
        if self.control:
            self.control.close()
