"""Any sequence of operations on a store agrees with a simple model."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test
from store_operations import STEPS, StoreMachine


class SqliteMachine(StoreMachine):
    """The same operations on disk."""

    where = "agent.db"


def test_memory_store_agrees_with_the_model() -> None:
    """nothing-lost, parent-first, one-writer and opening-costs-one-branch hold in memory after every step of any
    sequence.
    """
    run_state_machine_as_test(StoreMachine, settings=STEPS)


def test_sqlite_store_agrees_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """nothing-lost, parent-first, one-writer and opening-costs-one-branch hold on disk after every step of any
    sequence.
    """
    monkeypatch.setattr("holdfast.store.tree.tree.MIN_OUTLINE_ENTRIES", 0)
    run_state_machine_as_test(SqliteMachine, settings=STEPS)
