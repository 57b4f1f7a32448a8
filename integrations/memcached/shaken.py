#!/usr/bin/env python3
"""Clients that check every byte while memcached moves all its items to and fro (`-o hps,hps_shake`).

    integrations/memcached/shaken.py MEMCACHED [SECONDS]

Each client owns keys, so it knows what every answer has to be: values of many sizes, written anew, changed in place (incr, append, touch),
read several at a time, deleted, and compared with cas, whose number must not change because an item moved. Meanwhile one client has
slab pages moved between classes, one has the LRU crawled and dumped, and the memory limit goes up and down. No more items may be gone than memcached
says it threw out (its slab mover does, for lack of memory), and the counts of items must be those of the clients.
"""

import hashlib
import os
import random
import socket
import subprocess
import sys
import threading
import time

CLIENTS, KEYS = 4, 4000


class Wrong(Exception):
    """An answer that cannot be."""


class Client:
    """The text protocol, as far as it is needed."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.file = self.socket.makefile("rb")

    def say(self, data):
        self.socket.sendall(data)

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\n"):
            raise Wrong(f"the server is gone: {line!r}")
        return line.rstrip(b"\r\n")

    def ask(self, data):
        self.say(data)
        return self.line()

    def gets(self, keys):
        """{key: (flags, value, cas)}"""
        self.say(b"gets " + b" ".join(keys) + b"\r\n")
        found = {}
        while True:
            line = self.line()
            if line == b"END":
                return found
            word, key, flags, size, cas = line.split()
            if word != b"VALUE":
                raise Wrong(line)
            value = self.file.read(int(size) + 2)
            found[key] = int(flags), value[:-2], int(cas)

    def stats(self, what=b""):
        self.say(b"stats" + (b" " + what if what else b"") + b"\r\n")
        found = {}
        while (line := self.line()) != b"END":
            _, name, value = line.decode().split(" ", 2)
            found[name] = value
        return found


def value_of(key, version, size):
    """Bytes that tell which key and version they belong to."""
    seed = hashlib.sha256(key + str(version).encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def work(port, number, until, counts, wrong):
    """One client's life."""
    try:
        random_ = random.Random(number)
        client = Client(port)
        keys = [f"client{number}:{i}:".encode() + b"k" * random_.randrange(0, 100) for i in range(KEYS)]
        mine = {}  # key: (flags, value, cas)
        sizes = [8, 60, 100, 300, 512, 900, 3000, 12_000, 90_000]
        weights = [4, 8, 8, 8, 8, 4, 2, 1, 0.2]
        version = operations = 0
        while time.monotonic() < until or operations == 0:
            operations += 1
            kind = random_.random()
            key = random_.choice(keys)
            if kind < 0.35 or not mine:
                version += 1
                flags, size = random_.choice([0, 7]), random_.choices(sizes, weights)[0]
                value = value_of(key, version, size)
                expire = random_.choice([0, 3600])
                if client.ask(b"set %s %d %d %d\r\n%s\r\n" % (key, flags, expire, size, value)) != b"STORED":
                    raise Wrong(f"set {key}")
                mine[key] = flags, value, None
            elif kind < 0.75:
                asked = random_.sample(keys, 20)
                found = client.gets(asked)
                for k in [k for k in asked if k in mine and k not in found]:
                    counts["lost"] += 1  # thrown out? That is counted by the server, and compared in the end.
                    del mine[k]
                for k, (flags, value, cas) in found.items():
                    if k not in mine or (flags, value) != mine[k][:2]:
                        raise Wrong(f"{k} has bytes that it should not have: {value[:40]!r}")
                    if mine[k][2] not in (None, cas):
                        counts["cas_changed"] += 1  # the slab mover of memcached itself gives an item a new number
                    mine[k] = flags, value, cas
            elif kind < 0.80:
                found = client.gets([key])
                if key in found:
                    version += 1
                    value = value_of(key, version, len(found[key][1]))
                    answer = client.ask(b"cas %s 0 0 %d %d\r\n%s\r\n" % (key, len(value), found[key][2], value))
                    if answer == b"STORED":
                        mine[key] = 0, value, None
                    elif answer == b"EXISTS":
                        counts["cas_refused"] += 1
                    else:
                        raise Wrong(f"cas {key}: {answer}")
            elif kind < 0.85 and key in mine and len(mine[key][1]) < 2000:
                if client.ask(b"append %s 0 0 4\r\nMORE\r\n" % key) == b"STORED":
                    mine[key] = mine[key][0], mine[key][1] + b"MORE", None
                else:
                    counts["lost"] += 1
                    del mine[key]
            elif kind < 0.88 and key in mine:
                if client.ask(b"touch %s 3000\r\n" % key) != b"TOUCHED":
                    counts["lost"] += 1
                    del mine[key]
            elif kind < 0.92:
                name = b"number%d" % number
                if number not in counts["numbers"]:
                    client.ask(b"set %s 0 0 20\r\n%s\r\n" % (name, b"0" * 20))
                    counts["numbers"][number] = 0
                counts["numbers"][number] += 3
                if int(client.ask(b"incr %s 3\r\n" % name)) != counts["numbers"][number]:
                    raise Wrong(f"incr {name}")
            else:
                answer = client.ask(b"delete %s\r\n" % key)
                if answer == b"DELETED" and key not in mine:
                    raise Wrong(f"delete {key}: {answer}")
                counts["lost"] += answer != b"DELETED" and key in mine
                mine.pop(key, None)
        for first in range(0, KEYS, 50):
            found = client.gets(keys[first:first + 50])
            for k in keys[first:first + 50]:
                if k in mine and k not in found:
                    counts["lost"] += 1
                    del mine[k]
                elif k in found and (k not in mine or found[k][:2] != mine[k][:2]):
                    raise Wrong(f"in the end {k} is wrong")
        counts["items"] += len(mine) + (number in counts["numbers"])
        counts["operations"] += operations
    except (Wrong, OSError, ValueError) as error:
        wrong.append(f"client {number}: {error}")


