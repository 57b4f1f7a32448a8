#!/usr/bin/python3
"""PageRank of a random graph with igraph. Prints `ranks_per_second`: edges times passes in each second."""

import random
import time

import igraph

NODES, EDGES, PASSES = 200_000, 1_800_000, 3

source = random.Random(1)
graph = igraph.Graph(n=NODES, edges=[(source.randrange(NODES), source.randrange(NODES)) for _ in range(EDGES)], directed=True)
start = time.perf_counter()
for _ in range(PASSES):
    total = sum(graph.pagerank())
seconds = time.perf_counter() - start
if abs(total - 1) > 1e-6:
    raise SystemExit("the ranks do not add up to 1")
print(f"ranks_per_second {EDGES * PASSES / seconds:.6f}")
