"""One SQLite file: opened on demand, private, with one error of ours for each failure of a disk.

Nothing is created before the first write; reading opens the file read-only. After a disk refused one write, every
later one is refused (invariant refusal-ends-writing): reading goes on, and every acknowledged entry is there.
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
"""What an acknowledged entry survives: a crash of the process, or also of the machine (a disk flush at each commit)."""

_ACCESS_CODES = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}
"""SQLite's errors for a user without permission."""
_REFUSAL_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR} | _ACCESS_CODES
"""Those, and SQLite's errors for a full or broken disk."""
_SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of ``sqlite3``; UnicodeDecodeError is raised when a message of SQLite quotes bytes that are not text."""
_DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""SQLite's errors for a damaged file. SQLITE_ERROR is one: it is raised if a table or column of ours is missing."""


PAGE_BYTES = 8192
"""Page size of a new file. Measured on 5,000 messages of 2 kB: pages of 4,096 bytes are half empty, and the file a
third larger.
"""

BRIEF_WAIT = 0.25
"""Seconds to wait for a lock after another wait for it failed.

Chosen by judgement: SQLite tries about four times in it, enough for a lock that is free again; longer waits of many
sessions behind one stuck process would add up.
"""
BRIEF_WAIT_PERIOD = 60.0
"""Seconds after a wait that failed in which the next ones are brief, unless the lock was free meanwhile.

Chosen by judgement: an agent comes once in every model call, seconds to half a minute apart, and must not wait five
seconds each time for a process that hangs. After a minute without a try, the lock is likely another process's.
"""
MIN_FILE_BYTES = 512
"""Size of the smallest SQLite database. SQLite would take a shorter file for an empty one and overwrite it."""

_creation_lock = threading.RLock()
"""Held while a file is created or opened: closing a new file's descriptor would drop a connection's POSIX locks on it.
"""
# Also held during a fork: a child must not inherit it locked by a thread that does not exist there.
os.register_at_fork(
    before=_creation_lock.acquire,
    after_in_parent=_creation_lock.release,
    after_in_child=_creation_lock.release,
)


