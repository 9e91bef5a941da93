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
from holdfast.messages.size.tokens import measure
from holdfast.state.edits import Edit
from holdfast.state.entries import (
    Answer,
    Body,
    BranchSummary,
    Compaction,
    Decision,
    Entry,
    Frame,
    Label,
    Note,
    Revoke,
    Said,
    Usage,
)

COPIED = "copied"
"""Digest of the frame that parts a copied branch from the requests its thinking was signed in."""


def copied(
    path: Sequence[Entry], put: Mapping[str, Message], names: Mapping[str, str], new_id: Callable[[], str]
) -> list[Entry]:
    """Return the entries that say ``path`` again behind the parent of the first entry in ``put``; none if none is.

    The last one that is no label is the new leaf. ``names`` are the labels in force by the id of what they name.
    """
    where = {entry.id: index for index, entry in enumerate(path)}
    first = min((where[id_] for id_ in put if id_ in where and _is_slot(path[where[id_]])), default=None)
    if first is None:
        return []
    copy = _Copy(put, _slots_of(path, put), new_id)
    for entry in path[first:]:
        copy.add(entry, path[first].parent)
    if any(_thinks(entry) for entry in copy.out):
        copy.part(_frame(path))
    copy.name(names)
    return copy.out


class _Copy:
    """The entries said again so far, and the new id of each old one."""

    def __init__(self, put: Mapping[str, Message], gone: frozenset[int], new_id: Callable[[], str]) -> None:
        self.out: list[Entry] = []
        self._put, self._gone, self._new_id = put, gone, new_id
        self._ids: dict[str, str] = {}
        self._left: set[str] = set()
        """Ids of decisions that had nothing left to say."""

    def add(self, entry: Entry, root: str | None) -> None:
        """Say ``entry`` again behind the ones before it, or behind ``root``."""
        body = self._body(entry)
        if body is None:
            self._left.add(entry.id)
            return
        self._ids[entry.id] = self._new_id()
        parent = self.out[-1].id if self.out else root
        self.out.append(Entry(self._ids[entry.id], parent, body, at=entry.at))

    def part(self, frame: Frame) -> None:
        """Let no thinking so far count as signed over this branch, by a frame in between."""
        for between in (replace(frame, digest=COPIED), frame):
            self.out.append(Entry(self._new_id(), self.out[-1].id, between))

    def name(self, names: Mapping[str, str]) -> None:
        """Hang a label beside each copy of an entry that has one, unless it was on the path."""
        told = {entry.body.target for entry in self.out if isinstance(entry.body, Label)}
        for old, name in names.items():
            new = self._ids.get(old)
            if new is not None and new not in told:
                self.out.append(Entry(self._new_id(), new, Label(new, name)))

    def _body(self, entry: Entry) -> Body | None:
        """Return what the copy of ``entry`` says, or nothing if there is nothing left."""
        body = entry.body
        if isinstance(body, Said) and entry.id in self._put:
            return Said(measure(self._put[entry.id]))
        if isinstance(body, BranchSummary):
            slot = measure(self._put[entry.id]) if entry.id in self._put else body.slot
            return BranchSummary(slot, self._id(body.source))
        if isinstance(body, Decision):
            edits = self._fitting(body.edits)
            return Decision(edits) if edits or not body.edits else None
        if isinstance(body, Revoke):
            return None if body.id in self._left else Revoke(self._id(body.id))
        return self._other(body)

    def _other(self, body: Body) -> Body:
        if isinstance(body, Compaction):
            return replace(body, edits=self._fitting(body.edits))
        if isinstance(body, Answer):
            return replace(body, usage=Usage())
        if isinstance(body, Label):
            return replace(body, target=self._id(body.target))
        return replace(body, data=self._value(body.data)) if isinstance(body, Note) and body.data else body

    def _fitting(self, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        """Return the edits whose slots are as they were."""
        return tuple(edit for edit in edits if self._gone.isdisjoint(range(edit.span.start, edit.span.stop)))

    def _id(self, id_: str) -> str:
        return self._ids.get(id_, id_)

    def _value(self, value: Any) -> Any:
        """Return a note's value with the new ids in it."""
        if isinstance(value, str):
            return self._id(value)
        if isinstance(value, Mapping):
            return {key: self._value(one) for key, one in value.items()}
        return [self._value(one) for one in value] if isinstance(value, list | tuple) else value


def _is_slot(entry: Entry) -> bool:
    return isinstance(entry.body, Said | BranchSummary)


def _slots_of(path: Sequence[Entry], put: Mapping[str, Message]) -> frozenset[int]:
    """Return the numbers of the slots that get another message."""
    slots: Iterator[Entry] = (entry for entry in path if _is_slot(entry))
    return frozenset(index for index, entry in enumerate(slots) if entry.id in put)


def _thinks(entry: Entry) -> bool:
    return isinstance(entry.body, Said) and any(isinstance(part, Thinking) for part in entry.body.slot.message.parts)


def _frame(path: Sequence[Entry]) -> Frame:
    """Return the frame in force at the end of ``path``."""
    frames = [entry.body for entry in path if isinstance(entry.body, Frame)]
    return frames[-1] if frames else Frame()
