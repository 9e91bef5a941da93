"""Placement of new entries in their tree, checked before anything is written.

Beside its parent, each entry stores its *depth* (number of messages from the root up to and including it) and its
*base* (``seq`` of the newest compaction on its path, or 0). Both follow from the parent's values, so placing an entry
needs no walk to the root.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from holdfast.errors import LogConflict
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, EntryBody, MessageEntry, RevokeEntry

MAX_NAME_CHARS = 1_000
"""Maximum length of an entry id or a session key, in characters.

Chosen by judgement: tools make far shorter ones, and outside text must not fill an index.
"""
_CONTROL_CHARS = re.compile(r"[\x00-\x1f\x7f]")
_PATH_STEP = re.compile(r"(?:^|[/\\])\.\.?(?:[/\\]|$)")
_DEVICE_NAME = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
"""Names that are devices on Windows, with any extension: exports name files after sessions."""


class TreeNode(Struct, frozen=True, gc=False):
    """Place of an entry in its tree; ``compaction_seq`` is the ``seq`` of the newest compaction on its path, or 0."""

    seq: int
    depth: int
    compaction_seq: int


KIND_BY_TYPE: Mapping[type[EntryBody], str] = {body: str(body.__struct_config__.tag) for body in EntryBody.__args__}
"""The kind of an entry, by the type of its body: the tag of that type."""
ENTRY_KINDS = frozenset(KIND_BY_TYPE.values())
"""All kinds of entries."""
ROOT_NODE = TreeNode(0, 0, 0)
"""The node above the first entry of a branch."""
MESSAGE_KINDS = frozenset({KIND_BY_TYPE[MessageEntry], KIND_BY_TYPE[BranchSummaryEntry]})
"""Kinds of entries that are messages in the history."""
COMPACTION_KIND = KIND_BY_TYPE[CompactionEntry]
REVOKE_KIND = KIND_BY_TYPE[RevokeEntry]


class PlacedEntry(TreeNode, frozen=True, gc=False):
    """An entry with its place, ready to be written."""

    entry: Entry
    parent_seq: int | None


def place_entries(
    entries: Iterable[Entry], find_node: Callable[[str], TreeNode | None], first: int
) -> list[PlacedEntry]:
    """Return ``entries`` with their places, numbered from ``first``.

    Raises ``LogConflict`` if an id is taken or a parent is missing.
    """
    new: dict[str, PlacedEntry] = {}
    for seq, entry in enumerate(entries, first):
        check_index_name(entry.id, "an entry id")
        if entry.id in new or find_node(entry.id) is not None:
            msg = f"entry {entry.id!r} is in the log already; nothing was written: give each entry an id of its own"
            raise LogConflict(msg)
        parent: TreeNode | None = ROOT_NODE
        if entry.parent is not None:
            # The parent may be one of the new entries, which no look-up in the log finds yet.
            parent = new.get(entry.parent) or find_node(entry.parent)
        if parent is None:
            msg = (
                f"parent {entry.parent!r} of entry {entry.id!r} is not in the log; nothing was written: "
                "append parents before their children"
            )
            raise LogConflict(msg)
        depth, base = _compute_depth_and_base(parent, KIND_BY_TYPE[type(entry.body)], seq)
        parent_seq = None if parent is ROOT_NODE else parent.seq
        new[entry.id] = PlacedEntry(seq, depth, base, entry, parent_seq)
    return list(new.values())


def make_child_node(parent: TreeNode, kind: str, seq: int) -> TreeNode:
    """Return the node of an entry under ``parent``."""
    return TreeNode(seq, *_compute_depth_and_base(parent, kind, seq))


def _compute_depth_and_base(parent: TreeNode, kind: str, seq: int) -> tuple[int, int]:
    """Return depth and base of an entry under ``parent``.

    A revocation may undo the compaction, so its base is 0 and the branch is read from the root again.
    """
    depth = parent.depth + (kind in MESSAGE_KINDS)
    if kind == COMPACTION_KIND:
        return depth, seq
    if kind == REVOKE_KIND:
        return depth, 0
    return depth, parent.compaction_seq


def check_index_name(name: str, subject: str) -> None:
    """Raise ``LogConflict`` if ``name`` is empty, too long or not valid text; ``subject`` names it in the message."""
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
    """Raise ``LogConflict`` if ``key`` cannot name a session, here or as part of a file name."""
    check_index_name(key, "a session key")
    if _CONTROL_CHARS.search(key) or _PATH_STEP.search(key) or _DEVICE_NAME.fullmatch(key):
        msg = (
            f"{key[:80]!r} cannot be a session key, which has no control characters, no step '..' and no device's name"
        )
        raise LogConflict(f"{msg}; nothing was written: give another")
