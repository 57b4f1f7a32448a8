"""What forked processes use that read the memory of one that filled it."""

import itertools
import re
import statistics
import subprocess

from common import Subject, attach, end, say, told, under
from programs import CHILDREN, WORKLOAD

# The bar: what a family may use, of what it uses without huge pages.
MOST = 1.05
SECONDS = 6

FAMILIES = {
    "4 readers": ["--readers", "4"],
    "16 readers, 1 writer": ["--readers", "16", "--writers", "1"],
    "4 readers, 4 execute": ["--readers", "4", "--executors", "4"],
}
WAYS = ["run never", "run kernel", "run auto", "run resident", "run hot", "attach resident", "attach hot"]


class Families(Subject):
    """256 MiB filled by one process and read by others that were forked from it: what all of them use"""

    warmed = False
    default_size = 256 << 20
    arms = tuple(f"{family}, {way}" for family, way in itertools.product(FAMILIES, WAYS))

    def settings(self):
        return super().settings() | {"seconds": SECONDS, "families": FAMILIES}

    def sample(self, arm):
        family, way = arm.rsplit(", ", 1)
        how, policy = way.split()
        workload = [WORKLOAD, "prefork", "--size", str(self.size), "--seconds", str(SECONDS), *FAMILIES[family]]
        report = self.folder / "report"
        report.unlink(missing_ok=True)
        if how == "run":
            said = subprocess.run([*under(policy, report), *workload], capture_output=True, text=True, check=True).stdout
        else:
            program = CHILDREN.start(workload)
            superhue = attach(policy, report, program.pid)
            said = program.stdout.read()
            CHILDREN.end(program, kill=False)
            end(superhue)
            if superhue.returncode != 0:
                raise RuntimeError(f"superhue attach: {told(report)}")
        return {"pss_bytes": int(re.search(r"^pss_bytes (\d+)$", said, re.MULTILINE)[1]), "superhue": told(report)}

    def judged(self, samples):
        figures, bars = {}, {}
        for family in FAMILIES:
            runs = {way: [run["pss_bytes"] for run in samples[f"{family}, {way}"]] for way in WAYS}
            if not runs["run never"]:
                continue
            base = statistics.median(runs["run never"])
            ratios = {way: [used / base for used in found] for way, found in runs.items() if found}
            figures[family] = {way: {"median": statistics.median(found), "worst": max(found)} for way, found in ratios.items()}
            bars |= {f"{family}, {way}: at most {MOST}x": max(found) <= MOST for way, found in ratios.items()}
            say(f"{family}: at worst {max(found['worst'] for found in figures[family].values()):.3f}x")
        return {"of_never": figures}, bars
