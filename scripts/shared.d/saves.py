"""Saves of a redis server: it forks, and its writes copy what the child still reads."""

import array
import contextlib
import re
import socket
import subprocess
import time

from common import Subject, anonymous, attach, build, end, end_server, held, steady, told, under, wait_for
from programs import CHILDREN, field, median, read, shares

VALUE_BYTES = 1024
# What redis uses for a key and such a value.
BYTES_PER_KEY = 1400
WRITES_PER_SECOND = 2000
# Seconds: until huge pages are there before the save, writes before it, huge pages back after it; the same where nobody makes them.
SETTLE, LEAD, BACK, LOOK = 20, 2, 30, 3
# Of writes from the beginning of a save: less than a save takes.
WRITING, QUICK_WRITING = 6, 1
# Less than this share of huge pages is none.
NONE = 0.01
# Long enough that one pause of the machine is no difference between arms.
BENCHMARK_WRITES = 1_500_000
LONGEST_SAVE = 120

# Bars, of `never`; for throughput of `always`.
P999, WORST, COPIED, THROUGHPUT = 1.05, 1.25, 1.1, 0.98

# An arm: what `enabled` is, and how superhue comes to the server.
ARMS = {
    "never": ("never", None),
    "always": ("always", None),
    "run resident": ("madvise", ("run", "resident")),
    "run hot": ("madvise", ("run", "hot")),
    "run auto": ("madvise", ("run", "auto")),
    "attach resident": ("madvise", ("attach", "resident")),
}


