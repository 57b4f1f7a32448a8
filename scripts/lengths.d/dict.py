"""Lookups in a large dictionary: dict.py PASSES. A line after the filling, and after each pass."""

import random
import sys

ITEMS, LOOKUPS = 2_500_000, 1_000_000

table = {key: 2 * key + 1 for key in range(ITEMS)}
keys = list(table)
random.Random(1).shuffle(keys)
print("filled", flush=True)
total = 0
for number in range(int(sys.argv[1])):
    begin = number * LOOKUPS % ITEMS
    for key in keys[begin : begin + LOOKUPS]:
        total += table[key]
    print(total, flush=True)
