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
from holdfast.store.blobs.blobs import FileBlobStore
from holdfast.store.private_files import (
    ACCESS_ADVICE,
    build_store_error,
    create_private_file,
    is_existing_path,
    sync_directory,
)
from holdfast.store.repair.findings import StoreRepairFinding, StoreRepairReport
from holdfast.store.repair.repair_rows import StoreRepairer
from holdfast.store.repair.salvage_rows import salvage_rows
from holdfast.store.sql.database import is_damage_error
from holdfast.store.sql.migrations import check_sqlite_version, get_schema_version

EntryCountCallback = Callable[[int], None]
"""Is told, after each entry, how many there are."""
FileStamps = list[tuple[int, int]]
"""Sizes of a database and its write-ahead log, and when they were written."""
_INDEX_FAULTS = ("missing from index", "wrong # of entries in index", "non-unique entry in index")
"""What SQLite says of an index that differs from its table: it can be made anew from that."""
_LOCK_START, _LOCK_LENGTH = 0x40000002, 510
"""The bytes of a database that SQLite locks, as one who reads, for as long as a connection is open."""


_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
"""What SQLite says where somebody else has the file."""


class _UnreadableFileError(Exception):
    """SQLite cannot read the file through; the text says why."""


class _NoDamageError(Exception):
    """Nothing was found, so nothing is to be written."""


class _NoEntriesError(Exception):
    """Not one entry could be read."""


def repair_store(
    path: str | os.PathLike[str], *, dry_run: bool = False, tick: EntryCountCallback = lambda _: None
) -> StoreRepairReport:
    """Look through the store in the file at ``path`` and put right what is damaged; return what was found.

    Nothing found: nothing is written. Else the file as it was stays beside it (``backup``). With ``dry_run`` a copy is
    repaired and thrown away. A file that is not there is fine; one of another program, or of a newer version, is a
    ``StoreCorrupt`` and is not touched.
    """
    file = Path(path)
    if not is_existing_path(file):
        return StoreRepairReport(str(file))
    if not dry_run:
        return _repair_file(file, file.with_name(f"{file.name}.blobs"), tick, dry_run=False)
    with TemporaryDirectory() as folder:
        copy = Path(folder) / file.name
        _copy_store(file, copy)
        try:
            result = _repair_file(copy, file.with_name(f"{file.name}.blobs"), tick, dry_run=True)
        except StoreError as error:
            raise type(error)(str(error).replace(str(copy), str(file))) from None
    return replace(result, file=str(file), backup="")


def repair_store_session(path: str | os.PathLike[str], key: str) -> tuple[StoreRepairFinding, ...]:
    """Put right session ``key`` of the store at ``path`` where that loses nothing; return what was found and done.

    What is left as it is: rows whose bytes changed, or whose parent is gone; ``repair_store`` puts those aside. No
    backup is made, for nothing is changed but what a digest or other rows prove, and an unreadable value beside sound
    bytes goes into quarantine. Raises ``StoreError`` where the file cannot be written.
    """
    file = Path(path)
    with _open_repairer(file, file.with_name(f"{file.name}.blobs")) as mender, mender.write_transaction():
        return mender.repair_one_session(key)


def _repair_file(file: Path, blobs: Path, tick: EntryCountCallback, *, dry_run: bool) -> StoreRepairReport:
    try:
        _check_repairable(file)
        return _repair_in_place(file, blobs, tick, dry_run=dry_run)
    except _UnreadableFileError as error:
        return _rebuild_file(file, blobs, tick, str(error), dry_run=dry_run)
    except StoreCorrupt as error:
        if not is_damage_error(error.__cause__):
            raise
        return _rebuild_file(file, blobs, tick, str(error.__cause__), dry_run=dry_run)


def _check_repairable(file: Path) -> None:
    """Raise what keeps a file from being mended in place: ``_UnreadableFileError``, or ``StoreCorrupt`` if it is not
    ours.
    """
    with closing(_open_readonly(file)) as db:
        try:
            get_schema_version(db, str(file))
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise _classify_read_error(error, file) from error


