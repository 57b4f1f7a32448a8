"""The heap of a Java program under ZGC: a memfd that is mapped at several places."""

import contextlib
import subprocess

from common import SOURCES, Subject, end, end_server, held, mapped, medians, per_second, steady, told, under
from programs import CHILDREN, read

# Of the walk, and until huge pages are there.
SECONDS, SETTLE = 5, 15
# The arrays' share of the heap.
FILLED = 0.7

# An arm: what shmem_enabled is, more words for java, and superhue's policy.
ARMS = {
    "plain": ("never", [], None),
    "always": ("always", [], None),
    "java's own": ("advise", ["-XX:+UseTransparentHugePages"], None),
    "run resident": ("never", [], "resident"),
    "run hot": ("never", [], "hot"),
}


class Heaps(Subject):
    """a Java program under ZGC that walks at random through its heap of 1 GiB"""

    arms = tuple(ARMS)
    default_size = 1 << 30

    def __init__(self, options, folder):
        super().__init__(options, folder)
        # ZGC does not make do with less.
        self.size = max(self.size, 512 << 20)

    def settings(self):
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
        return super().settings() | {"seconds": SECONDS, "filled": FILLED, "java": said.splitlines()[0]}

    def prepare(self):
        subprocess.run(["javac", "-d", self.folder, SOURCES / "Walk.java"], check=True, timeout=120)

    def sample(self, arm):
        shmem, words, policy = ARMS[arm]
        report = self.folder / "report"
        report.unlink(missing_ok=True)
        mib = self.size >> 20
        command = ["java", "-XX:+UseZGC", f"-Xms{mib}m", f"-Xmx{mib}m", *words, "-cp", self.folder, "Walk", int(mib * FILLED)]
        if policy:
            command = [*under(policy, report, "--system", "shmem_enabled=advise"), *command]
        with held(enabled="madvise", shmem_enabled=shmem), contextlib.ExitStack() as stack:
            log = stack.enter_context((self.folder / "log").open("w", encoding="utf-8"))
            program = CHILDREN.start(command, stderr=log)
            stack.callback(end, program)
            said = program.stdout.readline().split()
            if said[:1] != ["ready"]:
                raise RuntimeError(f"java has ended: {said} {read(self.folder / 'log')[-400:]}")
            pid = int(said[1])
            stack.callback(end_server, pid, program, 5)

            def share():
                heap = mapped(pid, "java_heap")
                return heap["pmd"] / heap["resident"] if heap["resident"] else 0.0

            # The first seconds are the compiler's.
            per_second(program, 2)
            settled, took = steady(share, SETTLE if policy else 0)
            figures = {
                "settle_seconds": took, "reads": per_second(program, 1 if self.quick else SECONDS), "mapped_share": max(settled, share()),
                "heap": mapped(pid, "java_heap"),
            }
            program.stdin.close()
            program.wait(20)
        return figures | ({"superhue": told(report)} if policy else {})

    def judged(self, samples):
        return medians(samples, ("reads", "mapped_share", "settle_seconds"), "mapped_share", lambda arm: ARMS[arm][2])
