"""Starts a service as its systemd unit says, where no systemd runs: for tests of units and of what they start.

Environment, notification, watchdog, restarts, limits, capabilities, mounts, network and the filter of system calls are as systemd.exec(5) and
systemd.service(5) describe them, as far as `APPLIED` goes. What a unit asks for beyond that is told by `Unit.not_applied`. The sets of system
calls are systemd's own (`systemd-analyze syscall-filter`); without python3-seccomp there is no filter, which is told too.
"""

import ctypes
import errno
import os
import pathlib
import resource
import select
import signal
import socket
import stat
import subprocess
import threading
import time
import traceback

try:
    import seccomp
except ImportError:
    seccomp = None

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x20000, 0x04000000, 0x40000000
NAMESPACES = 0x7E020080
MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CAPABILITIES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN "
    "NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME "
    "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON "
    "BPF CHECKPOINT_RESTORE").split()
# What is done here. What needs nothing here: it is about starting units, or is implied by capabilities that are dropped.
APPLIED = set(
    "Type NotifyAccess ExecStart ExecReload Restart RestartSec RestartPreventExitStatus WatchdogSec RuntimeDirectory RuntimeDirectoryMode "
    "RuntimeDirectoryPreserve LimitNOFILE OOMScoreAdjust CapabilityBoundingSet NoNewPrivileges PrivateDevices PrivateNetwork PrivateTmp "
    "ProtectControlGroups ProtectHome ProtectHostname ProtectKernelTunables ProtectSystem SupplementaryGroups UMask".split())
FILTERED = set(
    "LockPersonality MemoryDenyWriteExecute RestrictAddressFamilies RestrictNamespaces RestrictRealtime SystemCallArchitectures "
    "SystemCallErrorNumber SystemCallFilter".split())
# Kept by the capabilities that the unit does not give, by the devices that it does not have, by the mounts that are its own anyhow.
IMPLIED = set("ProtectClock ProtectKernelLogs ProtectKernelModules DevicePolicy KeyringMode PrivateMounts".split())


def check(result, what):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source, target, kind, flags, options=None):
    encode = lambda text: None if text is None else str(text).encode()  # noqa: E731
    check(LIBC.mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), encode(options)), f"mount {target}")


def remount_read_only(target):
    mount(target, target, None, MS_BIND | MS_REC)
    mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY)


def syscall_group(name):
    """The calls of one of systemd's sets, the sets in it included."""
    told = subprocess.run(["systemd-analyze", "--no-pager", "syscall-filter", name], capture_output=True, text=True, check=True,
                          timeout=60).stdout
    calls = set()
    for line in told.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            calls |= syscall_group(word)
        elif word and not word.startswith("#"):
            calls.add(word)
    return calls


