#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of hotcache: its protocol against memcached's own answers, its memory, and values that stay
whole while compaction moves them.

`make test` builds what is needed and runs this. A test that needs what the machine lacks says
`SKIPPED name: reason`; with the name in SUPERHUE_REQUIRE (comma-separated) that is a failure.
"""

import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("HOTCACHE_BUILD", os.path.join(HERE, "build"))
FAKE = os.path.join(BUILD, "libfakehps.so")
PATIENCE = 60  # seconds; only ever waited out by a server that hangs


def skip(test, name, reason):
    """Skips visibly, or fails if the capability is required."""
    if name in [n.strip() for n in os.environ.get("SUPERHUE_REQUIRE", "").split(",")]:
        test.fail(f"{name} is required but missing: {reason}")
    print(f"SKIPPED {name}: {reason}", file=sys.stderr)
    test.skipTest(reason)


class Server:
    """A running hotcache (or memcached) on a port of its own."""

    def __init__(self, *options, variant="hotcache", env=None):
        env = dict(os.environ, **(env or {}))
        # A report of the sanitizers must not pass for a refusal.
        env.setdefault("ASAN_OPTIONS", "exitcode=77")
        env.setdefault("TSAN_OPTIONS", "exitcode=77:halt_on_error=1")
        command = [os.path.join(BUILD, variant), "-p", "0", *options]
        if variant.endswith("-thread") and shutil.which("setarch"):
            # Older runtimes of the sanitizer cannot live with as much randomness as kernels use now.
            command = ["setarch", "-R", *command]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        line = self.process.stdout.readline().decode()
        match = re.search(r"port (\d+)", line)
        if not match:
            raise AssertionError(f"{command}: {self.process.communicate()}")
        self.port = int(match.group(1))

    def client(self):
        return Client(self.port)

    def rss(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) * 1024

    def stop(self, number=signal.SIGTERM):
        """Ends it; status and what it said on standard error."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, stderr.decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Memcached(Server):
    """The real one, for its answers."""

    def __init__(self, *options):
        for _ in range(20):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            command = ["memcached", "-U", "0", "-l", "127.0.0.1", "-p", str(self.port), *options]
            if os.geteuid() == 0:
                command += ["-u", "root"]
            self.process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            deadline = time.monotonic() + PATIENCE
            while self.process.poll() is None and time.monotonic() < deadline:
                try:
                    self.client().close()
                    return
                except ConnectionRefusedError:
                    time.sleep(0.01)
        raise AssertionError("memcached does not start")


