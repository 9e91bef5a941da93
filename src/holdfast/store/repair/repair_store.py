"""Repair of a damaged store: everything is checked, repaired in one transaction, and the old file kept as a backup.

If SQLite cannot read the whole file, the readable rows go into a new file, which replaces it.
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

from holdfast.errors import StoreCorrupt, StoreError, StoreLocked, StoreReadOnly
from holdfast.store.blobs.blobs import FileBlobStore
from holdfast.store.private_files import (
    ACCESS_ADVICE,
    FREE_SPACE_ADVICE,
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
"""Called after each entry with the total number of entries."""
FileStamps = list[tuple[int, int]]
"""Sizes and times of a database and its write-ahead log."""
_INDEX_FAULTS = ("missing from index", "wrong # of entries in index", "non-unique entry in index")
"""SQLite's messages for an index that differs from its table, from which it can be built again."""
_LOCK_START, _LOCK_LENGTH = 0x40000002, 510
"""The bytes of a database on which SQLite holds a read lock as long as a connection is open."""


_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
"""SQLite's errors for a file that another connection has locked."""
_WRITE_FAILURE_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC}
"""SQLite's errors for a disk that is full or refuses a write."""


class _UnreadableFileError(Exception):
    """SQLite cannot read the whole file; the text says why."""


class _NoDamageError(Exception):
    """Nothing was found, so nothing must be written."""


class _NoEntriesError(Exception):
    """Not a single entry could be read."""


def repair_store(
    path: str | os.PathLike[str], *, dry_run: bool = False, tick: EntryCountCallback = lambda _: None
) -> StoreRepairReport:
    """Check the store in the file at ``path``, repair the damage, and return the findings.

    Without damage nothing is written. Otherwise the old file is kept beside it (``backup``). With ``dry_run`` a copy is
    repaired and thrown away. A missing file is fine. Another program's file, or one of a newer version, raises
    ``StoreCorrupt`` and is not touched; so is a damaged file for whose backup the disk has no room (``StoreReadOnly``).
    """
    file = Path(path)
    blobs = file.with_name(f"{file.name}.blobs")
    if not is_existing_path(file):
        return StoreRepairReport(str(file))
    if not dry_run:
        return _repair_file(file, blobs, tick, dry_run=False)
    with TemporaryDirectory() as folder:
        copy = Path(folder) / file.name
        _copy_store(file, copy)
        try:
            report = _repair_file(copy, blobs, tick, dry_run=True)
        except StoreError as error:
            # The user has never heard of the copy.
            raise type(error)(str(error).replace(str(copy), str(file))) from None
    return replace(report, file=str(file), backup="")


def repair_store_session(path: str | os.PathLike[str], key: str) -> tuple[StoreRepairFinding, ...]:
    """Repair session ``key`` of the store at ``path`` as far as possible without loss; return the findings.

    Rows with changed bytes or a missing parent are left alone; ``repair_store`` puts those into quarantine. No
    backup is made: every change is proven by a digest or by other rows, and a value that cannot be read beside
    valid bytes goes into quarantine. Raises ``StoreError`` if the file cannot be written.
    """
    file = Path(path)
    blobs = file.with_name(f"{file.name}.blobs")
    with _open_repairer(file, blobs) as repairer, repairer.write_transaction():
        return repairer.repair_one_session(key)


def _repair_file(
    file: Path,
    blobs: Path,
    tick: EntryCountCallback,
    *,
    dry_run: bool,
) -> StoreRepairReport:
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
    """Raise ``_UnreadableFileError`` if a file cannot be repaired in place, ``StoreCorrupt`` if it is not a store."""
    with closing(_open_readonly(file)) as db:
        try:
            get_schema_version(db, str(file))
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise _classify_read_error(error, file) from error


def _classify_read_error(error: Exception, file: Path) -> Exception:
    """Return the error to raise if ``file`` cannot be read: ``_UnreadableFileError`` for damage, else a
    ``StoreError``.
    """
    if is_damage_error(error):
        return _UnreadableFileError(str(error))
    return StoreError(f"{file} could not be checked ({error}); nothing was changed: {_get_read_advice(error)}")


def _get_read_advice(error: Exception) -> str:
    """Return what the user can do about an ``error`` of SQLite that is not about damage."""
    is_held = getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY_CODES
    return "see that nobody holds it" if is_held else ACCESS_ADVICE


