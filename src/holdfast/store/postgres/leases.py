"""The lease of a session on PostgreSQL: one writer across all machines, with a fence against writers that were paused.

A lease ends in one of four ways. Its holder gives it back. Its holder dies: each store object has a *presence*
connection with an advisory lock, which the server releases when the connection ends, so that the next writer learns of
it at once. Its holder is stopped or cut off for longer than the lease lasts. Or its holder's presence connection is
lost.

Whoever takes a lease raises its *fence*. A write transaction under a lease first locks the lease's row and compares
the fence, so a holder that was overtaken while it was stopped writes nothing; and while such a transaction is open,
nobody can overtake it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import NamedTuple

import psycopg
from psycopg import sql

from holdfast.errors import StoreError, StoreLocked
from holdfast.store.base import LEASE_WAIT
from holdfast.store.postgres.database import PostgresDatabase, Transaction
from holdfast.store.sql.database import BRIEF_WAIT, BRIEF_WAIT_PERIOD

LEASE_SECONDS = 30.0
"""Seconds that a lease lasts unless it is renewed.

Chosen by judgement: longer than any pause of a process that is well (garbage collection, a busy machine, a virtual
machine that is moved), and short enough to wait for where somebody stopped a process for good.
"""
RENEWALS_PER_LEASE = 3
"""How often a lease is renewed while it lasts: two renewals may fail."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.05
"""Seconds between two tries for a lease that another writer holds.

Chosen by judgement: most leases are held for milliseconds, so the first tries come soon; each try is a question to the
server, so later ones are few.
"""

_TAKE_FREE = """
    INSERT INTO leases (tenant, key, fence, holder, expires_at)
    VALUES (%(tenant)s, %(key)s, 1, %(holder)s, clock_timestamp() + make_interval(secs => %(seconds)s))
    ON CONFLICT (tenant, key) DO UPDATE SET
    fence = leases.fence + 1, holder = excluded.holder, expires_at = excluded.expires_at
    WHERE leases.holder = 0
    RETURNING fence"""
# The advisory lock is only tried for holders that are not this store itself, which would get its own lock again.
_LOOK_AT_HOLDER = """
    SELECT holder, fence, expires_at < clock_timestamp(),
    CASE WHEN holder = %(holder)s OR holder = 0 THEN false ELSE pg_try_advisory_lock(holder) END
    FROM leases WHERE tenant = %(tenant)s AND key = %(key)s"""
# FOR UPDATE waits for no open write of the holder: SKIP LOCKED finds no row then. FOR KEY SHARE, which such a write
# holds, does not exclude the renewal of the lease, but does exclude this.
_TAKE_OVER = """
    UPDATE leases SET fence = leases.fence + 1, holder = %(holder)s,
    expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
    FROM (
        SELECT tenant, key FROM leases
        WHERE tenant = %(tenant)s AND key = %(key)s AND holder = %(old_holder)s AND fence = %(old_fence)s
        AND (%(is_gone)s OR expires_at < clock_timestamp())
        FOR UPDATE SKIP LOCKED
    ) taken
    WHERE leases.tenant = taken.tenant AND leases.key = taken.key
    RETURNING leases.fence"""
_GIVE_BACK = """
    UPDATE leases SET holder = 0
    WHERE tenant = %(tenant)s AND key = %(key)s AND holder = %(holder)s AND fence = %(fence)s"""
_RENEW = """
    UPDATE leases SET expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
    WHERE tenant = %(tenant)s AND key = ANY(%(keys)s) AND holder = ANY(%(holders)s)"""
_END_FORMER_PRESENCE = """
    SELECT pg_terminate_backend(pid, 1000) FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid()
    AND (classid::bigint << 32) | objid::bigint = %s"""
_LOCK_LEASE = "SELECT holder, fence FROM leases WHERE tenant = %s AND key = %s FOR KEY SHARE"


