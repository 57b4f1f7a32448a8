"""Rows of a large table of SQLite in memory, found by their keys and by an index."""
import random
import sqlite3

ROWS = 2_000_000
base = sqlite3.connect(":memory:")
base.execute("create table t(k integer primary key, v integer, w text)")
base.executemany("insert into t values (?, ?, ?)", ((k, k * 48271 % ROWS, f"{k * 7919:040x}") for k in range(ROWS)))
base.execute("create index tv on t(v)")
source = random.Random(1)
while True:
    for _ in range(2_000):
        base.execute("select b.w from t a join t b on b.v = a.k where a.k = ?", (source.randrange(ROWS),)).fetchall()
    print("+", flush=True)
