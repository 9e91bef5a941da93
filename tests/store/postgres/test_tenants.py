"""A tenant cannot reach another one's rows: by the store, by guessed ids, or by SQL of its own."""

from __future__ import annotations

from typing import NamedTuple

import psycopg
import pytest
from postgres_server import ROLE, PostgresServer
from sample_entries import SAMPLE_KEY, list_ids, make_long_session, make_message_entry_body

from holdfast.errors import StoreError, UnknownId
from holdfast.state.entries import Entry
from holdfast.store.open_store import open_store

SECRET = "the secret of the victim"
TENANT_ROLE = "holdfast_tenant_outsider"
"""A role that is bound to the tenant ``outsider`` by its name."""


class Victim(NamedTuple):
    """What an attacker may have learned of another tenant's store."""

    schema: str
    session: int
    blob_hash: str


@pytest.fixture(scope="session")
def victim(postgres_server: PostgresServer) -> Victim:
    """Fill the store of a tenant, in every table."""
    schema = "shared"
    with open_store(postgres_server.url(schema=schema, tenant="victim")) as store:
        entries = make_long_session()
        store.import_entries(SAMPLE_KEY, entries)
        leaf = store.get_session(SAMPLE_KEY).leaf_id
        with store.hold_lease(SAMPLE_KEY):
            store.append_entries(SAMPLE_KEY, [Entry("secret", leaf, make_message_entry_body(SECRET))])
        store.search_session(SAMPLE_KEY, "secret")
        blob_hash = store.blobs.store_content(SECRET)
    postgres_server.run_sql(f"CREATE ROLE {TENANT_ROLE} LOGIN")
    postgres_server.run_sql(
        f"GRANT USAGE ON SCHEMA {schema} TO {TENANT_ROLE};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {TENANT_ROLE}",
        "store",
    )
    session = int(postgres_server.run_sql(f"SELECT session FROM {schema}.sessions", "store"))
    return Victim(schema, session, blob_hash)


def list_tables(server: PostgresServer, schema: str) -> list[str]:
    """Return every table with rows of tenants, partitions too."""
    query = (
        f"SELECT table_name FROM information_schema.columns WHERE table_schema = '{schema}' AND column_name = 'tenant'"
    )
    return server.run_sql(query, "store").split()


def test_store_of_another_tenant_finds_nothing(postgres_server: PostgresServer, victim: Victim) -> None:
    """Keys, ids, searches and hashes of the other tenant are unknown, and the same names can be used."""
    with open_store(postgres_server.url(schema=victim.schema, tenant="attacker")) as store:
        assert store.list_sessions() == []
        for use in (
            lambda: store.read_path(SAMPLE_KEY),
            lambda: store.get_entry(SAMPLE_KEY, "secret"),
            lambda: store.search_session(SAMPLE_KEY, "secret"),
            lambda: store.append_entries(SAMPLE_KEY, [Entry("x", "secret", make_message_entry_body("x"))]),
            lambda: store.remove_session(SAMPLE_KEY),
            lambda: store.blobs.read_text(victim.blob_hash),
        ):
            with pytest.raises(UnknownId):
                use()
        assert not store.blobs.remove_if_older(victim.blob_hash, 10.0**12)
        # Neither name is taken, and a lease of the same name is another one.
        with open_store(postgres_server.url(schema=victim.schema, tenant="victim")) as other:
            with other.hold_lease(SAMPLE_KEY), store.hold_lease(SAMPLE_KEY):
                store.create_session(SAMPLE_KEY)
            store.blobs.store_content(SECRET)
            store.remove_session(SAMPLE_KEY)
            store.blobs.remove_blob(victim.blob_hash)
            assert other.blobs.read_text(victim.blob_hash) == SECRET
            assert list_ids(other.read_path(SAMPLE_KEY))[-1] == "secret"