class Client:
    """A socket with a buffer."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def send(self, data):
        self.socket.sendall(data)

    def line(self):
        return self.file.readline()

    def ask(self, command):
        """Sends one line (or a line and a value) and reads one line."""
        self.send(command + b"\r\n")
        return self.line().removesuffix(b"\r\n")

    def set(self, key, value, flags=0, exptime=0):
        return self.ask(b"set %s %d %d %d\r\n%s" % (key, flags, exptime, len(value), value))

    def get(self, *keys):
        """A dictionary of what is there."""
        self.send(b"get " + b" ".join(keys) + b"\r\n")
        found = {}
        while True:
            line = self.line()
            if line == b"END\r\n":
                return found
            word, key, _, size = line.split()
            assert word == b"VALUE", line
            data = self.file.read(int(size) + 2)
            assert data.endswith(b"\r\n") and len(data) == int(size) + 2
            found[key] = data[:-2]

    def stats(self, what=b""):
        self.send(b"stats " + what + b"\r\n")
        found = {}
        while (line := self.line()) != b"END\r\n":
            _, name, value = line.rstrip(b"\r\n").split(b" ", 2)
            found[name.decode()] = value.decode()
        return found

    def until_mark(self):
        """Everything up to the answer to `version`, which nothing else asks for."""
        self.send(b"version\r\n")
        lines = []
        while True:
            line = self.line()
            if not line:
                return b"".join(lines) + b"<closed>"
            if line.startswith(b"VERSION "):
                return b"".join(lines)
            lines.append(line)

    def rest(self):
        return self.file.read()

    def close(self):
        self.file.close()
        self.socket.close()


LONG = b"k" * 250
# Requests and the answers memcached 1.6 gives, in one go, on one connection.
TRANSCRIPT = [
    (b"get a\r\n", b"END\r\n"),
    (b"set a 5 0 3\r\nabc\r\n", b"STORED\r\n"),
    (b"get a\r\n", b"VALUE a 5 3\r\nabc\r\nEND\r\n"),
    (b"get a\n", b"VALUE a 5 3\r\nabc\r\nEND\r\n"),
    (b"get a b a\r\n", b"VALUE a 5 3\r\nabc\r\nVALUE a 5 3\r\nabc\r\nEND\r\n"),
    (b"get  a  b \r\n", b"VALUE a 5 3\r\nabc\r\nEND\r\n"),
    (b"set e 0 0 0\r\n\r\n", b"STORED\r\n"),
    (b"get e\r\n", b"VALUE e 0 0\r\n\r\nEND\r\n"),
    (b"set crlf 0 0 6\r\n\r\nEND\r\r\n", b"STORED\r\n"),
    (b"get crlf\r\n", b"VALUE crlf 0 6\r\n\r\nEND\r\r\nEND\r\n"),
    (b"add a 0 0 1\r\nx\r\n", b"NOT_STORED\r\n"),
    (b"add n 0 0 1\r\nx\r\n", b"STORED\r\n"),
    (b"replace n 1 0 2\r\nxy\r\n", b"STORED\r\n"),
    (b"replace none 1 0 2\r\nxy\r\n", b"NOT_STORED\r\n"),
    (b"append n 9 0 2\r\n12\r\n", b"STORED\r\n"),
    (b"prepend n 9 0 2\r\n00\r\n", b"STORED\r\n"),
    (b"get n\r\n", b"VALUE n 1 6\r\n00xy12\r\nEND\r\n"),
    (b"append none 0 0 1\r\nx\r\n", b"NOT_STORED\r\n"),
    (b"prepend none 0 0 1\r\nx\r\n", b"NOT_STORED\r\n"),
    (b"cas none 0 0 1 1\r\nx\r\n", b"NOT_FOUND\r\n"),
    (b"cas a 0 0 1 999999\r\nx\r\n", b"EXISTS\r\n"),
    (b"delete n\r\n", b"DELETED\r\n"),
    (b"delete n\r\n", b"NOT_FOUND\r\n"),
    (b"delete n 0\r\n", b"NOT_FOUND\r\n"),
    (b"delete n 5\r\n",
     b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"),
    (b"set n 0 0 2\r\n10\r\n", b"STORED\r\n"),
    (b"incr n 5\r\n", b"15\r\n"),
    (b"decr n 7\r\n", b"8\r\n"),
    (b"get n\r\n", b"VALUE n 0 2\r\n8 \r\nEND\r\n"),
    (b"incr n 1\r\n", b"9\r\n"),
    (b"incr n 991\r\n", b"1000\r\n"),
    (b"get n\r\n", b"VALUE n 0 4\r\n1000\r\nEND\r\n"),
    (b"decr n 5000\r\n", b"0\r\n"),
    (b"incr none 1\r\n", b"NOT_FOUND\r\n"),
    (b"incr a 1\r\n", b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
    (b"incr n x\r\n", b"CLIENT_ERROR invalid numeric delta argument\r\n"),
    (b"incr n -1\r\n", b"CLIENT_ERROR invalid numeric delta argument\r\n"),
    (b"set m 0 0 20\r\n18446744073709551615\r\n", b"STORED\r\n"),
    (b"incr m 2\r\n", b"1\r\n"),
    (b"incr n\r\n", b"ERROR\r\n"),
    (b"touch a 100\r\n", b"TOUCHED\r\n"),
    (b"touch none 100\r\n", b"NOT_FOUND\r\n"),
    (b"touch a x\r\n", b"CLIENT_ERROR invalid exptime argument\r\n"),
    (b"gat 0 a none\r\n", b"VALUE a 5 3\r\nabc\r\nEND\r\n"),
    (b"set q 0 0 1 noreply\r\nq\r\n", b""),
    (b"delete none noreply\r\n", b""),
    (b"incr none 1 noreply\r\n", b""),
    (b"get q\r\n", b"VALUE q 0 1\r\nq\r\nEND\r\n"),
    (b"set gone 0 -1 1\r\nx\r\n", b"STORED\r\n"),
    (b"get gone\r\n", b"END\r\n"),
    (b"get " + LONG + b"\r\n", b"END\r\n"),
    (b"get " + LONG + b"k\r\n", b"CLIENT_ERROR bad command line format\r\n"),
    (b"get a " + LONG + b"k a\r\n", b"CLIENT_ERROR bad command line format\r\n"),
    (b"delete " + LONG + b"k\r\n", b"CLIENT_ERROR bad command line format\r\n"),
    (b"set " + LONG + b" 0 0 1\r\nx\r\n", b"STORED\r\n"),
    (b"set big 0 0 2000000\r\n" + b"x" * 2000000 + b"\r\n",
     b"SERVER_ERROR object too large for cache\r\n"),
    (b"get big\r\n", b"END\r\n"),
    (b"set a 0 0 2000000\r\n" + b"x" * 2000000 + b"\r\n",
     b"SERVER_ERROR object too large for cache\r\n"),
    (b"get a\r\n", b"END\r\n"),
    (b"get\r\n", b"ERROR\r\n"),
    (b"gets\r\n", b"ERROR\r\n"),
    (b"\r\n", b"ERROR\r\n"),
    (b"nonsense\r\n", b"ERROR\r\n"),
    (b"GET a\r\n", b"ERROR\r\n"),
    (b"set a\r\n", b"ERROR\r\n"),
    (b"set a 0 0\r\n", b"ERROR\r\n"),
    (b"set a x 0 1\r\n", b"CLIENT_ERROR bad command line format\r\n"),
    (b"set a -1 0 1\r\n", b"CLIENT_ERROR bad command line format\r\n"),
    (b"set a 4294967296 0 1\r\nx\r\n", b"STORED\r\n"),
    (b"set a 0 0 -1\r\n", b"CLIENT_ERROR bad command line format\r\n"),
    (b"set a 0 0 x\r\n", b"CLIENT_ERROR bad command line format\r\n"),
    (b"set a 0 0 3\r\nabcde\r\n", b"CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
    (b"set f 4294967295 0 1\r\nx\r\n", b"STORED\r\n"),
    (b"get f\r\n", b"VALUE f 4294967295 1\r\nx\r\nEND\r\n"),
    (b"verbosity 1\r\n", b"OK\r\n"),
    (b"verbosity\r\n", b"ERROR\r\n"),
    (b"verbosity x\r\n", b"CLIENT_ERROR bad command line format\r\n"),
    (b"verbosity a b c\r\n", b"ERROR\r\n"),
    (b"gat a\r\n", b"CLIENT_ERROR invalid exptime argument\r\n"),
    (b"gat 0\r\n", b"END\r\n"),
    (b"set a 0 0 noreply\r\n", b""),
    (b"set a 0 0 1 2 3\r\n", b"ERROR\r\n"),
    (b"incr none 1 2 3\r\n", b"ERROR\r\n"),
    (b"flush_all x\r\n", b"CLIENT_ERROR invalid exptime argument\r\n"),
    (b"flush_all noreply\r\n", b""),
    (b"get f q m\r\n", b"END\r\n"),
    (b"flush_all\r\n", b"OK\r\n"),
]


class Protocol(unittest.TestCase):
    def check(self, server):
        client = server.client()
        for request, answer in TRANSCRIPT:
            client.send(request)
            self.assertEqual(client.until_mark(), answer, request[:80])
        client.close()

    def test_answers(self):
        with Server() as server:
            self.check(server)

    def test_memcached_itself_answers_so(self):
        if not shutil.which("memcached"):
            skip(self, "memcached", "not installed")
        with Memcached() as server:
            self.check(server)

    def test_pipelined_and_in_pieces(self):
        everything = b"".join(request for request, _ in TRANSCRIPT) + b"quit\r\n"
        answers = b"".join(answer for _, answer in TRANSCRIPT)
        rng = random.Random(1)
        for most in (len(everything), 100_000, 3000):
            with Server() as server:
                client = server.client()
                sender = threading.Thread(target=self.dribble, args=(client, everything, most, rng))
                sender.start()
                self.assertEqual(client.rest(), answers)
                sender.join()
                client.close()
        # Byte by byte, without the two millions.
        short = [(r, a) for r, a in TRANSCRIPT if len(r) < 1000 and b"get a\r" not in r]
        with Server() as server:
            client = server.client()
            self.dribble(client, b"set a 5 0 3\r\nabc\r\n", 1, rng)
            self.dribble(client, short[0][0] + b"quit\r\n", 1, rng)
            self.assertEqual(client.rest(), b"STORED\r\n" + short[0][1])
            client.close()

    @staticmethod
    def dribble(client, data, most, rng):
        at = 0
        while at < len(data):
            size = rng.randint(1, most)
            client.send(data[at:at + size])
            at += size

    def test_random_commands_are_answered_as_by_memcached(self):
        if not shutil.which("memcached"):
            skip(self, "memcached", "not installed")
        rng = random.Random(20)
        with Server() as ours, Memcached() as theirs:
            clients = [ours.client(), theirs.client()]
            for _ in range(4000):
                request = self.random_request(rng)
                answers = []
                for client in clients:
                    client.send(request)
                    answers.append(client.until_mark())
                self.assertEqual(answers[0], answers[1], request)
            for client in clients:
                client.close()

    @staticmethod
    def random_request(rng):
        key = rng.choice([b"a", b"b", b"c", b"dd", b"x" * 250, b"y" * 251])
        number = rng.choice([b"0", b"1", b"7", b"99", b"-1", b"", b"x", b"18446744073709551615",
                             b"18446744073709551616", b"1x"])
        quiet = rng.choice([b"", b"", b" noreply"])
        verb = rng.choice([b"get", b"set", b"set", b"add", b"replace", b"append", b"prepend",
                           b"delete", b"incr", b"decr", b"touch", b"gat"])
        if verb == b"get":
            return b"get " + b" ".join(rng.choice([b"a", b"b", key]) for _ in range(3)) + b"\r\n"
        if verb == b"gat":
            # Its answer to a key too long comes behind an END; ours, as for get, in place of it.
            return b"gat 0 a " + key[:250] + b"\r\n"
        if verb in (b"delete",):
            return b"delete " + key + quiet + b"\r\n"
        if verb == b"touch":
            return b"touch " + key + b" " + rng.choice([b"0", b"1000", b"x"]) + quiet + b"\r\n"
        if verb in (b"incr", b"decr"):
            return verb + b" " + key + b" " + number + quiet + b"\r\n"
        value = rng.choice([b"", b"5", b"17", b"word", b"z" * rng.randint(1, 3000),
                            b"99999999999999999999", b"18446744073709551615"])
        if len(key) > 250:
            value = b""  # what a refused command's value is read as is not under test
        return b"%s %s %d 0 %d%s\r\n%s\r\n" % (verb, key, rng.randint(0, 9), len(value), quiet, value)

    def test_cas_follows_changes(self):
        with Server() as server:
            client = server.client()
            client.set(b"k", b"1")

            def unique():
                client.send(b"gets k\r\n")
                line = client.line()
                client.line(), client.line()
                return line.split()[4]

            first = unique()
            self.assertEqual(client.ask(b"cas k 0 0 1 %s\r\n2" % first), b"STORED")
            self.assertEqual(client.ask(b"cas k 0 0 1 %s\r\n3" % first), b"EXISTS")
            second = unique()
            client.ask(b"incr k 1")
            self.assertNotEqual(second, unique())
            client.close()

    def test_times_pass(self):
        with Server() as server:
            client = server.client()
            client.set(b"soon", b"x", exptime=1)
            client.set(b"absolute", b"x", exptime=int(time.time()) + 1)
            client.set(b"later", b"x", exptime=1000)
            client.set(b"past", b"x", exptime=int(time.time()) - 10)
            self.assertNotIn(b"past", client.get(b"past"))
            self.assertEqual(client.ask(b"flush_all 2"), b"OK")
            deadline = time.monotonic() + PATIENCE
            while client.get(b"soon", b"absolute") and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertEqual(client.get(b"soon", b"absolute"), {})
            while client.get(b"later") and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertEqual(client.get(b"later"), {})
            self.assertEqual(client.set(b"later", b"y"), b"STORED")
            self.assertEqual(client.get(b"later"), {b"later": b"y"})
            client.close()

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
                        ["--hps=maybe"], ["--hot=64", "-m", "64"], ["extra"], ["--unknown"]):
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


def value_of(key, version, size):
    """A value that names its key and version, all of it: any byte out of place shows."""
    seed = hashlib.sha256(b"%s:%d" % (key, version)).digest()
    return (b"%08d" % version + seed * (size // 32 + 1))[:size]


class Compaction(unittest.TestCase):
    """Values stay whole, byte for byte, while everything around them moves."""

    SIZES = [8, 40, 100, 500, 500, 512, 900, 2000, 5000, 30_000, 100_000]

    def hammer(self, server, number, rounds, failures):
        """Sets, reads and deletes keys of its own; reads must give what was last stored."""
        try:
            rng = random.Random(number)
            client = server.client()
            known = {}
            keys = [b"c%d-%d" % (number, n) for n in range(400)]
            for turn in range(rounds):
                # A few keys take most of the requests, so there is something hot to move.
                key = keys[int(400 * rng.random() ** 4)]
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

    def run_load(self, variant, mode, rounds, options=(), env=None, moves=True):
        with Server("-m", "128", "-t", "3", f"--hps={mode}", f"--hps-library={FAKE}",
                    "--hot-hits=1", *options, variant=variant, env=env) as server:
            failures = []
            client = server.client()
            for number in range(100):
                client.ask(b"set n%d 0 0 1\r\n0" % number)
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
                for thread in threads:
                    thread.join()
                self.assertEqual(failures, [])
                stats = client.stats(b"hps")
                if not moves or int(stats["items_moved"]) > 100:
                    break
                self.assertLess(time.monotonic(), deadline, stats)
                for key in range(400):  # begin anew: each round knows only what it stored itself
                    for number in range(4):
                        client.ask(b"delete c%d-%d" % (number, key))
            numbers = client.get(*(b"n%d" % n for n in range(100)))
            self.assertEqual(sum(int(value) for value in numbers.values()), added)
            stats = client.stats(b"hps")
            self.assertGreater(int(stats["notifications"]), 0)
            self.assertLessEqual(int(stats["hot_bytes"]), int(stats["hot_limit"]))
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
        self.assertEqual(int(stats["hot_limit"]), 2 << 20)

    def test_without_superpages_nothing_moves(self):
        stats = self.run_load("hotcache-address", "thread", 500,
                              env={"FAKE_HPS_NO_MEMORY": "1"}, moves=False)
        self.assertEqual((stats["items_moved"], stats["superpages"]), ("0", "0"))

    def test_evicting_and_moving_at_once(self):
        for variant in ("hotcache", "hotcache-address", "hotcache-thread"):
            with Server("-m", "12", "--hot=4", "-t", "2", "--hps=thread", "--hot-hits=1",
                        f"--hps-library={FAKE}", variant=variant) as server:
                failures = []

                def churn(number):
                    try:
                        client = server.client()
                        rng = random.Random(number)
                        for turn in range(6000):
                            key = b"%d" % rng.randint(0, 30_000)
                            value = value_of(key, 0, 700 + int(key) % 800)
                            if turn % 3:
                                client.send(b"set %s 0 0 %d noreply\r\n%s\r\n" %
                                            (key, len(value), value))
                            else:
                                found = client.get(key).get(key, value)
                                if found != value:
                                    raise AssertionError(f"{key} is not what was stored")
                        client.close()
                    except Exception as error:  # pylint: disable=broad-except
                        failures.append(repr(error))

                threads = [threading.Thread(target=churn, args=(n,)) for n in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(failures, [])
                client = server.client()
                deadline = time.monotonic() + PATIENCE
                while int(client.stats(b"hps")["items_moved"]) == 0:
                    self.assertLess(time.monotonic(), deadline)
                    client.set(b"warm", b"x" * 700)
                    client.get(b"warm")
                client.close()
                self.assertEqual(server.stop(), (0, ""))

    def test_what_grows_cold_comes_back(self):
        with Server("--hps=thread", "--hot-hits=2", f"--hps-library={FAKE}") as server:
            client = server.client()
            deadline = time.monotonic() + PATIENCE
            for n in range(200):
                client.set(b"k%d" % n, value_of(b"k%d" % n, 1, 600))
            while int(client.stats(b"hps")["hot_items"]) < 200:
                self.assertLess(time.monotonic(), deadline)
                client.get(*(b"k%d" % n for n in range(200)))
            # Three accesses or so are forgotten after a few half-lives.
            while int(client.stats(b"hps")["hot_items"]) > 0:
                self.assertLess(time.monotonic(), deadline, client.stats(b"hps"))
                time.sleep(0.1)
            for n in range(200):
                key = b"k%d" % n
                self.assertEqual(client.get(key), {key: value_of(key, 1, 600)})
            client.close()
            self.assertEqual(server.stop(), (0, ""))


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


if __name__ == "__main__":
    unittest.main(verbosity=1, warnings="ignore")
