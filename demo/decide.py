#!/usr/bin/python3
"""Says of real programs whether huge pages are worth it for them: the demonstration, five minutes.

    demo/decide.py                    all programs
    demo/decide.py --only WORD        those with this word in their name
    demo/decide.py --keep DIR         results and plots stay there (target/demo)

Servers and long computations are measured as they run: `superhue trial` switches the default policy on and off inside them until a
test decides. What is over soon is run again and again: `superhue compare`. This script chooses programs, and lays out the table.
"""

import argparse
import contextlib
import json
import os
import pathlib
import pwd
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from programs import die_with_parent, free_port, postgres_programs  # noqa: E402  pylint: disable=wrong-import-position

BIN = pathlib.Path(os.environ.get("SUPERHUE_BIN", ROOT / "target/release"))
SUPERHUE, WORKLOAD = BIN / "superhue", BIN / "superhue-workload"
PYTHON = "/usr/bin/python3"
MIB = 1 << 20
HEADER = ["PROGRAM", "FIGURE", "WITH `auto`", "95 % SURE", "VERDICT", "HUGE PAGES ADD", "TOOK"]
NEXT = """
Try next, on a service of your own:

    superhue status --why PID                    # why its memory is not on huge pages, and what can be done
    superhue trial --unit NAME                   # is it worth it for this server, as it runs? (--help: what to measure)
    superhue attach --cgroup system.slice/NAME.service      # do it, until Ctrl-C; `superhue daemon` does it for good
"""


