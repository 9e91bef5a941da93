"""Reading a session that may be damaged: what can be repaired without loss is, and then it is read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import StoreCorrupt, StoreError, StoreReplaced
from holdfast.store.base import SessionStore

T = TypeVar("T")


def read_with_repair(
    store: SessionStore, key: str, read_log: Callable[[], T], report_repairs: Callable[[list[str]], object]
) -> T:
    """Return what ``read_log`` returns of session ``key``, which is repaired first where it turns out to be damaged.

    ``report_repairs`` is given what was repaired, a line for each thing. Raises the ``StoreCorrupt`` of ``read_log``
    where nothing can be repaired without loss, or where what is left damaged is part of what is read.
    """
    try:
        return read_log()
    except StoreReplaced:
        raise
    except StoreCorrupt as damage:
        try:
            repairs = store.repair_damage(key)
        except StoreError:
            repairs = []  # a store that cannot be written cannot be repaired; what is damaged is what matters
        if not repairs:
            raise damage from damage.__cause__
    report_repairs(repairs)
    return read_log()