def disturb(port, until, wrong):
    """Slab pages change their classes, the LRU is crawled and dumped, the limit of memory moves."""
    try:
        random_ = random.Random(99)
        client = Client(port)
        while time.monotonic() < until:
            client.ask(b"slabs reassign %d %d\r\n" % (random_.choice([-1, *range(1, 40)]), random_.randrange(0, 40)))
            client.ask(b"lru_crawler crawl all\r\n")
            client.ask(b"cache_memlimit %d\r\n" % random_.choice([300, 400, 500]))
            if random_.random() < 0.1:
                client.say(b"lru_crawler metadump all\r\n")
                while (line := client.line()) != b"END" and not line.startswith((b"BUSY", b"ERROR")):
                    pass
            time.sleep(0.01)
    except (Wrong, OSError) as error:
        wrong.append(f"who disturbs: {error}")


def main():
    server, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 20
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    user = ["-u", "root"] if os.getuid() == 0 else []
    options = ["-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "400", "-t", "4", *user]
    with subprocess.Popen([server, *options, "-o", "hps,hps_shake,hashpower=14"]) as process:
        wrong, counts = [], {"items": 0, "operations": 0, "cas_changed": 0, "cas_refused": 0, "numbers": {}, "lost": 0}
        try:
            for _ in range(100):
                try:
                    Client(port)
                    break
                except OSError:
                    time.sleep(0.05)
            until = time.monotonic() + seconds
            threads = [threading.Thread(target=work, args=(port, number, until, counts, wrong)) for number in range(CLIENTS)]
            threads.append(threading.Thread(target=disturb, args=(port, until, wrong)))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if process.poll() is not None:
                wrong.append(f"the server ended: {process.returncode}")
            else:
                client = Client(port)
                told, hps = client.stats(), client.stats(b"hps")
                if not wrong and int(told["curr_items"]) != counts["items"]:
                    wrong.append(f"{told['curr_items']} items are counted, {counts['items']} there")
                thrown_out = sum(int(told[name]) for name in (
                    "evictions", "slab_reassign_evictions_nomem", "slab_reassign_busy_deletes"))
                if counts["lost"] > thrown_out:
                    wrong.append(f"{counts['lost']} items are gone, {thrown_out} were thrown out")
                if int(hps["moved"]) < 1000 or int(hps["displaced"]) < 1000:
                    wrong.append(f"hardly anything moved: {hps}")
                print(f"{counts['operations']} operations; items moved {hps['moved']} times there, {hps['displaced']} back; regions retired "
                      f"{hps['retired']} times; {told['slabs_moved']} slab pages moved; {counts['lost']} items gone, {thrown_out} thrown out; "
                      f"cas numbers changed by the slab mover: {counts['cas_changed']}")
        finally:
            process.terminate()
        for line in wrong:
            print(f"WRONG: {line}")
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
