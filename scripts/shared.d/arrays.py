"""An array of numpy that several processes share."""

import contextlib
import subprocess

from common import PYTHON, SOURCES, Subject, end, held, mapped, medians, per_second, steady, told, under
from programs import CHILDREN

PROCESSES = 4
# Of gathering, and until huge pages are there.
SECONDS, SETTLE = 5, 15

# An arm: what its file system gives huge pages to, and superhue's policy. Under `advise` the kernel aligns such mappings and makes nothing
# huge by itself, for the program advises nothing; under `never` it does not even align them.
ARMS = {"plain": ("advise", None), "always": ("always", None), "run resident": ("advise", "resident"), "run hot": ("advise", "hot")}


class Arrays(Subject):
    """4 processes that gather at random from a numpy array of 512 MiB in shared memory"""

    arms = tuple(ARMS)
    default_size = 512 << 20

    def settings(self):
        return super().settings() | {"processes": PROCESSES, "seconds": SECONDS}

    @contextlib.contextmanager
    def mount(self, huge):
        """A file system in memory like /dev/shm; that one's own mode is not ours to change."""
        folder = self.folder / "shm"
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"huge={huge},size={self.size + (64 << 20)}", "superhue-shared", folder], check=True)
        try:
            yield folder
        finally:
            # A process that is late to end keeps it no longer than that.
            subprocess.run(["umount", "--lazy", folder], check=True)

    def sample(self, arm):
        huge, policy = ARMS[arm]
        report = self.folder / "report"
        report.unlink(missing_ok=True)
        with held(enabled="madvise", shmem_enabled="never"), contextlib.ExitStack() as stack:
            command = [PYTHON, SOURCES / "gather.py", stack.enter_context(self.mount(huge)) / "array", self.size, PROCESSES]
            if policy:
                command = [*under(policy, report, "--system", "shmem_enabled=advise"), *command]
            program = CHILDREN.start(command)
            stack.callback(end, program)
            pids = [int(word) for word in program.stdout.readline().split()[1:]]
            if len(pids) != PROCESSES:
                raise RuntimeError(f"{command} has ended")

            def share():
                return sum(mapped(pid, "/array$")["pmd"] for pid in pids) / self.size / len(pids)

            first = per_second(program, 1)
            settled, took = steady(share, SETTLE if policy else 0)
            figures = {
                "gathers_first_second": first, "settle_seconds": took, "gathers": per_second(program, 1 if self.quick else SECONDS),
                "mapped_share": max(settled, share()), "processes": [mapped(pid, "/array$") for pid in pids],
            }
            program.stdin.close()
            program.wait(20)
        return figures | ({"superhue": told(report)} if policy else {})

    def judged(self, samples):
        return medians(samples, ("gathers", "mapped_share", "settle_seconds"), "mapped_share", lambda arm: ARMS[arm][1])
