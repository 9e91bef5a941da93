"""Each failure of the database server is one error of ours with one thing to do, and never shows a password."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from forked_child import wait_for_child
from postgres_server import PASSWORD, PASSWORD_ROLE, ROLE, PostgresServer
from sample_entries import SAMPLE_KEY, list_ids, make_message_chain

from holdfast.errors import ConfigError, StoreCorrupt, StoreError, StoreLocked, StoreReadOnly, StoreUnavailable
from holdfast.store.open_store import open_store
from holdfast.store.postgres.location import parse_postgres_location


@pytest.mark.parametrize(
    ("make_url", "reason"),
    [
        (lambda server: server.url(tcp=True, user="nobody_here"), "create the role"),
        (lambda server: server.url(tcp=True, database="nothing_here"), "create the database"),
        (
            lambda server: f"postgresql://{PASSWORD_ROLE}:wrong-horse@127.0.0.1:{server.port}/store",
            "check the user and",
        ),
        (lambda server: f"postgresql://{PASSWORD_ROLE}@127.0.0.1:{server.port}/store", "PGPASSWORD"),
        (lambda server: f"postgresql://{ROLE}@host.invalid/store?connect_timeout=5&port={server.port}", "host's name"),
        (lambda server: f"postgresql://{ROLE}@127.0.0.1:{server.port}/store?sslmode=require", "sslmode"),
    ],
)
def test_refused_connection_says_what_to_do(
    postgres_server: PostgresServer, make_url: Callable[[PostgresServer], str], reason: str
) -> None:
    """A connection that cannot be made is ``StoreUnavailable`` with the server's reason, and no password."""
    with open_store(make_url(postgres_server)) as store, pytest.raises(StoreUnavailable, match=reason) as raised:
        store.list_sessions()
    assert "horse" not in str(raised.value)


def test_right_password_is_never_shown(postgres_server: PostgresServer) -> None:
    """A password in the address connects, and no error repeats it."""
    url = f"postgresql://{PASSWORD_ROLE}:{PASSWORD}@127.0.0.1:{postgres_server.port}/store"
    with open_store(url) as store:
        with pytest.raises(StoreError, match="rights") as raised:
            store.create_session(SAMPLE_KEY)
        assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://u:secret%zz@host/db", "percent-encoded"),
        ("postgresql://u:sec@ret@host:port/db", "cannot be reached|percent-encoded"),
        ("postgresql://host/db?nonsense=secret", "not one of PostgreSQL"),
        ("postgresql://host/db?holdfast_tennant=a", "holdfast_tenant, holdfast_schema"),
        ("postgresql://host/db?holdfast_tenant=", "1 to 200"),
        ("postgresql://host/db?holdfast_schema=a;b", "0-9"),
        ("postgresql://host/db?holdfast_notify=maybe", "on or off"),
    ],
)
def test_wrong_address_is_a_config_error_without_the_address(url: str, reason: str) -> None:
    """An address that cannot be read is refused before anything connects, and its password is not repeated."""
    with pytest.raises((ConfigError, StoreUnavailable), match=reason) as raised:
        open_store(url).list_sessions()
    assert "sec" not in str(raised.value).replace("seconds", "")


def test_name_of_a_store_has_no_password() -> None:
    """The name that messages show has what tells two stores apart, and no password or setting of the driver."""
    location = parse_postgres_location("postgresql://me:secret@db:5433/agents?sslmode=disable&holdfast_tenant=acme%20x")
    assert location.name == "postgresql://me@db:5433/agents?holdfast_tenant=acme x"
    assert location.tenant == "acme x"
    assert "secret" in location.conninfo
    assert parse_postgres_location("postgresql:///agents?host=/run/pg").name == "postgresql:///agents?host=/run/pg"


def test_missing_rights_are_named(postgres_server: PostgresServer) -> None:
    """A role that may not write, or make the tables, gets an error that says so; reading goes on."""
    schema = "rights"
    with open_store(postgres_server.url(schema=schema)) as owner:
        owner.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    postgres_server.run_sql("CREATE ROLE reader LOGIN")
    with (
        open_store(postgres_server.url(user="reader", schema=schema)) as store,
        pytest.raises(StoreError, match="rights"),
    ):
        store.list_sessions()
    postgres_server.run_sql(
        f"GRANT USAGE ON SCHEMA {schema} TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader", "store"
    )
    with open_store(postgres_server.url(user="reader", schema=schema)) as store:
        with pytest.raises(StoreReadOnly, match="rights"):
            store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b"]
    with (
        open_store(postgres_server.url(user="reader", schema="other")) as store,
        pytest.raises(StoreReadOnly, match="permission denied for database"),
    ):
        store.create_session(SAMPLE_KEY)


