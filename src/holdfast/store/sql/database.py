"""One SQLite file: opened when it is needed, private, and with one name for each thing a disk can say.

Nothing is created before the first write; what only reads opens the file read-only. A disk that refuses a write ends
the writing (invariant refusal-ends-writing): reading goes on, and every acknowledged entry is there.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

from holdfast.errors import StoreCorrupt, StoreError, StoreLocked, StoreReadOnly, StoreReplaced
from holdfast.store.base import BUSY_WAIT
from holdfast.store.private_files import (
    ACCESS_ADVICE,
    FREE_SPACE_ADVICE,
    build_store_error,
    create_private_file,
    make_directory,
    sync_directory,
)
from holdfast.store.sql.migrations import (
    OLDEST_READABLE_VERSION,
    check_sqlite_version,
    get_schema_version,
    migrate_schema,
)

T = TypeVar("T")

Durability = Literal["process", "power"]
"""What an acknowledged entry survives: the end of the process, or of the machine too (a disk flush for each commit)."""

_ACCESS_CODES = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}
"""What SQLite reports where this user may not."""
_REFUSAL_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR} | _ACCESS_CODES
"""And when the disk is full or broken."""
_SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What it raises; the second where its own words quote what is no text."""
_DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""What it reports of a damaged file; the last where it finds no table or column of ours, or a text that is none."""


PAGE_BYTES = 8192
"""Bytes of a page of a new file: messages of 2 kB fill 4,096 by half, a third less disk (measured on 5,000)."""

BRIEF_WAIT = 0.25
"""Seconds that one waits soon behind another that waited in vain: SQLite tries four times. [H]"""
MIN_FILE_BYTES = 512
"""Bytes of the smallest SQLite database; SQLite itself would take a shorter file for an empty one and write over it."""

_creation_lock = threading.RLock()
"""Held while a new file is made, and while one is opened: closing it must not drop a connection's POSIX locks on it."""
os.register_at_fork(
    before=_creation_lock.acquire, after_in_parent=_creation_lock.release, after_in_child=_creation_lock.release
)


