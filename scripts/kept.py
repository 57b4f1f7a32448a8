"""Results as they are kept."""

import datetime
import json
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def keep(path, document):
    """Writes a result as JSON, one line for each part: thousands of samples are no reading matter."""
    parts = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def write_between(path, begin, end, new, is_checked):
    """Puts text between two lines of a document; with `is_checked` it only compares. Returns whether it is there in the end."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{path} has no place between {begin.strip()} and {end.strip()}")
    whole = before + begin + new + end + after
    if not is_checked:
        path.write_text(whole, encoding="utf-8")
        return True
    return whole == text


def machine():
    """What was measured on."""
    found = {}
    for name, path in {"cpu": "/proc/cpuinfo", "memory": "/proc/meminfo", "thp": "/sys/kernel/mm/transparent_hugepage/enabled"}.items():
        try:
            found[name] = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            found[name] = ""
    model = re.search(r"^model name\s*: (.*)", found["cpu"], re.MULTILINE)
    total = re.search(r"^MemTotal:\s*(\d+)", found["memory"], re.MULTILINE)
    return {"cpu": model and model[1], "cpus": os.cpu_count(), "memory_kib": total and int(total[1]), "thp_enabled": found["thp"].strip()}


def commit():
    """That of the scripts."""
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


class Measurement:
    """Begins when it is made; then says what stands at the head of its result."""

    def __init__(self):
        self.begun = datetime.datetime.now(datetime.timezone.utc)
        self.load = os.getloadavg()
        self.machine = machine()
        self.commit = commit()

    def head(self, script, what, *options):
        """The first parts of the result of `scripts/SCRIPT WHAT OPTION...`."""
        return {
            "schema": f"superhue-{script}-{what}/1", "machine": self.machine, "kernel": platform.release(), "commit": self.commit,
            "command": [f"scripts/{script}", what, *options],
            "started": self.begun.isoformat(timespec="seconds"),
            "seconds": round((datetime.datetime.now(datetime.timezone.utc) - self.begun).total_seconds(), 1),
            "load_before": self.load, "load_after": os.getloadavg(),
        }