def say(text):
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def running(command, **options):
    """A program for as long as it is wanted."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | options
    process = subprocess.Popen([str(word) for word in command], preexec_fn=die_with_parent, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(what, process, name, seconds=120):
    """Until something is there; the program must not end before."""
    deadline = time.monotonic() + seconds
    while not what():
        if process.poll() is not None:
            raise RuntimeError(f"{name} has ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} was not ready after {seconds} s")
        time.sleep(0.05)


def listens(port):
    """Whether somebody does."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def superhue(*arguments, wanted=(0,)):
    """Runs superhue; its progress is shown, its lines are not."""
    done = subprocess.run([str(word) for word in (SUPERHUE, *arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"})
    if done.returncode not in wanted:
        raise RuntimeError(f"superhue {arguments[0]} ended with status {done.returncode}")
    return done.stdout


def percent(change):
    return "?" if change is None else f"{change * 100:+.1f} %"


def between(low, high):
    """An interval; an end that is not known yet is left open."""
    return "?" if low is None and high is None else f"{percent(low)} to {percent(high)}"


def size(count):
    return "?" if count is None else f"{count / MIB:,.0f} MiB"


class Trial:
    """A program that goes on, with the policy switched on and off inside it."""

    def __init__(self, name, figure, start, limit="60s"):
        self.name, self.figure, self.start, self.limit = name, figure, start, limit

    def rows(self, keep, stem):
        with contextlib.ExitStack() as stack:
            pid, metric = self.start(stack)
            told = superhue("trial", pid, "--json", "--metric-kind", "work", "--metric", metric, "--learn", "15s", "--for", self.limit, "--seed", "1",
                            # Nobody waits for these programs: collapses need not be spread out.
                            "--max-stall", "0",
                            "--plot", keep / f"{stem}.svg")
        (keep / f"{stem}.json").write_text(told, encoding="utf-8")
        trial = json.loads(told)
        effect, outcome = trial["effect"], trial["verdict"]["outcome"]
        verdict = {"keep": "keep: faster", "leave": "leave: slower", "no-difference": f"no difference at {trial['settings']['within']:.0%}"}
        yield [self.name, self.figure, percent(effect["estimate"]), between(effect["low"], effect["high"]), verdict.get(outcome, outcome),
               size(trial["switching"].get("growth_bytes")), f"{trial['seconds']:.0f} s"]


class Comparison:
    """A program that is run again and again, under two policies or more."""

    def __init__(self, name, figure, metric, arms, prepare, runs):
        self.name, self.figure, self.metric, self.arms, self.prepare, self.runs = name, figure, metric, arms, prepare, runs

    def rows(self, keep, stem):
        begun, document = time.monotonic(), keep / f"{stem}.json"
        with contextlib.ExitStack() as stack:
            words = self.prepare(stack)
            superhue("compare", "--runs", self.runs, "--warmup", 0, "--report", document, "--plot", keep / f"{stem}.svg",
                     *(word for arm in self.arms for word in ("--arm", arm)), *words)
        result = json.loads(document.read_text(encoding="utf-8"))
        took = f"{time.monotonic() - begun:.0f} s"
        summary = next(each for each in result["summaries"] if each["metric"] == self.metric)
        base = peak(result, 0)
        for index, arm in list(enumerate(result["arms"]))[1:]:
            against = summary["arms"][index]["against"]
            said = against["verdict"]["is"]
            better = {"better": "faster", "worse": "slower", "no-difference-shown": "no difference shown", "too-few-runs": "too few runs"}
            ratio, interval = against["ratio"]["value"], against["ratio"]["interval"] or {}
            change, low, high = (None if each is None else each - 1 for each in (ratio, interval.get("low"), interval.get("high")))
            more = peak(result, index)
            name = self.name if arm["name"] == "auto" else f"  the same with `{arm['name']}`"
            yield [name, self.figure if arm["name"] == "auto" else "", percent(change), between(low, high), better.get(said, said),
                   size(more - base) if base is not None and more is not None else "?", took if arm["name"] == "auto" else ""]


def peak(result, arm):
    """Median of the largest resident memory of an arm's runs, bytes."""
    runs = (run for run in result["samples"] if run["arm"] == arm and not run["warmup"] and not run["failed"])
    values = [value for run in runs if (value := run["values"].get("max_rss")) is not None]
    return statistics.median(values) if values else None


def counting(stack, *command):
    """A computation that writes how far it is into a file, at its beginning."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="superhue-demo-"))
    count = pathlib.Path(folder) / "count"
    # NumPy asks for huge pages by itself, which would leave nothing to decide.
    process = stack.enter_context(running([*command, "--seconds", 100, "--count", count], env={**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"}))
    wait_for(lambda: count.exists() and count.stat().st_size > 0, process, command[1])
    return process.pid, f"cat {count}"


# A switch of 256 MiB is so short that a minute has room for a dozen pairs of blocks and more.
def gather(stack):
    return counting(stack, PYTHON, ROOT / "demo/gather.py", "--size", 256, "--gathers", 1)


def join(stack):
    return counting(stack, PYTHON, ROOT / "demo/join.py", "--size", 256)


def memcached(stack):
    """As in the paper: 800,000 items of 512 bytes, read only, zipfian."""
    port = free_port()
    server = stack.enter_context(running(["memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", port, "-m", 2048, "-t", 1]))
    wait_for(lambda: listens(port), server, "memcached")
    zipf = ["--items", 800000, "--value-size", 512, "--connections", 1, "--pipeline", 128, "--seconds", 150]
    load = stack.enter_context(running([WORKLOAD, "load", "memcached", "--port", port, *zipf]))
    gets = f"{PYTHON} {ROOT}/demo/gets.py {port}"
    wait_for(lambda: counted(gets) > 0, load, "the load")
    return server.pid, gets


def counted(command):
    """The number that a command prints; 0 while there is none."""
    told = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout.strip()
    return int(told) if told.isdigit() else 0


def postgres(stack):
    """Point reads of a table that fills the server's buffers: shared memory of a process for each client."""
    programs, folder = postgres_programs(), pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="superhue-demo-")))
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    become = ["setpriv", "--reuid", user.pw_uid, "--regid", user.pw_gid, "--clear-groups"] if os.geteuid() == 0 else []
    folder.chmod(0o755)
    data = folder / "data"
    data.mkdir(0o700)
    if become:
        os.chown(data, user.pw_uid, user.pw_gid)
    port = free_port()
    quiet = {"cwd": "/", "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True, "timeout": 300}
    told = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "shared_buffers": "768MB", "huge_pages": "off", "fsync": "off",
            "autovacuum": "off", "jit": "off"}
    server = [*become, programs / "postgres", "-D", data, *(word for name, value in told.items() for word in ("-c", f"{name}={value}"))]
    client = lambda program, *words: [str(word) for word in (programs / program, "-h", "127.0.0.1", "-p", port, "-U", user.pw_name, *words)]  # noqa: E731
    subprocess.run([str(word) for word in (*become, programs / "initdb", "-D", data, "-A", "trust", "-U", user.pw_name, "--no-sync")], **quiet)
    with running(server, cwd="/") as process:
        ready = client("pg_isready", "-q")
        wait_for(lambda: subprocess.run(ready, check=False).returncode == 0, process, "postgres")
        subprocess.run(client("createdb", "bench"), **quiet)
        subprocess.run(client("pgbench", "-i", "-q", "-s", "40", "bench"), **quiet)
        subprocess.run(client("psql", "-q", "-c", "create extension pg_prewarm", "bench"), **quiet)
    warm = client("psql", "-qAt", "-c", "select pg_prewarm('pgbench_accounts') + pg_prewarm('pgbench_accounts_pkey')", "bench")
    bench = client("pgbench", "-n", "-S", "-M", "prepared", "-c", "8", "-T", "4", "bench")
    # It listens before it takes clients.
    ready = f"timeout 20 sh -c 'until {' '.join(client('pg_isready', '-q'))}; do sleep 0.05; done'"
    load = f"{ready} && {' '.join(quoted(word) for word in warm)} >/dev/null && {' '.join(bench)}"
    return ["--metric", "tps=tps = ([0-9.]+)", "--load", load, "--ready", f"tcp:{port}", "--", *map(str, server)]


