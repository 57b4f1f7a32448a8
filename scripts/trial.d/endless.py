"""Programs of the record (scripts/record.toml) that go on until they are ended, and how far each has come.

Those of `endless/` fill their memory and then write a line for each piece of their work.
"""

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import time

from kept import ROOT
from programs import CHILDREN, WORKLOAD, free_port, read

HERE = pathlib.Path(__file__).resolve().parent / "endless"
# Seconds in which a program has filled its memory.
PATIENCE = 180

LOOKUPS = {
    "sqlite": "/usr/bin/python3 rows.py", "python dict": "/usr/bin/python3 dict.py", "numpy gather": "/usr/bin/python3 gather.py",
    "scipy sparse": "/usr/bin/python3 sparse.py", "sklearn forest": "/usr/bin/python3 forest.py",
    "java HashMap": "java -XX:+UseSerialGC -Xmx2g -Xms2g Endless.java", "go map": "{folder}/map", "node Map": "node map.js",
    "ruby hash": "ruby hash.rb", "php array": "php array.php", "perl hash": "perl hash.pl", "lua tree": "lua5.4 tree.lua",
    "sbcl hash": "sbcl --dynamic-space-size 2GB --script hash.lisp",
}
COMPRESSORS = {
    "zstd -12 --long": "zstd -q -12 --long=27 --single-thread -c", "xz -6": "xz -6 -T1 -c", "bzip2 -9": "bzip2 -9 -c",
    "brotli -9": "brotli -q 9 -w 24 -c -",
}
SERVERS = {
    "memcached": "memcached -u nobody -l 127.0.0.1 -p {port} -m 2048 -t 1",
    # As it is by itself, it may have no huge pages at all.
    "redis": "redis-server --bind 127.0.0.1 --port {port} --save '' --appendonly no --dir {folder} --disable-thp no",
}
NAMES = [*SERVERS, *LOOKUPS, *COMPRESSORS]


def words(text, **values):
    """The words of a command."""
    return [word.format(**values) for word in shlex.split(text)]


def wait_until(what, process):
    """Waits for a program.

    RuntimeError: it has ended, or takes too long.
    """
    begun = time.monotonic()
    while not what():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args[0]} ended with status {process.returncode}")
        if time.monotonic() - begun > PATIENCE:
            raise RuntimeError(f"{process.args[0]} was not ready after {PATIENCE} s")
        time.sleep(0.1)


@contextlib.contextmanager
def looks_up(name, folder):
    """One of `endless/`, with its memory filled."""
    if name == "go map":
        subprocess.run(["go", "build", "-o", folder / "map", HERE / "map.go"], check=True, env={**os.environ, "GOCACHE": str(folder / "go-cache")})
    said = folder / "said"
    with open(said, "wb") as out:
        # NumPy asks for huge pages by itself, and would have them with the policy off, too.
        process = CHILDREN.start(words(LOOKUPS[name], folder=folder), stdin=subprocess.DEVNULL, stdout=out, cwd=HERE, text=False,
                                 env={**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"})
    try:
        wait_until(lambda: said.stat().st_size > 20, process)
        yield process.pid, ["--metric", f"stat -c %s {said}"]
    finally:
        CHILDREN.end(process)


@contextlib.contextmanager
def compresses(name, folder):
    """A compressor of the same 25 MB again and again, of which it has read some."""
    made = ROOT / "target/record/part-25000000.tar"
    subprocess.run(["make", "-s", "-f", "scripts/record.d/inputs.mk", made.relative_to(ROOT)], cwd=ROOT, check=True)
    source = CHILDREN.start(["bash", "-c", f"while cat {made}; do :; done"], stdin=subprocess.DEVNULL, text=False)
    process = CHILDREN.start(words(COMPRESSORS[name]), stdin=source.stdout, stdout=subprocess.DEVNULL, text=False)
    source.stdout.close()
    path = f"/proc/{process.pid}/io"
    try:
        wait_until(lambda: int((re.findall(r"rchar: (\d+)", read(path)) or [0])[0]) > 60_000_000, process)
        yield process.pid, ["--metric", f"cat {path}", "--metric-regex", "rchar: ([0-9]+)"]
    finally:
        CHILDREN.end(process)
        CHILDREN.end(source)


@contextlib.contextmanager
def serves(name, folder):
    """A server of 800,000 items of 512 bytes, which one client reads by Zipf's law as fast as it answers."""
    port = free_port()
    process = CHILDREN.start(words(SERVERS[name], port=port, folder=folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, text=False)
    load = [WORKLOAD, "load", name, "--port", port, "--connections", "1", "--pipeline", "128"]
    client = None
    try:
        time.sleep(1)
        subprocess.run([*map(str, load), "--requests", "1000"], stdout=subprocess.DEVNULL, check=True)
        client = CHILDREN.start([*load, "--seconds", "3600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, text=False)
        # It fills the server first.
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() - begun > 15, client)
        asked = {"redis": (f"redis-cli -p {port} info stats", "total_commands_processed:([0-9]+)"),
                 "memcached": (f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}; printf \"stats\\r\\nquit\\r\\n\" >&3; cat <&3'", "STAT cmd_get ([0-9]+)")}
        command, found = asked[name]
        yield process.pid, ["--metric", command, "--metric-regex", found]
    finally:
        if client:
            CHILDREN.end(client)
        CHILDREN.end(process)


def running(name, folder):
    """A program as a context: its process, and the options that say how far it has come.

    RuntimeError: it cannot run here.
    """
    kinds = ((LOOKUPS, looks_up), (COMPRESSORS, compresses), (SERVERS, serves))
    commands, start = next((commands, start) for commands, start in kinds if name in commands)
    needed = "go" if name == "go map" else commands[name].split()[0]
    if shutil.which(needed) is None:
        raise RuntimeError(f"{needed} is not installed")
    return start(name, folder)