class SqliteFile:
    """The file at ``file``, used by one thread at a time."""

    def __init__(
        self, file: str | os.PathLike[str], durability: Durability = "process", *, readonly: bool = False
    ) -> None:
        self._place = os.path.abspath(os.fspath(file))  # noqa: PTH100 -- symlinks stay, they are the user's
        self.file = Path(self._place)
        self._durability = durability
        self._readonly = readonly
        self._turn = threading.RLock()
        self._process_id: int | None = None
        """The process that used the file first."""
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        self._log = ""
        """Where its ``-wal`` is, once something was written."""
        self._logs_to: tuple[int, int] | None = None
        """Which file that is."""
        self._blank = False
        self._refused = ""
        self._waits = BUSY_WAIT
        self._in_vain = -inf
        """When a wait in vain ended last, and nothing was written since."""
        self._closed = False

    def get_sibling_path(self, ending: str) -> Path:
        """Return the path of the file's neighbour with ``ending``: beside what a link leads to, as SQLite has it.

        Texts that lie beside the link alone, where they once were put, stay there.
        """
        own = self.file.with_name(self.file.name + ending)
        if not self.file.is_symlink():
            return own
        file = Path(os.path.realpath(self._place))
        there = file.with_name(file.name + ending)
        return own if ending == ".blobs" and own.is_dir() and not there.exists() else there

    def close(self) -> None:
        """Close the file; its ``-wal`` is folded into it if nobody else has it open.

        A forked child closes nothing: the connections are its parent's.
        """
        if self._is_forked:
            return
        with self._turn:
            self._closed = True
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None

    def check_readable(self) -> None:
        """Raise if the file is there and cannot be read, or is not there any more."""
        if self._is_file_open:
            self._check_not_replaced()
        else:
            with self.read_transaction():
                pass

    @property
    def db(self) -> sqlite3.Connection:
        """The connection of the transaction that is going on."""
        db = self._writer or self._reader
        if db is None:
            msg = f"{self.file} is not open"
            raise StoreError(msg)
        return db

    @property
    def _is_forked(self) -> bool:
        """Whether the file was used before this process was forked."""
        return self._process_id not in (None, os.getpid())

    def _require_process(self) -> None:
        """Raise in a forked child: SQLite's connections must not be used there, and ``_turn`` may be held for ever."""
        if self._is_forked:
            msg = f"{self.file} was opened in another process, from which this one was forked; open the store here too"
            raise StoreError(msg)
        self._process_id = os.getpid()

    # -- transactions --------------------------------------------------------------------------------------------------

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Everything read inside is of one moment."""
        self._require_process()
        with self._turn:
            try:
                db = self._open_reader()
                if db.in_transaction:
                    yield
                    return
                db.execute("BEGIN")
                try:
                    yield
                finally:
                    _roll_back(db)
            except _SQLITE_ERRORS as error:
                raise self._translate_error(error) from error

    @contextmanager
    def write_transaction(self) -> Iterator[None]:
        """Everything written inside is on disk at its end, or nothing is."""
        self._require_process()
        with self._turn:
            if self._refused:
                raise StoreReadOnly(self._refused)
            try:
                db = self._open_writer()
                self._begin_write(db)
                try:
                    self._check_not_replaced()
                    yield
                    db.execute("COMMIT")
                except BaseException:
                    _roll_back(db)
                    raise
            except _SQLITE_ERRORS as error:
                raise self._translate_error(error, latch=True) from error

    def _begin_write(self, db: sqlite3.Connection) -> None:
        """Begin to write, once no other process does."""
        seconds = self._choose_busy_wait()
        if seconds != self._waits:
            self._waits = seconds
            db.execute(f"PRAGMA busy_timeout = {seconds * 1_000:.0f}")
        db.execute("BEGIN IMMEDIATE")
        self._in_vain = -inf
        if self._logs_to is None:
            self._log = os.fspath(self.get_sibling_path("-wal"))
            self._logs_to = _get_device_and_inode(self._log)

    def _choose_busy_wait(self) -> float:
        """Return the seconds to wait for another process: few soon behind a wait in vain, for they would add up.

        So do those of many sessions, of which each waits behind the last: at once behind it nobody waits.
        """
        since = time.monotonic() - self._in_vain
        if since >= BUSY_WAIT:
            return BUSY_WAIT
        return BRIEF_WAIT if since >= BRIEF_WAIT else 0.0

    def _translate_error(self, error: Exception, *, latch: bool = False) -> StoreError:
        """Return SQLite's ``error`` under our name; with ``latch`` a refusing disk is remembered."""
        store_error = self._classify_error(error, writing=latch)
        if isinstance(store_error, StoreLocked) and self._waits:
            self._in_vain = time.monotonic()
        if latch and isinstance(store_error, StoreReadOnly):
            self._refused = f"{store_error} (nothing was written since)"
        return store_error

    def _classify_error(self, error: Exception, *, writing: bool) -> StoreError:
        code = _get_primary_code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreLocked(
                f"another process has been writing {self.file} for {BUSY_WAIT:g} s; nothing was written: try again"
            )
        if is_damage_error(error):
            return StoreCorrupt(
                f"{self.file} is damaged or no database ({error}); `holdfast repair` saves what can be read, "
                "or give another path with --store"
            )
        if writing and code in _REFUSAL_CODES:
            advice = ACCESS_ADVICE if code in _ACCESS_CODES else FREE_SPACE_ADVICE
            return StoreReadOnly(f"{self.file} took no write ({error}); what was acknowledged is there: {advice}")
        if code in _ACCESS_CODES:
            return StoreError(f"{self.file} could not be read ({error}): {ACCESS_ADVICE}")
        if code in _REFUSAL_CODES:
            return StoreError(
                f"{self.file} could not be read ({error}): free space, raise the limit on file sizes (ulimit -f), "
                "or copy the file to another disk and open the copy"
            )
        return StoreError(f"{self.file}: {error}")

    # -- opening -------------------------------------------------------------------------------------------------------

    def _open_reader(self) -> sqlite3.Connection:
        """Return a connection to read with: the writer's, a read-only one, or an empty one where no file is."""
        if self._writer is not None:
            return self._writer
        self._check_open()
        if self._reader is not None and not (self._blank and self.file.exists()):
            return self._reader
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._reader = self._connect_reader()
        return self._writer or self._reader

    def _connect_reader(self) -> sqlite3.Connection:
        has_file = self._has_valid_file()
        if has_file:
            self._opened = _get_device_and_inode(self._place)
            db = self._connect_readonly()
            schema_version = _run_or_close(db, lambda: get_schema_version(db, str(self.file)))
            if schema_version >= OLDEST_READABLE_VERSION:
                self._blank = False
                return db
            db.close()
            if schema_version:  # nobody can read it as it is
                return self._open_writer()
        self._blank = True
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        migrate_schema(db, ":memory:")
        return db

    def _connect_readonly(self) -> sqlite3.Connection:
        """Return a read-only connection, also where the directory takes no ``-shm`` file."""
        db = self._connect("mode=ro")
        try:
            db.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except sqlite3.OperationalError as error:
            db.close()
            if error.sqlite_errorcode & 0xFF not in _REFUSAL_CODES:
                raise
            open_error = error
        except BaseException:
            db.close()
            raise
        else:
            return db
        wal = self.get_sibling_path("-wal")
        with suppress(FileNotFoundError):  # or it was folded in
            if wal.stat().st_size:
                msg = (
                    f"{self.file} has unfinished changes in {wal.name} and its directory takes no file ({open_error}); "
                    "copy both to a directory where you can write, and open the copy"
                )
                raise StoreReadOnly(msg) from open_error
        return self._connect("mode=ro&immutable=1")

    def _open_writer(self) -> sqlite3.Connection:
        """Return the connection to write with; the file is made, private, if there is none."""
        if self._writer is not None:
            return self._writer
        self._check_open()
        if self._readonly:
            msg = f"{self.file} was opened for reading only; nothing was written: open it again without readonly"
            raise StoreReadOnly(msg)
        if self._is_file_open:
            self._check_not_replaced()
        self._create_file()
        self._opened = _get_device_and_inode(self._place)
        db = self._connect("mode=rw")
        _run_or_close(db, lambda: self._prepare_writer(db))
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._writer = db
        return db

    def _create_file(self) -> None:
        if self._has_valid_file():
            return
        try:
            make_directory(self.file.parent)
            with _creation_lock, suppress(FileExistsError):
                os.close(create_private_file(self.file))
                sync_directory(self.file.parent)
        except OSError as error:
            raise build_store_error(error, f"{self.file} could not be made") from error

    def _prepare_writer(self, db: sqlite3.Connection) -> None:
        get_schema_version(db, str(self.file))
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        _enable_wal(db, self._waits)
        db.execute(f"PRAGMA synchronous = {'FULL' if self._durability == 'power' else 'NORMAL'}")
        db.execute("PRAGMA foreign_keys = OFF")  # ``placing`` looked already: SQLite would take a tenth longer
        migrate_schema(db, str(self.file))

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{quote(os.fsencode(self.file))}?{mode}"
        self._waits = self._choose_busy_wait()
        with _creation_lock:
            db = sqlite3.connect(uri, timeout=self._waits, isolation_level=None, check_same_thread=False, uri=True)
        db.execute("PRAGMA temp_store = MEMORY")  # sorting needs no room on a disk
        return db

    def _check_open(self) -> None:
        if self._closed:
            msg = f"the store {self.file} was closed; open it again"
            raise StoreError(msg)
        check_sqlite_version()

    @property
    def _is_file_open(self) -> bool:
        """Whether the file is open, to write or to read."""
        return self._writer is not None or (self._reader is not None and not self._blank)

    def _check_not_replaced(self) -> None:
        """Raise if the file at the path is another than the one that was opened: what is written would be lost.

        So would what is written to a ``-wal`` that is not there any more.
        """
        if _get_device_and_inode(self._place) != self._opened:
            missing_path = self._place
        elif self._logs_to is not None and _get_device_and_inode(self._log) != self._logs_to:
            missing_path = self._log
        else:
            return
        msg = (
            f"{missing_path} was replaced or taken away since it was opened (`holdfast repair` can do so); "
            "nothing was written: open it again"
        )
        raise StoreReplaced(msg)

    def _has_valid_file(self) -> bool:
        """Return whether the file is there; a ``StoreError`` if it cannot be a database of this user's."""
        try:
            file_stat = self.file.lstat()
            is_link = stat.S_ISLNK(file_stat.st_mode)
            file_stat = self.file.stat() if is_link else file_stat
        except (FileNotFoundError, NotADirectoryError):
            if self.file.is_symlink():
                msg = f"{self.file} is a symbolic link to nothing; remove it, or give another path with --store"
                raise StoreError(msg) from None
            return False
        except OSError as error:
            raise build_store_error(error, f"{self.file} cannot be looked at") from error
        if stat.S_ISDIR(file_stat.st_mode):
            msg = f"{self.file} is a folder; give a file's path with --store"
            raise StoreError(msg)
        if not stat.S_ISREG(file_stat.st_mode) or (is_link and file_stat.st_uid != os.geteuid()):
            msg = f"{self.file} is not a file of yours; give a file's path with --store"
            raise StoreError(msg)
        if 0 < file_stat.st_size < MIN_FILE_BYTES:
            msg = (
                f"{self.file} ({file_stat.st_size} bytes) is no database and was left alone: give another path "
                "with --store"
            )
            raise StoreCorrupt(msg)
        return True


def is_damage_error(error: BaseException | None) -> bool:
    """Return whether a damaged file made ``sqlite3`` raise ``error``; SQLite's own words may quote what is no text."""
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.ProgrammingError):
        return _get_primary_code(error) in _DAMAGE_CODES
    return isinstance(error, UnicodeDecodeError)


def _get_primary_code(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _get_device_and_inode(place: str) -> tuple[int, int] | None:
    """Return what tells a file from another one at its path; nothing where there is none."""
    try:
        file_stat = os.stat(place)  # noqa: PTH116 -- asked for at every write
    except (FileNotFoundError, NotADirectoryError):
        return None
    return file_stat.st_dev, file_stat.st_ino


def _roll_back(db: sqlite3.Connection) -> None:
    """End the transaction; where the disk failed SQLite may have done so already."""
    if db.in_transaction:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")


def _enable_wal(db: sqlite3.Connection, seconds: float) -> None:
    """Switch to write-ahead logging; SQLite does not wait for this one by itself."""
    end = time.monotonic() + seconds
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _run_or_close(db: sqlite3.Connection, step: Callable[[], T]) -> T:
    """Return what ``step`` returns; if it fails ``db`` is closed."""
    try:
        return step()
    except BaseException:
        db.close()
        raise
