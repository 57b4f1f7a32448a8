"""Predictions of a random forest of scikit-learn, on one thread."""
import numpy as np
from sklearn.ensemble import RandomForestRegressor

source = np.random.default_rng(1)
table = source.random((60_000, 12))
wanted = table[:, 0] * table[:, 1] + source.normal(0, 0.05, len(table))
forest = RandomForestRegressor(n_estimators=24, random_state=1, n_jobs=1).fit(table, wanted)
while True:
    for start in range(0, len(table), 2_000):
        forest.predict(table[start:start + 2_000])
        print("+", flush=True)
