"""How long a session's lease is waited for while another holds it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from holdfast.errors import StoreLocked
from holdfast.store.locks import hold_session_lock


@pytest.fixture(autouse=True)
def shorten_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits for a lease."""
    monkeypatch.setattr("holdfast.store.locks.LEASE_WAIT", 1.0)
    monkeypatch.setattr("holdfast.store.locks.BRIEF_WAIT", 0.01)
    monkeypatch.setattr("holdfast.store.locks.BRIEF_WAIT_PERIOD", 1.0)


def measure_wait(path: Path, key: str) -> float:
    """Return the seconds until a wait for the lease timed out."""
    began = time.monotonic()
    with pytest.raises(StoreLocked, match=key), hold_session_lock(path, key):
        pass
    return time.monotonic() - began


def test_lease_waits_do_not_add_up_after_a_timeout(tmp_path: Path) -> None:
    """After a wait for a lease timed out, all following ones together wait less, until one gets it; then the full wait
    applies again.
    """
    with hold_session_lock(tmp_path, "x"):
        first, others = measure_wait(tmp_path, "x"), sum(measure_wait(tmp_path, "x") for _ in range(5))
    with hold_session_lock(tmp_path, "x"):
        pass
    with hold_session_lock(tmp_path, "x"):
        assert min(first, measure_wait(tmp_path, "x")) > others


def test_lease_waits_stay_brief_while_the_lease_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries that are further apart than a full wait stay brief as long as each finds the lease held."""
    monkeypatch.setattr("holdfast.store.locks.LEASE_WAIT", 0.3)
    monkeypatch.setattr("holdfast.store.locks.BRIEF_WAIT_PERIOD", 60.0)
    with hold_session_lock(tmp_path, "x"):
        assert measure_wait(tmp_path, "x") >= 0.3
        for _ in range(3):
            time.sleep(0.35)
            assert measure_wait(tmp_path, "x") < 0.3


def test_lease_timeout_does_not_shorten_other_waits(tmp_path: Path) -> None:
    """A timeout on one session shortens neither waits for another session nor later waits for the same one."""
    with hold_session_lock(tmp_path, "x"):
        measure_wait(tmp_path, "x")
        assert is_waited_for(tmp_path, "y")
        time.sleep(1.1)
    assert is_waited_for(tmp_path, "x")


def is_waited_for(path: Path, key: str) -> bool:
    """Return True once a lease that another thread holds for a moment longer is obtained."""
    is_held, may_release = threading.Event(), threading.Event()

    def hold() -> None:
        with hold_session_lock(path, key):
            is_held.set()
            may_release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    threading.Timer(0.1, may_release.set).start()
    with hold_session_lock(path, key):
        holder.join()
    return True
