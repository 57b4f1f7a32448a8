#!/usr/bin/python3
"""A random forest of scikit-learn, fitted and asked on one thread. Prints `fit_seconds` and `predictions_per_second`."""

import time

import numpy as np
from sklearn.ensemble import RandomForestRegressor

ROWS, COLUMNS, TREES = 24_000, 12, 16

source = np.random.default_rng(1)
table = source.random((ROWS, COLUMNS))
wanted = table[:, 0] * table[:, 1] + source.normal(0, 0.05, ROWS)
start = time.perf_counter()
forest = RandomForestRegressor(n_estimators=TREES, random_state=1, n_jobs=1).fit(table, wanted)
print(f"fit_seconds {time.perf_counter() - start:.6f}", flush=True)
start = time.perf_counter()
for _ in range(4):
    told = forest.predict(source.random((ROWS, COLUMNS)))
print(f"predictions_per_second {4 * ROWS / (time.perf_counter() - start):.6f}")
if not np.isfinite(told).all():
    raise SystemExit("a prediction is no number")
