"""Where new entries stand in their tree: checked before anything is written.

Beside its parent, each entry carries its *depth* (messages from the root up to and with it) and its *base* (the newest
compaction on its path, or 0). Both follow from the parent's, so placing an entry costs no walk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from holdfast.errors import LogConflict
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, EntryBody, MessageEntry, RevokeEntry

MAX_NAME_CHARS = 1_000
"""[H] Characters of an id or a session key; tools make far shorter ones."""
_CONTROL_CHARS = re.compile(r"[\x00-\x1f\x7f]")
_PATH_STEP = re.compile(r"(?:^|[/\\])\.\.?(?:[/\\]|$)")
_DEVICE_NAME = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
"""Names that are devices on Windows, with any ending."""


class TreeNode(Struct, frozen=True, gc=False):
    """Where an entry stands in its tree; ``compaction_seq`` is the ``seq`` of the newest compaction on its path, or
    0.
    """

    seq: int
    depth: int
    compaction_seq: int


KIND_BY_TYPE: Mapping[type[EntryBody], str] = {body: str(body.__struct_config__.tag) for body in EntryBody.__args__}
"""The kind of an entry by what it says: the tag of its body."""
ENTRY_KINDS = frozenset(KIND_BY_TYPE.values())
"""Every kind of entry there is."""
ROOT_NODE = TreeNode(0, 0, 0)
"""What a first entry stands under."""
MESSAGE_KINDS = frozenset({KIND_BY_TYPE[MessageEntry], KIND_BY_TYPE[BranchSummaryEntry]})
"""Kinds of entries that are messages of their branch."""
COMPACTION_KIND, REVOKE_KIND = KIND_BY_TYPE[CompactionEntry], KIND_BY_TYPE[RevokeEntry]


class PlacedEntry(TreeNode, frozen=True, gc=False):
    """An entry where it stands, ready to be written."""

    entry: Entry
    parent_seq: int | None


def place_entries(
    entries: Iterable[Entry], find_node: Callable[[str], TreeNode | None], first: int
) -> list[PlacedEntry]:
    """Return ``entries`` with their places, numbered from ``first``; ``LogConflict`` if the tree would break."""
    new: dict[str, PlacedEntry] = {}
    for seq, entry in enumerate(entries, first):
        check_index_name(entry.id, "an entry id")
        if entry.id in new or find_node(entry.id) is not None:
            msg = f"entry {entry.id!r} is in the log already; nothing was written: give each entry an id of its own"
            raise LogConflict(msg)
        up = ROOT_NODE if entry.parent is None else new.get(entry.parent) or find_node(entry.parent)
        if up is None:
            msg = (
                f"parent {entry.parent!r} of entry {entry.id!r} is not in the log; nothing was written: "
                "append parents before their children"
            )
            raise LogConflict(msg)
        depth, base = _compute_depth_and_base(up, KIND_BY_TYPE[type(entry.body)], seq)
        new[entry.id] = PlacedEntry(seq, depth, base, entry, None if up is ROOT_NODE else up.seq)
    return [*new.values()]


def make_child_node(parent: TreeNode, kind: str, seq: int) -> TreeNode:
    """Return the node of an entry under ``parent``."""
    return TreeNode(seq, *_compute_depth_and_base(parent, kind, seq))


def _compute_depth_and_base(parent: TreeNode, kind: str, seq: int) -> tuple[int, int]:
    """Return depth and base of an entry under ``parent``. After a revocation the branch is walked from its root
    again.
    """
    return parent.depth + (
        kind in MESSAGE_KINDS
    ), seq if kind == COMPACTION_KIND else 0 if kind == REVOKE_KIND else parent.compaction_seq


def check_index_name(name: str, subject: str) -> None:
    """Raise ``LogConflict`` unless ``name`` can stand in an index."""
    try:
        name.encode()
    except UnicodeEncodeError:
        name = ""
    if not 0 < len(name) <= MAX_NAME_CHARS:
        msg = (
            f"{subject} must be text of 1 to {MAX_NAME_CHARS:,} characters, without lone surrogates; this one has "
            f"{len(name):,}; nothing was written: give another"
        )
        raise LogConflict(msg)


def check_session_key(key: str) -> None:
    """Raise ``LogConflict`` unless ``key`` can name a session, here and where somebody names a file after it."""
    check_index_name(key, "a session key")
    if _CONTROL_CHARS.search(key) or _PATH_STEP.search(key) or _DEVICE_NAME.fullmatch(key):
        msg = (
            f"{key[:80]!r} can be no session key: no control characters, no '..' as a step of a path, no device's name"
        )
        raise LogConflict(f"{msg}; nothing was written: give another")
