#!/usr/bin/python3
"""Dictionary lookups in random order, in plain Python.

    total += table[key]

Each lookup reads a slot of the hash table, an entry, and the key and value objects: four places in
some hundred MiB. Python's allocator takes its memory from the kernel 1 MiB at a time.

Prints `fill_seconds` and `lookups_per_second`.
"""

import argparse
import random
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=2500, help="thousand items (default %(default)s)")
    parser.add_argument("--passes", type=int, default=3, help="passes over all of them (default %(default)s)")
    options = parser.parse_args()
    items = options.items * 1000

    start = time.perf_counter()
    table = {key: 2 * key + 1 for key in range(items)}
    keys = list(table)
    random.Random(1).shuffle(keys)
    print(f"fill_seconds {time.perf_counter() - start:.6f}", flush=True)

    start = time.perf_counter()
    total = 0
    for _ in range(options.passes):
        for key in keys:
            total += table[key]
    seconds = time.perf_counter() - start
    if total != options.passes * items**2:
        raise SystemExit("a lookup is wrong")
    print(f"lookups_per_second {options.passes * items / seconds:.6f}")


if __name__ == "__main__":
    main()
