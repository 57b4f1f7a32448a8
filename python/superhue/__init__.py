"""Learn which of your pages are accessed, and take part in their placement.

The calls of libsuperhue (hps(3)), with exceptions in place of negative results::

    import superhue

    def compact(pages):            # hottest first
        ...

    superhue.set_functions(compact=compact)
    superhue.enable_track()
    while True:
        active = superhue.wait_signal(timeout=10.0)   # 0: nothing new

The library is that named by SUPERHUE_LIBRARY, else the one installed with this package, else the system's
libsuperhue.so.1.
"""

from __future__ import annotations

import ctypes
import enum
import math
import os
import pathlib
import threading
import traceback
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

__all__ = [
    "COLLAPSE", "COMPACT", "LEAVE", "Decision", "HugeMemory", "Outcome", "Page", "Region", "Statistics",
    "TrackError", "disable_track", "enable_track", "fetch", "process", "set_functions", "statistics",
    "wait_signal",
]

PAGE_HUGE = 0x1
PAGE_ESTIMATED = 0x2


class Decision(enum.IntEnum):
    """What to do with a region."""

    LEAVE = 0
    COLLAPSE = 1
    COMPACT = 2


LEAVE, COLLAPSE, COMPACT = Decision.LEAVE, Decision.COLLAPSE, Decision.COMPACT


class Page(NamedTuple):
    """An active page: address in bytes, heat 1 to 1000 per mille, PAGE_... flags."""

    address: int
    heat: int
    flags: int = 0


class Region(NamedTuple):
    """A 2 MiB region with active pages, ascending, and what the library would do with it."""

    address: int
    pages: List[Page]
    heat: int
    flags: int
    suggestion: Decision


class Outcome(NamedTuple):
    """What process() did: regions in all, collapsed, failed; pages handed to compact; regions left."""

    regions: int
    collapsed: int
    failed: int
    compacted: int
    left: int


class Statistics(NamedTuple):
    """Lists published, of these superseded before they were fetched; active pages; pages cut away."""

    published: int
    superseded: int
    active: int
    cut: int


class TrackError(OSError):
    """A call failed; ``errno`` says how (see hps(3)), the text why and what to do."""


class _Page(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("heat", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


class _Region(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("address", ctypes.c_uint64), ("pages", ctypes.POINTER(_Page)),
        ("count", ctypes.c_size_t), ("heat", ctypes.c_uint32), ("flags", ctypes.c_uint32),
        ("suggestion", ctypes.c_int32), ("reserved", ctypes.c_uint32),
    ]


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("socket", ctypes.c_char_p), ("threshold", ctypes.c_uint64),
        ("signo", ctypes.c_int32), ("min_heat", ctypes.c_uint32), ("pid", ctypes.c_uint32),
        ("timeout_ms", ctypes.c_int32),
    ]


class _Outcome(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("size", *Outcome._fields)]


class _Statistics(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in Statistics._fields]


_DECIDE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Region), ctypes.c_void_p)
_COMPACT = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Page), ctypes.c_size_t, ctypes.c_void_p)


