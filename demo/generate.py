#!/usr/bin/python3
"""Input for the demonstrations, on standard output; the same bytes every time.

    generate.py lines > FILE    random text, 64 characters a line, for `sort`
    generate.py keys > FILE     every key twice, in random order, for `awk '{ n[$1]++ }'`
"""

import argparse
import base64
import random
import sys

# Bytes that 64 characters of base64 stand for.
LINE = 48


def lines(source, size, out):
    """Writes `size` MiB of lines."""
    count = size * 2**20 // 65
    for start in range(0, count, 4096):
        chunk = source.randbytes(LINE * min(4096, count - start))
        text = base64.b64encode(chunk)
        out.writelines(text[at : at + 64] + b"\n" for at in range(0, len(text), 64))


def keys(source, count, out):
    """Writes `count` thousand keys, twice."""
    distinct = [b"%012x\n" % (number * 0x9E3779B1 % 2**48) for number in range(count * 1000)]
    for _ in range(2):
        source.shuffle(distinct)
        out.writelines(distinct)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["lines", "keys"])
    parser.add_argument("--size", type=int, default=300, help="MiB of lines (default %(default)s)")
    parser.add_argument("--keys", type=int, default=1500, help="thousand distinct keys (default %(default)s)")
    options = parser.parse_args()
    source = random.Random(1)
    if options.what == "lines":
        lines(source, options.size, sys.stdout.buffer)
    else:
        keys(source, options.keys, sys.stdout.buffer)


if __name__ == "__main__":
    main()
