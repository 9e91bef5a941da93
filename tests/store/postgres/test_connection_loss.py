"""A connection may be lost at any byte: the log is then whole appends in order, with every acknowledged one in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import PostgresServer
from sample_entries import SAMPLE_KEY, list_ids, make_message_chain
from tcp_fault_proxy import Fault, TcpFaultProxy

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.open_store import open_store
from holdfast.store.postgres import database

APPENDS = 4
"""Appends in each example; the fault happens in one of them, or between two."""
BYTES_OF_APPENDS = 7_000
"""About as many bytes as these appends send and receive together."""
UNKNOWN = "does not say whether"
"""Part of the message that leaves open whether a write was made."""


@pytest.fixture(scope="module")
def proxy(postgres_server: PostgresServer) -> Iterator[TcpFaultProxy]:
    """Return a proxy in front of the server."""
    with TcpFaultProxy(postgres_server.port) as proxy:
        yield proxy


def make_proxied_url(proxy: TcpFaultProxy, tenant: str = "") -> str:
    """Return the address of a store behind the proxy, of a new tenant by default."""
    return f"postgresql://holdfast_app@127.0.0.1:{proxy.port}/store?holdfast_tenant={tenant or uuid4().hex}"


def make_batch(number: int, parent: str | None) -> list[Entry]:
    """Return the entries of an append: one, two or three."""
    entries = []
    for part in range(1 + number % 3):
        entries.append(Entry(f"{number}-{part}", parent, NoteEntry("x" * 50)))
        parent = entries[-1].id
    return entries


@pytest.mark.counts
@given(
    kind=st.sampled_from(["reset", "close_client", "abandon", "swallow"]),
    direction=st.sampled_from(["to_server", "to_client"]),
    at_byte=st.integers(0, BYTES_OF_APPENDS),
    is_leased=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_log_is_whole_appends_after_a_cut_at_any_byte(
    proxy: TcpFaultProxy,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    direction: str,
    at_byte: int,
    is_leased: bool,
) -> None:
    """nothing-lost: whatever byte the connection is lost at, an append is in the log whole or not at all.

    It is there if ``append_entries`` returned, not there if its error says so, and the same store object goes on.
    """
    monkeypatch.setattr(database, "ANSWER_WAIT", 0.5)
    monkeypatch.setattr(database, "BUSY_WAIT", 2.0)
    tenant = uuid4().hex
    with open_store(make_proxied_url(proxy, tenant)) as store:
        store.create_session(SAMPLE_KEY)
        if is_leased:
            with store.hold_lease(SAMPLE_KEY):
                pass
        proxy.set_fault(Fault(kind, direction, at_byte))  # type: ignore[arg-type]
        expected: list[str] = []
        leaf: str | None = None
        for number in range(APPENDS):
            batch = make_batch(number, leaf)
            try:
                if is_leased:
                    with store.hold_lease(SAMPLE_KEY):
                        store.append_entries(SAMPLE_KEY, batch)
                else:
                    store.append_entries(SAMPLE_KEY, batch)
                is_written = True
            except StoreUnavailable as error:
                is_written = UNKNOWN in str(error) and batch[0].id in read_ids(postgres_server, tenant)
            if is_written:
                expected += list_ids(batch)
                leaf = batch[-1].id
        proxy.set_fault(None)
        assert read_ids(postgres_server, tenant) == expected
        # One fault fails one append at most.
        assert len(expected) >= len(list_ids([e for n in range(APPENDS) for e in make_batch(n, None)])) - 3
        assert list_ids(store.read_path(SAMPLE_KEY)) == expected


def read_ids(server: PostgresServer, tenant: str) -> list[str]:
    """Return the ids in the log, read past the proxy."""
    with open_store(server.url(tenant=tenant)) as store:
        return list_ids(store.read_entries(SAMPLE_KEY))


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_write_is_made_or_not_as_its_error_says(
    proxy: TcpFaultProxy, postgres_server: PostgresServer, direction: str
) -> None:
    """An append returns if its commit was made though the answer was lost, and says so if it was not made."""
    tenant = uuid4().hex
    with open_store(make_proxied_url(proxy, tenant)) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        # As many bytes as one append takes. The commit and its answer are the last of them; half of what is sent is
        # before it.
        proxy.set_fault(None)
        store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        byte_count = proxy.byte_counts[direction]  # type: ignore[index]
        at_byte = byte_count - 1 if direction == "to_client" else byte_count // 2
        proxy.set_fault(Fault("close_client", direction, at_byte))  # type: ignore[arg-type]
        is_written = direction == "to_client"
        if is_written:
            assert store.append_entries(SAMPLE_KEY, make_message_chain("d", "c")).is_leaf_moved
        else:
            with pytest.raises(StoreUnavailable, match="nothing was written"):
                store.append_entries(SAMPLE_KEY, make_message_chain("d", "c"))
        assert proxy.has_struck
    assert read_ids(postgres_server, tenant) == list("abcd") if is_written else list("abc")


def test_slow_network_only_takes_longer(proxy: TcpFaultProxy) -> None:
    """A network with a delay loses nothing and raises nothing."""
    proxy.delay = 0.02
    try:
        with open_store(make_proxied_url(proxy)) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
            with store.hold_lease(SAMPLE_KEY):
                store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
            assert list_ids(store.read_path(SAMPLE_KEY)) == list("abc")
    finally:
        proxy.delay = 0.0


def test_restarted_server_is_used_again(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Connections that a restart of the server ended are replaced without an error, for reads, writes and leases."""
    with open_store(postgres_server.url(tenant=tmp_path.name)) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        with store.hold_lease(SAMPLE_KEY):
            pass
        for mode in ("fast", "immediate"):
            postgres_server.stop(mode)
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                store.read_path(SAMPLE_KEY)
            with pytest.raises(StoreUnavailable), store.hold_lease(SAMPLE_KEY):
                pass
            postgres_server.start()
            with store.hold_lease(SAMPLE_KEY):
                leaf = store.get_session(SAMPLE_KEY).leaf_id
                assert store.append_entries(SAMPLE_KEY, [Entry(mode, leaf, NoteEntry("x"))]).is_leaf_moved
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b", "fast", "immediate"]


def test_swallowed_answer_is_waited_for_no_longer_than_the_limit(
    proxy: TcpFaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that swallows packets in silence costs ``ANSWER_WAIT`` and then a clear error."""
    monkeypatch.setattr(database, "ANSWER_WAIT", 0.5)
    with open_store(make_proxied_url(proxy)) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        proxy.set_fault(Fault("swallow", "to_client", 150))
        began = time.monotonic()
        with pytest.raises(StoreError, match="lost"):
            store.read_path(SAMPLE_KEY)
        assert time.monotonic() - began < 10
        assert proxy.has_struck
        assert list_ids(store.read_path(SAMPLE_KEY)) == list("ab")
