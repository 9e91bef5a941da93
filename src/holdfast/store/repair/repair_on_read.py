"""Reading a session that may be damaged: damage that can be repaired without loss is, and the read is repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import StoreCorrupt, StoreError, StoreReplaced
from holdfast.store.base import SessionStore

T = TypeVar("T")


def read_with_repair(
    store: SessionStore,
    key: str,
    read_log: Callable[[], T],
    report_repairs: Callable[[list[str]], object],
) -> T:
    """Return the result of ``read_log`` for session ``key``, repairing the session first if it is damaged.

    ``report_repairs`` gets a line for each repair. Raises the ``StoreCorrupt`` of ``read_log`` if nothing can be
    repaired without loss, or if the remaining damage is in the part that is read.
    """
    try:
        return read_log()
    except StoreReplaced:
        raise  # a kind of StoreCorrupt, but the file is fine: it has to be opened again
    except StoreCorrupt as damage:
        try:
            repairs = store.repair_damage(key)
        except StoreError:
            repairs = []  # it cannot be written; the damage is what the caller has to know of
        if not repairs:
            raise damage from damage.__cause__
    report_repairs(repairs)
    return read_log()
