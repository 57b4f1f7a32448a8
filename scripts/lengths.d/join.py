"""A join of two tables of SQLite in memory: join.py PASSES. A line after the filling, and after each pass."""

import sqlite3
import sys

ITEMS, ORDERS = 1_200_000, 300_000
COUNT = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT ?)"

db = sqlite3.connect(":memory:")
db.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, price INTEGER, description BLOB)")
db.execute("CREATE TABLE orders (item INTEGER)")
db.execute(f"INSERT INTO items {COUNT} SELECT i, i % 1000, zeroblob(180) FROM n", [ITEMS])
db.execute(f"INSERT INTO orders {COUNT} SELECT i * 7919 % {ITEMS} FROM n", [ORDERS])
print("filled", flush=True)
for _ in range(int(sys.argv[1])):
    print(db.execute("SELECT sum(item.price) FROM orders CROSS JOIN items AS item ON item.id = orders.item").fetchone()[0], flush=True)