def _classify_read_error(error: Exception, file: Path) -> Exception:
    """Return what keeps ``file`` from being read: damage that can be gone round, or what is to be said."""
    if is_damage_error(error):
        return _UnreadableFileError(str(error))
    is_held = isinstance(error, sqlite3.Error) and error.sqlite_errorcode & 0xFF in _BUSY_CODES
    advice = "see that nobody holds it" if is_held else ACCESS_ADVICE
    return StoreError(f"{file} could not be looked through ({error}); nothing was changed: {advice}")


def _open_readonly(file: Path) -> sqlite3.Connection:
    check_sqlite_version()
    try:
        return sqlite3.connect(f"file:{quote(os.fsencode(file))}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.OperationalError as error:
        msg = f"{file} cannot be opened ({error}); give yourself access to it, or another path with --store"
        raise StoreError(msg) from error


# -- in place ----------------------------------------------------------------------------------------------------------


def _repair_in_place(file: Path, blobs: Path, tick: EntryCountCallback, *, dry_run: bool) -> StoreRepairReport:
    """Mend a file that SQLite can read, in one transaction; the backup is made before that ends."""
    findings: tuple[StoreRepairFinding, ...] = ()
    backup = ""
    with _open_repairer(file, blobs) as mender:
        blob_findings = _repair_blobs(mender, dry_run=dry_run)
        with suppress(_NoDamageError), mender.write_transaction() as db:
            findings = _rebuild_indexes(db)
            total = mender.count_entries()
            findings += mender.repair_all_sessions(lambda: tick(total))
            if not findings:
                raise _NoDamageError
            if not dry_run:
                backup = str(_back_up_database(file, _find_free_backup_name(file)))
        return StoreRepairReport(str(file), findings + blob_findings, mender.entries_seen, backup)


def _repair_blobs(mender: StoreRepairer, *, dry_run: bool) -> tuple[StoreRepairFinding, ...]:
    with mender.read_transaction():
        return mender.repair_blobs(dry_run=dry_run)


@contextmanager
def _open_repairer(file: Path, blobs: Path) -> Iterator[StoreRepairer]:
    with closing(StoreRepairer(file)) as mender:
        mender.set_blobs(FileBlobStore(blobs))
        yield mender


def _rebuild_indexes(db: sqlite3.Connection) -> tuple[StoreRepairFinding, ...]:
    """Make SQLite's own indexes anew where they differ from their tables; ``_UnreadableFileError`` if more is wrong."""
    faults = _find_integrity_faults(db)
    if not faults:
        return ()
    other_faults = [fault for fault in faults if not any(marker in fault for marker in _INDEX_FAULTS)]
    if other_faults:
        raise _UnreadableFileError(other_faults[0])
    db.execute("REINDEX")
    remaining_faults = _find_integrity_faults(db)
    if remaining_faults:
        raise _UnreadableFileError(remaining_faults[0])
    return (StoreRepairFinding("index", f"SQLite's indexes differ from their tables: {faults[0]}", "made anew"),)


def _find_integrity_faults(db: sqlite3.Connection) -> list[str]:
    """Return what SQLite finds wrong; the index of words, looked at from 3.44 on, the mender makes anew."""
    lines = [line for (text,) in db.execute("PRAGMA integrity_check") for line in str(text).splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("***") and "fts5" not in line.lower()]


# -- anew --------------------------------------------------------------------------------------------------------------


def _rebuild_file(file: Path, blobs: Path, tick: EntryCountCallback, why: str, *, dry_run: bool) -> StoreRepairReport:
    """Put what can be read into a new file, and that in the old one's place; the old one stays beside it."""
    old = file.resolve()
    _check_exclusive(old, why)
    before = _get_file_stamps(old)
    new = _find_free_backup_name(old, "new")
    try:
        with _open_repairer(new, blobs) as mender:
            with mender.write_transaction() as db:
                count = _salvage_entries(old, db)
                findings = mender.repair_all_sessions(lambda: tick(count))
            blob_findings = _repair_blobs(mender, dry_run=dry_run)
        backup = _swap_in_new_file(old, new, why, before)
    except BaseException as error:
        _remove_database_files(new)
        if isinstance(error, _NoEntriesError):
            msg = f"{file} is damaged ({why}) and not one entry in it can be read; it was left as it is: use a backup"
            raise StoreCorrupt(msg) from None
        raise
    file_finding = StoreRepairFinding(
        "file", f"SQLite cannot read it through: {why}", f"{count:,} entries were read into a new file"
    )
    return StoreRepairReport(
        str(file), (file_finding, *findings, *blob_findings), mender.entries_seen or count, str(backup)
    )


def _salvage_entries(file: Path, target: sqlite3.Connection) -> int:
    """Copy what can be read of ``file``; return how many entries there were, or raise if there was none."""
    with closing(_open_readonly(file)) as source:
        count = salvage_rows(source, file, target)
    if not count:
        raise _NoEntriesError
    return count


def _swap_in_new_file(file: Path, new: Path, why: str, before: FileStamps) -> Path:
    """Put ``new`` in the place of ``file`` by one rename, unless somebody wrote or writes it; return the backup.

    Before that the whole old store is beside it, and of its write-ahead log nothing is where the new one would find it.
    """
    with _hold_exclusively(file, why):
        if _get_file_stamps(file) != before:
            raise StoreLocked(_describe_in_use(file, why))
        backup = _find_free_backup_name(file)
        for ending in ("-wal", ""):
            with suppress(FileNotFoundError):
                _keep_backup(file.with_name(file.name + ending), backup.with_name(backup.name + ending))
        for ending in ("-wal", "-shm"):
            file.with_name(file.name + ending).unlink(missing_ok=True)
        new.replace(file)
        sync_directory(file.parent)
    return backup


def _keep_backup(file: Path, backup: Path) -> None:
    """Give a file a second name, or make a copy where the disk has no such thing; an empty one needs none."""
    if file.stat().st_size:
        try:
            os.link(file, backup)
        except OSError:
            copy2(file, backup)


def _check_exclusive(file: Path, why: str) -> None:
    with _hold_exclusively(file, why):
        pass


@contextmanager
def _hold_exclusively(file: Path, why: str) -> Iterator[None]:
    """No other program has ``file`` open, or can open it, inside; ``StoreLocked`` if one has."""
    with file.open("r+b") as stream:
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_LENGTH, _LOCK_START)
        except OSError as error:
            raise StoreLocked(_describe_in_use(file, why)) from error
        yield


