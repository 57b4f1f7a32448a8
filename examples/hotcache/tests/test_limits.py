# SPDX-License-Identifier: MIT OR Apache-2.0
"""Requests without end, and clients that do not read."""

import os
import unittest

from support import Server


class Limits(unittest.TestCase):
    def test_lists_of_keys_have_no_limit(self):
        with Server("-m", "64") as server:
            client = server.client()
            keys = [b"key-%06d" % n for n in range(20_000)]
            for key in keys:
                client.send(b"set %s 0 0 10 noreply\r\n%s\r\n" % (key, key))
            self.assertEqual(client.get(*keys), {key: key for key in keys})
            client.close()

    def test_endless_lines_end_the_connection(self):
        with Server() as server:
            client = server.client()
            client.send(b"set " + b"x" * 5000)
            self.assertEqual(client.rest(), b"")
            client.close()
            client = server.client()
            client.send(b"get " + b"x" * 40000 + b" a\r\nversion\r\n")
            self.assertEqual(client.line(), b"CLIENT_ERROR bad command line format\r\n")
            self.assertTrue(client.line().startswith(b"VERSION "))
            client.close()

    def test_who_does_not_read_is_not_read_from(self):
        with Server("-m", "64", "-t", "1") as server:
            client = server.client()
            client.set(b"big", os.urandom(1_000_000))
            before = server.rss()
            client.socket.settimeout(1)
            with self.assertRaises(TimeoutError):
                for _ in range(10_000):
                    client.send(b"get big big big big\r\n" * 100)
            self.assertLess(server.rss() - before, 16 << 20)
            other = server.client()
            self.assertEqual(other.set(b"k", b"v"), b"STORED")
            other.close()
            client.close()
