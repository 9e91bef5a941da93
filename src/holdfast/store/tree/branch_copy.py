"""Copies of a branch with some messages replaced: from the first of them on, with new ids.

The old branch stays. References between the copied entries are changed to the new ids, edits on a replaced message
are left out, and usage is not copied: it was paid once, for other bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
"""Digest of the setup that separates a copied branch from the requests in which its thinking was signed."""


def copy_branch_entries(
    path: Sequence[Entry],
    replacements: Mapping[str, Message],
    labels: Mapping[str, str],
    new_id: Callable[[], str],
) -> list[Entry]:
    """Return copies of the entries of ``path`` from the first one in ``replacements`` on, attached to its parent.

    Empty if no message of the path is replaced. The last copy that is not a label is the new leaf. ``labels`` are the
    labels in force by the id of the labelled entry.
    """
    replaced_positions = [
        position for position, entry in enumerate(path) if entry.id in replacements and _is_message_entry(entry)
    ]
    if not replaced_positions:
        return []
    first = replaced_positions[0]
    copier = _BranchCopier(replacements, _find_replaced_indexes(path, replacements), new_id)
    # Entries before the first replaced one are shared by both branches.
    for entry in path[first:]:
        copier.copy_entry(entry, path[first].parent)
    # Without thinking there is no signature to be made invalid.
    if any(_has_thinking(entry) for entry in copier.copied_entries):
        copier.separate_thinking(_find_last_setup(path))
    copier.copy_labels(labels)
    return copier.copied_entries


class _BranchCopier:
    """The copies so far, and the new id of each copied entry."""

    def __init__(
        self,
        replacements: Mapping[str, Message],
        replaced_indexes: frozenset[int],
        new_id: Callable[[], str],
    ) -> None:
        self.copied_entries: list[Entry] = []
        self._replacements = replacements
        self._replaced_indexes = replaced_indexes
        self._new_id = new_id
        self._ids: dict[str, str] = {}
        self._omitted_ids: set[str] = set()
        """Ids of entries that were not copied, because no edit of a decision was left."""

    def copy_entry(self, entry: Entry, root: str | None) -> None:
        """Copy ``entry`` to the end of the copies, or under ``root`` if it is the first."""
        body = self._copy_body(entry)
        if body is None:
            self._omitted_ids.add(entry.id)
            return
        copy_id = self._new_id()
        self._ids[entry.id] = copy_id
        parent = self.copied_entries[-1].id if self.copied_entries else root
        self.copied_entries.append(Entry(copy_id, parent, body, time_ms=entry.time_ms))

    def separate_thinking(self, setup: RequestSetup) -> None:
        """Add a change of setup, so that no thinking so far counts as signed over this branch.

        Signatures cover the whole prefix, which has other messages now; sent along, the provider would refuse them.
        """
        for separator in (replace(setup, digest=COPIED_SETUP_DIGEST), setup):
            self.copied_entries.append(Entry(self._new_id(), self.copied_entries[-1].id, separator))

    def copy_labels(self, labels: Mapping[str, str]) -> None:
        """Label the copy of each labelled entry, unless the label was on the path and is copied already."""
        labelled_ids: set[str] = set()
        for entry in self.copied_entries:
            if isinstance(entry.body, LabelEntry):
                labelled_ids.add(entry.body.target)
        for old_id, name in labels.items():
            copy_id = self._ids.get(old_id)
            if copy_id is None or copy_id in labelled_ids:
                continue
            label = LabelEntry(copy_id, name)
            self.copied_entries.append(Entry(self._new_id(), copy_id, label))

    def _copy_body(self, entry: Entry) -> EntryBody | None:
        """Return the body of the copy of ``entry``, or None if nothing of it is left."""
        body = entry.body
        replacement = self._replacements.get(entry.id)
        if isinstance(body, MessageEntry) and replacement is not None:
            return MessageEntry(build_sized_message(replacement))
        if isinstance(body, BranchSummaryEntry):
            if replacement is None:
                sized_message = body.sized_message
            else:
                sized_message = build_sized_message(replacement)
            return BranchSummaryEntry(sized_message, self._map_id(body.source_id))
        if isinstance(body, DecisionEntry):
            edits = self._select_fitting_edits(body.edits)
            is_emptied = bool(body.edits) and not edits
            return None if is_emptied else DecisionEntry(edits)
        if isinstance(body, RevokeEntry):
            if body.revoked_id in self._omitted_ids:
                return None
            return replace(body, revoked_id=self._map_id(body.revoked_id))
        return self._copy_other_body(body)

    def _copy_other_body(self, body: EntryBody) -> EntryBody:
        if isinstance(body, CompactionEntry):
            return replace(body, edits=self._select_fitting_edits(body.edits))
        if isinstance(body, AnswerEntry):
            # It measures a request that is not on this branch, and would be counted as paid twice.
            return replace(body, usage=Usage())
        if isinstance(body, LabelEntry):
            return replace(body, target=self._map_id(body.target))
        if isinstance(body, NoteEntry) and body.data:
            return replace(body, data=self._map_ids(body.data))
        return body

    def _select_fitting_edits(self, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        """Return the edits of messages that were not replaced."""
        fitting_edits: list[Edit] = []
        for edit in edits:
            if self._replaced_indexes.isdisjoint(range(edit.span.start, edit.span.stop)):
                fitting_edits.append(edit)
        return tuple(fitting_edits)

    def _map_id(self, id_: str) -> str:
        return self._ids.get(id_, id_)

    def _map_ids(self, value: Any) -> Any:
        """Return the data of a note with ids replaced at any depth."""
        if isinstance(value, str):
            return self._map_id(value)
        if isinstance(value, Mapping):
            return {key: self._map_ids(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._map_ids(item) for item in value]
        return value


def _is_message_entry(entry: Entry) -> bool:
    return isinstance(entry.body, MessageEntry | BranchSummaryEntry)


def _find_replaced_indexes(path: Sequence[Entry], replacements: Mapping[str, Message]) -> frozenset[int]:
    """Return the indexes in the history of the messages that are replaced."""
    message_entries = [entry for entry in path if _is_message_entry(entry)]
    replaced_indexes: set[int] = set()
    for index, entry in enumerate(message_entries):
        if entry.id in replacements:
            replaced_indexes.add(index)
    return frozenset(replaced_indexes)


def _has_thinking(entry: Entry) -> bool:
    if not isinstance(entry.body, MessageEntry):
        return False
    message = entry.body.sized_message.message
    return any(isinstance(part, Thinking) for part in message.parts)


def _find_last_setup(path: Sequence[Entry]) -> RequestSetup:
    """Return the setup in force at the end of ``path``."""
    setup = RequestSetup()
    for entry in path:
        if isinstance(entry.body, RequestSetup):
            setup = entry.body
    return setup