def _describe_in_use(file: Path, why: str) -> str:
    return (
        f"{file} is damaged ({why}) and needs a new file, and another program has the old one open and would go on "
        "writing to that; nothing was changed: end it (`holdfast serve`, an agent), then run `holdfast repair` again"
    )


def _get_file_stamps(file: Path) -> FileStamps:
    """Return what tells whether a store was written in the meantime."""
    paths = (file.with_name(file.name + ending) for ending in ("", "-wal"))
    return [(path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.exists() and path.stat().st_size]


def _remove_database_files(new: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        new.with_name(new.name + ending).unlink(missing_ok=True)


# -- files beside it ---------------------------------------------------------------------------------------------------


def _find_free_backup_name(file: Path, kind: str = "bak") -> Path:
    """Return a free name beside ``file`` that says when it was made."""
    stem = f"{file.name}.{kind}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    names = (stem if not number else f"{stem}-{number}" for number in range(1_000))
    return next(path for path in map(file.with_name, names) if not os.path.lexists(path))


def _copy_store(file: Path, place: Path) -> None:
    """Copy a store to ``place``: by SQLite, or as it lies there where SQLite cannot."""
    try:
        _back_up_database(file, place)
    except StoreCorrupt:
        for ending in ("", "-wal"):
            with suppress(FileNotFoundError):
                copyfile(file.with_name(file.name + ending), place.with_name(place.name + ending))


def _back_up_database(file: Path, place: Path) -> Path:
    """Copy the database as it was last committed to ``place``, for its owner only; return that."""
    try:
        os.close(create_private_file(place))
    except OSError as error:
        raise build_store_error(error, f"no copy of {file} could be made; nothing was changed") from error
    try:
        with closing(_open_readonly(file)) as source, closing(sqlite3.connect(place)) as target:
            source.backup(target)
    except (sqlite3.Error, OSError) as error:
        place.unlink(missing_ok=True)
        msg = f"{file} could not be copied to {place} ({error}); nothing was changed: free some space, or use a backup"
        raise StoreCorrupt(msg) from error
    return place
