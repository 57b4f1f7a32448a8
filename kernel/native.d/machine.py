# SPDX-License-Identifier: GPL-2.0-only
"""The machine that kernel/native measures on: the host's cache, and the guest whose memory has real colors."""

import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "kernel/native.d"
CACHE = ROOT / "target/kernel-7.3"
# Memory of the guest: twice what the largest case needs, in half of the colors.
MIB = 192
PAGE = 4096
# Where User-Mode Linux makes the file that is its memory.
FOLDER = "/dev/shm"
# Seconds for the longest case, on a busy machine.
LIMIT = 120
# Least share of the guest's pages that must have the frame that was dealt.
RIGHT = 0.99
# Time of a load with two pages more than ways, against two fewer: at least CLIFF for pages of one color, at most FLAT for pages of all
# colors in turn. SHOWN is the least share of the colors with a cliff: a page of another color among its pages hides it.
CLIFF, FLAT, SHOWN = 1.3, 1.15, 0.75


class Cannot(Exception):
    """Reason why this machine cannot do it."""


class Failed(Exception):
    """Reason why there is no result."""


def read(path):
    """The text of a file."""
    return pathlib.Path(path).read_text(encoding="utf-8", errors="replace").strip()


class Host:
    """The CPU that is measured on, and its L2."""

    def __init__(self):
        if platform.machine() != "x86_64":
            raise Cannot(f"User-Mode Linux runs on x86-64, and this machine is {platform.machine()}")
        if os.geteuid() != 0:
            raise Cannot("only root may read which frames back memory: run it as root")
        # Interrupts are mostly served by the first ones.
        self.cpu = max(os.sched_getaffinity(0))
        self.cache = self.find_cache()
        self.colors, self.ways, self.bytes = (self.cache[name] for name in ("colors", "ways", "bytes"))
        self.check_folder()

    def find_cache(self):
        """The L2 of the CPU, as it is described."""
        for index in pathlib.Path(f"/sys/devices/system/cpu/cpu{self.cpu}/cache").glob("index*"):
            if read(index / "level") == "2" and read(index / "type") != "Instruction":
                break
        else:
            raise Cannot(f"no L2 of CPU {self.cpu} is described in sysfs")
        sets, ways, line = (int(read(index / name)) for name in ("number_of_sets", "ways_of_associativity", "coherency_line_size"))
        colors = sets * line // PAGE
        if colors < 2 or colors & colors - 1:
            raise Cannot(f"the L2 has {sets} sets of {line}-byte lines, which is no power of two of colors above 1")
        shared_by = read(index / "shared_cpu_list")
        return {"level": 2, "cpu": self.cpu, "shared_by": shared_by, "bytes": sets * ways * line, "ways": ways, "colors": colors}

    @staticmethod
    def check_folder():
        """Refuses where the guest's memory and the stock of frames find no room in a file system in memory."""
        mounts = [line.split() for line in read("/proc/mounts").splitlines()]
        kind, flags = next(((mount[2], mount[3].split(",")) for mount in reversed(mounts) if mount[1] == FOLDER), ("none", []))
        if kind != "tmpfs" or "noexec" in flags:
            raise Cannot(f"{FOLDER} is no tmpfs that allows execution, which the memory of User-Mode Linux must lie in")
        free = shutil.disk_usage(FOLDER).free
        if free < 3 * MIB << 20:
            raise Cannot(f"{FOLDER} has {free >> 20} MiB left: {3 * MIB} are needed")


@dataclasses.dataclass
class Programs:
    """The results of the build."""

    linux: pathlib.Path
    deal: pathlib.Path
    root: pathlib.Path
    release: str
    patches: str


def call(command, what):
    """Runs a command, which shows its errors itself. Returns its output."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 3:
        raise Cannot(f"{what}: see above")
    if done.returncode:
        raise Failed(f"{what} failed: see above")
    return done.stdout.strip()


def build():
    """The kernel, the program that deals frames, and those of the guest, in a folder that is the guest's root."""
    linux = pathlib.Path(call([SOURCES / "build"], "building the kernel"))
    call(["cargo", "build", "--quiet", "--release", "-p", "superhue-color", "--example", "deal"], "cargo build")
    deal = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/examples/deal"
    root = CACHE / "um-root"
    (root / "proc").mkdir(parents=True, exist_ok=True)
    for source in sorted(SOURCES.glob("*.c")):
        if source.stem != "guest":
            command = ["cc", "-std=gnu11", "-O2", "-Wall", "-static", "-o", root / source.stem, source, SOURCES / "guest.c", "-lm"]
            call(command, f"compiling {source.name}")
    patches = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((ROOT / "kernel/patches-7.3").glob("*.patch"))))
    return Programs(linux, deal, root, read(linux.parent / "include/config/kernel.release"), patches.hexdigest()[:16])