def quoted(word):
    return "'" + word.replace("'", "'\\''") + "'"


def sparse(_stack):
    return ["--metric", "throughput_mops=throughput_mops ([0-9.]+)", "--", WORKLOAD, "sparse", "--size", "4G", "--seconds", "1"]


PROGRAMS = [
    Trial("numpy gather, 256 MiB", "CPU per element", gather),
    # To switch 600 MiB takes seconds: a minute has room for too few pairs where frames come slowly.
    Trial("memcached, zipf 800k x 512", "CPU per get", memcached, limit="110s"),
    Trial("sqlite join, 256 MiB", "CPU per step", join),
    # The kernel aligns the buffers of a server that starts under this setting; superhue puts it back.
    Comparison("postgres, point reads", "transactions/s", "tps", ["never", "auto=--pages auto --system shmem_enabled=advise"], postgres, 6),
    Comparison("sparse, 4 KiB in each 2 MiB", "accesses/s", "throughput_mops", ["never", "auto", "always"], sparse, 7),
]


def table(rows):
    """Lays rows out in columns."""
    grid = [HEADER, *rows]
    widths = [max(len(row[column]) for row in grid) for column in range(len(HEADER))]
    for row in grid:
        cells = (cell.rjust(width) if column in (2, 5, 6) else cell.ljust(width) for column, (cell, width) in enumerate(zip(row, widths)))
        yield "  ".join(cells).rstrip()


def ended(number, _frame):
    raise SystemExit(128 + number)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="WORD", help="only programs whose name has this word")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", default=ROOT / "target/demo", help="where results and plots go (%(default)s)")
    options = parser.parse_args()
    chosen = [program for program in PROGRAMS if not options.only or options.only in program.name]
    if not chosen:
        parser.error(f"no program has {options.only!r} in its name")
    signal.signal(signal.SIGTERM, ended)
    options.keep.mkdir(parents=True, exist_ok=True)
    keep = options.keep.resolve()
    say("touching memory once, so that no run pays for the host's")
    subprocess.run([WORKLOAD, "hold", "--size", "3G", "--seconds", "0"], stdout=subprocess.DEVNULL, check=True)
    rows, failed = [], False
    for program in chosen:
        say(f"{program.name} ...")
        try:
            rows.extend(program.rows(keep, program.name.split(",")[0].replace(" ", "-")))
        except (RuntimeError, OSError, subprocess.SubprocessError, ValueError) as error:
            say(f"{program.name}: {error}")
            rows.append([program.name, program.figure, "failed", "", "", "", ""])
            failed = True
    print("\n".join(table(rows)))
    print("\n`auto` is the default policy: huge pages for what is full, and where the accesses are. Against the same program without huge pages; more is better, but for CPU time.")
    print(f"Trials end as soon as they are sure, within two minutes. Pictures and every sample: {os.path.relpath(keep)}")
    print("The last two rows compare whole runs: a difference is claimed only if a rank test over all figures confirms the interval.")
    print(NEXT, end="")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
