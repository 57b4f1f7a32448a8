# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the tests share: servers, a client, and skipping visibly."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("HOTCACHE_BUILD", os.path.join(HERE, "build"))
FAKE = os.path.join(BUILD, "libfakehps.so")
PATIENCE = 300  # seconds, enough for a busy machine; only ever waited out by a server that hangs


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
