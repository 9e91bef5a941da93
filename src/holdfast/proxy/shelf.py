"""Where the store of a proxy stands: it is opened anew where its file was taken away, or another one put there.

A store writes to the file that it opened. Where that is not at its place any more nobody would ever find what it
writes, so it takes no more; a proxy that runs for weeks goes on in the file that is there now, or makes one.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.errors import StoreCorrupt, StoreError
from holdfast.proxy.modes import file_of
from holdfast.store import open_store
from holdfast.store.base import Quota, SessionStore


class Shelf:
    """A ``store``, and the ``place`` that it was opened at; one that has none is never opened anew."""

    def __init__(self, store: SessionStore, place: str = "", quota: Quota = Quota()) -> None:
        self.store = store
        self._place, self._quota = place, quota
        self._file = file_of(place) if place else None
        self._known: tuple[int, int] | None = None
        """Which file it is that took a write."""

    @classmethod
    def at(cls, place: str, quota: Quota) -> Shelf:
        """Return the store at ``place``."""
        return cls(open_store(place, quota=quota), place, quota)

    def wrote(self) -> None:
        """Take note that the store took a write just now."""
        if self._known is None and self._file is not None:
            self._known = _identity(self._file)

    def renewed(self, refused: StoreError) -> SessionStore | None:
        """Return the store opened anew, where it ``refused`` because its file is not there any more; else nothing.

        What was begun with the old one fails from then on.
        """
        if self._file is None or not self._is_gone(_identity(self._file), refused):
            return None
        self.store.close()
        self.store, self._known = open_store(self._place, quota=self._quota), None
        return self.store

    def _is_gone(self, there: tuple[int, int] | None, refused: StoreError) -> bool:
        """Whether the file that is ``there`` is not the one that took a write, or the first one went at once."""
        if self._known is None:
            return there is None and isinstance(refused, StoreCorrupt)
        return there != self._known

    def __enter__(self) -> Self:
        """Return the shelf; behind the block its store is closed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.store.close()


def _identity(file: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one at its path; nothing where there is none."""
    try:
        held = file.stat()
    except OSError:
        return None
    return held.st_dev, held.st_ino
