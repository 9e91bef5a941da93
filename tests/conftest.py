"""How much the tests try (``tests/support/example_counts.py``), which of them take long, and what all may use."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import example_counts
import pytest
from coverage import Coverage
from hypothesis import HealthCheck, settings

NOBODY = 65_534
"""The user that owns nothing."""

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
"""Whole conversations are drawn; a busy machine is no error."""

EXAMPLES = example_counts.choose(quick=12, ci=100, thorough=300)
"""How many examples a property is tried on.

Below ``thorough`` they are the same in each run, so that a failure is of the change and not of the dice.
"""

settings.register_profile(
    example_counts.LEVEL,
    max_examples=EXAMPLES,
    derandomize=not example_counts.IS_THOROUGH,
    deadline=None,
    print_blob=True,
    suppress_health_check=SLOW,
)
settings.load_profile(example_counts.LEVEL)

BYTECODE = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"
"""Where each module lies compiled, for every process that runs tests or is started by one."""

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) or not sys.pycache_prefix:
    # Otherwise every process compiles the same modules again: collecting the tests takes 31 s then, and 14 s so.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background: its children would ignore ^C


def pytest_xdist_auto_num_workers():
    """Return how many processes run the tests: one more than cores, since some of their time is waiting."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what measures time as ``long``: it repeats its work at eight times the size until the clock is trusted."""
    for item in items:
        if "grows_slowly" in getattr(item, "fixturenames", ()):
            item.add_marker("long")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Count the lines of chosen examples: a test that draws, measures time or takes long only has to pass.

    Counting makes it two or three times as slow, and what a draw happens to reach proves that nobody chose it.
    """
    counting = Coverage.current()
    if counting is None or not _is_uncounted(item):
        return (yield)
    counting.stop()
    try:
        return (yield)
    finally:
        counting.start()


def _is_uncounted(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("hypothesis", "long", "counts", "uncounted"))


@pytest.fixture
def without_rights():
    """Return a block in which nobody is root, who may read and write everything."""

    @contextmanager
    def block() -> Iterator[None]:
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(NOBODY)
        try:
            yield
        finally:
            if is_root:
                os.seteuid(0)

    return block


@pytest.fixture
def meanwhile():
    """Return what lets another thread get in before a line of some work."""

    def done(work, other, at):
        """Return what ``work`` returns where ``other`` is done before its line number ``at``, and what that returned.

        The latter in a list, which is empty where the work has fewer lines.
        """
        others, lines, before = [], 0, sys.gettrace()

        def line(_frame, event, _told):
            nonlocal lines
            lines += event == "line"
            if event == "line" and lines == at:
                others.append(other())
            return line

        sys.settrace(line)
        try:
            return work(), others
        finally:
            sys.settrace(before)

    return done


@pytest.fixture
def impatient(monkeypatch):
    """Let nobody wait for a lease for longer than a moment."""
    for module in ("locks", "memory"):
        monkeypatch.setattr(f"holdfast.store.{module}.LEASE_WAIT", 0.05)


@pytest.fixture
def has_ended():
    """Return what tells whether a process has ended."""

    def told(pid: int) -> bool:
        """Return whether a process is gone, or will be in a moment; a zombie is."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    return True
            except (FileNotFoundError, ProcessLookupError):
                return True
            time.sleep(0.02)
        return False

    return told


TRIES = 15
"""How often work may look slow, on a machine that does something else, before it is."""


@pytest.fixture
def grows_slowly():
    """Return what asserts that eight times the size takes far less than the 64 times as long of a square."""

    def judged(prepared: Callable[[int], Callable[[], object]], size: int) -> None:
        """Assert it of the work that is ``prepared`` for ``size`` and eight times that."""
        ratios: list[float] = []
        while not ratios or (ratios[-1] >= 24 and len(ratios) < TRIES):
            small, large = _seconds(prepared(size), 3), _seconds(prepared(8 * size), 2)
            ratios.append(large / max(small, 1e-6))
        assert ratios[-1] < 24, ratios

    return judged


def _seconds(work: Callable[[], object], runs: int) -> float:
    """Return the least processor time of ``runs``; a disturbance only makes it longer.

    Nothing is collected meanwhile: what other tests left behind would be looked through too.
    """
    times = []
    for _ in range(runs):
        gc.collect()
        gc.disable()
        try:
            began = time.process_time()
            work()
            times.append(time.process_time() - began)
        finally:
            gc.enable()
    return min(times)
