#!/usr/bin/python3
"""Eight threads that allocate and free strings for a second each: as many arenas of the C library."""

import ctypes
import threading

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.free.argtypes = [ctypes.c_void_p]
LIBC.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
THREADS, BLOCKS, SIZE, PASSES = 8, 2_000, 1_500, 10


def work():
    for _ in range(PASSES):
        blocks = [LIBC.malloc(SIZE) for _ in range(BLOCKS)]
        for block in blocks:
            LIBC.memset(block, 1, SIZE)
        for block in blocks:
            LIBC.free(block)


threads = [threading.Thread(target=work) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
