# SPDX-License-Identifier: MIT OR Apache-2.0
"""Values stay whole, byte for byte, while everything around them moves."""

import hashlib
import random
import threading
import time
import unittest

from support import FAKE, PATIENCE, Server


def value_of(key, version, size):
    """A value that names its key and version, all of it: any byte out of place shows."""
    seed = hashlib.sha256(b"%s:%d" % (key, version)).digest()
    return (b"%08d" % version + seed * (size // 32 + 1))[:size]


def ballast(client, sizes, each=4 << 20):
    """Fills some MiB with items of each size that nobody asks for: regions that may become hot."""
    for size in sizes:
        for n in range(each // size):
            client.send(b"set ballast-%d-%d 0 0 %d noreply\r\n%s\r\n" % (size, n, size, bytes(size)))
    client.until_mark()


class Compaction(unittest.TestCase):
    """Values stay whole, byte for byte, while everything around them moves."""

    SIZES = [8, 40, 490, 500, 500, 505, 512, 900, 2000, 30_000, 100_000]
    KEYS = 600

    def hammer(self, server, number, rounds, failures):
        """Sets, reads and deletes keys of its own; reads must give what was last stored."""
        try:
            rng = random.Random(number)
            client = server.client()
            known = {}
            keys = [b"c%d-%d" % (number, n) for n in range(self.KEYS)]
            for turn in range(rounds):
                # A few keys take most of the requests, so there is something hot to move.
                key = keys[int(self.KEYS * rng.random() ** 4)]
                what = rng.random()
                if what < 0.25:
                    size = max(8, self.SIZES[hash(key) % len(self.SIZES)] + rng.randint(-3, 3))
                    if client.set(key, value_of(key, turn, size)) != b"STORED":
                        raise AssertionError("not stored")
                    known[key] = value_of(key, turn, size)
                elif what < 0.28:
                    wanted = b"DELETED" if key in known else b"NOT_FOUND"
                    if client.ask(b"delete " + key) != wanted:
                        raise AssertionError(f"delete {key}: not {wanted}")
                    known.pop(key, None)
                elif what < 0.32 and key in known:
                    if client.ask(b"append %s 0 0 3\r\nxyz" % key) != b"STORED":
                        raise AssertionError("not appended")
                    known[key] += b"xyz"
                else:
                    asked = [key] + [rng.choice(keys) for _ in range(rng.randint(0, 5))]
                    found = client.get(*asked)
                    for one in asked:
                        if found.get(one) != known.get(one):
                            raise AssertionError(f"{one} is not what was stored")
            client.close()
        except Exception as error:  # pylint: disable=broad-except
            failures.append(f"client {number}: {error!r}")

    def run_load(self, variant, mode, rounds, options=(), env=None, done=None):
        done = done or (lambda stats: int(stats["items_moved"]) > 100)
        with Server("-m", "128", "--hot=32", "-t", "3", f"--hps={mode}", f"--hps-library={FAKE}",
                    "--hot-hits=1", *options, variant=variant, env=env) as server:
            failures = []
            client = server.client()
            ballast(client, [500, 900, 2000, 30_000])
            for number in range(100):
                client.ask(b"set n%d 0 0 1\r\n0" % number)
            # In demand all the time, and enough of them to be worth a superpage of their class.
            steady = {b"s%d" % n: value_of(b"s%d" % n, 1, 500) for n in range(1500)}
            for key, value in steady.items():
                client.send(b"set %s 0 0 500 noreply\r\n%s\r\n" % (key, value))
            names = list(steady)
            deadline = time.monotonic() + PATIENCE
            added = 0
            while True:
                threads = [threading.Thread(target=self.hammer, args=(server, n, rounds, failures))
                           for n in range(4)]
                for thread in threads:
                    thread.start()
                # Counters that everything shares: a lost update would show in the sum.
                for turn in range(rounds):
                    client.ask(b"incr n%d 1" % (turn % 100))
                    added += 1
                    asked = names[turn * 50 % 1500:][:50]
                    self.assertEqual(client.get(*asked), {key: steady[key] for key in asked})
                for thread in threads:
                    thread.join()
                self.assertEqual(failures, [])
                stats = client.stats(b"hps")
                if done(stats):
                    break
                self.assertLess(time.monotonic(), deadline, stats)
                for key in range(self.KEYS):  # begin anew: each round knows only what it stored itself
                    for number in range(4):
                        client.ask(b"delete c%d-%d" % (number, key))
            numbers = client.get(*(b"n%d" % n for n in range(100)))
            self.assertEqual(sum(int(value) for value in numbers.values()), added)
            stats = client.stats(b"hps")
            self.assertGreater(int(stats["notifications"]), 0)
            self.assertLessEqual(int(stats["superpages"]), int(stats["superpages_limit"]))
            self.assertLessEqual(int(stats["hot_accesses"]), int(stats["accesses"]))
            client.close()
            self.assertEqual(server.stop(), (0, ""))
            return stats

    def test_values_stay_whole(self):
        for mode in ("thread", "signal"):
            self.run_load("hotcache", mode, 4000)

    def test_values_stay_whole_under_address_sanitizer(self):
        for mode in ("thread", "signal"):
            self.run_load("hotcache-address", mode, 1500)

    def test_values_stay_whole_under_thread_sanitizer(self):
        for mode in ("thread", "signal"):
            self.run_load("hotcache-thread", mode, 800)

    def test_a_full_hot_area_takes_only_what_is_hotter(self):
        stats = self.run_load("hotcache-address", "thread", 2500, options=["--hot=2"])
        self.assertEqual(stats["superpages"], "1")
        self.assertEqual(stats["superpages_limit"], "1")

    def test_without_superpages_nothing_moves(self):
        stats = self.run_load("hotcache-address", "thread", 500,
                              env={"FAKE_HPS_NO_MEMORY": "1"},
                              done=lambda stats: int(stats["superpages_failed"]) > 0)
        self.assertEqual((stats["items_moved"], stats["superpages"]), ("0", "0"))

    def test_evicting_and_moving_at_once(self):
        for variant in ("hotcache", "hotcache-address", "hotcache-thread"):
            with Server("-m", "12", "--hot=4", "-t", "2", "--hps=thread", "--hot-hits=1",
                        f"--hps-library={FAKE}", variant=variant) as server:
                failures = []
                moved = threading.Event()
                filler = server.client()
                for key in range(20_000):  # more than there is room for
                    value = value_of(b"%d" % key, 0, 700 + key % 100)
                    filler.send(b"set %d 0 0 %d noreply\r\n%s\r\n" % (key, len(value), value))
                filler.until_mark()

                def churn(number):
                    try:
                        client = server.client()
                        rng = random.Random(number)
                        deadline = time.monotonic() + PATIENCE
                        turn = 0
                        while turn < 6000 or not moved.is_set():
                            key = b"%d" % int(30_000 * rng.random() ** 3)
                            value = value_of(key, 0, 700 + int(key) % 100)
                            if turn % 3 == 0:
                                client.send(b"set %s 0 0 %d noreply\r\n%s\r\n" %
                                            (key, len(value), value))
                            else:
                                found = client.get(key).get(key, value)
                                if found != value:
                                    raise AssertionError(f"{key} is not what was stored")
                            turn += 1
                            if turn % 500 == 0:
                                stats = client.stats(b"hps")
                                if int(stats["items_moved"]) > 0:
                                    moved.set()
                                elif time.monotonic() > deadline:
                                    raise AssertionError(f"nothing moves: {stats}")
                        client.close()
                    except Exception as error:  # pylint: disable=broad-except
                        failures.append(repr(error))

                threads = [threading.Thread(target=churn, args=(n,)) for n in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(failures, [])
                self.assertGreater(int(filler.stats()["evictions"]), 0)
                filler.close()
                self.assertEqual(server.stop(), (0, ""))

    def ask_until_hot(self, server, keys):
        """Asks for these keys until nine of ten accesses meet superpages."""
        client = server.client()
        deadline = time.monotonic() + PATIENCE
        before = client.stats(b"hps")
        while True:
            for at in range(0, len(keys), 100):
                client.get(*keys[at:at + 100])
            after = client.stats(b"hps")
            accesses, hot = (int(after[name]) - int(before[name])
                             for name in ("accesses", "hot_accesses"))
            if accesses >= len(keys):
                if hot > 0.9 * accesses:
                    break
                before = after
            self.assertLess(time.monotonic(), deadline, after)
        client.close()

    def test_what_is_asked_for_takes_the_place_of_what_no_longer_is(self):
        with Server("-m", "64", "--hot=8", "--hps=thread", f"--hps-library={FAKE}") as server:
            client = server.client()
            ballast(client, [512], each=12 << 20)
            groups = [[b"%s-%d" % (group, n) for n in range(8000)] for group in (b"a", b"b")]
            for keys in groups:
                for key in keys:
                    client.send(b"set %s 0 0 512 noreply\r\n%s\r\n" % (key, value_of(key, 1, 512)))
            client.until_mark()
            before = server.rss()
            for keys in groups:
                self.ask_until_hot(server, keys)
            # Either group has nearly 5 MiB: copies of it would show.
            self.assertLess(server.rss() - before, 3 << 20)
            self.assertLessEqual(int(client.stats(b"hps")["superpages"]), 4)
            for keys in groups:
                for key in keys:
                    self.assertEqual(client.get(key), {key: value_of(key, 1, 512)})
            client.close()
            self.assertEqual(server.stop(), (0, ""))

    def test_an_even_load_moves_little(self):
        with Server("-m", "64", "--hps=thread", f"--hps-library={FAKE}") as server:
            client = server.client()
            keys = [b"even-%d" % n for n in range(12_000)]
            for key in keys:
                client.send(b"set %s 0 0 512 noreply\r\n%s\r\n" % (key, value_of(key, 1, 512)))
            deadline = time.monotonic() + PATIENCE
            while int(client.stats(b"hps")["compactions"]) < 4:
                self.assertLess(time.monotonic(), deadline)
                for at in range(0, len(keys), 100):
                    client.get(*keys[at:at + 100])
            # Nothing is half as hot as anything else.
            self.assertLess(int(client.stats(b"hps")["items_moved"]), 120)
            client.close()
            self.assertEqual(server.stop(), (0, ""))
