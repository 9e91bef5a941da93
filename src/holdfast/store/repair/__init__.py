"""A damaged store put right: looked through, mended in one transaction, with the file as it was kept beside it.

Where SQLite itself cannot read the file through, what can be read goes into a new one, which takes its place.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from shutil import copy2, copyfile
from tempfile import TemporaryDirectory
from urllib.parse import quote

from msgspec.structs import replace

from holdfast.errors import StoreCorrupt, StoreError, StoreLocked
from holdfast.store.blobs.blobs import FileBlobs
from holdfast.store.files import ACCESS, create, is_there, refusal, sync_directory
from holdfast.store.repair.mender import Mender
from holdfast.store.repair.salvage import salvage
from holdfast.store.repair.session import STAND_IN
from holdfast.store.repair.values import Mended, Repaired
from holdfast.store.sql.database import is_damage
from holdfast.store.sql.migrations import check_library, version

__all__ = ["STAND_IN", "Mended", "Repaired", "repair_session", "repair_store"]

Tick = Callable[[int], None]
"""Is told, after each entry, how many there are."""
State = list[tuple[int, int]]
"""Sizes of a database and its write-ahead log, and when they were written."""
_OF_INDEX = ("missing from index", "wrong # of entries in index", "non-unique entry in index")
"""What SQLite says of an index that differs from its table: it can be made anew from that."""
_SHARED, _COUNT = 0x40000002, 510
"""The bytes of a database that SQLite locks, as one who reads, for as long as a connection is open."""


_HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
"""What SQLite says where somebody else has the file."""


class _BrokenError(Exception):
    """SQLite cannot read the file through; the text says why."""


class _FineError(Exception):
    """Nothing was found, so nothing is to be written."""


class _NothingError(Exception):
    """Not one entry could be read."""


def repair_store(path: str | os.PathLike[str], *, dry_run: bool = False, tick: Tick = lambda _: None) -> Repaired:
    """Look through the store in the file at ``path`` and put right what is damaged; return what was found.

    Nothing found: nothing is written. Else the file as it was stays beside it (``backup``). With ``dry_run`` a copy is
    repaired and thrown away. A file that is not there is fine; one of another program, or of a newer version, is a
    ``StoreCorrupt`` and is not touched.
    """
    file = Path(path)
    if not is_there(file):
        return Repaired(str(file))
    if not dry_run:
        return _repaired(file, file.with_name(f"{file.name}.blobs"), tick, dry_run=False)
    with TemporaryDirectory() as folder:
        copy = Path(folder) / file.name
        _copied(file, copy)
        try:
            found = _repaired(copy, file.with_name(f"{file.name}.blobs"), tick, dry_run=True)
        except StoreError as error:
            raise type(error)(str(error).replace(str(copy), str(file))) from None
    return replace(found, file=str(file), backup="")


def repair_session(path: str | os.PathLike[str], key: str) -> tuple[Mended, ...]:
    """Put right session ``key`` of the store at ``path`` where that loses nothing; return what was found and done.

    What is left as it is: rows whose bytes changed, or whose parent is gone; ``repair_store`` puts those aside. No
    backup is made, for nothing is changed but what a digest or other rows prove, and an unreadable value beside sound
    bytes goes into quarantine. Raises ``StoreError`` where the file cannot be written.
    """
    file = Path(path)
    with _mender(file, file.with_name(f"{file.name}.blobs")) as mender, mender.transaction():
        return mender.mend_session(key)


def _repaired(file: Path, blobs: Path, tick: Tick, *, dry_run: bool) -> Repaired:
    try:
        _check(file)
        return _in_place(file, blobs, tick, dry_run=dry_run)
    except _BrokenError as error:
        return _anew(file, blobs, tick, str(error), dry_run=dry_run)
    except StoreCorrupt as error:
        if not is_damage(error.__cause__):
            raise
        return _anew(file, blobs, tick, str(error.__cause__), dry_run=dry_run)


def _check(file: Path) -> None:
    """Raise what keeps a file from being mended in place: ``_BrokenError``, or ``StoreCorrupt`` if it is not ours."""
    with closing(_opened(file)) as db:
        try:
            version(db, str(file))
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise _named(error, file) from error


def _named(error: Exception, file: Path) -> Exception:
    """Return what keeps ``file`` from being read: damage that can be gone round, or what is to be said."""
    if is_damage(error):
        return _BrokenError(str(error))
    is_held = isinstance(error, sqlite3.Error) and error.sqlite_errorcode & 0xFF in _HELD
    advice = "see that nobody holds it" if is_held else ACCESS
    return StoreError(f"{file} could not be looked through ({error}); nothing was changed: {advice}")


def _opened(file: Path) -> sqlite3.Connection:
    check_library()
    try:
        return sqlite3.connect(f"file:{quote(os.fsencode(file))}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.OperationalError as error:
        msg = f"{file} cannot be opened ({error}); give yourself access to it, or another path with --store"
        raise StoreError(msg) from error


# -- in place ----------------------------------------------------------------------------------------------------------


def _in_place(file: Path, blobs: Path, tick: Tick, *, dry_run: bool) -> Repaired:
    """Mend a file that SQLite can read, in one transaction; the backup is made before that ends."""
    found: tuple[Mended, ...] = ()
    backup = ""
    with _mender(file, blobs) as mender:
        lost = _mended_blobs(mender, dry_run=dry_run)
        with suppress(_FineError), mender.transaction() as db:
            found = _indexes(db)
            total = mender.count()
            found += mender.mend(lambda: tick(total))
            if not found:
                raise _FineError
            if not dry_run:
                backup = str(_backed_up(file, _beside(file)))
        return Repaired(str(file), found + lost, mender.entries_seen, backup)


def _mended_blobs(mender: Mender, *, dry_run: bool) -> tuple[Mended, ...]:
    with mender.looking():
        return mender.mend_blobs(dry_run=dry_run)


@contextmanager
def _mender(file: Path, blobs: Path) -> Iterator[Mender]:
    with closing(Mender(file)) as mender:
        mender.use(FileBlobs(blobs))
        yield mender


def _indexes(db: sqlite3.Connection) -> tuple[Mended, ...]:
    """Make SQLite's own indexes anew where they differ from their tables; ``_BrokenError`` if more is wrong."""
    faults = _faults(db)
    if not faults:
        return ()
    other = [fault for fault in faults if not any(one in fault for one in _OF_INDEX)]
    if other:
        raise _BrokenError(other[0])
    db.execute("REINDEX")
    left = _faults(db)
    if left:
        raise _BrokenError(left[0])
    return (Mended("index", f"SQLite's indexes differ from their tables: {faults[0]}", "made anew"),)


