#!/usr/bin/python3
"""Random updates and joins of an SQLite table in memory, with a known sum.

    table.py SECONDS

Prints "done N" for every N rows updated. Exit status 1 as soon as a sum or the integrity check is wrong.
"""

import random
import sqlite3
import sys
import time

ROWS = 300_000
ROUND = 20_000


def main():
    """Updates until the time is over."""
    end = time.monotonic() + float(sys.argv[1])
    rng = random.Random(1)
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, kind INTEGER, amount INTEGER, note TEXT)")
    table.execute("CREATE INDEX by_kind ON item(kind)")
    amounts = [rng.randrange(1_000_000) for _ in range(ROWS)]
    rows = ((i, i % 1000, amounts[i], "n" * (i % 200)) for i in range(ROWS))
    table.executemany("INSERT INTO item VALUES(?, ?, ?, ?)", rows)
    expected = sum(amounts)
    while time.monotonic() < end:
        changes = []
        for _ in range(ROUND):
            number, amount = rng.randrange(ROWS), rng.randrange(1_000_000)
            expected += amount - amounts[number]
            amounts[number] = amount
            changes.append((amount, "n" * rng.randrange(200), number))
        with table:
            table.executemany("UPDATE item SET amount = ?, note = ? WHERE id = ?", changes)
        joined = "SELECT sum(amount) FROM (SELECT sum(amount) AS amount FROM item GROUP BY kind)"
        found = table.execute(joined).fetchone()[0]
        if found != expected:
            sys.exit(f"table.py: the amounts sum up to {found}, not {expected}")
        print(f"done {ROUND}", flush=True)
    said = table.execute("PRAGMA integrity_check").fetchone()[0]
    if said != "ok":
        sys.exit(f"table.py: {said}")


if __name__ == "__main__":
    main()
