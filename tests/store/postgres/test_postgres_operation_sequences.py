"""Any sequence of operations on PostgreSQL agrees with the model that the other stores are compared with."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from postgres_server import PostgresServer
from store_operations import STEPS, StoreMachine

from holdfast.store.base import SessionStore
from holdfast.store.open_store import open_store


def test_postgres_store_agrees_with_the_model(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """nothing-lost, parent-first, one-writer and opening-costs-one-branch hold after every step of any sequence."""
    monkeypatch.setattr("holdfast.store.tree.tree.MIN_OUTLINE_ENTRIES", 0)

    class PostgresMachine(StoreMachine):
        """The same operations, each example as a tenant of its own."""

        where = "postgresql"

        def open_at(self, place: Path) -> SessionStore:
            """Open the store of the tenant that is named after ``place``."""
            return open_store(postgres_server.url(tenant=place.name))

    run_state_machine_as_test(PostgresMachine, settings=settings(STEPS, max_examples=STEPS.max_examples // 2))