class Guest:
    """A User-Mode Linux on one CPU. It ends with the `with` block."""

    def __init__(self, host, programs):
        self.host, self.programs = host, programs
        self.log = (CACHE / "um-boot.log").open("wb")
        self.home = CACHE / "um-home"
        self.text = b""

    def __enter__(self):
        bits = f"12-{11 + self.host.colors.bit_length() - 1}"
        command = [
            "setpriv", "--pdeathsig", "KILL", "taskset", "-c", self.host.cpu, self.programs.linux, f"mem={MIB}M",
            "rootfstype=hostfs", "root=/dev/root", f"rootflags={self.programs.root}", "ro", "init=/init",
            "con=null", "con0=fd:0,fd:1", "seccomp=on", "loglevel=4", "panic=-1", f"page_color=bits:{bits}"]
        # It keeps a socket for its management there.
        self.home.mkdir(exist_ok=True)
        # A group of its own, which is all that has to be ended.
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={"PATH": os.environ["PATH"], "TMPDIR": FOLDER, "HOME": str(self.home)})
        try:
            if self.line(60) != ["ready"]:
                raise Failed(f"the guest does not start: see {self.log.name}")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """Ends all of it."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def line(self, limit=LIMIT):
        """Waits for the next line of one of the guest's programs. Returns its words."""
        deadline = time.monotonic() + limit
        while True:
            line, found, rest = self.text.partition(b"\n")
            if found:
                self.text = rest
                self.log.write(line + b"\n")
                words = line.decode(errors="replace").split()
                if words[:1] == ["native"]:
                    return words[1:]
                continue
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            more = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not more:
                self.log.write(self.text)
                raise Failed(f"the guest {'ended' if ready else f'has not answered for {limit} s'}: see {self.log.name}")
            self.text += more

    def ask(self, *words):
        """Gives the guest's init a command. Returns the lines of its output."""
        text = " ".join(str(word) for word in words)
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.line())[:1] != ["done"]:
            lines.append(line)
        if line != ["done", "0"]:
            raise Failed(f"the guest could not {text}: status {line[-1]}")
        return lines

    def memory(self):
        """The file that is its memory."""
        for path in pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                if os.readlink(path).startswith(FOLDER + "/") and path.stat().st_size >= MIB << 20:
                    return path
            except OSError:
                continue
        raise Failed(f"the guest has no memory in {FOLDER}")

    def states(self):
        """The states of all threads of the kernel, and of the processes that its programs are."""
        kernel, others = set(), set()
        for entry in pathlib.Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
            try:
                fields = entry.read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self.process.pid:
                (kernel if int(entry.parts[2]) == self.process.pid else others).add(fields[0])
        return kernel, others

    def deal(self):
        """Gives all pages of its memory frames of the colors that it computes for them, while all of it stands still."""
        file = self.memory()
        time.sleep(0.5)
        # Of its processes, those that run no program wait for the kernel.
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            for _ in range(100):
                kernel, others = self.states()
                if kernel == {"T"} and others <= {"S"}:
                    break
                time.sleep(0.01)
            else:
                raise Failed(f"the guest does not stand still: its kernel is {kernel}, its processes are {others}")
            options = {"file": file, "colors": self.host.colors, "ways": self.host.ways, "cpu": self.host.cpu, "folder": FOLDER}
            words = [word for name, value in options.items() for word in (f"--{name}", value)]
            found = json.loads(call([self.programs.deal, *words], "giving the guest's memory real colors"))
        finally:
            os.kill(self.process.pid, signal.SIGCONT)
        if found["right_pages"] < RIGHT * found["pages"]:
            raise Cannot(f"only {found['right_pages']} of {found['pages']} pages of the guest got the frame that was meant for them")
        return found

    def prove(self):
        """Looks for the cliff at one page more than ways, in pages of one color and in pages of all colors in turn."""
        times = {}
        for color, count, took in self.ask("run", "off", "cliff", self.host.colors, self.host.ways, 1):
            times.setdefault(int(color), {})[int(count)] = float(took)
        ratios = {color: of[self.host.ways + 2] / of[self.host.ways - 2] for color, of in times.items()}
        flat = ratios.pop(-1)
        shown = sum(ratio >= CLIFF for ratio in ratios.values())
        counts = sorted(times[-1])
        found = {
            "colors_with_cliff": shown, "colors": self.host.colors, "pages": counts,
            "ratio_of_one_color": statistics.median(ratios.values()), "ratio_of_all_in_turn": flat,
             "ns_of_one_color": [statistics.median(of[count] for color, of in times.items() if color >= 0) for count in counts],
            "ns_of_all_in_turn": [times[-1][count] for count in counts], "ratios": ratios}
        print(f"kernel/native: {shown} of {self.host.colors} colors have their cliff: a load takes {found['ratio_of_one_color']:.2f} times "
              f"as long with {self.host.ways + 2} pages as with {self.host.ways - 2}, and {flat:.2f} times where colors take turns", file=sys.stderr)
        if shown < SHOWN * self.host.colors or flat > FLAT:
            raise Failed(f"the colors that the guest computes are not those of the cache: {json.dumps(found)}")
        return found
