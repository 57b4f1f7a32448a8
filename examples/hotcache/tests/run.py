#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of hotcache: its protocol against memcached's own answers, its memory, and values that stay
whole while compaction moves them.

`make test` builds what is needed and runs this. Arguments choose among the tests, such as
`test_compaction` or `test_life.Life.test_it_ends_when_asked`. A test that needs what the machine
lacks says `SKIPPED name: reason`; with the name in SUPERHUE_REQUIRE (comma-separated) that is a
failure.
"""

import os
import sys
import unittest

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    sys.dont_write_bytecode = True
    loader = unittest.TestLoader()
    names = sys.argv[1:]
    suite = loader.loadTestsFromNames(names) if names else loader.discover(here)
    if suite.countTestCases() == 0:
        sys.exit("no tests found")
    done = unittest.TextTestRunner(verbosity=1, warnings="ignore").run(suite)
    sys.exit(not done.wasSuccessful())
