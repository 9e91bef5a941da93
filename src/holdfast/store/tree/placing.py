"""Where new entries stand in their tree: checked before anything is written.

Beside its parent, each entry carries its *depth* (messages from the root up to and with it) and its *base* (the newest
compaction on its path, or 0). Both follow from the parent's, so placing an entry costs no walk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from holdfast.errors import LogConflict
from holdfast.state.entries import Body, BranchSummary, Compaction, Entry, Revoke, Said

LONGEST_NAME = 1_000
"""[H] Characters of an id or a session key; tools make far shorter ones."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_STEP = re.compile(r"(?:^|[/\\])\.\.?(?:[/\\]|$)")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
"""Names that are devices on Windows, with any ending."""


class Node(Struct, frozen=True, gc=False):
    """Where an entry stands in its tree; ``base`` is the ``seq`` of the newest compaction on its path, or 0."""

    seq: int
    depth: int
    base: int


KIND: Mapping[type[Body], str] = {body: str(body.__struct_config__.tag) for body in Body.__args__}
"""The kind of an entry by what it says: the tag of its body."""
KINDS = frozenset(KIND.values())
"""Every kind of entry there is."""
ROOT = Node(0, 0, 0)
"""What a first entry stands under."""
SLOTTED = frozenset({KIND[Said], KIND[BranchSummary]})
"""Kinds of entries that are messages of their branch."""
COMPACTION, REVOKE = KIND[Compaction], KIND[Revoke]


class Placed(Node, frozen=True, gc=False):
    """An entry where it stands, ready to be written."""

    entry: Entry
    parent: int | None


def place(entries: Iterable[Entry], find: Callable[[str], Node | None], first: int) -> list[Placed]:
    """Return ``entries`` with their places, numbered from ``first``; ``LogConflict`` if the tree would break."""
    new: dict[str, Placed] = {}
    for seq, entry in enumerate(entries, first):
        check_name(entry.id, "an entry id")
        if entry.id in new or find(entry.id) is not None:
            msg = f"entry {entry.id!r} is in the log already; nothing was written: give each entry an id of its own"
            raise LogConflict(msg)
        up = ROOT if entry.parent is None else new.get(entry.parent) or find(entry.parent)
        if up is None:
            msg = (
                f"parent {entry.parent!r} of entry {entry.id!r} is not in the log; nothing was written: "
                "append parents before their children"
            )
            raise LogConflict(msg)
        depth, base = _under(up, KIND[type(entry.body)], seq)
        new[entry.id] = Placed(seq, depth, base, entry, None if up is ROOT else up.seq)
    return [*new.values()]


def below(up: Node, kind: str, seq: int) -> Node:
    """Return the node of an entry under ``up``."""
    return Node(seq, *_under(up, kind, seq))


def _under(up: Node, kind: str, seq: int) -> tuple[int, int]:
    """Return depth and base of an entry under ``up``. After a revocation the branch is walked from its root again."""
    return up.depth + (kind in SLOTTED), seq if kind == COMPACTION else 0 if kind == REVOKE else up.base


def check_name(name: str, what: str) -> None:
    """Raise ``LogConflict`` unless ``name`` can stand in an index."""
    try:
        name.encode()
    except UnicodeEncodeError:
        name = ""
    if not 0 < len(name) <= LONGEST_NAME:
        msg = (
            f"{what} must be text of 1 to {LONGEST_NAME:,} characters, without lone surrogates; this one has "
            f"{len(name):,}; nothing was written: give another"
        )
        raise LogConflict(msg)


def check_key(key: str) -> None:
    """Raise ``LogConflict`` unless ``key`` can name a session, here and where somebody names a file after it."""
    check_name(key, "a session key")
    if _CONTROL.search(key) or _STEP.search(key) or _DEVICE.fullmatch(key):
        msg = (
            f"{key[:80]!r} can be no session key: no control characters, no '..' as a step of a path, no device's name"
        )
        raise LogConflict(f"{msg}; nothing was written: give another")
