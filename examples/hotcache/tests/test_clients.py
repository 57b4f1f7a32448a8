# SPDX-License-Identifier: MIT OR Apache-2.0
"""Clients that others wrote."""

import os
import shutil
import subprocess
import unittest

from support import FAKE, HERE, PATIENCE, Server, skip


class Clients(unittest.TestCase):
    """Clients that others wrote."""

    def test_pymemcache(self):
        try:
            from pymemcache.client.base import Client as Pymemcache
        except ImportError:
            skip(self, "pymemcache", "not installed (python3-pymemcache)")
        with Server() as server:
            client = Pymemcache(("127.0.0.1", server.port), default_noreply=False)
            self.assertTrue(client.set("k", "v", expire=100))
            self.assertEqual(client.get("k"), b"v")
            self.assertEqual(client.set_many({"a": "1", "b": "2"}), [])
            self.assertEqual(client.get_many(["a", "b", "c"]), {"a": b"1", "b": b"2"})
            self.assertEqual(client.incr("a", 4), 5)
            value, cas = client.gets("a")
            self.assertTrue(client.cas("a", "6", cas))
            self.assertFalse(client.cas("a", "7", cas))
            self.assertTrue(client.touch("a", 10) and client.delete("a") and client.flush_all())
            self.assertEqual(client.stats()[b"curr_connections"], 1)
            self.assertTrue(client.version())
            client.quit()

    def test_pylibmc(self):
        try:
            import pylibmc
        except ImportError:
            skip(self, "pylibmc", "not installed (python3-pylibmc)")
        with Server() as server:
            client = pylibmc.Client([f"127.0.0.1:{server.port}"], behaviors={"cas": True})
            many = {f"key{n}": os.urandom(500) for n in range(3000)}
            self.assertEqual(client.set_multi(many), [])
            self.assertEqual(client.get_multi(list(many)), many)
            self.assertTrue(client.add("n", 1))
            self.assertEqual(client.incr("n"), 2)
            self.assertTrue(client.append("s", "x") is False and client.set("s", "x"))
            self.assertTrue(client.append("s", "y"))
            self.assertEqual(client.get("s"), "xy")
            self.assertTrue(client.delete("s") and client.flush_all())
            self.assertIsNone(client.get("key1"))

    def test_libmemcached_tools(self):
        if not shutil.which("memccapable"):
            skip(self, "libmemcached", "not installed (libmemcached-tools)")
        with Server("-m", "128") as server:
            name = f"127.0.0.1:{server.port}"
            done = subprocess.run(["memccapable", "-h", "127.0.0.1", "-p", str(server.port), "-a"],
                                  capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            for tool in (["memcping"], ["memcstat"], ["memcflush"]):
                done = subprocess.run([*tool, f"--servers={name}"], capture_output=True, text=True,
                                      timeout=PATIENCE)
                self.assertEqual(done.returncode, 0, (tool, done.stdout, done.stderr))

    def test_our_load(self):
        workload = os.environ.get("SUPERHUE_WORKLOAD") or next(
            (path for kind in ("release", "debug")
             if os.access(path := os.path.join(HERE, "../../target", kind, "superhue-workload"),
                          os.X_OK)), None)
        if not workload:
            skip(self, "workload", "superhue-workload is not built")
        with Server("-m", "64", "--hps=thread", f"--hps-library={FAKE}") as server:
            done = subprocess.run(
                [workload, "load", "memcached", "--port", str(server.port), "--items", "20000",
                 "--requests", "100000", "--read-ratio", "0.9"],
                capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("wrong 0\n", done.stdout)
            self.assertIn("misses 0\n", done.stdout)
            self.assertEqual(server.stop(), (0, ""))
