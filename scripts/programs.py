"""Programs that scripts start and look at."""

import contextlib
import ctypes
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASE = pathlib.Path(os.environ.get("SUPERHUE_RELEASE", ROOT / "target/release"))
SUPERHUE, WORKLOAD = str(RELEASE / "superhue"), str(RELEASE / "superhue-workload")

LIBC = ctypes.CDLL(None)


def die_with_parent():
    """Of a program that is about to be started."""
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_port():
    """One of this host that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def postgres_programs():
    """The folder of PostgreSQL's programs, of the newest release."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("postgres")
    if not found and not on_path:
        raise RuntimeError("PostgreSQL is not installed")
    return found[-1].parent if found else pathlib.Path(on_path).resolve().parent


class Children:
    """Programs that were started, and that end with us."""

    def __init__(self):
        self.started = set()
        self.lock = threading.Lock()

    def start(self, command, **options):
        """Starts one."""
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True} | options
        # Should this script be killed, they are too.
        process = subprocess.Popen([str(word) for word in command], preexec_fn=die_with_parent, **options)
        with self.lock:
            self.started.add(process)
        return process

    def end(self, process, kill=True):
        """Ends one, and closes its pipes."""
        if kill and process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
        with self.lock:
            self.started.discard(process)

    def end_all(self):
        """Ends those that are left."""
        for process in list(self.started):
            self.end(process)


CHILDREN = Children()


def read(path):
    """The text of a file, or none: processes come and go."""
    try:
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def field(text, name):
    """The number in a line `name: number`."""
    found = re.search(rf"^{name}:\s*(\d+)", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def children_of(pid):
    """Children of all of a process's threads."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in read(task).split()]


def shares(samples, *at):
    """Some quantiles, by name."""
    ordered = sorted(samples)
    return {f"{share:g} %": ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] for share in at} if ordered else {}


def median(samples):
    """`None`, if there is nothing to take it of."""
    return statistics.median(samples) if samples else None


# The order from which on a guest tells its host which blocks are free; above the largest one, none.
REPORTING, NEVER = pathlib.Path("/sys/module/page_reporting/parameters/page_reporting_order"), 11


@contextlib.contextmanager
def put_back(values):
    """Writes values into settings of the kernel afterwards. A shell of its own does so, even if this script is killed."""
    back = "; ".join(f"echo {shlex.quote(value)} >{shlex.quote(str(path))}" for path, value in values.items())
    command = ["sh", "-c", f"trap '' INT TERM HUP; read -r word; {back or ':'}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        # It ends when its input is closed.
        yield


def setting(path):
    """The value of a file in which one of several may be chosen."""
    text = read(path).strip()
    chosen = re.search(r"\[(\w+)\]", text)
    return chosen[1] if chosen else text


@contextlib.contextmanager
def changed(values):
    """Settings of the kernel, values by path, that are changed for a while."""
    with put_back({path: setting(path) for path in values}):
        for path, value in values.items():
            path.write_text(f"{value}\n", encoding="utf-8")
        yield


@contextlib.contextmanager
def warm():
    """Touches most of the free memory once: the first touch of what a host has not backed yet costs far more than any later one, and
    which free pages a program is given nobody can say. Holds the guest back from giving free memory to the host meanwhile."""
    before = read(REPORTING).strip()
    with put_back({REPORTING: before} if before else {}):
        if before:
            REPORTING.write_text(f"{NEVER}\n", encoding="utf-8")
        available = int(re.search(r"MemAvailable: *([0-9]+)", read("/proc/meminfo"))[1])
        subprocess.run([WORKLOAD, "hold", "--size", f"{available * 3 // 4}K", "--seconds", "0"], stdout=subprocess.DEVNULL, check=True)
        yield
