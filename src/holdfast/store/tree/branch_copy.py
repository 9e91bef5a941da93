"""A branch said again with other messages in place of some: from the first of them on, under new ids.

The old branch stays. What the later entries say of each other follows: ids are the new ones, an edit that no longer
fits its slot is left out, and usage, which was paid for other bytes, is not counted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Thinking
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.edits import Edit
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    EntryBody,
    LabelEntry,
    MessageEntry,
    NoteEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)

COPIED_SETUP_DIGEST = "copied"
"""Digest of the frame that parts a copied branch from the requests its thinking was signed in."""


def copy_branch_entries(
    path: Sequence[Entry], replacements: Mapping[str, Message], labels: Mapping[str, str], new_id: Callable[[], str]
) -> list[Entry]:
    """Return the entries that say ``path`` again behind the parent of the first entry in ``replacements``; none if none
    is.

    The last one that is no label is the new leaf. ``labels`` are the labels in force by the id of what they name.
    """
    where = {entry.id: index for index, entry in enumerate(path)}
    first = min(
        (where[id_] for id_ in replacements if id_ in where and _is_message_entry(path[where[id_]])), default=None
    )
    if first is None:
        return []
    copy = _BranchCopier(replacements, _find_replaced_indexes(path, replacements), new_id)
    for entry in path[first:]:
        copy.copy_entry(entry, path[first].parent)
    if any(_has_thinking(entry) for entry in copy.copied_entries):
        copy.separate_thinking(_find_last_setup(path))
    copy.copy_labels(labels)
    return copy.copied_entries


class _BranchCopier:
    """The entries said again so far, and the new id of each old one."""

    def __init__(
        self, replacements: Mapping[str, Message], replaced_indexes: frozenset[int], new_id: Callable[[], str]
    ) -> None:
        self.copied_entries: list[Entry] = []
        self._put, self._gone, self._new_id = replacements, replaced_indexes, new_id
        self._ids: dict[str, str] = {}
        self._left: set[str] = set()
        """Ids of decisions that had nothing left to say."""

    def copy_entry(self, entry: Entry, root: str | None) -> None:
        """Say ``entry`` again behind the ones before it, or behind ``root``."""
        body = self._copy_body(entry)
        if body is None:
            self._left.add(entry.id)
            return
        self._ids[entry.id] = self._new_id()
        parent = self.copied_entries[-1].id if self.copied_entries else root
        self.copied_entries.append(Entry(self._ids[entry.id], parent, body, time_ms=entry.time_ms))

    def separate_thinking(self, setup: RequestSetup) -> None:
        """Let no thinking so far count as signed over this branch, by a frame in between."""
        for between in (replace(setup, digest=COPIED_SETUP_DIGEST), setup):
            self.copied_entries.append(Entry(self._new_id(), self.copied_entries[-1].id, between))

    def copy_labels(self, names: Mapping[str, str]) -> None:
        """Hang a label beside each copy of an entry that has one, unless it was on the path."""
        labelled_ids = {entry.body.target for entry in self.copied_entries if isinstance(entry.body, LabelEntry)}
        for old, name in names.items():
            new = self._ids.get(old)
            if new is not None and new not in labelled_ids:
                self.copied_entries.append(Entry(self._new_id(), new, LabelEntry(new, name)))

    def _copy_body(self, entry: Entry) -> EntryBody | None:
        """Return what the copy of ``entry`` says, or nothing if there is nothing left."""
        body = entry.body
        if isinstance(body, MessageEntry) and entry.id in self._put:
            return MessageEntry(build_sized_message(self._put[entry.id]))
        if isinstance(body, BranchSummaryEntry):
            sized_message = build_sized_message(self._put[entry.id]) if entry.id in self._put else body.sized_message
            return BranchSummaryEntry(sized_message, self._map_id(body.source_id))
        if isinstance(body, DecisionEntry):
            edits = self._select_fitting_edits(body.edits)
            return DecisionEntry(edits) if edits or not body.edits else None
        if isinstance(body, RevokeEntry):
            return None if body.revoked_id in self._left else RevokeEntry(self._map_id(body.revoked_id))
        return self._copy_other_body(body)

    def _copy_other_body(self, body: EntryBody) -> EntryBody:
        if isinstance(body, CompactionEntry):
            return replace(body, edits=self._select_fitting_edits(body.edits))
        if isinstance(body, AnswerEntry):
            return replace(body, usage=Usage())
        if isinstance(body, LabelEntry):
            return replace(body, target=self._map_id(body.target))
        return replace(body, data=self._map_ids(body.data)) if isinstance(body, NoteEntry) and body.data else body

    def _select_fitting_edits(self, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        """Return the edits whose slots are as they were."""
        return tuple(edit for edit in edits if self._gone.isdisjoint(range(edit.span.start, edit.span.stop)))

    def _map_id(self, id_: str) -> str:
        return self._ids.get(id_, id_)

    def _map_ids(self, value: Any) -> Any:
        """Return a note's value with the new ids in it."""
        if isinstance(value, str):
            return self._map_id(value)
        if isinstance(value, Mapping):
            return {key: self._map_ids(item) for key, item in value.items()}
        return [self._map_ids(item) for item in value] if isinstance(value, list | tuple) else value


def _is_message_entry(entry: Entry) -> bool:
    return isinstance(entry.body, MessageEntry | BranchSummaryEntry)


def _find_replaced_indexes(path: Sequence[Entry], replacements: Mapping[str, Message]) -> frozenset[int]:
    """Return the numbers of the slots that get another message."""
    slots: Iterator[Entry] = (entry for entry in path if _is_message_entry(entry))
    return frozenset(index for index, entry in enumerate(slots) if entry.id in replacements)


def _has_thinking(entry: Entry) -> bool:
    return isinstance(entry.body, MessageEntry) and any(
        isinstance(part, Thinking) for part in entry.body.sized_message.message.parts
    )


def _find_last_setup(path: Sequence[Entry]) -> RequestSetup:
    """Return the frame in force at the end of ``path``."""
    frames = [entry.body for entry in path if isinstance(entry.body, RequestSetup)]
    return frames[-1] if frames else RequestSetup()
