"""Results as they are kept."""

import datetime
import functools
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Significant digits of a kept float. Documents show at most six; with one more, rounding twice changed the last digit of a table.
DIGITS = 8
# Length of a line of a result, in characters. Only a list of numbers and a text may be longer.
COLUMNS = 150


def rounded(number):
    """Returns the JSON of a float rounded to `DIGITS` significant digits, as a float. A longer integer part stays whole: it may be a time."""
    value = float(number)
    return float(f"{value:.{DIGITS}g}") if abs(value) < 10**DIGITS else float(round(value))


def layout(value, column=0):
    """Returns JSON on one line if the line is short or a list of numbers, otherwise on a line for each part, so that a diff shows what differs."""
    line = json.dumps(value, separators=(",", ":"))
    is_plain = not isinstance(value, dict) and not (isinstance(value, list) and any(isinstance(part, (dict, list)) for part in value))
    if is_plain or column + len(line) <= COLUMNS:
        return line
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(layout, value)) + "\n]"
    names = {json.dumps(key) + ":": part for key, part in value.items()}
    return "{\n" + ",\n".join(name + layout(part, len(name)) for name, part in names.items()) + "\n}"


def keep(path, document):
    """Writes a result as JSON with rounded floats: no figure needs more digits, and thousands of samples are no reading matter."""
    path.write_text(layout(json.loads(json.dumps(document), parse_float=rounded)) + "\n", encoding="utf-8")


def missed(is_kept, text):
    """The text of a figure, marked if it does not keep to its bar."""
    return text if is_kept else f"{text} (**missed**)"


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


@functools.cache
def script(name):
    """A script of this folder as a module, for figures that it computes itself."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


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