class SqliteFile:
    """The SQLite file at ``file``, used by one thread at a time."""

    def __init__(
        self,
        file: str | os.PathLike[str],
        durability: Durability = "process",
        *,
        readonly: bool = False,
    ) -> None:
        # Absolute, because the process may change its directory before the file is opened.
        self._place = os.path.abspath(os.fspath(file))  # noqa: PTH100 -- symlinks stay, they are the user's
        self.file = Path(self._place)
        self._durability = durability
        self._readonly = readonly
        self._turn = threading.RLock()
        self._process_id: int | None = None
        """Id of the process that used the file first."""
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        """Device and inode of the file that is open."""
        self._wal_path = ""
        """Path of its ``-wal``, once something was written."""
        self._wal_opened: tuple[int, int] | None = None
        """Device and inode of that ``-wal``."""
        self._is_reader_blank = False
        """Whether the reader is an empty database in memory, because there is no file yet."""
        self._refused = ""
        """The first refusal of the disk; every later write is refused with it."""
        self._busy_timeout = BUSY_WAIT
        """Seconds that the connections wait for another process at present."""
        self._wait_failed_at = -inf
        """When a wait for another process failed last (monotonic seconds); -inf after a write."""
        self._closed = False

    def get_sibling_path(self, ending: str) -> Path:
        """Return the path of the file's sibling with ``ending``: beside the target of a link, where SQLite has its own.

        Blobs that are only beside the link, where an older version put them, are used there.
        """
        beside_link = self.file.with_name(self.file.name + ending)
        if not self.file.is_symlink():
            return beside_link
        target = Path(os.path.realpath(self._place))
        beside_target = target.with_name(target.name + ending)
        if ending == ".blobs" and beside_link.is_dir() and not beside_target.exists():
            return beside_link
        return beside_target

    def close(self) -> None:
        """Close the file; its ``-wal`` is merged into it if no other connection is open.

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
        """Raise ``StoreError`` if the file exists but cannot be read, or was removed since it was opened."""
        if self._is_file_open:
            self._check_not_replaced()
        else:
            with self.read_transaction():
                pass

    @property
    def db(self) -> sqlite3.Connection:
        """The connection of the current transaction."""
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
        """Raise in a forked child: SQLite's connections must not be used there, and ``_turn`` may be held forever."""
        if self._is_forked:
            msg = f"{self.file} was opened in another process, from which this one was forked; open the store here too"
            raise StoreError(msg)
        self._process_id = os.getpid()

    # -- transactions --------------------------------------------------------------------------------------------------

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Everything read inside is of one moment; a nested one joins the outer."""
        self._require_process()
        with self._turn:
            try:
                db = self._open_reader()
                if db.in_transaction:  # a read inside a write, or a nested read
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
        """Commit all writes of the block together at its end, or roll all of them back."""
        self._require_process()
        with self._turn:
            if self._refused:
                raise StoreReadOnly(self._refused)
            try:
                db = self._open_writer()
                self._begin_write(db)
                try:
                    # Under the lock: before it, ``holdfast repair`` could still exchange the file.
                    self._check_not_replaced()
                    yield
                    db.execute("COMMIT")
                # A cancellation or ^C too: a transaction left open would keep the write lock.
                except BaseException:
                    _roll_back(db)
                    raise
            except _SQLITE_ERRORS as error:
                raise self._translate_error(error, latch=True) from error

    def _begin_write(self, db: sqlite3.Connection) -> None:
        """Begin a write transaction as soon as no other process has one."""
        seconds = self._choose_busy_wait()
        if seconds != self._busy_timeout:
            self._busy_timeout = seconds
            db.execute(f"PRAGMA busy_timeout = {seconds * 1_000:.0f}")
        # IMMEDIATE takes the write lock now. A transaction that began with reading and writes later is refused without
        # a wait if another process wrote meanwhile.
        db.execute("BEGIN IMMEDIATE")
        self._wait_failed_at = -inf
        # SQLite creates the ``-wal`` with the first transaction, so its identity is known only now.
        if self._wal_opened is None:
            self._wal_path = os.fspath(self.get_sibling_path("-wal"))
            self._wal_opened = _get_device_and_inode(self._wal_path)

    def _choose_busy_wait(self) -> float:
        """Return the seconds to wait for another process: few after a wait that failed, or waits would add up.

        Many sessions may queue behind one stuck writer, each waiting after the other. Right after a failed wait
        there is none.
        """
        since = time.monotonic() - self._wait_failed_at
        if since >= BRIEF_WAIT_PERIOD:
            return BUSY_WAIT
        return BRIEF_WAIT if since >= BRIEF_WAIT else 0.0

    def _translate_error(self, error: Exception, *, latch: bool = False) -> StoreError:
        """Return the ``StoreError`` for an error of SQLite; with ``latch``, remember a refusal of the disk."""
        store_error = self._classify_error(error, writing=latch)
        if isinstance(store_error, StoreLocked) and self._busy_timeout:
            self._wait_failed_at = time.monotonic()
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
            return StoreReadOnly(
                f"{self.file} could not be written ({error}); every acknowledged write is kept: {advice}"
            )
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
        """Return the connection for reading: the writer's, a read-only one, or an empty one if there is no file."""
        if self._writer is not None:
            return self._writer
        self._check_open()
        if self._reader is not None:
            was_file_created = self._is_reader_blank and self.file.exists()
            if not was_file_created:
                return self._reader
            self._reader.close()
        self._reader = None
        self._reader = self._connect_reader()
        return self._writer or self._reader  # connecting opens the writer if the schema must be migrated

    def _connect_reader(self) -> sqlite3.Connection:
        if self._has_valid_file():
            self._opened = _get_device_and_inode(self._place)
            db = self._connect_readonly()
            schema_version = _run_or_close(db, lambda: get_schema_version(db, str(self.file)))
            if schema_version >= OLDEST_READABLE_VERSION:
                self._is_reader_blank = False
                return db
            db.close()
            if schema_version:  # too old to be read as it is: migrate it
                return self._open_writer()
        self._is_reader_blank = True
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        migrate_schema(db, ":memory:")
        return db

    def _connect_readonly(self) -> sqlite3.Connection:
        """Return a read-only connection, also if no ``-shm`` file can be created in the directory.

        SQLite needs that file to read in WAL mode. Without a ``-wal`` the file can be opened as immutable instead.
        """
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
        with suppress(FileNotFoundError):  # no ``-wal``: all changes are in the file
            if wal.stat().st_size:
                msg = (
                    f"{self.file} has unfinished changes in {wal.name} and its directory takes no file ({open_error}); "
                    "copy both to a directory where you can write, and open the copy"
                )
                raise StoreReadOnly(msg) from open_error
        return self._connect("mode=ro&immutable=1")

    def _open_writer(self) -> sqlite3.Connection:
        """Return the connection for writing; the file is created, private, if it does not exist."""
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
        _enable_wal(db, self._busy_timeout)
        db.execute(f"PRAGMA synchronous = {'FULL' if self._durability == 'power' else 'NORMAL'}")
        # ``tree/placing.py`` has checked every parent; the same check by SQLite makes a write a tenth slower.
        db.execute("PRAGMA foreign_keys = OFF")
        migrate_schema(db, str(self.file))

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{quote(os.fsencode(self.file))}?{mode}"
        self._busy_timeout = self._choose_busy_wait()
        with _creation_lock:
            db = sqlite3.connect(
                uri,
                timeout=self._busy_timeout,
                isolation_level=None,
                check_same_thread=False,
                uri=True,
            )
        db.execute("PRAGMA temp_store = MEMORY")  # a full disk must not keep a query from sorting
        return db

    def _check_open(self) -> None:
        if self._closed:
            msg = f"the store {self.file} was closed; open it again"
            raise StoreError(msg)
        check_sqlite_version()

    @property
    def _is_file_open(self) -> bool:
        """Whether the file is open, for reading or writing."""
        return self._writer is not None or (self._reader is not None and not self._is_reader_blank)

    def _check_not_replaced(self) -> None:
        """Raise ``StoreReplaced`` if the path has another file, or another ``-wal``, than was opened.

        A write would go to a file without a name, and be lost.
        """
        if _get_device_and_inode(self._place) != self._opened:
            missing_path = self._place
        elif self._wal_opened is not None and _get_device_and_inode(self._wal_path) != self._wal_opened:
            missing_path = self._wal_path
        else:
            return
        msg = (
            f"{missing_path} was replaced or taken away since it was opened (`holdfast repair` can do so); "
            "nothing was written: open it again"
        )
        raise StoreReplaced(msg)

    def _has_valid_file(self) -> bool:
        """Return whether the file exists; raises ``StoreError`` if it cannot be a database of this user's."""
        try:
            file_stat = self.file.lstat()
            is_link = stat.S_ISLNK(file_stat.st_mode)
            if is_link:
                file_stat = self.file.stat()
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
        # A link to another user's file may be a trap: our log would be written where that user can read it.
        is_foreign_target = is_link and file_stat.st_uid != os.geteuid()
        if not stat.S_ISREG(file_stat.st_mode) or is_foreign_target:
            msg = f"{self.file} is not a file of yours; give a file's path with --store"
            raise StoreError(msg)
        # An empty file is a store without sessions; a short one is somebody's text.
        if 0 < file_stat.st_size < MIN_FILE_BYTES:
            msg = (
                f"{self.file} ({file_stat.st_size} bytes) is not a database and was not changed: give another path "
                "with --store"
            )
            raise StoreCorrupt(msg)
        return True


def is_damage_error(error: BaseException | None) -> bool:
    """Return whether ``sqlite3`` raised ``error`` because of a damaged file.

    A message of SQLite may quote damaged bytes, which then raises UnicodeDecodeError.
    """
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.ProgrammingError):
        return _get_primary_code(error) in _DAMAGE_CODES
    return isinstance(error, UnicodeDecodeError)


def _get_primary_code(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _get_device_and_inode(place: str) -> tuple[int, int] | None:
    """Return device and inode of the file at a path, or None if there is no file."""
    try:
        file_stat = os.stat(place)  # noqa: PTH116 -- called at every write, and faster than a Path
    except (FileNotFoundError, NotADirectoryError):
        return None
    return file_stat.st_dev, file_stat.st_ino


def _roll_back(db: sqlite3.Connection) -> None:
    """End the transaction; after an error of the disk SQLite may have ended it already."""
    if db.in_transaction:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")


def _enable_wal(db: sqlite3.Connection, seconds: float) -> None:
    """Switch to write-ahead logging, waiting at most ``seconds`` for other connections.

    SQLite's own busy timeout does not apply to this statement.
    """
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
    """Return the result of ``step``; if it raises, close ``db``."""
    try:
        return step()
    except BaseException:
        db.close()
        raise
