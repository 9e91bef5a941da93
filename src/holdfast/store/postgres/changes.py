"""Following a session that other processes write: the server tells of each commit, instead of being asked again."""

from __future__ import annotations

import threading
import time

import psycopg

from holdfast.store.postgres.database import PostgresDatabase

CHANNEL = "holdfast"
"""Channel of the notifications. Each carries the number of a session."""
NOTIFY = f"SELECT pg_notify('{CHANNEL}', %s)"
"""Tells of a change when the transaction commits.

Off by default: the commits of all who notify come one after the other, in the whole server.
"""


class ChangeListener:
    """Listens for changes of sessions on a connection of its own, from the first call on."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._turn = threading.Lock()
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._followed: set[str] = set()
        """Numbers of the sessions that somebody has waited for; notices of others are not kept."""
        self._changed: set[str] = set()
        """Those of them that were changed since the last call for them."""

    def wait_for(self, session: int, seconds: float) -> bool:
        """Return whether the session was changed since the last call; wait at most ``seconds`` for that.

        One thread waits at a time; a second one begins when the first has its answer.
        """
        wanted = str(session)
        with self._turn:
            end = time.monotonic() + seconds
            self._followed.add(wanted)
            try:
                connection = self._connect()
                # What was noticed while another session was waited for.
                if wanted not in self._changed:
                    for notice in connection.notifies(timeout=max(0.0, end - time.monotonic())):
                        if notice.payload in self._followed:
                            self._changed.add(notice.payload)
                        if notice.payload == wanted:
                            break
            except psycopg.Error as error:
                self._drop_connection()
                raise self._database.translate_presence_error(error) from error
            is_changed = wanted in self._changed
            self._changed.discard(wanted)
            return is_changed

    def close(self) -> None:
        """Stop listening."""
        with self._turn:
            self._drop_connection()

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        if self._connection is None:
            # Not a connection of the pool, which does not wait longer than for an answer.
            self._connection = psycopg.Connection.connect(self._database.location.conninfo, autocommit=True)
            self._connection.execute(f"LISTEN {CHANNEL}".encode())
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
