"""Settings of every test run: hypothesis profiles, the bytecode cache, coverage, markers and shared fixtures."""

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

UNPRIVILEGED_UID = 65_534
"""The user id of ``nobody``, which owns no files."""

SUPPRESSED_HEALTH_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
"""Drawing whole conversations is slow and large by design."""

EXAMPLES = example_counts.choose(quick=12, ci=50, thorough=300)
"""How many examples each property test draws.

Below ``thorough`` the examples are the same in each run, so that a failure is caused by the change under test and not
by other random examples.
"""

settings.register_profile(
    example_counts.LEVEL,
    max_examples=EXAMPLES,
    derandomize=not example_counts.IS_THOROUGH,
    deadline=None,
    print_blob=True,
    suppress_health_check=SUPPRESSED_HEALTH_CHECKS,
)
settings.load_profile(example_counts.LEVEL)

BYTECODE = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"
"""The bytecode cache of every process that runs tests or is started by one."""

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) or not sys.pycache_prefix:
    # Without a shared cache every process compiles the same modules again: collecting the tests takes 31 s, not 14 s.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # in a background run SIGINT is ignored, and child processes would inherit that


def pytest_xdist_auto_num_workers():
    """Return the number of test processes: one more than cores, because tests spend some of their time waiting."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark every test that measures time as ``long``: it repeats its work until one measurement is undisturbed."""
    for item in items:
        if "assert_subquadratic" in getattr(item, "fixturenames", ()):
            item.add_marker("long")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Pause coverage in tests that draw random examples, measure time or take long.

    Coverage makes these tests two or three times as slow, and a line that only a random example reaches has no test
    that was written for it.
    """
    coverage = Coverage.current()
    if coverage is None or not _is_uncounted(item):
        return (yield)
    coverage.stop()
    try:
        return (yield)
    finally:
        coverage.start()


def _is_uncounted(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("hypothesis", "long", "counts", "uncounted"))


@pytest.fixture
def without_root():
    """Return a context manager that drops root's rights, because root may read and write every file."""

    @contextmanager
    def drop_root() -> Iterator[None]:
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(UNPRIVILEGED_UID)
        try:
            yield
        finally:
            if is_root:
                os.seteuid(0)

    return drop_root


@pytest.fixture
def run_interleaved():
    """Return a function that runs an action and lets another one run before a chosen line of it."""

    def run(action, interruption, at):
        """Run ``action``, with ``interruption`` before the ``at``-th line that it executes.

        Return the result of ``action`` and a list with the result of ``interruption``, which is empty if ``action``
        executes fewer lines.
        """
        interruption_results, executed_lines, previous_trace = [], 0, sys.gettrace()

        def trace(_frame, event, _argument):
            nonlocal executed_lines
            executed_lines += event == "line"
            if event == "line" and executed_lines == at:
                interruption_results.append(interruption())
            return trace

        sys.settrace(trace)
        try:
            return action(), interruption_results
        finally:
            sys.settrace(previous_trace)

    return run


@pytest.fixture
def short_lease_wait(monkeypatch):
    """Shorten the wait for a lease that another writer holds."""
    for module in ("locks", "memory", "postgres.leases"):
        monkeypatch.setattr(f"holdfast.store.{module}.LEASE_WAIT", 0.05)


@pytest.fixture
def has_ended():
    """Return a function that waits for a process to end and returns whether it did."""

    def wait_until_ended(pid: int) -> bool:
        """Wait up to a minute for the process to end; a zombie has ended."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    return True
            except (FileNotFoundError, ProcessLookupError):
                return True
            time.sleep(0.02)
        return False

    return wait_until_ended


MAX_TIMINGS = 15
"""Measurements after which work counts as slow; on a busy machine most of the earlier ones may be disturbed."""


@pytest.fixture
def assert_subquadratic():
    """Return a function that asserts that work of eight times the size takes far less than 64 times as long."""

    def assert_growth(prepare: Callable[[int], Callable[[], object]], size: int) -> None:
        """Compare the work that ``prepare`` returns for ``size`` with that for ``8 * size``."""
        ratios: list[float] = []
        while not ratios or (ratios[-1] >= 24 and len(ratios) < MAX_TIMINGS):
            small, large = _measure_seconds(prepare(size), 3), _measure_seconds(prepare(8 * size), 2)
            ratios.append(large / max(small, 1e-6))
        assert ratios[-1] < 24, ratios

    return assert_growth


def _measure_seconds(action: Callable[[], object], runs: int) -> float:
    """Return the shortest processor time of ``runs``, because a disturbance only makes a run longer.

    The garbage collector is off during a run: it would also visit the objects that other tests left behind.
    """
    times = []
    for _ in range(runs):
        gc.collect()
        gc.disable()
        try:
            began = time.process_time()
            action()
            times.append(time.process_time() - began)
        finally:
            gc.enable()
    return min(times)
