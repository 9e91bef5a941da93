"""One error of ours for each failure of a PostgreSQL server, with one thing to do.

Codes are SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html). While connecting, the driver
gives only the server's text.
"""

from __future__ import annotations

import re

import psycopg

from holdfast.errors import StoreCorrupt, StoreError, StoreLocked, StoreReadOnly, StoreUnavailable

_CONNECT_ADVICE = {
    "password authentication failed": "check the user and the password (in the address, PGPASSWORD or ~/.pgpass)",
    "no password supplied": "give the password in PGPASSWORD, ~/.pgpass or the address",
    "authentication failed": "check the user, and how pg_hba.conf lets it in",
    "no pg_hba.conf entry": "have the server's pg_hba.conf let this user in from this machine",
    "too many clients": "raise the server's max_connections, or end other clients",
    "remaining connection slots": "raise the server's max_connections, or end other clients",
    "too many connections for": "raise the connection limit of this role or database",
    "role .* does not exist": "create the role (createuser), or name another one in the address",
    "database .* does not exist": "create the database (createdb), or name another one in the address",
    "starting up|shutting down|recovery mode": "wait until the server has started, then try again",
    "could not translate host name|failed to resolve host": "check the host's name in the address",
    "SSL|certificate": "check sslmode and the certificates in the address",
}
"""What to do, by what the server or the driver says when a connection is refused."""
_DEFAULT_CONNECT_ADVICE = "check that the server runs, and host and port in the address"
_BUSY_STATES = frozenset({"55P03", "40001", "40P01", "57014"})
"""Lock not available, serialization failure, deadlock, statement cancelled."""
_SCHEMA_STATES = frozenset({"42P01", "42703", "42883", "3F000", "42P10"})
"""Table, column, function or schema that is not there."""
_DAMAGE_STATES = frozenset({"XX001", "XX002", "58030"})
"""Damaged data, damaged index, error of the disk."""
_LOST_STATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""Server shut down or crashed, session ended by the server because it was idle for too long."""
_FULL_STATES = frozenset({"53000", "53100", "53200", "54000"})
"""Out of a resource, disk full, out of memory."""


def translate_connect_error(error: psycopg.Error, name: str) -> StoreUnavailable:
    """Return the error for a connection to the store ``name`` that could not be made."""
    reason = _join_lines(str(error)).removeprefix("connection failed: ")
    for pattern, advice in _CONNECT_ADVICE.items():
        if re.search(pattern, reason):
            return StoreUnavailable(f"{name} cannot be reached ({reason}): {advice}")
    return StoreUnavailable(f"{name} cannot be reached ({reason}): {_DEFAULT_CONNECT_ADVICE}")


def translate_error(error: psycopg.Error, name: str, *, is_writing: bool, is_connection_lost: bool) -> StoreError:
    """Return the error for a failed statement; nothing of its transaction was written."""
    state = error.sqlstate or ""
    reason = _join_lines(str(error))
    consequence = "nothing was written: " if is_writing else ""
    if is_connection_lost or state in _LOST_STATES or state.startswith("08"):
        return StoreUnavailable(f"the connection to {name} was lost ({reason}); {consequence}try again")
    if state in _BUSY_STATES:
        return StoreLocked(f"another transaction on {name} was in the way ({reason}); {consequence}try again")
    if state == "53300":
        return StoreUnavailable(f"{name} takes no more connections ({reason}): raise the server's max_connections")
    if state in _FULL_STATES:
        return StoreReadOnly(
            f"{name} has no space left ({reason}); every acknowledged write is kept: free space on the database server"
        )
    if state == "25006":
        return StoreReadOnly(
            f"{name} is a replica that is only read; nothing was written: give the primary's address, or name all "
            "servers and target_session_attrs=read-write"
        )
    if state == "42501":
        return _build_rights_error(name, reason, is_writing=is_writing)
    if state in _SCHEMA_STATES:
        return StoreCorrupt(
            f"{name} has not the tables that this version expects ({reason}); {consequence}"
            "bring them up to date with `holdfast store migrate`"
        )
    if state in _DAMAGE_STATES:
        return StoreCorrupt(f"{name} is damaged ({reason}); restore it from a backup")
    return StoreError(f"{name}: {reason}; {consequence}report this as a bug if it comes again")


def _build_rights_error(name: str, reason: str, *, is_writing: bool) -> StoreError:
    advice = "have the owner of the database grant them (docs/postgresql.md, rights)"
    if is_writing:
        return StoreReadOnly(
            f"the role of {name} has not the rights to write ({reason}); nothing was written: {advice}"
        )
    return StoreError(f"the role of {name} has not the rights to read ({reason}): {advice}")


def _join_lines(text: str) -> str:
    """Return a message of the driver on one line."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
