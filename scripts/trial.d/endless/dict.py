"""Lookups in a large dict of Python."""
import random

random.seed(1)
table = {i * 2654435761 % (1 << 40): i for i in range(2_000_000)}
keys = list(table)
random.shuffle(keys)
while True:
    for start in range(0, len(keys), 50_000):
        total = sum(table[key] for key in keys[start:start + 50_000])
        print("+", flush=True)