def test_sql_of_the_role_sees_only_the_tenant_of_its_connection(
    postgres_server: PostgresServer, victim: Victim
) -> None:
    """A query that forgot its tenant, run as the owner of the tables, finds and changes no row of another one."""
    tables = list_tables(postgres_server, victim.schema)
    assert {"sessions", "entries", "checkpoints", "leases", "blobs", "blob_pieces", "searched_texts"} <= set(tables)
    assert any(table.startswith("entries_2") for table in tables)
    url = postgres_server.url(schema=victim.schema).partition("?")[0]
    with psycopg.connect(
        f"{url}?host={postgres_server.folder}&port={postgres_server.port}", autocommit=True
    ) as connection:
        assert connection.info.user == ROLE
        for tenant in ("intruder", ""):
            connection.execute("SELECT set_config('holdfast.tenant', %s, false)", [tenant])
            attack_tables(connection, victim, tables)


def test_role_bound_to_a_tenant_cannot_claim_another(postgres_server: PostgresServer, victim: Victim) -> None:
    """A role that is named after its tenant sees nothing of others, whatever SQL it runs and whatever it claims."""
    tables = list_tables(postgres_server, victim.schema)
    url = postgres_server.url(user=TENANT_ROLE, schema=victim.schema, tenant="victim")
    with open_store(url) as store:
        assert store.list_sessions() == []
        with pytest.raises(StoreError, match="rights"):
            store.create_session("mine")
    driver_url = url.replace("holdfast_schema=shared&", "").replace("holdfast_tenant=victim&", "")
    with psycopg.connect(driver_url, autocommit=True) as connection:
        for claim in (
            "SET holdfast.tenant = 'victim'",
            "SET SESSION AUTHORIZATION DEFAULT",
            "SET row_security = off",
            "SET search_path = pg_temp, public",
            "CREATE TEMP TABLE tenant_roles (role name, tenant text)",
        ):
            connection.execute(claim.encode())
            attack_tables(
                connection, victim, [table for table in tables if "_20" not in table and "default" not in table]
            )
        for statement in (
            "SET ROLE holdfast_app",
            "SET SESSION AUTHORIZATION holdfast_app",
            "ALTER TABLE shared.entries DISABLE ROW LEVEL SECURITY",
            "DROP POLICY own_tenant ON shared.entries",
            "SELECT * FROM shared.entries_default",
            "CREATE FUNCTION shared.current_tenant(int) RETURNS text LANGUAGE sql RETURN 'victim'",
            "CREATE OR REPLACE FUNCTION shared.current_tenant() RETURNS text LANGUAGE sql RETURN 'victim'",
            "COPY shared.entries TO STDOUT",
        ):
            with pytest.raises(psycopg.Error):
                connection.execute(statement.encode())
    # Its own tenant works.
    with open_store(postgres_server.url(user=TENANT_ROLE, schema=victim.schema, tenant="outsider")) as store:
        store.import_entries("mine", make_long_session())
        assert [info.key for info in store.list_sessions()] == ["mine"]
        store.remove_session("mine")


def attack_tables(connection: psycopg.Connection[tuple[object, ...]], victim: Victim, tables: list[str]) -> None:
    """Read, change and delete rows of every table, and plant some, in whatever way does not name the tenant."""
    for table in tables:
        name = f"{victim.schema}.{table}"
        for condition in ("true", "tenant = 'victim'", "tenant <> 'attacker' OR true"):
            try:
                rows = connection.execute(f"SELECT * FROM {name} WHERE {condition}".encode()).fetchall()
                deleted = connection.execute(f"DELETE FROM {name} WHERE {condition}".encode()).rowcount
                changed = connection.execute(
                    f"UPDATE {name} SET tenant = 'attacker' WHERE {condition}".encode()
                ).rowcount
            except psycopg.errors.InsufficientPrivilege:
                continue  # with row_security = off such a query is refused as a whole
            assert (rows, deleted, changed) == ([], 0, 0), (table, condition)
    for statement in (
        f"INSERT INTO {victim.schema}.leases VALUES ('victim', 'planted', 1, 1, now())",
        f"INSERT INTO {victim.schema}.blobs VALUES ('victim', 'x', 1, 1)",
        f"INSERT INTO {victim.schema}.checkpoints VALUES ({victim.session}, 1, 'victim', 'x')",
        # Rows of its own in a session of another one, which would take the numbers of its next entries.
        f"INSERT INTO {victim.schema}.checkpoints VALUES ({victim.session}, 99, {victim.schema}.current_tenant(), 'x')",
        f"INSERT INTO {victim.schema}.searched VALUES ({victim.session}, {victim.schema}.current_tenant(), 0, 0)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.encode())