def _load() -> ctypes.CDLL:
    beside = pathlib.Path(__file__).with_name("libsuperhue.so")
    named = os.environ.get("SUPERHUE_LIBRARY")
    try:
        library = ctypes.CDLL(named or (str(beside) if beside.exists() else "libsuperhue.so.1"))
    except OSError as error:
        raise ImportError(f"libsuperhue cannot be loaded ({error}): install this package by pip from the tree of "
                          "superhue, which builds it, or name one by SUPERHUE_LIBRARY") from error
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    signatures = {
        "hps_enable_track": (number, [ctypes.POINTER(_Options)]),
        "hps_disable_track": (number, []),
        "hps_set_functions": (number, [pointer, pointer, pointer]),
        "hps_wait_signal": (number, [number]),
        "hps_fetch": (number, [ctypes.POINTER(_Page), size, ctypes.POINTER(size)]),
        "hps_process": (number, [ctypes.POINTER(_Page), size, ctypes.POINTER(_Outcome)]),
        "hps_get_statistics": (number, [ctypes.POINTER(_Statistics)]),
        "hps_huge_alloc": (pointer, [size, ctypes.POINTER(size)]),
        "hps_huge_free": (number, [pointer, size]),
        "hps_strerror": (ctypes.c_char_p, [number]),
        "hps_reason": (size, [ctypes.c_char_p, size]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_library = _load()
# The callbacks decide and compact.
_functions: Tuple[Optional[Callable[[Region], int]], Optional[Callable[[List[Page]], object]]] = (None, None)
# What ends the current call of this thread: `error`, an exception that is no Exception.
_ended = threading.local()


def _run(work: Callable[[], int]) -> int:
    """Runs a callback. Nothing may be raised through C."""
    if getattr(_ended, "error", None) is not None:
        return int(LEAVE)
    try:
        return work()
    except Exception:
        traceback.print_exc()
    except BaseException as error:  # noqa: B902 - _decided() raises it
        _ended.error = error
    return int(LEAVE)


# Another thread may be in a callback at any time, so the library gets functions that live forever.
@_DECIDE
def _call_decide(raw, _user):
    def work() -> int:
        region, decide = raw.contents, _functions[0]
        suggestion = Decision(region.suggestion)
        if decide is None:
            return int(suggestion)
        pages = _pages(region.pages, region.count)
        return int(decide(Region(region.address, pages, region.heat, region.flags, suggestion)))

    return _run(work)


@_COMPACT
def _call_compact(pages, count, _user):
    def work() -> int:
        compact = _functions[1]
        if compact is not None:
            compact(_pages(pages, count))
        return 0

    _run(work)


def _decided(result: int) -> int:
    """Checks the result of a call that may have called callbacks; raises what ended one."""
    error, _ended.error = getattr(_ended, "error", None), None
    if error is not None:
        raise error
    return _check(result)


def _check(result: int, has_reason: bool = True) -> int:
    if result >= 0:
        return result
    reason = ctypes.create_string_buffer(512)
    if has_reason:
        _library.hps_reason(reason, len(reason))
    text = reason.value or _library.hps_strerror(result)
    raise TrackError(-result, text.decode(errors="replace"))


def _milliseconds(timeout: Optional[float]) -> int:
    if timeout is None:
        return -1
    return max(math.ceil(min(timeout * 1000, 2**31 - 1)), 0)


def _pages(pages: "ctypes.Array[_Page] | ctypes._Pointer[_Page]", count: int) -> List[Page]:
    return [Page(page.address, page.heat, page.flags) for page in pages[:count]]


def enable_track(
    socket: Optional[str] = None,
    threshold: int = 0,
    signo: int = 0,
    min_heat: int = 0,
    pid: int = 0,
    timeout: Optional[float] = 5.0,
) -> None:
    """Asks the service to track this process. 0 and None mean the defaults; see hps_enable_track(3).

    ``timeout`` is in seconds, rounded up to milliseconds. ``signo`` suits signal.sigtimedwait(); Python's own handlers do not see the count."""
    options = _Options(
        ctypes.sizeof(_Options), os.fsencode(socket) if socket is not None else None, threshold, signo, min_heat,
        pid, _milliseconds(timeout) if timeout else 0,
    )
    _check(_library.hps_enable_track(ctypes.byref(options)))


def disable_track() -> None:
    """Ends tracking. Threads in wait_signal() get TrackError (ENOTCONN)."""
    _check(_library.hps_disable_track())


def set_functions(
    decide: Optional[Callable[[Region], int]] = None,
    compact: Optional[Callable[[List[Page]], object]] = None,
) -> None:
    """Sets the callbacks. An exception in one is printed; a region it was asked about is left.

    KeyboardInterrupt, SystemExit and the like end the decisions: what remains is left, and wait_signal() or process() raises
    them."""
    global _functions
    pointers = [
        ctypes.cast(thunk, ctypes.c_void_p) if function else None
        for thunk, function in ((_call_decide, decide), (_call_compact, compact))
    ]
    _check(_library.hps_set_functions(*pointers, None))
    _functions = (decide, compact)


def wait_signal(timeout: Optional[float] = None) -> int:
    """Waits for a notice (None: without end), fetches, decides and acts. Returns the number of active
    pages, 0 when the time is over. Other threads run meanwhile; like every C call it is interrupted by
    signals with TrackError (EINTR)."""
    return _decided(_library.hps_wait_signal(_milliseconds(timeout)))


def fetch(capacity: int = 65536) -> Tuple[List[Page], int]:
    """The newest list, hottest first, at most ``capacity`` pages; and how many there are in all."""
    pages = (_Page * capacity)()
    available = ctypes.c_size_t()
    count = _check(_library.hps_fetch(pages, capacity, ctypes.byref(available)), has_reason=False)
    return _pages(pages, count), available.value


def process(pages: Sequence[Page]) -> Outcome:
    """Decides about a fetched list and acts."""
    raw = (_Page * max(len(pages), 1))(*[tuple(page) for page in pages])
    outcome = _Outcome(size=ctypes.sizeof(_Outcome))
    _decided(_library.hps_process(raw, len(pages), ctypes.byref(outcome)))
    return Outcome(*[getattr(outcome, name) for name in Outcome._fields])


def statistics() -> Statistics:
    """The counters since tracking was enabled."""
    raw = _Statistics(size=ctypes.sizeof(_Statistics))
    _check(_library.hps_get_statistics(ctypes.byref(raw)))
    return Statistics(*[getattr(raw, name) for name in Statistics._fields])


class HugeMemory:
    """Zeroed memory on huge pages; ``view`` is a writable memoryview, ``huge`` how many bytes really are on
    huge pages (None: unknown). Given back by close() or at the end of a ``with``: not by the collector,
    since views of it may be around."""

    def __init__(self, size: int) -> None:
        huge = ctypes.c_size_t()
        self.address: Optional[int] = _library.hps_huge_alloc(size, ctypes.byref(huge))
        if not self.address:
            raise MemoryError(f"no {size} bytes")
        self.size = size
        self.huge: Optional[int] = None if huge.value == ctypes.c_size_t(-1).value else huge.value
        self.view = memoryview((ctypes.c_char * size).from_address(self.address)).cast("B")

    def close(self) -> None:
        """Gives the memory back. Views taken of ``view`` must not be used any more."""
        if self.address:
            self.view.release()
            _check(_library.hps_huge_free(self.address, self.size), has_reason=False)
            self.address = None

    def __enter__(self) -> "HugeMemory":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
