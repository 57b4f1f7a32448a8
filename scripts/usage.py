"""What a process and all of its children use, from /proc (proc_pid_stat(5), proc_pid_status(5))."""

import os
import pathlib

TICK = os.sysconf("SC_CLK_TCK")


def _read(pid, name):
    """The text of a file of a process; empty once the process is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def family(pid):
    """The process, its living children, and theirs."""
    found = [pid]
    for number in found:
        for task in pathlib.Path(f"/proc/{number}/task").glob("*"):
            found += [int(word) for word in _read(number, f"task/{task.name}/children").split()]
    return found


def cpu_seconds(pid):
    """CPU time of a process, of its living children, and of those that have ended and were waited for."""
    ticks = 0
    for number in family(pid):
        # Fields 14 to 17: its own time in user and kernel mode, and that of the children it has waited for.
        ticks += sum(map(int, _read(number, "stat").rpartition(")")[2].split()[11:15]))
    return ticks / TICK


def anonymous_kib(pid):
    """Resident anonymous memory of a process and its living children, in KiB; `None` if no process has the field."""
    lines = [line for number in family(pid) for line in _read(number, "status").splitlines() if line.startswith("RssAnon:")]
    return sum(int(line.split()[1]) for line in lines) if lines else None