class Redis:
    """A connection for commands, each with a short answer."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.answers = self.socket.makefile("rb")

    def ask(self, *words):
        """The answer to a command."""
        self.socket.sendall(b"".join([f"*{len(words)}\r\n".encode(), *(f"${len(word)}\r\n{word}\r\n".encode() for word in words)]))
        line = self.answers.readline().decode()
        if line[:1] == "-":
            raise RuntimeError(f"redis: {' '.join(words)}: {line}")
        return self.answers.read(int(line[1:]) + 2).decode() if line[:1] == "$" else line[1:].strip()

    def info(self, section):
        """What INFO says, by name."""
        return dict(re.findall(r"^(\w+):(.*?)\r?$", self.ask("INFO", section), re.MULTILINE))

    def close(self):
        """Ends the connection."""
        self.answers.close()
        self.socket.close()


class Saves(Subject):
    """redis written to at a fixed rate while it saves: latencies, memory copied, huge pages afterwards"""

    arms = tuple(ARMS)
    default_size = 2 << 30

    def settings(self):
        return super().settings() | {
            "keys": self.keys(), "value_bytes": VALUE_BYTES, "writes_per_second": WRITES_PER_SECOND,
            "redis": subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout.strip(),
        }

    def keys(self):
        """How many keys take as much as is wanted."""
        return self.size // BYTES_PER_KEY

    def prepare(self):
        self.setter = build(self.folder, "setter")

    def sample(self, arm):
        enabled, superhue = ARMS[arm]
        where, report = self.folder / "redis.sock", self.folder / "report"
        for path in (where, report, self.folder / "dump.rdb"):
            path.unlink(missing_ok=True)
        before = under(superhue[1], report) if superhue and superhue[0] == "run" else []
        command = ["redis-server", "--port", "0", "--unixsocket", where, "--save", "", "--appendonly", "no", "--dir", self.folder,
                   "--disable-thp", "no", "--daemonize", "no"]
        with held(enabled=enabled), contextlib.ExitStack() as stack:
            process = CHILDREN.start([*before, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            pid = None
            stack.callback(lambda: end_server(pid or process.pid, process))
            wait_for(lambda: where.exists() or process.poll() is not None, 20, "redis-server")
            redis = Redis(where)
            stack.callback(redis.close)
            pid = int(redis.info("server")["process_id"])
            figures = self.measured(redis, pid, where, superhue, report, stack)
        # What superhue says it says at its end.
        return figures | ({"superhue": told(report)} if superhue else {})

    def measured(self, redis, pid, where, superhue, report, stack):
        """Figures of one server."""
        begun = time.monotonic()
        subprocess.run([self.setter, where, "fill", str(self.keys()), str(VALUE_BYTES)], check=True, timeout=300)
        figures = {"fill_seconds": time.monotonic() - begun, "used_memory": int(redis.info("memory")["used_memory"])}
        if superhue and superhue[0] == "attach":
            watcher = attach(superhue[1], report, pid)
            stack.callback(end, watcher)

        def share():
            total, huge = anonymous(pid)
            return huge / total if total else 0.0

        figures["settle_seconds"] = steady(share, SETTLE if superhue else 1, wanted=0.99)[1]
        figures["writes_per_second"] = self.throughput(where)
        figures["share_before"], _ = steady(share, 2 if superhue else 0)
        writer, during = self.writer(where, "during", stack)
        time.sleep(LEAD)
        save = time.monotonic()
        redis.ask("BGSAVE")
        # As many writes in every arm: what is copied goes by them, and how long a save takes by much else.
        time.sleep(QUICK_WRITING if self.quick else WRITING)
        written = time.monotonic()
        self.end_writer(writer)
        wait_for(lambda: redis.info("persistence")["rdb_bgsave_in_progress"] == "0", LONGEST_SAVE, "the save", 0.1)
        saved = time.monotonic()
        state = redis.info("persistence")
        if state["rdb_last_bgsave_status"] != "ok":
            raise RuntimeError("redis could not save")
        writer, after = self.writer(where, "after", stack)
        back = None
        if figures["share_before"] > NONE:
            wanted = 0.95 * figures["share_before"]
            figures["share_after"] = now = share()
            while now < wanted and time.monotonic() < saved + (BACK + 2 if superhue else LOOK):
                time.sleep(0.5)
                now = share()
            back = time.monotonic() - saved if now >= wanted else None
            figures["share_in_the_end"] = now
        else:
            time.sleep(LOOK)
        self.end_writer(writer)
        spans = latencies(during, {"before": (save - LEAD, save), "save": (save, written)})
        spans |= latencies(after, {"after": (saved, float("inf"))})
        return figures | {
            "save_seconds": saved - save, "writes_during_save": spans["save"]["count"], "copied_bytes": int(state["rdb_last_cow_size"]),
            "huge_pages_back_seconds": back, "fork_us": int(redis.info("stats")["latest_fork_usec"]),
            "peak_bytes": (field(read(f"/proc/{pid}/status"), "VmHWM") or 0) * 1024, "latency_us": spans,
        }

    def writer(self, where, name, stack):
        """Writes at the fixed rate from now on; and the file that gets the latencies."""
        samples = self.folder / name
        command = [self.setter, where, "rate", self.keys(), VALUE_BYTES, WRITES_PER_SECOND, samples]
        writer = CHILDREN.start(command, stdout=subprocess.DEVNULL)
        stack.callback(end, writer)
        return writer, samples

    def end_writer(self, writer):
        """Writes no more."""
        writer.stdin.close()
        if writer.wait(60) != 0:
            raise RuntimeError("the writer failed")

    def throughput(self, where):
        """Writes per second of clients that each wait for the answer."""
        count = BENCHMARK_WRITES // (10 if self.quick else 1)
        begun = time.monotonic()
        command = ["redis-benchmark", "-s", where, "-t", "set", "-r", str(self.keys()), "-d", str(VALUE_BYTES), "-n", str(count), "-q"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=120)
        return count / (time.monotonic() - begun)

    def judged(self, samples):
        figures = {}
        for arm, runs in samples.items():
            during = [run["latency_us"]["save"] for run in runs]
            names = ("copied_bytes", "writes_during_save", "writes_per_second", "share_before", "save_seconds", "fork_us")
            figures[arm] = {name: median([run[name] for run in runs]) for name in names}
            for name in ("50 %", "99 %", "99.9 %", "worst"):
                figures[arm][f"{name}_us"] = median([each[name] for each in during if each["count"]])
            back = [run["huge_pages_back_seconds"] for run in runs if run["share_before"] > NONE]
            figures[arm]["saves_with_huge_pages"] = len(back)
            figures[arm]["longest_back_seconds"] = max(back) if back and None not in back else None
        never, always, bars = figures["never"], figures["always"], {}
        for arm, (_, superhue) in ARMS.items():
            here = figures[arm]
            if not superhue or not samples[arm] or not samples["never"] or not samples["always"]:
                continue
            bars |= {
                f"{arm}: p99.9 at most {P999}x of never": here["99.9 %_us"] <= P999 * never["99.9 %_us"],
                f"{arm}: worst at most {WORST}x of never": here["worst_us"] <= WORST * never["worst_us"],
                f"{arm}: copied at most {COPIED}x of never": here["copied_bytes"] <= COPIED * never["copied_bytes"],
                f"{arm}: throughput at least {THROUGHPUT:.0%} of always":
                    here["writes_per_second"] >= THROUGHPUT * always["writes_per_second"],
            }
            # Where there were none, e.g. of memory that was not hot, none can come back.
            if here["saves_with_huge_pages"]:
                back = here["longest_back_seconds"]
                bars[f"{arm}: huge pages back within {BACK} s"] = back is not None and back <= BACK
        return figures, bars


def latencies(path, spans):
    """Of each span of time: how many, some quantiles and the worst."""
    values = array.array("d")
    values.frombytes(path.read_bytes())
    pairs = list(zip(values[::2], values[1::2]))
    found = {}
    for name, (begin, end_) in spans.items():
        here = [each for at, each in pairs if begin <= at < end_]
        found[name] = {"count": len(here), "worst": max(here, default=None)} | shares(here, 50, 99, 99.9)
    return found