def _open_readonly(file: Path) -> sqlite3.Connection:
    check_sqlite_version()
    try:
        return sqlite3.connect(f"file:{quote(os.fsencode(file))}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.OperationalError as error:
        msg = f"{file} cannot be opened ({error}); give yourself access to it, or another path with --store"
        raise StoreError(msg) from error


# -- in place ----------------------------------------------------------------------------------------------------------


def _repair_in_place(
    file: Path,
    blobs: Path,
    tick: EntryCountCallback,
    *,
    dry_run: bool,
) -> StoreRepairReport:
    """Repair a file that SQLite can read, in one transaction."""
    findings: tuple[StoreRepairFinding, ...] = ()
    backup = ""
    with _open_repairer(file, blobs) as repairer:
        blob_findings = _repair_blobs(repairer, dry_run=dry_run)
        with suppress(_NoDamageError), repairer.write_transaction() as db:
            findings = _rebuild_indexes(db)
            total = repairer.count_entries()
            findings += repairer.repair_all_sessions(lambda: tick(total))
            if not findings:
                raise _NoDamageError  # rolls the transaction back
            # Before the commit: the backup, made by another connection, has the state without these changes.
            if not dry_run:
                backup = str(_back_up_database(file, _find_free_backup_name(file)))
        return StoreRepairReport(
            str(file),
            findings + blob_findings,
            repairer.entries_seen,
            backup,
        )


def _repair_blobs(repairer: StoreRepairer, *, dry_run: bool) -> tuple[StoreRepairFinding, ...]:
    with repairer.read_transaction():
        return repairer.repair_blobs(dry_run=dry_run)


@contextmanager
def _open_repairer(file: Path, blobs: Path) -> Iterator[StoreRepairer]:
    with closing(StoreRepairer(file)) as repairer:
        repairer.set_blobs(FileBlobStore(blobs))
        yield repairer


def _rebuild_indexes(db: sqlite3.Connection) -> tuple[StoreRepairFinding, ...]:
    """Build SQLite's own indexes again if they differ from their tables; raises ``_UnreadableFileError`` for other
    faults.
    """
    faults = _find_integrity_faults(db)
    if not faults:
        return ()
    for fault in faults:
        is_index_fault = any(marker in fault for marker in _INDEX_FAULTS)
        if not is_index_fault:
            raise _UnreadableFileError(fault)
    db.execute("REINDEX")
    # An index may have hidden damage of its table.
    remaining_faults = _find_integrity_faults(db)
    if remaining_faults:
        raise _UnreadableFileError(remaining_faults[0])
    return (StoreRepairFinding("index", f"SQLite's indexes differ from their tables: {faults[0]}", "made anew"),)


def _find_integrity_faults(db: sqlite3.Connection) -> list[str]:
    """Return the faults that SQLite's check finds, without those of the word index, which is repaired elsewhere."""
    faults: list[str] = []
    for (text,) in db.execute("PRAGMA integrity_check"):
        for line in str(text).splitlines():
            is_heading = line == "ok" or line.startswith("***")
            # From SQLite 3.44 on the check includes FTS5 tables.
            if not is_heading and "fts5" not in line.lower():
                faults.append(line)
    return faults


# -- into a new file ---------------------------------------------------------------------------------------------------


def _rebuild_file(
    file: Path,
    blobs: Path,
    tick: EntryCountCallback,
    why: str,
    *,
    dry_run: bool,
) -> StoreRepairReport:
    """Copy the readable rows to a new file and put it in the place of the old one, which is kept as a backup."""
    old = file.resolve()
    # Checked now so that a long salvage does not fail at its end, and again when the files are exchanged.
    _check_exclusive(old, why)
    stamps_before = _get_file_stamps(old)
    new = _find_free_backup_name(old, "new")
    try:
        with _open_repairer(new, blobs) as repairer:
            with repairer.write_transaction() as db:
                count = _salvage_entries(old, db)
                findings = repairer.repair_all_sessions(lambda: tick(count))
            blob_findings = _repair_blobs(repairer, dry_run=dry_run)
        backup = _swap_in_new_file(old, new, why, stamps_before)
    except BaseException as error:
        _remove_database_files(new)
        if isinstance(error, _NoEntriesError):
            msg = f"{file} is damaged ({why}) and no entry in it can be read; nothing was changed: use a backup"
            raise StoreCorrupt(msg) from None
        raise
    problem = f"SQLite cannot read all of it: {why}"
    file_finding = StoreRepairFinding("file", problem, f"{count:,} entries were read into a new file")
    all_findings = (file_finding, *findings, *blob_findings)
    return StoreRepairReport(
        str(file),
        all_findings,
        repairer.entries_seen or count,
        str(backup),
    )


def _salvage_entries(file: Path, target: sqlite3.Connection) -> int:
    """Copy the readable rows of ``file`` and return the number of entries; raises ``_NoEntriesError`` if there is
    none.
    """
    with closing(_open_readonly(file)) as source:
        count = salvage_rows(source, file, target)
    if not count:
        raise _NoEntriesError
    return count


def _swap_in_new_file(
    file: Path,
    new: Path,
    why: str,
    stamps_before: FileStamps,
) -> Path:
    """Replace ``file`` by ``new`` with one rename, unless another program writes or wrote to it; return the backup.

    Before the rename the whole old store has its backup, and its write-ahead log is removed, which SQLite would apply
    to the new file.
    """
    with _hold_exclusively(file, why):
        # Somebody opened it, wrote and closed it while the rows were copied: those entries are not in the new file.
        if _get_file_stamps(file) != stamps_before:
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
    """Give a file a second name, or copy it if the file system has no hard links; an empty one needs no backup."""
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
    """Keep other programs from opening ``file`` in the block; raises ``StoreLocked`` if one has it open."""
    # An exclusive lock on the bytes that every connection locks shared: it fails while one is open, in any process.
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
    """Return sizes and times of a store's files, which tell whether it was written in the meantime."""
    stamps = []
    for ending in ("", "-wal"):
        path = file.with_name(file.name + ending)
        if path.exists() and path.stat().st_size:
            stamps.append((path.stat().st_size, path.stat().st_mtime_ns))
    return stamps


def _remove_database_files(new: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        new.with_name(new.name + ending).unlink(missing_ok=True)


# -- files beside it ---------------------------------------------------------------------------------------------------


def _find_free_backup_name(file: Path, kind: str = "bak") -> Path:
    """Return a free path beside ``file`` with the present time in its name."""
    stem = f"{file.name}.{kind}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    path = file.with_name(stem)
    number = 0
    while os.path.lexists(path):  # an earlier repair within the same second
        number += 1
        path = file.with_name(f"{stem}-{number}")
    return path


def _copy_store(file: Path, place: Path) -> None:
    """Copy a store to ``place``: through SQLite, or file by file if SQLite cannot read it."""
    try:
        _back_up_database(file, place)
    except StoreError as error:
        # If something else than SQLite failed, or the disk is full, a copy of the files would fail for the same reason.
        if isinstance(error, StoreReadOnly) or not isinstance(error.__cause__, sqlite3.Error):
            raise
        for ending in ("", "-wal"):
            with suppress(FileNotFoundError):
                copyfile(file.with_name(file.name + ending), place.with_name(place.name + ending))


def _back_up_database(file: Path, place: Path) -> Path:
    """Copy the last committed state of the database to a private file at ``place``, and return its path.

    Raises ``StoreReadOnly`` if the disk takes no copy, ``StoreCorrupt`` if the database is damaged, and ``StoreError``
    if it cannot be read for another reason.
    """
    try:
        os.close(create_private_file(place))
    except OSError as error:
        raise build_store_error(error, f"no copy of {file} could be made; nothing was changed") from error
    try:
        with closing(_open_readonly(file)) as source, closing(sqlite3.connect(place)) as target:
            source.backup(target)
    except sqlite3.Error as error:
        place.unlink(missing_ok=True)
        raise _build_copy_error(error, file, place) from error
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    return place


def _build_copy_error(error: sqlite3.Error, file: Path, place: Path) -> StoreError:
    """Return the error to raise if SQLite cannot copy ``file`` to ``place``."""
    problem = f"{file} could not be copied to {place} ({error}); nothing was changed"
    if is_damage_error(error):
        return StoreCorrupt(f"{problem}: use a backup")
    if getattr(error, "sqlite_errorcode", None) in _WRITE_FAILURE_CODES:
        return StoreReadOnly(f"{problem}: {FREE_SPACE_ADVICE}")
    return StoreError(f"{problem}: {_get_read_advice(error)}")
