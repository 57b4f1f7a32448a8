"""The buffers of a PostgreSQL server, shared by a process for each client."""

import contextlib
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import time

import cgroups
from common import HUGE_PAGES, Skipped, Subject, attach, end, end_server, held, mapped, setting, steady, told, under, wait_for
from programs import CHILDREN, children_of, field, median, postgres_programs, read

# Of each run of pgbench, and until huge pages are there.
SECONDS, QUICK_SECONDS, SETTLE = 10, 2, 60
CLIENTS = (8, 32, 100)
# The load that `hot` goes by, of the fewest clients, before anything is measured.
BEFORE, QUICK_BEFORE = 120, 4
# Of a table of pgbench with its index, for each unit of its scale.
BYTES_PER_SCALE = 16 << 20

# The clients that use the buffers as soon as all of them are filled, and the share of their transactions that are timed.
FIRST_SECONDS, FIRST_CLIENTS, TIMED = 20, 8, 0.2

# Bars: of what hugetlb gains over `off`; of the used buffers; of the page tables of `off`; of the latencies of `off`.
GAIN, MAPPED, TABLES, LATENCY = 0.95, 0.9, 0.15, 1.05

# An arm: huge_pages, what shmem_enabled is, how superhue comes to the server.
ARMS = {
    "off": ("off", "never", None),
    "hugetlb": ("on", "never", None),
    "always": ("off", "always", None),
    "run resident": ("off", "never", ("run", "resident")),
    "run hot": ("off", "never", ("run", "hot")),
    "run auto": ("off", "never", ("run", "auto")),
    "attach resident": ("off", "advise", ("attach", "resident")),
}

SETTINGS = {
    "listen_addresses": "", "max_connections": "120", "autovacuum": "off", "fsync": "off", "synchronous_commit": "off",
    "full_page_writes": "off", "checkpoint_timeout": "1h", "max_wal_size": "8GB", "jit": "off", "max_parallel_workers_per_gather": "0",
}
DATABASE = "bench"
# The table and its index, page by page; the contents of each page.
SCAN = "select tuple_count from pgstattuple('pgbench_accounts'); select leaf_pages from pgstatindex('pgbench_accounts_pkey');"
WARM = f"select pg_prewarm('pgbench_accounts') + pg_prewarm('pgbench_accounts_pkey'); {SCAN}"
USED = "select count(*) from pg_buffercache where relfilenode is not null;"


