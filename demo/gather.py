#!/usr/bin/python3
"""Random gather: what indexing one array by another costs when the array is large.

    out[i] = table[index[i]]

This is the inner step of a permutation, an embedding lookup, a sparse matrix-vector product. The
table fills --size; the indexes are uniformly random, so nearly every element read is a cache miss
and, with base pages, a TLB miss.

NumPy asks the kernel for huge pages (MADV_HUGEPAGE) for every array of 4 MiB or more, by itself.
NUMPY_MADVISE_HUGEPAGE=0 in the environment turns that off.

Prints `fill_seconds` and `gather_mops`: million elements per second. With --seconds it goes on for so long, and with --count says in
a file how many elements it has read so far.
"""

import argparse
import itertools
import os
import time

import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, help="MiB of float64 (default %(default)s)")
    parser.add_argument("--gathers", type=int, default=4, help="million elements per pass (default %(default)s)")
    parser.add_argument("--passes", type=int, default=60, help="passes (default %(default)s)")
    parser.add_argument("--index", choices=["int32", "int64"], default="int64", help="type of the indexes")
    parser.add_argument("--seconds", type=float, help="go on for so long, instead of so many passes")
    parser.add_argument("--count", help="a file for the number of elements read")
    options = parser.parse_args()

    start = time.perf_counter()
    elements = options.size * 2**20 // 8
    table = np.arange(elements, dtype=np.float64)
    random = np.random.default_rng(1)
    index = random.integers(elements, size=options.gathers * 10**6, dtype=options.index)
    out = np.empty(len(index))
    print(f"fill_seconds {time.perf_counter() - start:.6f}", flush=True)

    start = time.perf_counter()
    count = open(options.count, "wb", buffering=0) if options.count else None
    for done in itertools.count(1):
        # mode="clip" writes to `out` directly; the default checks bounds on a copy first.
        np.take(table, index, out=out, mode="clip")
        if count:
            # Always as long, so that a reader never meets half of it.
            os.pwrite(count.fileno(), b"%020d\n" % (done * len(index)), 0)
        if time.perf_counter() - start >= options.seconds if options.seconds else done == options.passes:
            break
    seconds = time.perf_counter() - start
    if not np.array_equal(out, index):
        raise SystemExit("gathered elements are wrong")
    print(f"gather_mops {done * len(index) / seconds / 1e6:.6f}")


if __name__ == "__main__":
    main()
