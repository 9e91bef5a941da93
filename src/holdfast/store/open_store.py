"""Opens a store by its location."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, raise_if_wrong_type

if TYPE_CHECKING:
    from holdfast.store.base import Quota, SessionStore
    from holdfast.store.sql.database import Durability

_DURABILITIES = ("process", "power")
_POSTGRES_SCHEMES = ("postgresql", "postgres")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_store(
    location: str | os.PathLike[str],
    *,
    durability: Durability = "process",
    readonly: bool = False,
    quota: Quota | None = None,
    blobs: str | None = None,
) -> SessionStore:
    """Return the store at ``location``: a path, ``sqlite:///path`` (four slashes for an absolute one), ``:memory:``,
    or ``postgresql://user@host/database``.

    Nothing is created before the first write. ``durability="power"`` flushes the disk at each commit, on PostgreSQL
    the server's own ``synchronous_commit`` counts; ``readonly`` refuses every write; a write beyond ``quota`` raises
    ``QuotaExceeded``. ``blobs`` is where a store in a file that has no texts yet puts them, if not beside itself: in a
    folder of its own at ``s3://BUCKET/PREFIX``. A store keeps the place that it has. Raises ``ConfigError`` for another
    scheme and for invalid arguments.
    """
    # Imported here so that ``import holdfast`` loads no database module.
    from holdfast.store.base import Quota

    if durability not in _DURABILITIES:
        raise ConfigError(f"durability is {durability!r}; it is one of {', '.join(map(repr, _DURABILITIES))}")
    raise_if_wrong_type(
        ConfigError,
        location=(location, str | os.PathLike),
        quota=(quota, Quota | None),
        blobs=(blobs, str | None),
    )
    limits = quota or Quota()
    place = os.fspath(location)
    scheme = _SCHEME.match(place)
    if is_database_url(place):
        # The texts of a server are in its tables.
        return _open_postgres(place, readonly=readonly, quota=limits)
    if scheme is not None:
        place = _get_sqlite_path(scheme, place)
    if place == ":memory:":
        from holdfast.store.memory import MemoryStore

        return MemoryStore(quota=limits)
    if not place or "\0" in place:
        msg = "the store's path is empty, or has a null character; give a file's path, sqlite:///path or :memory:"
        raise ConfigError(msg)
    from holdfast.store.sqlite import SqliteStore

    return SqliteStore(
        expand_home(place),
        durability=durability,
        readonly=readonly,
        quota=limits,
        blobs=blobs or None,
    )


def is_database_url(place: str) -> bool:
    """Return whether ``place`` is the address of a database server, and not that of a file."""
    scheme = _SCHEME.match(place)
    return scheme is not None and scheme[1].lower() in _POSTGRES_SCHEMES


def _open_postgres(url: str, *, readonly: bool, quota: Quota) -> SessionStore:
    try:
        from holdfast.store.postgres.store import PostgresStore
    except ImportError as error:
        msg = 'a store on PostgreSQL needs psycopg; install it with pip install "holdfast[postgres]"'
        raise ConfigError(msg) from error
    return PostgresStore(url, readonly=readonly, quota=quota)


def expand_home(place: str) -> Path:
    """Return ``place`` as a path with ``~`` expanded; raises ``ConfigError`` for the home of an unknown user."""
    try:
        return Path(place).expanduser()
    except RuntimeError:
        msg = f"{place}: the home folder is unknown here; write the whole path"
        raise ConfigError(msg) from None


def _get_sqlite_path(scheme: re.Match[str], place: str) -> str:
    """Return the path in a ``sqlite`` URL; raises ``ConfigError`` for other schemes and for URLs with a host."""
    name = scheme[1].lower()
    remainder = place[scheme.end() :]
    if name != "sqlite":
        msg = f"stores at {name}:// are not there yet; give a file's path, sqlite:///path, :memory: or postgresql://"
        raise ConfigError(msg)
    if remainder and not remainder.startswith("/"):
        msg = f"{place!r} names a host; write sqlite:///path with three slashes (four for an absolute path)"
        raise ConfigError(msg)
    return remainder[1:] or ":memory:"
