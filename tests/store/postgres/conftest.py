"""A PostgreSQL server for the tests of this folder, one for each process that runs tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres_server import PostgresServer, require_postgres_programs


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server; where there is none, tests that need it are skipped (.ci/run --thorough requires one)."""
    with PostgresServer(require_postgres_programs()) as server:
        yield server
