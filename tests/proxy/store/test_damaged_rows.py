"""A session of the store has a damaged row when the proxy is started again."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import socket_proxy

SAID = ("Where does kelp grow?", socket_proxy.ANSWER, "And where does it not?")
MORE = (*SAID, socket_proxy.ANSWER, "Really?")


def asked(*said):
    """Return the bytes of a request."""
    return socket_proxy.request(socket_proxy.PATHS["anthropic"], socket_proxy.body("anthropic", *said))


def damaged(folder, change):
    """Leave a session in ``folder`` whose second message has a row that was changed."""
    with socket_proxy.proxied(folder) as proxy:
        proxy.send(asked(*SAID))
        proxy.at_rest()
        store = proxy.store
    chosen = "SELECT seq FROM entries WHERE kind = 'message' ORDER BY seq LIMIT 1 OFFSET 1"
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(f"UPDATE entries SET {change} WHERE seq = ({chosen})")


def went_on(folder):
    """Return how a request of that session ends, and what the proxy then tells of itself."""
    with socket_proxy.proxied(folder) as proxy:
        state = proxy.send(asked(*MORE)).headers["x-holdfast-state"]
        proxy.at_rest()
        return state, proxy.send(socket_proxy.request("/livez", method="GET")).json, proxy.store


def test_proxy_repairs_a_damaged_session_without_loss(tmp_path):
    """A session that can be repaired without loss is repaired and recorded further, which is reported while the proxy
    stays healthy.
    """
    damaged(tmp_path, "parent = 99999")
    state, health, store = went_on(tmp_path)
    assert state == "managed"
    assert health["status"] == "ok"
    assert "session-repaired" in str(health)
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM entries WHERE kind = 'message'").fetchone() == (6,)


def test_proxy_leaves_a_session_whose_repair_would_lose_messages(tmp_path):
    """Where a repair would set a message aside, the request continues unrecorded and the store is not changed."""
    damaged(tmp_path, "raw = x'00'")
    state, health, store = went_on(tmp_path)
    assert state == "unrecorded"
    assert health["status"] == "degraded"
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("SELECT count(*) FROM entries WHERE raw = x'00'").fetchone() == (1,)
