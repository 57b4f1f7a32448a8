#!/usr/bin/python3
"""A table of 1 GiB that calloc gives, and one page in use in every 2 MiB of it; a second of work there."""

import ctypes
import time

SIZE, HUGE, PAGE = 1 << 30, 2 << 20, 4096
LIBC = ctypes.CDLL(None)
LIBC.calloc.restype = ctypes.c_void_p
table = (ctypes.c_char * SIZE).from_address(LIBC.calloc(SIZE, 1))
until, steps = time.monotonic() + 1, 0
for at in range(0, SIZE, HUGE):
    table[at + at // HUGE % 512 * PAGE] = b"x"
while time.monotonic() < until:
    steps += sum(table[at + at // HUGE % 512 * PAGE] == b"x" for at in range(0, SIZE, HUGE))
print(f"steps {steps}")
