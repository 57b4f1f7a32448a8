"""Random loads of a large array by NumPy."""
import numpy as np

numbers = np.arange(60_000_000, dtype=np.float64)
places = np.random.default_rng(1).integers(0, len(numbers), 8_000_000)
while True:
    for start in range(0, len(places), 200_000):
        numbers[places[start:start + 200_000]].sum()
        print("+", flush=True)
