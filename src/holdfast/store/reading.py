"""Reading a session that may be damaged: what can be repaired without loss is, and then it is read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import StoreCorrupt, StoreError, StoreGone
from holdfast.store.base import SessionStore

T = TypeVar("T")


def read_repaired(store: SessionStore, key: str, read: Callable[[], T], tell: Callable[[list[str]], object]) -> T:
    """Return what ``read`` returns of session ``key``, which is repaired first where it turns out to be damaged.

    ``tell`` is given what was repaired, a line for each thing. Raises the ``StoreCorrupt`` of ``read`` where nothing
    can be repaired without loss, or where what is left damaged is part of what is read.
    """
    try:
        return read()
    except StoreGone:
        raise
    except StoreCorrupt as damage:
        try:
            done = store.repair(key)
        except StoreError:
            done = []  # a store that cannot be written cannot be repaired; what is damaged is what matters
        if not done:
            raise damage from damage.__cause__
    tell(done)
    return read()
