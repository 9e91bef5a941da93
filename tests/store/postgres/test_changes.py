"""A process that follows a session learns of a write when it is committed, if the writer tells."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from sample_entries import SAMPLE_KEY, list_ids, make_message_chain

from holdfast.errors import UnknownId
from holdfast.store.postgres.store import PostgresStore


def test_wait_for_change_ends_when_another_store_writes(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """The wait ends with the commit of the session's next write, and not with those of other sessions."""
    url = postgres_server.url(tenant=tmp_path.name, notify="on")
    with PostgresStore(url) as writer, PostgresStore(url) as reader:
        writer.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        writer.create_session("other")
        assert not reader.wait_for_change(SAMPLE_KEY, 0)
        writer.append_entries("other", make_message_chain("x"))
        assert not reader.wait_for_change(SAMPLE_KEY, 0.3)
        late_write = threading.Timer(0.2, lambda: writer.append_entries(SAMPLE_KEY, make_message_chain("c", "b")))
        late_write.start()
        began = time.monotonic()
        assert reader.wait_for_change(SAMPLE_KEY, 30)
        assert time.monotonic() - began < 20
        # What is told of is there to be read.
        assert list_ids(reader.read_path(SAMPLE_KEY)) == ["a", "b", "c"]
        late_write.join()
        # A change between two calls is not missed.
        writer.append_entries(SAMPLE_KEY, make_message_chain("d", "c"))
        assert reader.wait_for_change(SAMPLE_KEY, 10)
        with pytest.raises(UnknownId):
            reader.wait_for_change("gone", 0)


def test_writers_do_not_tell_unless_asked_to(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """By default a write costs no notification, and a follower waits in vain."""
    url = postgres_server.url(tenant=tmp_path.name)
    with PostgresStore(url) as writer, PostgresStore(url) as reader:
        writer.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        reader.wait_for_change(SAMPLE_KEY, 0)
        writer.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        assert not reader.wait_for_change(SAMPLE_KEY, 0.5)


def test_a_change_that_is_noticed_while_another_session_is_waited_for_is_kept(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """It is told by the next wait for its own session, once; the removal of a session is a change of it."""
    url = postgres_server.url(tenant=tmp_path.name, notify="on")
    with PostgresStore(url) as writer, PostgresStore(url) as reader:
        for key in ("first", "second"):
            writer.create_session(key)
            assert not reader.wait_for_change(key, 0)
        writer.append_entries("second", make_message_chain("x"))
        writer.append_entries("first", make_message_chain("y"))
        assert reader.wait_for_change("first", 10)
        assert reader.wait_for_change("second", 0)
        assert not reader.wait_for_change("second", 0.3)
        late_removal = threading.Timer(0.2, lambda: writer.remove_session("second"))
        late_removal.start()
        assert reader.wait_for_change("second", 30)
        late_removal.join()
