"""Control groups of version 2 that scripts make, fill and take away again."""

import contextlib
import os
import pathlib
import subprocess
import time


def mount():
    """Where version 2 is mounted; `None` if it is not, or hidden."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.split()[0] == "cgroup2":
            return pathlib.Path(fields.split()[4])
    return None


def start_in(folder, command, **options):
    """Starts a program that is in this group from its first instruction on; `options` are those of `Popen`."""
    procs = os.open(folder / "cgroup.procs", os.O_WRONLY)
    try:
        # pylint: disable=subprocess-popen-preexec-fn
        return subprocess.Popen([str(word) for word in command], preexec_fn=lambda: os.write(procs, b"0"), **options)
    finally:
        os.close(procs)


def remove(folder, seconds=30):
    """Takes a group away as soon as it is empty; one that is gone already is no error, one that stays is."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{folder} could not be removed in {seconds} s: {error}") from error
        time.sleep(0.005)


def remove_tree(folder):
    """Ends all processes in a group and below it, and removes the groups."""
    # Version 1 has no such file, nor has Linux before 5.14: there programs end by themselves, or were ended before.
    if (folder / "cgroup.kill").exists():
        (folder / "cgroup.kill").write_text("1", encoding="ascii")
    for below in sorted((path for path in folder.glob("**/") if path.is_dir()), reverse=True):
        remove(below)


@contextlib.contextmanager
def made(name):
    """A new group of this name and our number, if there may be one: its path, else `None`. Taken away in the end."""
    top = mount()
    folder = top / f"{name}-{os.getpid()}" if top else None
    try:
        if folder:
            folder.mkdir()
    except OSError:
        folder = None
    try:
        yield folder
    finally:
        if folder:
            remove_tree(folder)
