"""The memory of an emulated machine, which qemu has mapped."""

import contextlib
import subprocess
import time

from common import MAPPED, Subject, attach, end, held, mapped, medians, say, steady, told, wait_for
from programs import CHILDREN, ROOT, read

# Until the guest has booted; until huge pages are there; how long its passes are counted.
BOOT, SETTLE, SECONDS = 120, 60, 6
# What it does first is translated first.
TRANSLATED = 3
QUICK_SECONDS = 3

# Of qemu: how the guest's memory is made, and the name of its mapping. Only a file is put where it is asked to be aligned.
BACKENDS = {
    "file": ("memory-backend-file,mem-path=/dev/shm,share=on,align=2M", "qemu_back_mem"),
    "memfd": ("memory-backend-memfd,share=on", "memfd:memory-backend-memfd"),
    "private": ("memory-backend-ram", "^$"),
}
POLICIES = ("resident", "hot")

# The guest's first program: says so for each pass over a file in its memory.
INIT = """#!/bin/sh
/bin/busybox mkdir -p /m
/bin/busybox mount -t tmpfs -o size=100% tmpfs /m
/bin/busybox dd if=/dev/zero of=/m/file bs=1M count=$FILL 2>/m/said
echo "@up"
while :; do /bin/busybox md5sum /m/file >/m/said; echo "@pass"; done
"""


class Guests(Subject):
    """a machine emulated by qemu, of 1 GiB: its memory mapped by huge pages before and after superhue attaches"""

    arms = tuple(f"{backend}, {policy}" for backend in BACKENDS for policy in POLICIES)
    count = 4
    default_size = 1 << 30
    initrd = kernel = None

    def __init__(self, options, folder):
        super().__init__(options, folder)
        self.size = max(self.size, 512 << 20)

    def settings(self):
        said = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True).stdout
        return super().settings() | {"qemu": said.splitlines()[0], "boots": self.kernel is not None, "backends": BACKENDS}

    def prepare(self):
        """The kernel is that of scripts/vm. Where it cannot be had, the guest stands still: all its memory is filled all the same."""
        done = subprocess.run([ROOT / "scripts/vm", "fetch"], stdout=subprocess.DEVNULL, check=False, timeout=300)
        kernel = ROOT / "target/vm/debian/vmlinuz"
        if done.returncode != 0 or not kernel.exists():
            say("no kernel can be had: the guest will not boot")
            return
        files = self.folder / "files"
        files.mkdir()
        (files / "init").write_text(INIT.replace("$FILL", str((self.size >> 20) // 16)), encoding="utf-8")
        (files / "init").chmod(0o755)
        self.kernel, self.initrd = kernel, self.folder / "initrd"
        script = 'set -e; files=$1; . scripts/guest; add_busybox; mkdir -p "$files/dev"; pack_files "$2"'
        subprocess.run(["bash", "-c", script, "bash", files, self.initrd], cwd=ROOT, check=True, timeout=60)

    def command(self, backend, console):
        """Of qemu; as in scripts/guest, but for the memory."""
        words = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-accel", "tcg", "-cpu",
            "max,la57=off,cx16=off", "-m", f"{self.size >> 20}M", "-object", f"{BACKENDS[backend][0]},id=memory,size={self.size},prealloc=on",
            "-machine", "q35,memory-backend=memory", "-serial", f"file:{console}",
        ]
        if not self.kernel:
            return [*words, "-S"]
        return [*words, "-kernel", self.kernel, "-initrd", self.initrd, "-append", "console=ttyS0 quiet panic=-1"]

    def sample(self, arm):
        backend, policy = arm.split(", ")
        report, console = self.folder / "report", self.folder / "console"
        for path in (report, console):
            path.unlink(missing_ok=True)
        # qemu asks for huge pages itself: they are to come from superhue alone.
        with held(enabled="never", shmem_enabled="never"), contextlib.ExitStack() as stack:
            program = CHILDREN.start(self.command(backend, console), stdin=subprocess.DEVNULL)
            stack.callback(end, program, 15)
            name = BACKENDS[backend][1]

            def share():
                memory = mapped(program.pid, name, self.size, self.size)
                return memory["pmd"] / self.size

            if self.kernel:
                wait_for(lambda: "@up" in read(console) or program.poll() is not None, BOOT, "the guest", 0.2)
                time.sleep(TRANSLATED)
            else:
                filled = 0.99 * self.size
                wait_for(lambda: mapped(program.pid, name, self.size, self.size)["resident"] >= filled, BOOT, "the guest's memory", 0.2)
            figures = {"share_before": share(), "passes_before": self.passes(console)}
            superhue = attach(policy, report, program.pid)
            stack.callback(end, superhue)
            figures["share_after"], figures["settle_seconds"] = steady(share, SETTLE, wanted=0.99)
            figures["passes_after"] = self.passes(console)
            figures["share_after"] = share()
            if program.poll() is not None:
                raise RuntimeError(f"qemu has ended: {read(console)[-400:]}")
        return figures | {"superhue": told(report)}

    def passes(self, console):
        """Per second, of the guest's program."""
        if not self.kernel:
            return None
        seconds = QUICK_SECONDS if self.quick else SECONDS
        before, begun = read(console).count("@pass"), time.monotonic()
        time.sleep(seconds)
        return (read(console).count("@pass") - before) / (time.monotonic() - begun)

    def judged(self, samples):
        names = ("share_before", "share_after", "settle_seconds", "passes_before", "passes_after")
        figures, bars = medians(samples, names, "share_after", lambda arm: arm in ("file, resident", "private, resident"))
        # Without KVM qemu places it wherever the kernel does.
        for arm, runs in samples.items():
            if arm.startswith("memfd") and runs:
                said = all((run["superhue"] or {}).get("misaligned") or run["share_after"] >= MAPPED for run in runs)
                bars[f"{arm}: mapped by huge pages, or said to be misaligned"] = said
        return figures, bars
