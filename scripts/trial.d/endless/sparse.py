"""Products of a sparse matrix with a vector by SciPy, some rows at a time."""
import numpy as np
from scipy.sparse import csr_matrix

source, rows, count = np.random.default_rng(1), 100_000, 1_000_000
blocks = []
for _ in range(10):
    places = source.integers(0, rows, 12 * rows), source.integers(0, count, 12 * rows)
    blocks.append(csr_matrix((np.ones(12 * rows), places), shape=(rows, count)))
vector = np.ones(count)
while True:
    for block in blocks:
        block @ vector
        print("+", flush=True)