def _faults(db: sqlite3.Connection) -> list[str]:
    """Return what SQLite finds wrong; the index of words, looked at from 3.44 on, the mender makes anew."""
    told = [line for (text,) in db.execute("PRAGMA integrity_check") for line in str(text).splitlines()]
    return [line for line in told if line != "ok" and not line.startswith("***") and "fts5" not in line.lower()]


# -- anew --------------------------------------------------------------------------------------------------------------


def _anew(file: Path, blobs: Path, tick: Tick, why: str, *, dry_run: bool) -> Repaired:
    """Put what can be read into a new file, and that in the old one's place; the old one stays beside it."""
    old = file.resolve()
    _check_alone(old, why)
    before = _state(old)
    new = _beside(old, "new")
    try:
        with _mender(new, blobs) as mender:
            with mender.transaction() as db:
                count = _saved(old, db)
                found = mender.mend(lambda: tick(count))
            lost = _mended_blobs(mender, dry_run=dry_run)
        backup = _swapped(old, new, why, before)
    except BaseException as error:
        _remove(new)
        if isinstance(error, _NothingError):
            msg = f"{file} is damaged ({why}) and not one entry in it can be read; it was left as it is: use a backup"
            raise StoreCorrupt(msg) from None
        raise
    told = Mended("file", f"SQLite cannot read it through: {why}", f"{count:,} entries were read into a new file")
    return Repaired(str(file), (told, *found, *lost), mender.entries_seen or count, str(backup))


