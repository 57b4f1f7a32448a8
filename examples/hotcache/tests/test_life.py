# SPDX-License-Identifier: MIT OR Apache-2.0
"""Start, end, memory, connections, and life without the tracking service."""

import os
import random
import signal
import subprocess
import time
import unittest

from support import BUILD, FAKE, PATIENCE, Server


class Life(unittest.TestCase):
    def test_memory_is_bounded_and_the_oldest_goes(self):
        with Server("-m", "16", "-t", "2") as server:
            client = server.client()
            rng = random.Random(3)
            value = rng.randbytes(2000)
            for n in range(40_000):
                client.send(b"set %d 0 0 2000 noreply\r\n%s\r\n" % (n, value))
            self.assertEqual(client.get(b"39999"), {b"39999": value})
            self.assertEqual(client.get(b"0"), {})
            stats = client.stats()
            self.assertGreater(int(stats["evictions"]), 30_000)
            self.assertLessEqual(int(stats["bytes"]), 17 << 20)
            self.assertLess(server.rss(), 26 << 20)
            client.close()

    def test_values_of_every_size_come_back(self):
        with Server("-m", "200") as server:
            client = server.client()
            rng = random.Random(4)
            for size in [0, 1, 2, 7, 100, 4095, 4096, 65536, 262144, 524288, 600_000, 1_048_000]:
                value = rng.randbytes(size)
                self.assertEqual(client.set(b"k", value), b"STORED", size)
                self.assertEqual(client.get(b"k"), {b"k": value}, size)
            self.assertEqual(client.set(b"k", bytes(1 << 20)),
                             b"SERVER_ERROR object too large for cache")
            client.close()

    def test_it_ends_when_asked(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            for variant in ("hotcache", "hotcache-address"):
                with Server(variant=variant) as server:
                    client = server.client()
                    client.set(b"k", b"v")
                    client.send(b"set unfinished 0 0 100\r\nabc")
                    self.assertEqual(server.stop(number), (0, ""))
                    self.assertEqual(client.rest(), b"")
                    client.close()

    def test_too_many_connections_are_told(self):
        with Server("-c", "2") as server:
            clients = [server.client() for _ in range(2)]
            for client in clients:
                client.set(b"k", b"v")
            third = server.client()
            self.assertEqual(third.rest(), b"ERROR Too many open connections\r\n")
            third.close()
            clients.pop().close()
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                late = server.client()
                late.send(b"version\r\n")
                answer = late.line()
                late.close()
                if answer.startswith(b"VERSION"):
                    break
            self.assertTrue(answer.startswith(b"VERSION"))
            clients.pop().close()

    def test_nonsense_is_a_usage_error(self):
        for options in (["-p", "70000"], ["-m", "0"], ["-m", "x"], ["-t", "0"], ["-f", "1"],
                        ["--hps=maybe"], ["--hot=65", "-m", "64"], ["extra"], ["--unknown"]):
            done = subprocess.run([os.path.join(BUILD, "hotcache"), *options],
                                  capture_output=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 2, options)
            self.assertTrue(done.stderr)
        with Server() as server:
            done = subprocess.run([os.path.join(BUILD, "hotcache"), "-p", str(server.port)],
                                  capture_output=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"Address already in use", done.stderr)

    def test_without_tracking_it_serves_and_says_so_once(self):
        for options, env, says in (
            (["--hps-library=/nonexistent.so"], {}, "--hps-library"),
            ([f"--hps-library={FAKE}"], {"FAKE_HPS_ENABLE": "2"}, "No such file"),
            ([f"--hps-library={FAKE}"], {"FAKE_HPS_END": "2"}, "Broken pipe"),
        ):
            for mode in ("thread", "signal"):
                with Server(f"--hps={mode}", *options, env=env) as server:
                    client = server.client()
                    deadline = time.monotonic() + PATIENCE
                    while says not in (state := client.stats(b"hps")["state"]):
                        self.assertLess(time.monotonic(), deadline, state)
                        time.sleep(0.01)
                    self.assertEqual(client.set(b"k", b"v"), b"STORED")
                    self.assertEqual(client.get(b"k"), {b"k": b"v"})
                    client.close()
                    status, stderr = server.stop()
                    self.assertEqual(status, 0)
                    self.assertEqual(stderr.count("not tracked"), 1, stderr)
                    self.assertIn(says, stderr)
