"""A process that holds up each reader: hold.py HOW FILE [SECONDS]

HOW is one of
  exec     it executes itself with FILE open: while closing FILE waits, it holds the lock of its execution
  memory   it maps FILE and reads that through /proc/PID/mem: while reading FILE waits, it holds the lock of its memory. It fills 256 MiB before
FILE is on a file system that does not answer (stallfs.py). It says `holds` when it begins, and ends by itself.
"""

import contextlib
import mmap
import os
import sys
import time

how, path = sys.argv[1], sys.argv[2]
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60
file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
if how == "exec":
    print("holds", flush=True)
    os.execv("/bin/sleep", ["sleep", str(seconds)])
memory = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
# Memory that is shared since a fork is left alone.
memory.madvise(10)
for at in range(0, len(memory), 4096):
    memory[at] = 1
# The watch has to be about it.
time.sleep(1.5)
page = mmap.mmap(file, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
with open("/proc/self/maps") as maps:
    start = next(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(path))
owner = os.getpid()
if os.fork() == 0:
    print("holds", flush=True)
    reader = os.open(f"/proc/{owner}/mem", os.O_RDONLY)
    # The file system fails, or ends.
    with contextlib.suppress(OSError):
        os.pread(reader, 8, start)
    os._exit(0)
ends = time.monotonic() + seconds
while time.monotonic() < ends:
    memory[0] = 2
    time.sleep(0.01)