def test_role_that_is_not_the_owner_needs_only_rights_on_rows(postgres_server: PostgresServer) -> None:
    """A role with rights on the rows alone reads and writes everything, also leases, blobs and searches."""
    schema = "rows_only"
    with open_store(postgres_server.url(schema=schema)) as owner:
        owner.create_session("other")
    postgres_server.run_sql("CREATE ROLE writer LOGIN")
    postgres_server.run_sql(
        f"GRANT USAGE ON SCHEMA {schema} TO writer;"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO writer",
        "store",
    )
    with open_store(postgres_server.url(user="writer", schema=schema)) as store, store.hold_lease(SAMPLE_KEY):
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        assert store.blobs.read_text(store.blobs.store_content("text")) == "text"
        assert store.search_session(SAMPLE_KEY, "nothing of it") == []
        store.remove_session(SAMPLE_KEY)


@pytest.mark.parametrize(
    ("state", "kind", "reason"),
    [
        ("53100", StoreReadOnly, "free space on the database server"),
        ("25006", StoreReadOnly, "target_session_attrs"),
        ("57014", StoreLocked, "try again"),
        ("40P01", StoreLocked, "try again"),
        ("XX001", StoreCorrupt, "backup"),
        ("42P01", StoreCorrupt, "store migrate"),
        ("22000", StoreError, "bug"),
    ],
)
def test_failed_statement_changes_nothing_and_is_typed(
    postgres_server: PostgresServer, tmp_path: Path, state: str, kind: type[StoreError], reason: str
) -> None:
    """An error of the server in the middle of a write, such as a full disk, rolls it back; the next write goes on."""
    schema = f"state_{state.lower()}"
    with open_store(postgres_server.url(schema=schema)) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        raise_it = f"BEGIN RAISE EXCEPTION 'the server fails' USING ERRCODE = '{state}'; END"
        admin = postgres_server.url(user=postgres_server.superuser)
        run_admin_sql(admin, f"CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ {raise_it} $$")
        run_admin_sql(
            admin,
            f"CREATE TRIGGER fail BEFORE UPDATE ON {schema}.sessions FOR EACH ROW EXECUTE FUNCTION {schema}.fail()",
        )
        with pytest.raises(kind, match=reason) as raised:
            store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        assert type(raised.value) is kind
        assert list_ids(store.read_entries(SAMPLE_KEY)) == ["a", "b"]
        run_admin_sql(admin, f"DROP TRIGGER fail ON {schema}.sessions")
        assert store.append_entries(SAMPLE_KEY, make_message_chain("c", "b")).is_leaf_moved


def run_admin_sql(url: str, statement: str) -> None:
    """Run one statement as the superuser."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_too_many_connections_are_named(postgres_server: PostgresServer) -> None:
    """A role that may open no more connections gets an error that says so."""
    postgres_server.run_sql("CREATE ROLE limited LOGIN CONNECTION LIMIT 1")
    url = postgres_server.url(user="limited", schema="never_made")
    with open_store(url) as first, open_store(url) as second:
        assert first.list_sessions() == []  # its connection stays open
        with pytest.raises(StoreUnavailable, match="connection limit"):
            second.list_sessions()


def test_newer_tables_are_not_touched(postgres_server: PostgresServer) -> None:
    """Tables of a version that this program must not write are refused as a whole."""
    with open_store(postgres_server.url(schema="newer")) as store:
        store.create_session(SAMPLE_KEY)
    postgres_server.run_sql("UPDATE newer.schema_version SET version = 99, oldest_writer = 99", "store")
    with open_store(postgres_server.url(schema="newer")) as store:
        for use in (store.list_sessions, lambda: store.create_session("other")):
            with pytest.raises(StoreCorrupt, match="update holdfast"):
                use()


def test_forked_child_is_refused_and_leaves_the_connection_alone(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """A child process must open the store itself; its end does not end the connection of its parent."""

    def use_in_child() -> None:
        with pytest.raises(StoreError, match="forked"):
            store.list_sessions()
        store.close()

    with open_store(postgres_server.url(tenant=tmp_path.name)) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        assert wait_for_child(use_in_child) == 0
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b"]