def _saved(file: Path, target: sqlite3.Connection) -> int:
    """Copy what can be read of ``file``; return how many entries there were, or raise if there was none."""
    with closing(_opened(file)) as source:
        count = salvage(source, file, target)
    if not count:
        raise _NothingError
    return count


def _swapped(file: Path, new: Path, why: str, before: State) -> Path:
    """Put ``new`` in the place of ``file`` by one rename, unless somebody wrote or writes it; return the backup.

    Before that the whole old store is beside it, and of its write-ahead log nothing is where the new one would find it.
    """
    with _alone(file, why):
        if _state(file) != before:
            raise StoreLocked(_in_use(file, why))
        backup = _beside(file)
        for ending in ("-wal", ""):
            with suppress(FileNotFoundError):
                _keep(file.with_name(file.name + ending), backup.with_name(backup.name + ending))
        for ending in ("-wal", "-shm"):
            file.with_name(file.name + ending).unlink(missing_ok=True)
        new.replace(file)
        sync_directory(file.parent)
    return backup


def _keep(file: Path, backup: Path) -> None:
    """Give a file a second name, or make a copy where the disk has no such thing; an empty one needs none."""
    if file.stat().st_size:
        try:
            os.link(file, backup)
        except OSError:
            copy2(file, backup)


def _check_alone(file: Path, why: str) -> None:
    with _alone(file, why):
        pass


@contextmanager
def _alone(file: Path, why: str) -> Iterator[None]:
    """No other program has ``file`` open, or can open it, inside; ``StoreLocked`` if one has."""
    with file.open("r+b") as held:
        try:
            fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, _COUNT, _SHARED)
        except OSError as error:
            raise StoreLocked(_in_use(file, why)) from error
        yield


def _in_use(file: Path, why: str) -> str:
    return (
        f"{file} is damaged ({why}) and needs a new file, and another program has the old one open and would go on "
        "writing to that; nothing was changed: end it (`holdfast serve`, an agent), then run `holdfast repair` again"
    )


def _state(file: Path) -> State:
    """Return what tells whether a store was written in the meantime."""
    held = (file.with_name(file.name + ending) for ending in ("", "-wal"))
    return [(one.stat().st_size, one.stat().st_mtime_ns) for one in held if one.exists() and one.stat().st_size]


def _remove(new: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        new.with_name(new.name + ending).unlink(missing_ok=True)


# -- files beside it ---------------------------------------------------------------------------------------------------


def _beside(file: Path, kind: str = "bak") -> Path:
    """Return a free name beside ``file`` that says when it was made."""
    stem = f"{file.name}.{kind}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    names = (stem if not number else f"{stem}-{number}" for number in range(1_000))
    return next(path for path in map(file.with_name, names) if not os.path.lexists(path))


def _copied(file: Path, place: Path) -> None:
    """Copy a store to ``place``: by SQLite, or as it lies there where SQLite cannot."""
    try:
        _backed_up(file, place)
    except StoreCorrupt:
        for ending in ("", "-wal"):
            with suppress(FileNotFoundError):
                copyfile(file.with_name(file.name + ending), place.with_name(place.name + ending))


def _backed_up(file: Path, place: Path) -> Path:
    """Copy the database as it was last committed to ``place``, for its owner only; return that."""
    try:
        os.close(create(place))
    except OSError as error:
        raise refusal(error, f"no copy of {file} could be made; nothing was changed") from error
    try:
        with closing(_opened(file)) as source, closing(sqlite3.connect(place)) as target:
            source.backup(target)
    except (sqlite3.Error, OSError) as error:
        place.unlink(missing_ok=True)
        msg = f"{file} could not be copied to {place} ({error}); nothing was changed: free some space, or use a backup"
        raise StoreCorrupt(msg) from error
    return place
