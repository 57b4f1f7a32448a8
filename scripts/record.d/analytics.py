#!/usr/bin/python3
"""A join and an aggregation over random tables in DuckDB, in memory, on one thread. Prints `rows_per_second`."""

import time

import duckdb

ROWS, PASSES = 4_000_000, 4

base = duckdb.connect(":memory:", config={"threads": 1})
base.execute(f"create table facts as select (i * 48271) % {ROWS} as k, i % 1000 as g, i as v from range({ROWS}) t(i)")
base.execute(f"create table names as select i as k, (i * 7919) % 100003 as w from range({ROWS}) t(i)")
start = time.perf_counter()
for _ in range(PASSES):
    told = base.execute("select count(*), sum(v), sum(w) from facts join names using (k) group by g").fetchall()
seconds = time.perf_counter() - start
if sum(row[0] for row in told) != ROWS:
    raise SystemExit("the join has lost rows")
print(f"rows_per_second {ROWS * PASSES / seconds:.6f}")
