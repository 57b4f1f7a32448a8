"""Processes that each read an array at random, in a file of shared memory that the first of them has filled.

gather.py FILE BYTES PROCESSES

Says "ready" with the processes' numbers, when each has touched every page. For each line of its input, a number of seconds, says how
many elements all of them have gathered per second. Ends with its input.
"""

import os
import sys
import time

import numpy

BATCH = 1 << 16


def gather(data, orders, answers):
    """What each process does."""
    random = numpy.random.default_rng()
    places = [random.integers(0, len(data), BATCH) for _ in range(32)]
    out = numpy.empty(BATCH, dtype=data.dtype)
    data[::512].sum()
    answers.write("ready\n")
    answers.flush()
    for order in orders:
        seconds, rounds = float(order), 0
        begun = now = time.monotonic()
        while now < begun + seconds:
            numpy.take(data, places[rounds % len(places)], out=out)
            rounds += 1
            now = time.monotonic()
        answers.write(f"{rounds * BATCH / (now - begun)}\n")
        answers.flush()


def main():
    """Starts them, and hands on what they are told."""
    path, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    filled = numpy.memmap(path, dtype=numpy.int64, mode="w+", shape=(size // 8,))
    filled[:] = numpy.arange(len(filled))
    pipes, pids = [], []
    for _ in range(count):
        orders, answers = os.pipe(), os.pipe()
        pids.append(os.fork())
        if pids[-1] == 0:
            for _, to_other, _ in pipes:
                to_other.close()
            os.close(orders[1])
            # A mapping of its own, as a program of its own has.
            data = numpy.memmap(path, dtype=numpy.int64, mode="r")
            gather(data, os.fdopen(orders[0]), os.fdopen(answers[1], "w"))
            os._exit(0)  # noqa: SLF001
        os.close(orders[0])
        os.close(answers[1])
        pipes.append((pids[-1], os.fdopen(orders[1], "w"), os.fdopen(answers[0])))
    del filled
    for _, _, answers in pipes:
        answers.readline()
    print("ready", *pids, flush=True)
    for line in sys.stdin:
        for _, orders, _ in pipes:
            orders.write(line)
            orders.flush()
        print(sum(float(answers.readline()) for _, _, answers in pipes), flush=True)
    for _, orders, _ in pipes:
        orders.close()
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
