"""A file system in user space that does not answer: stallfs.py MOUNTPOINT WHAT SECONDS

WHAT is one of
  read    reads of the file `f` are answered after so many seconds
  flush   so are closes of it
  errors  both are answered at once, with an error
  none    everything is answered at once

Needs /dev/fuse and the right to mount, which distributions give to every user by fusermount3. Ends by itself a little later.
"""

import ctypes
import errno
import os
import select
import signal
import struct
import sys
import time

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = (
    1, 2, 3, 4, 14, 15, 16, 17, 18, 25, 26, 27, 28, 29)
ACCESS, INTERRUPT, BATCH_FORGET = 34, 36, 42
SIZE = 65536

where, what, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
os.makedirs(where, exist_ok=True)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"superhue-stall", where.encode(), b"fuse.superhue-stall", 0, options):
    raise SystemExit(f"cannot mount: {os.strerror(ctypes.get_errno())}")


def end(*_):
    libc.umount2(where.encode(), 2)
    os._exit(0)


signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGALRM, end)
signal.alarm(int(seconds) + 60)


def attributes(node):
    folder = node == 1
    mode, size = (0o40755, 0) if folder else (0o100777, SIZE)
    return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def reply(unique, data=b"", error=0):
    try:
        os.write(fuse, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)
    except OSError:
        pass


print("mounted", flush=True)
first, waiting = None, []
while True:
    ready, _, _ = select.select([fuse], [], [], 0.05 if waiting else None)
    if waiting and time.monotonic() - first > seconds:
        for unique, data in waiting:
            reply(unique, data)
        waiting = []
    if not ready:
        continue
    try:
        message = os.read(fuse, 1 << 20)
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise SystemExit(0)
        continue
    _, operation, unique, node = struct.unpack_from("<IIQQ", message)
    body = message[40:]
    stalls = (operation, what) in [(READ, "read"), (FLUSH, "flush")]
    if stalls and first is None:
        first = time.monotonic()
    data = b""
    if operation == READ:
        data = bytes(min(struct.unpack_from("<QQI", body)[2], SIZE))
    if stalls and time.monotonic() - first <= seconds:
        waiting.append((unique, data))
    elif operation in (READ, FLUSH) and what == "errors":
        reply(unique, error=errno.EIO)
    elif operation == INIT:
        reply(unique, struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 12, 9, SIZE, 1, 0, 0, 0))
    elif operation == LOOKUP:
        if body.split(b"\0")[0] == b"f":
            reply(unique, struct.pack("<4Q2I", 2, 0, 1000, 1000, 0, 0) + attributes(2))
        else:
            reply(unique, error=errno.ENOENT)
    elif operation in (GETATTR, SETATTR):
        reply(unique, struct.pack("<Q2I", 1000, 0, 0) + attributes(node))
    elif operation in (OPEN, OPENDIR):
        # FOPEN_KEEP_CACHE: without it an open waits for the page that an earlier attacker reads.
        reply(unique, struct.pack("<QII", 0, 2, 0))
    elif operation in (READ, FLUSH, READDIR, RELEASE, RELEASEDIR, ACCESS):
        reply(unique, data)
    elif operation == WRITE:
        reply(unique, struct.pack("<II", struct.unpack_from("<QQI", body)[2], 0))
    elif operation in (FORGET, BATCH_FORGET, INTERRUPT):
        pass
    else:
        reply(unique, error=errno.ENOSYS)
