"""The CPU time and memory of a daemon and its workers: those of the control group (version 2) that they run in."""

import pathlib
import re


def cpu_seconds(group):
    """CPU time of all processes that are or were in the group, as the kernel counts it (`cpu.stat`)."""
    text = (group / "cpu.stat").read_text(encoding="ascii")
    return int(re.search(r"^usage_usec (\d+)", text, re.MULTILINE)[1]) / 1e6


def anonymous_kib(group):
    """Anonymous memory of the processes in the group, in KiB, each page once (`Pss_Anon` of `smaps_rollup`); `None` if none can be read."""
    found = []
    for pid in (group / "cgroup.procs").read_text(encoding="ascii").split():
        try:
            text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [int(kib) for kib in re.findall(r"^Pss_Anon:\s*(\d+)", text, re.MULTILINE)]
    return sum(found) if found else None
