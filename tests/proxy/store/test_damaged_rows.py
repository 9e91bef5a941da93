"""The store has a damaged row of a session when the proxy is started again."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import socket_proxy

TEXTS = ("Where does kelp grow?", socket_proxy.ANSWER, "And where does it not?")
LONGER_TEXTS = (*TEXTS, socket_proxy.ANSWER, "Really?")


def encode_request(*texts):
    """Return the bytes of a request."""
    return socket_proxy.build_request(socket_proxy.PATHS["anthropic"], socket_proxy.build_body("anthropic", *texts))


def record_damaged_session(folder, change):
    """Record a session in ``folder`` and change the row of its second message."""
    with socket_proxy.run_proxy(folder) as proxy:
        proxy.send(encode_request(*TEXTS))
        proxy.wait_idle()
        store = proxy.store
    chosen = "SELECT seq FROM entries WHERE kind = 'message' ORDER BY seq LIMIT 1 OFFSET 1"
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(f"UPDATE entries SET {change} WHERE seq = ({chosen})")


def continue_session(folder):
    """Send a longer request of that session; return its state, ``/livez`` and the path of the store."""
    with socket_proxy.run_proxy(folder) as proxy:
        state = proxy.send(encode_request(*LONGER_TEXTS)).headers["x-holdfast-state"]
        proxy.wait_idle()
        return state, proxy.send(socket_proxy.build_request("/livez", method="GET")).json, proxy.store


def test_proxy_repairs_a_damaged_session_without_loss(tmp_path):
    """A session that can be repaired without loss is repaired and recorded further, which is reported while the proxy
    stays healthy.
    """
    record_damaged_session(tmp_path, "parent = 99999")
    state, health, store = continue_session(tmp_path)
    assert state == "managed"
    assert health["status"] == "ok"
    assert "session-repaired" in str(health)
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM entries WHERE kind = 'message'").fetchone() == (6,)


def test_proxy_leaves_a_session_whose_repair_would_lose_messages(tmp_path):
    """Where a repair would set a message aside, the request continues unrecorded and the store is not changed."""
    record_damaged_session(tmp_path, "raw = x'00'")
    state, health, store = continue_session(tmp_path)
    assert state == "unrecorded"
    assert health["status"] == "degraded"
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("SELECT count(*) FROM entries WHERE raw = x'00'").fetchone() == (1,)