class HeldLease(NamedTuple):
    """A lease that this store took: the number under which it did, and the fence that it raised."""

    holder: int
    fence: int


class SessionLeases:
    """The leases that one store object holds. Keys need not be those of sessions."""

    def __init__(self, database: PostgresDatabase, lease_seconds: float = LEASE_SECONDS) -> None:
        self._database = database
        self._tenant = database.location.tenant
        self._seconds = lease_seconds
        self._turn = threading.RLock()
        """Held while the presence connection is used, and while the fields below change."""
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._holder = 0
        """Number of this store object, whose advisory lock the presence connection has; a new one after it was lost."""
        self._former_holders: set[int] = set()
        """Those numbers whose connection was lost. The server may still take them for alive."""
        self._held: dict[str, HeldLease] = {}
        self._last_timeouts: dict[str, float] = {}
        """For each key, when a wait for it failed last (monotonic seconds); removed once the lease was held."""
        self._renewer: threading.Thread | None = None
        self._wake_renewer = threading.Event()

    # -- holding -------------------------------------------------------------------------------------------------------

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Hold the lease for the block; raises ``StoreLocked`` if another writer has it for ``LEASE_WAIT`` seconds.

        After a wait that failed, the next ones are ``BRIEF_WAIT`` only, until the lease was free or nobody has tried
        for ``BRIEF_WAIT_PERIOD``.
        """
        lease = self._wait_for(key)
        try:
            yield
        finally:
            self._give_back(key, lease)

    def check_fence(self, transaction: Transaction, key: str) -> None:
        """Raise ``StoreLocked`` if this store had the lease of session ``key`` and was overtaken.

        Otherwise nobody can overtake it until ``transaction`` ends. Without a lease every write is allowed.
        """
        lease = self._held.get(key)
        if lease is None:
            return
        row = transaction.fetch_one(_LOCK_LEASE, (self._tenant, key))
        if row is None or HeldLease(*row) != lease:
            msg = (
                f"session {key!r} was taken over by another process, since this one was stopped or cut off for more "
                f"than {self._seconds:g} s; nothing was written: try again"
            )
            raise StoreLocked(msg)

    def _wait_for(self, key: str) -> HeldLease:
        seconds = self._choose_wait(key)
        end = time.monotonic() + seconds
        pause = SHORTEST_PAUSE
        while True:
            lease = self._try_take(key)
            if lease is not None:
                self._last_timeouts.pop(key, None)
                return lease
            if time.monotonic() >= end:
                self._last_timeouts[key] = time.monotonic()
                msg = (
                    f"session {key!r} is being written by another process (waited {seconds:g} s); "
                    "end the other process, or work on a copy"
                )
                raise StoreLocked(msg)
            # Not the same for all who wait: two of them would come at the same moment each time.
            time.sleep(pause * (0.5 + secrets.randbelow(1_000) / 1_000))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _choose_wait(self, key: str) -> float:
        """Return the seconds to wait for the lease: few after a failed wait, as such waits would add up."""
        seconds_since_timeout = time.monotonic() - self._last_timeouts.get(key, -inf)
        if seconds_since_timeout < BRIEF_WAIT_PERIOD:
            return min(BRIEF_WAIT, LEASE_WAIT)
        return LEASE_WAIT

    def _try_take(self, key: str) -> HeldLease | None:
        """Take the lease if it is free, or its holder is gone or too late; return None otherwise."""
        with self._turn:
            if key in self._held:
                return None  # another thread of this process; no need to ask the server
            try:
                fence = self._take_on_server(key)
            except psycopg.Error:
                # The presence connection was lost. Once more with a new one, which tells what is wrong if it cannot be.
                self._drop_connection()
                try:
                    fence = self._take_on_server(key)
                except psycopg.Error as error:
                    self._drop_connection()
                    raise self._database.translate_presence_error(error) from error
            if fence is None:
                return None
            lease = self._held[key] = HeldLease(self._holder, fence)
            self._start_renewer()
            return lease

    def _take_on_server(self, key: str) -> int | None:
        """Return the fence of the lease, or None if another writer has it."""
        connection = self._connect()
        values = {"tenant": self._tenant, "key": key, "holder": self._holder, "seconds": self._seconds}
        try:
            row = connection.execute(_TAKE_FREE, values).fetchone()
        except psycopg.errors.LockNotAvailable:
            return None  # somebody who is taking it was cut off in the middle
        if row is not None:
            return _as_int(row[0])
        row = connection.execute(_LOOK_AT_HOLDER, values).fetchone()
        if row is None:
            return None
        old_holder, old_fence, is_expired, is_gone = row
        # Taken by this store and not held by it: the answer was lost with the connection.
        is_left_over = old_holder in self._former_holders
        try:
            if not (is_expired or is_gone or is_left_over):
                return None
            values |= {"old_holder": old_holder, "old_fence": old_fence, "is_gone": is_gone or is_left_over}
            row = connection.execute(_TAKE_OVER, values).fetchone()
            return None if row is None else _as_int(row[0])
        finally:
            if is_gone:
                connection.execute("SELECT pg_advisory_unlock(%s)", [old_holder])

    def _give_back(self, key: str, lease: HeldLease) -> None:
        with self._turn:
            del self._held[key]
            connection = self._connection
            if connection is None or connection.closed or lease.holder != self._holder:
                return  # lost with the connection: the next writer finds its holder gone
            values = {"tenant": self._tenant, "key": key, "holder": lease.holder, "fence": lease.fence}
            try:
                connection.execute(_GIVE_BACK, values)
            except psycopg.Error:
                # The block is done. Without its holder's presence the lease is free as well.
                self._drop_connection()

    # -- presence ------------------------------------------------------------------------------------------------------

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Return the presence connection; a new one has a new number, and its advisory lock."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self._database.require_writable()
        connection = self._database.connect()
        try:
            # A lease need not survive a crash of the server: all holders' connections are gone then.
            settings = sql.SQL(
                "SET search_path = {}; SET holdfast.tenant = {}; SET synchronous_commit = off; SET lock_timeout = {}"
            )
            schema, tenant = self._database.location.schema, self._database.location.tenant
            lock_wait = sql.Literal(f"{BRIEF_WAIT:g}s")
            connection.execute(settings.format(sql.Identifier(schema), sql.Literal(tenant), lock_wait))
            if self._holder:
                # The server may not have noticed yet that it was lost, perhaps in the middle of taking a lease.
                connection.execute(_END_FORMER_PRESENCE, [self._holder])
            self._holder = secrets.randbits(62) + 1
            connection.execute("SELECT pg_advisory_lock(%s)", [self._holder])
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._former_holders.add(self._holder)
        self._connection = None

    # -- renewal -------------------------------------------------------------------------------------------------------

    def _start_renewer(self) -> None:
        """Start the thread that renews all leases, unless it runs. It ends when there is nothing to renew."""
        if self._renewer is None or not self._renewer.is_alive():
            self._renewer = threading.Thread(target=self._renew_leases, name="leases of holdfast", daemon=True)
            self._renewer.start()

    def _renew_leases(self) -> None:
        while not self._wake_renewer.wait(self._seconds / RENEWALS_PER_LEASE):
            with self._turn:
                connection = self._connection
                if not self._held or connection is None or connection.closed:
                    self._renewer = None
                    return
                holders = list({lease.holder for lease in self._held.values()})
                values = {
                    "tenant": self._tenant,
                    "keys": list(self._held),
                    "holders": holders,
                    "seconds": self._seconds,
                }
                # Without it the lease may be taken over, which its holder learns when it writes.
                with suppress(psycopg.Error, StoreError):
                    connection.execute(_RENEW, values)

    def close(self) -> None:
        """End the presence: what this store still holds is free."""
        self._wake_renewer.set()
        with self._turn:
            self._drop_connection()


def _as_int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(value)
    return value
