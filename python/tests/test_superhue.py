"""Run by `python/test`: the calls without a service, and with one where pages can be tracked."""

import ctypes
import errno
import gc
import mmap
import os
import subprocess
import sys
import tempfile
import time
import unittest
import weakref
from unittest import mock

import superhue


class WithoutService(unittest.TestCase):
    def test_errors_are_exceptions_with_reasons(self):
        with self.assertRaises(superhue.TrackError) as caught:
            superhue.enable_track(socket="/nonexistent/track.sock")
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        self.assertIn("superhue track", str(caught.exception))
        for call in (superhue.disable_track, superhue.fetch, superhue.statistics, superhue.wait_signal):
            with self.assertRaises(superhue.TrackError) as caught:
                call()
            self.assertEqual(caught.exception.errno, errno.ENOTCONN, call)
        with self.assertRaises(superhue.TrackError) as caught:
            superhue.process([superhue.Page(4097, 1)])
        self.assertEqual(caught.exception.errno, errno.EINVAL)

    def test_a_timeout_is_rounded_up_and_none_is_the_default(self):
        asked = []

        def enable_track(options):
            asked.append(options._obj.timeout_ms)
            return 0

        with mock.patch.object(superhue._library, "hps_enable_track", enable_track):
            for timeout in (None, 0, 0.0005, 1.5, float("inf")):
                superhue.enable_track(timeout=timeout)
            superhue.enable_track()
        self.assertEqual(asked, [0, 0, 1, 1500, 2**31 - 1, 5000])
        with mock.patch.object(superhue._library, "hps_wait_signal", lambda timeout: timeout + 1):
            self.assertEqual([superhue.wait_signal(timeout) for timeout in (None, 0, 0.0005, 0.0011)], [0, 1, 2, 3])

    def test_decisions(self):
        dense = [superhue.Page(n * 4096, 100) for n in range(512, 512 + 128)]
        sparse = [superhue.Page(n * 4096, n % 7 + 1) for n in range(1024, 1034)]
        asked, handed = [], []

        def decide(region):
            asked.append(region)
            return superhue.LEAVE if region.suggestion == superhue.COLLAPSE else superhue.COMPACT

        superhue.set_functions(decide, handed.extend)
        outcome = superhue.process(sparse + dense)
        self.assertEqual([len(region.pages) for region in asked], [128, 10])
        self.assertEqual([page.heat for page in handed], sorted([p.heat for p in sparse], reverse=True))
        self.assertEqual((outcome.regions, outcome.left, outcome.compacted), (2, 1, 10))
        superhue.set_functions()

    def test_an_exception_in_a_callback_leaves_the_region(self):
        def decide(_region):
            raise ValueError("shown on standard error: part of the test")

        superhue.set_functions(decide)
        self.assertEqual(superhue.process([superhue.Page(0x40000000, 1)]).left, 1)
        superhue.set_functions()

    def test_an_interrupt_in_a_callback_ends_the_call(self):
        pages = [superhue.Page(region << 21, 1) for region in range(1, 4)]
        for error in (KeyboardInterrupt, SystemExit):
            asked, handed = [], []

            def decide(region, error=error, asked=asked):
                asked.append(region)
                if len(asked) == 2:
                    raise error
                return superhue.COMPACT

            superhue.set_functions(decide, handed.extend)
            with self.assertRaises(error):
                superhue.process(pages)
            self.assertEqual((len(asked), handed), (2, []))

            def compact(_pages, error=error):
                raise error

            superhue.set_functions(lambda _region: superhue.COMPACT, compact)
            with self.assertRaises(error):
                superhue.process(pages)
            superhue.set_functions()
            self.assertEqual(superhue.process(pages).regions, 3)

    def test_functions_are_replaced_and_forgotten(self):
        class Decide:
            def __call__(self, _region):
                return superhue.LEAVE

        forgotten = []
        for _ in range(3):
            decide = Decide()
            forgotten.append(weakref.ref(decide))
            superhue.set_functions(decide)
            superhue.process([superhue.Page(0x40000000, 1)])
        superhue.set_functions()
        del decide
        gc.collect()
        self.assertEqual([reference() for reference in forgotten], [None] * 3)

    def test_huge_memory(self):
        with superhue.HugeMemory(3 << 20) as memory:
            memory.view[-1] = 7
            self.assertEqual(memory.address % (2 << 20), 0)
            self.assertEqual(memory.view[0], 0)
        with self.assertRaises(MemoryError):
            superhue.HugeMemory(0)


class WithService(unittest.TestCase):
    def test_a_program_learns_what_it_touches(self):
        program = os.environ.get("SUPERHUE_PROGRAM")
        if not program:
            print("SKIPPED superhue: SUPERHUE_PROGRAM does not name the command")
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "track.sock")
            command = [program, "track", "--tracker", "ptwalk", "--max-overhead", "50%", "--socket", path]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
                line = service.stderr.readline()
                if "serving at" not in line:
                    required = os.environ.get("SUPERHUE_REQUIRE", "").split(",")
                    self.assertNotIn("ptwalk", required, line)
                    print(f"SKIPPED ptwalk: {line.strip()}")
                    return
                try:
                    self.watch(path)
                finally:
                    service.terminate()
                    service.communicate()

    def watch(self, path):
        memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        superhue.enable_track(socket=path, timeout=60)
        self.addCleanup(superhue.disable_track)
        deadline = time.monotonic() + 60
        while True:
            self.assertLess(time.monotonic(), deadline, "the pages were never told")
            for offset in range(0, 1 << 20, 4096):
                memory[offset] = 1
            try:
                if superhue.wait_signal(0.001) == 0:
                    continue
            except superhue.TrackError as error:
                if error.errno in (errno.EAGAIN, errno.EINTR):
                    continue
                raise
            pages, available = superhue.fetch()
            if any(start <= page.address < start + (1 << 20) for page in pages):
                break
        self.assertGreater(available, 0)
        self.assertGreater(superhue.statistics().published, 0)


if __name__ == "__main__":
    sys.exit(unittest.main())