def user():
    """An ordinary one: as root the server does not run."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("there is no user postgres or nobody")


class Session:
    """A client that stays: its backend has every buffer in its page table."""

    def __init__(self, psql):
        self.process = CHILDREN.start(psql)
        self.pid = int(self.ask("select pg_backend_pid();")[0])

    def ask(self, words):
        """Lines of the answer."""
        self.process.stdin.write(f"{words}\n\\echo .\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline()) and line != ".\n":
            lines.append(line.strip())
        if not line:
            raise RuntimeError(f"psql has ended at: {words}")
        return lines

    def close(self):
        """Ends it and its backend."""
        self.process.stdin.close()
        end(self.process, seconds=10)


class Buffers(Subject):
    """a PostgreSQL server with 3 GiB of buffers: transactions, page tables, buffers mapped by huge pages"""

    arms = tuple(ARMS)
    default_size = 3 << 30

    def __init__(self, options, folder):
        super().__init__(options, folder)
        self.seconds = QUICK_SECONDS if self.quick else SECONDS
        self.before = QUICK_BEFORE if self.quick else BEFORE
        self.data, self.sockets = folder / "data", folder / "sockets"

    def settings(self):
        version = subprocess.run([postgres_programs() / "postgres", "--version"], capture_output=True, text=True, check=True).stdout.strip()
        counts = {"seconds": self.seconds, "first_seconds": FIRST_SECONDS, "before": self.before, "scale": self.scale(), "clients": CLIENTS}
        return super().settings() | counts | {"postgres": version, "server": SETTINGS}

    def scale(self):
        """As much as fits into the buffers."""
        return max(1, self.size // BYTES_PER_SCALE)

    def as_user(self, *command):
        """A command as the server's user."""
        return ["setpriv", "--reuid", user().pw_uid, "--regid", user().pw_gid, "--clear-groups", *command]

    def server(self, huge_pages, *more):
        """The command of the server."""
        given = SETTINGS | {"unix_socket_directories": self.sockets, "shared_buffers": f"{self.size >> 10}kB", "huge_pages": huge_pages}
        words = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        return self.as_user(postgres_programs() / "postgres", "-D", self.data, *words, *more)

    def client(self, program, *words):
        """The command of a client."""
        return [postgres_programs() / program, "-h", self.sockets, "-U", user().pw_name, *words]

    def prepare(self):
        self.folder.chmod(0o755)
        for path in (self.data, self.sockets):
            path.mkdir(0o700)
            shutil.chown(path, user().pw_uid, user().pw_gid)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True, "timeout": 900}
        initdb = self.as_user(postgres_programs() / "initdb", "-D", self.data, "-A", "trust", "-U", user().pw_name, "--no-sync")
        subprocess.run([str(word) for word in initdb], cwd="/", **quiet)
        with self.running(self.server("off")):
            subprocess.run(self.client("createdb", DATABASE), **quiet)
            subprocess.run(self.client("pgbench", "-i", "-q", "-s", str(self.scale()), DATABASE), **quiet)
            extensions = "; ".join(f"create extension {name}" for name in ("pg_prewarm", "pg_buffercache", "pgstattuple"))
            subprocess.run(self.client("psql", "-q", "-c", extensions, DATABASE), **quiet)

    @contextlib.contextmanager
    def running(self, command):
        """A server; its first process's number."""
        pid_file = self.data / "postmaster.pid"
        pid_file.unlink(missing_ok=True)
        with (self.folder / "log").open("a", encoding="utf-8") as log:
            process = CHILDREN.start(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        pid = None
        try:
            ready = wait_for(lambda: process.poll() is not None or re.search(r"^ready", read(pid_file), re.MULTILINE), 60, "postgres")
            if ready is True:
                raise RuntimeError(f"postgres has ended: {read(self.folder / 'log')[-600:]}")
            pid = int(read(pid_file).split()[0])
            yield pid
        finally:
            # Fast shutdown: clients that are left are turned away.
            end_server(pid, process, number=signal.SIGINT)

    def sample(self, arm):
        huge_pages, shmem, superhue = ARMS[arm]
        command, report = self.server(huge_pages), self.folder / "report"
        report.unlink(missing_ok=True)
        values = {"enabled": "always" if arm == "always" else "madvise", "shmem_enabled": shmem}
        with contextlib.ExitStack() as stack:
            if huge_pages == "on":
                # Only says it; runs no server.
                asked = [str(word) for word in self.server("off", "-C", "shared_memory_size_in_huge_pages")]
                said = subprocess.run(asked, cwd="/", capture_output=True, text=True, check=True).stdout
                values["nr_hugepages"] = int(setting(HUGE_PAGES)) + int(said)
                pathlib.Path("/proc/sys/vm/compact_memory").write_text("1\n", encoding="utf-8")
            stack.enter_context(held(**values))
            if int(setting(HUGE_PAGES)) < values.get("nr_hugepages", 0):
                raise Skipped("the kernel has not so many huge pages")
            here = None
            if superhue and superhue[0] == "run":
                command = [*under(superhue[1], report, "--system", "shmem_enabled=advise"), *command]
            elif superhue:
                here = stack.enter_context(cgroups.made("superhue-shared"))
                if here:
                    command = ["sh", "-c", f'echo $$ >{here}/cgroup.procs && exec "$@"', "sh", *command]
            pid = stack.enter_context(self.running(command))
            session = self.session(stack)
            session.ask(WARM)
            if superhue and superhue[0] == "attach":
                watcher = attach(superhue[1], report, *(["--cgroup", here] if here else [pid]))
                stack.callback(end, watcher)
            figures = self.measured(pid, session, superhue)
            session.close()
            # Every backend is a new one now.
            session = self.session(stack)
            session.ask(SCAN)
            figures["again"] = self.mapped_by(session, pid, 3 if superhue else 0) | self.pgbench(pid, 100, "-S")
            session.close()
        return figures | ({"superhue": told(report)} if superhue else {})

    def session(self, stack):
        """A client that is ended with the server at the latest."""
        session = Session(self.client("psql", "-qAtX", DATABASE))
        stack.callback(end, session.process, seconds=1)
        return session

    def mapped_by(self, session, pid, seconds):
        """Which of the buffers a backend maps by huge pages, as soon as that has settled."""
        used = int(session.ask(USED)[0]) * 8192

        def share(*processes):
            found = [self.buffers(process) for process in processes]
            return max(here["pmd"] + here["hugetlb"] for here in found) / used

        # Huge pages show first in the process through which they were made; in others once they use them.
        _, took = steady(lambda: share(session.pid, pid), seconds, wanted=0.99)
        if seconds:
            session.ask(SCAN)
        here = self.buffers(session.pid)
        return {
            "used_bytes": used, "mapped_share": min(1, share(session.pid)), "settle_seconds": took, "backend": here, "postmaster": self.buffers(pid),
            "backend_tables": (field(read(f"/proc/{session.pid}/status"), "VmPTE") or 0) * 1024,
        }

    def buffers(self, pid):
        """The mapping of the shared buffers."""
        return mapped(pid, r"^/dev/zero \(deleted\)|^/anon_hugepage", self.size)

    def measured(self, pid, session, superhue):
        """Figures of one server."""
        first = self.first_seconds(pid, session)
        hot = superhue and superhue[1] == "hot"
        before = self.pgbench(pid, CLIENTS[0], "-S", seconds=self.before) if hot else None
        figures = {"first": first} | self.mapped_by(session, pid, SETTLE if superhue else 0) | {"before": before}
        runs = {f"select, {clients}": self.pgbench(pid, clients, "-S") for clients in CLIENTS}
        runs["tpc-b, 8"] = self.pgbench(pid, 8)
        return figures | {"runs": runs}

    def first_seconds(self, pid, session):
        """Latencies of clients while superhue makes the buffers huge, and how soon most of those in use are."""
        used = int(session.ask(USED)[0]) * 8192
        times = self.folder / "times"
        times.mkdir()
        command = self.client(
            "pgbench", "-n", "-M", "prepared", "-c", FIRST_CLIENTS, "-j", 2, "-T", FIRST_SECONDS, "-S",
            "-l", f"--log-prefix={times}/of", f"--sampling-rate={TIMED}", DATABASE,
        )
        process, begun = CHILDREN.start(command, stdin=subprocess.DEVNULL), time.monotonic()
        shares, soon = [], None
        while process.poll() is None and time.monotonic() < begun + FIRST_SECONDS + 60:
            here = [self.buffers(each) for each in (session.pid, pid)]
            shares.append(max(found["pmd"] + found["hugetlb"] for found in here) / used)
            if soon is None and shares[-1] >= MAPPED:
                soon = time.monotonic() - begun
            time.sleep(1)
        process.communicate(timeout=60)
        CHILDREN.end(process, kill=False)
        if process.returncode != 0:
            raise RuntimeError(f"pgbench has ended with {process.returncode}")
        micros = sorted(int(line.split()[2]) for path in times.iterdir() for line in path.read_text(encoding="utf-8").splitlines())
        shutil.rmtree(times)
        if len(micros) < 1000:
            raise RuntimeError(f"pgbench has timed {len(micros)} transactions only")
        latencies = {f"p{part * 100:g}_ms": micros[int(part * (len(micros) - 1))] / 1000 for part in (0.5, 0.99, 0.999, 1)}
        return {"timed": len(micros), **latencies, "mapped_share": min(1, shares[-1]), "mapped_after_seconds": soon}

    def pgbench(self, pid, clients, *words, seconds=None):
        """Transactions per second, and page tables of all processes while they are done."""
        seconds = seconds or self.seconds
        command = self.client("pgbench", "-n", "-M", "prepared", "-c", clients, "-j", 2, "-T", seconds, *words, DATABASE)
        process = CHILDREN.start(command, stdin=subprocess.DEVNULL)
        time.sleep(seconds * 0.8)
        everyone = [pid, *children_of(pid)]
        tables = sum((field(read(f"/proc/{each}/status"), "VmPTE") or 0) * 1024 for each in everyone)
        said, _ = process.communicate(timeout=seconds + 60)
        CHILDREN.end(process, kill=False)
        found = re.search(r"^tps = ([0-9.]+)", said, re.MULTILINE)
        if process.returncode != 0 or not found:
            raise RuntimeError(f"pgbench: {said[-400:]}")
        return {"tps": float(found[1]), "page_tables": tables, "processes": len(everyone)}

    def judged(self, samples):
        figures, bars = {}, {}
        for arm, runs in samples.items():
            if not runs:
                continue
            names = runs[0]["runs"]
            figures[arm] = {
                "tps": {name: median([run["runs"][name]["tps"] for run in runs]) for name in names}
                | {"select, 100, again": median([run["again"]["tps"] for run in runs])},
                "page_tables": {name: median([run["runs"][name]["page_tables"] for run in runs]) for name in names}
                | {"select, 100, again": median([run["again"]["page_tables"] for run in runs])},
                "mapped_share": min(run["mapped_share"] for run in runs),
                "mapped_share_again": min(run["again"]["mapped_share"] for run in runs),
                "settle_seconds": median([run["settle_seconds"] for run in runs]),
                "first_p99_ms": median([run["first"]["p99_ms"] for run in runs]),
                "first_worst_ms": max(run["first"]["p100_ms"] for run in runs),
                "first_mapped_share": min(run["first"]["mapped_share"] for run in runs),
                "longest_collapse_seconds": max((run.get("superhue") or {}).get("longest_seconds") or 0 for run in runs),
            }
        if "off" not in figures:
            return figures, bars
        off, hugetlb = figures["off"], figures.get("hugetlb")
        for arm, (_, _, superhue) in ARMS.items():
            if not superhue or arm not in figures:
                continue
            here = figures[arm]
            for name, base in off["tps"].items() if hugetlb else ():
                # Where hugetlb gains nothing, nothing may be lost.
                wanted = base + GAIN * (hugetlb["tps"][name] - base) if hugetlb["tps"][name] > base else GAIN * base
                here.setdefault("of_gain", {})[name] = (here["tps"][name] - base) / ((hugetlb["tps"][name] - base) or 1)
                bars[f"{arm}: {name}: at least {GAIN:.0%} of what hugetlb gains"] = here["tps"][name] >= wanted
            for when, key in {"": "mapped_share", " again": "mapped_share_again"}.items():
                bars[f"{arm}: at least {MAPPED:.0%} of used buffers mapped by huge pages{when}"] = here[key] >= MAPPED
            if superhue[1] != "hot":
                # It goes by the load that follows.
                bars[f"{arm}: at least {MAPPED:.0%} of used buffers mapped by huge pages within {FIRST_SECONDS} s"] = here["first_mapped_share"] >= MAPPED
            bars[f"{arm}: p99 meanwhile at most {LATENCY}x of off"] = here["first_p99_ms"] <= LATENCY * off["first_p99_ms"]
            for name in ("select, 100", "select, 100, again"):
                most = TABLES * off["page_tables"][name]
                bars[f"{arm}: {name}: page tables at most {TABLES:.0%} of off"] = here["page_tables"][name] <= most
        return figures, bars