class Unit:
    """A unit file, and the service that it describes, in a tree `root` and a cgroup of its own."""

    def __init__(self, path, root, cgroup, log):
        self.root, self.cgroup, self.log = pathlib.Path(root), pathlib.Path(cgroup), log
        self.settings = {}
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            if line and line[0] not in "#[;" and "=" in line:
                key, value = line.split("=", 1)
                self.settings.setdefault(key, []).append(value)
        known = APPLIED | IMPLIED | (FILTERED if seccomp else set()) | {
            "Description", "Documentation", "ConditionPathExists", "WantedBy", "After", "Before", "Wants"}
        self.not_applied = sorted(set(self.settings) - known)
        self.files = int(self.one("LimitNOFILE", "0"))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard != resource.RLIM_INFINITY and self.files > hard:
            # The caller may not raise it.
            self.files = hard
            self.not_applied.append(f"LimitNOFILE (at most {hard} here)")
        known = dict(line.split(":")[0:3:2] for line in (self.root / "etc/group").read_text(encoding="utf-8").splitlines())
        self.groups = [int(known[name]) for name in self.one("SupplementaryGroups", "").split()]
        self.process, self.status, self.starts, self.stopping, self.ready = None, "", 0, False, threading.Event()
        self.signs_of_life = 0
        self.calls = self._calls() if seccomp else None
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = self.root / "run/notify"
        path.unlink(missing_ok=True)
        self.notify.bind(str(path))
        self.notify.settimeout(0.2)

    def one(self, key, otherwise=None):
        return self.settings.get(key, [otherwise])[-1]

    def is_on(self, key):
        return self.one(key) in ("yes", "true", "strict", "full")

    def _calls(self):
        calls = set()
        for number, value in enumerate(self.settings.get("SystemCallFilter", [])):
            denied = value.startswith("~")
            named = set()
            for word in value.lstrip("~").split():
                named |= syscall_group(word) if word.startswith("@") else {word}
            if number == 0:
                # Always allowed: without these nothing would start.
                calls = syscall_group("@default") | named
            else:
                calls = calls - named if denied else calls | named
        return calls

    # In the child, before it executes.

    def _mounts(self):
        check(LIBC.unshare(CLONE_NEWNS | (CLONE_NEWNET if self.is_on("PrivateNetwork") else 0) |
                           (CLONE_NEWUTS if self.is_on("ProtectHostname") else 0)), "unshare")
        mount(None, "/", None, MS_REC | MS_PRIVATE)
        os.chroot(self.root)
        os.chdir("/")
        runtime = "/run/" + self.one("RuntimeDirectory")
        mount(runtime, runtime, None, MS_BIND)
        if self.is_on("PrivateDevices"):
            names = ["null", "zero", "full", "random", "urandom", "tty"]
            numbers = {name: os.stat("/dev/" + name).st_rdev for name in names}
            mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755")
            for name, number in numbers.items():
                os.mknod("/dev/" + name, stat.S_IFCHR | 0o666, number)
                os.chmod("/dev/" + name, 0o666)
        for path in ["/tmp", "/var/tmp"] if self.is_on("PrivateTmp") else []:
            mount("tmpfs", path, "tmpfs", MS_NOSUID, "mode=1777")
        for path in ["/home", "/root", "/run/user"] if self.is_on("ProtectHome") else []:
            if os.path.isdir(path):
                mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_RDONLY, "mode=000")
        if self.is_on("ProtectKernelTunables"):
            for path in ["/proc/sys", "/sys"]:
                remount_read_only(path)
        if self.is_on("ProtectControlGroups"):
            mount(None, "/sys/fs/cgroup", None, MS_REMOUNT | MS_BIND | MS_RDONLY)
        if self.one("ProtectSystem") == "strict":
            mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY)

    def _filter(self):
        wanted = getattr(errno, self.one("SystemCallErrorNumber", "EPERM"))
        rules = seccomp.SyscallFilter(seccomp.ERRNO(wanted))
        # What is told apart by arguments; a call that is not allowed at all has no rule.
        special = {"socket", "mmap", "mprotect", "pkey_mprotect", "clone", "clone3", "unshare", "setns", "personality",
                   "sched_setscheduler"}
        for call in sorted(self.calls - special):
            try:
                rules.add_rule(seccomp.ALLOW, call)
            except (RuntimeError, ValueError, OSError):
                pass  # None of this architecture's.
        families = {"AF_UNIX": socket.AF_UNIX, "AF_INET": socket.AF_INET, "AF_INET6": socket.AF_INET6}
        masked = lambda at, mask, value: seccomp.Arg(at, seccomp.MASKED_EQ, mask, value)  # noqa: E731
        no_code = self.is_on("MemoryDenyWriteExecute")
        arguments = {
            "socket": [seccomp.Arg(0, seccomp.EQ, families[name]) for name in self.one("RestrictAddressFamilies", "").split()],
            "mmap": [masked(2, 6, bits) for bits in ((0, 2, 4) if no_code else (0, 2, 4, 6))],
            "mprotect": [masked(2, 4, bits) for bits in ((0,) if no_code else (0, 4))],
            "pkey_mprotect": [masked(2, 4, bits) for bits in ((0,) if no_code else (0, 4))],
            "clone": [masked(0, NAMESPACES, 0)],
            "sched_setscheduler": [masked(1, 0xF, kind) for kind in ((0, 3, 5) if self.is_on("RestrictRealtime") else (0, 1, 2, 3, 5, 6))],
        }
        for call in arguments.keys() & self.calls:
            for argument in arguments[call]:
                rules.add_rule(seccomp.ALLOW, call, argument)
        # Its flags are in memory: libraries take clone(2) then.
        rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
        rules.load()

    def _before(self, procs):
        # Python tells nobody what goes wrong there.
        try:
            self._restrict(procs)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            raise

    def _restrict(self, procs):
        os.write(procs, b"0")
        os.umask(int(self.one("UMask", "0022"), 8))
        pathlib.Path("/proc/self/oom_score_adj").write_text(self.one("OOMScoreAdjust", "0"), encoding="ascii")
        if self.files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))
        os.setgroups(self.groups)
        self._mounts()
        if "CapabilityBoundingSet" in self.settings:
            kept = self.one("CapabilityBoundingSet").replace("CAP_", "").split()
            last = int(pathlib.Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
            for number, name in enumerate(CAPABILITIES[:last + 1]):
                if name not in kept:
                    check(LIBC.prctl(PR_CAPBSET_DROP, number, 0, 0, 0), name)
        if self.is_on("NoNewPrivileges"):
            check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
        if self.calls:
            self._filter()

    # In the supervisor.

    def _seconds(self, key):
        return float(self.one(key, "0").rstrip("s"))

    def start(self):
        """Starts it, and waits until it says that it is ready."""
        condition = self.one("ConditionPathExists")
        if condition and not (self.root / condition.lstrip("/")).exists():
            raise RuntimeError(f"there is no {condition}")
        threading.Thread(target=self._supervise, daemon=True).start()
        if not self.ready.wait(30):
            raise RuntimeError("it was not ready after 30 s")

    def _spawn(self):
        self.cgroup.mkdir(exist_ok=True, parents=True)
        runtime = self.root / "run" / self.one("RuntimeDirectory")
        runtime.mkdir(exist_ok=True)
        runtime.chmod(int(self.one("RuntimeDirectoryMode", "0755"), 8))
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8", "NOTIFY_SOCKET": "/run/notify",
            "RUNTIME_DIRECTORY": "/run/" + self.one("RuntimeDirectory"), "INVOCATION_ID": os.urandom(16).hex()}
        if self._seconds("WatchdogSec"):
            environment["WATCHDOG_USEC"] = str(int(self._seconds("WatchdogSec") * 1e6))
        procs = os.open(self.cgroup / "cgroup.procs", os.O_WRONLY)
        try:
            self.starts += 1
            self.process = subprocess.Popen(  # pylint: disable=subprocess-popen-preexec-fn,consider-using-with
                self.one("ExecStart").split(), env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                preexec_fn=lambda: self._before(procs), start_new_session=True)
        finally:
            os.close(procs)

    def _supervise(self):
        while not self.stopping:
            try:
                self._spawn()
            except subprocess.SubprocessError:
                return  # Its log has the reason.
            seen = time.monotonic()
            while self.process.poll() is None:
                try:
                    told = self.notify.recv(4096).decode()
                except (TimeoutError, socket.timeout):
                    told = ""
                except OSError:
                    return  # Closed: nobody supervises any more.
                if told:
                    seen = time.monotonic()
                    self.signs_of_life += "WATCHDOG=1" in told
                for line in told.splitlines():
                    if line.startswith("STATUS="):
                        self.status = line[7:]
                if "READY=1" in told:
                    self.ready.set()
                limit = self._seconds("WatchdogSec")
                if limit and time.monotonic() - seen > limit:
                    self.process.send_signal(signal.SIGABRT)
            code = self.process.returncode
            prevented = [int(word) for word in self.one("RestartPreventExitStatus", "").split()]
            if self.stopping or code == 0 or code in prevented or self.one("Restart") != "on-failure":
                return
            self.ready.clear()
            time.sleep(self._seconds("RestartSec"))

    def reload(self):
        """Runs ExecReload as the unit's own command, within its tree."""
        return subprocess.run(["chroot", self.root, *self.one("ExecReload").split()], capture_output=True, text=True, check=False, timeout=60)

    def stop(self):
        """Ends it by SIGTERM; its exit status, negative for a signal."""
        self.stopping = True
        self.process.terminate()
        code = self.process.wait(30)
        self.notify.close()
        return code


def wait_for(path, seconds):
    """Until `path` is there."""
    end = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise RuntimeError(f"{path} was not there after {seconds} s")
        select.select([], [], [], 0.02)
