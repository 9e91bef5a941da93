"""A PostgreSQL server for the tests of this folder, one for each process that runs tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres_server import PostgresServer, find_postgres_programs


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server; where there is none, tests that need it are skipped (.ci/run --thorough requires one)."""
    programs = find_postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed here (Debian: apt install postgresql)")
    pytest.importorskip("psycopg", reason="the extra holdfast[postgres] is not installed")
    with PostgresServer(programs) as server:
        yield server
