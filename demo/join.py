#!/usr/bin/python3
"""In-memory join: every row of one table looks up a row of another, in random order.

    SELECT sum(item.price) FROM orders JOIN items AS item ON item.id = orders.item

Each lookup descends SQLite's B-tree (root, interior page, leaf page) and reads one row of a table
of --size; leaves are visited in random order. SQLite allocates its pages with malloc.

Prints `fill_seconds` and `rows_per_second`: rows joined. With --seconds it goes on for so long instead, and with --count says in a file
how many steps SQLite's machine has made so far.
"""

import argparse
import os
import sqlite3
import time

# Bytes that pad an item, as a description would.
PAYLOAD = 760

# A prime that scatters consecutive orders over the items.
STRIDE = 1_000_000_007

# Steps of SQLite's machine between two words about how far it is: some 10 ms.
STEPS = 100_000

COUNT_TO = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT ?)"


def go_on(db, query, seconds, path):
    """Repeats a query until the time is over, and says in a file how far it is."""
    begun, steps = time.perf_counter(), 0
    count = open(path, "wb", buffering=0) if path else None

    def step():
        nonlocal steps
        steps += STEPS
        if count:
            # Always as long, so that a reader never meets half of it.
            os.pwrite(count.fileno(), b"%020d\n" % steps, 0)
        return time.perf_counter() - begun >= seconds

    db.set_progress_handler(step, STEPS)
    try:
        while True:
            db.execute(query).fetchone()
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, help="MiB of items (default %(default)s)")
    parser.add_argument("--orders", type=int, default=1500, help="thousand orders (default %(default)s)")
    parser.add_argument("--seconds", type=float, help="go on for so long, and print no figure")
    parser.add_argument("--count", help="with --seconds: a file for the number of steps made")
    options = parser.parse_args()
    items = options.size * 2**20 // (PAYLOAD + 40)
    orders = options.orders * 1000

    start = time.perf_counter()
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, price INTEGER, description BLOB)")
    db.execute("CREATE TABLE orders (item INTEGER)")
    db.execute(f"INSERT INTO items {COUNT_TO} SELECT i, i % 1000, zeroblob({PAYLOAD}) FROM n", [items])
    db.execute(f"INSERT INTO orders {COUNT_TO} SELECT i * {STRIDE} % {items} FROM n", [orders])
    print(f"fill_seconds {time.perf_counter() - start:.6f}", flush=True)

    # CROSS JOIN pins the order of the loops: orders outside, lookups inside.
    query = "SELECT count(*), sum(item.price) FROM orders CROSS JOIN items AS item ON item.id = orders.item"
    if options.seconds:
        return go_on(db, query, options.seconds, options.count)
    start = time.perf_counter()
    rows, total = db.execute(query).fetchone()
    seconds = time.perf_counter() - start
    # Every run of `items` orders meets every item once, for the stride is a prime.
    runs, rest = divmod(orders, items)
    expected = runs * sum(i % 1000 for i in range(items))
    expected += sum(n * STRIDE % items % 1000 for n in range(rest))
    if (rows, total) != (orders, expected):
        raise SystemExit("the join is wrong")
    print(f"rows_per_second {rows / seconds:.6f}")


if __name__ == "__main__":
    main()
