"""A recording as the model sees it now: what was decided in its place is said by the messages themselves.

Every entry keeps its id and its place, so that all that names one still does: links between lines, labels, the first
message that a compaction kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from msgspec.structs import replace

from holdfast.formats.base import PAID, Recording, context, path
from holdfast.formats.claude_code import read as claude_code
from holdfast.formats.codex import read as codex
from holdfast.formats.pi import read as pi
from holdfast.messages.size.tokens import measure
from holdfast.messages.sized_message import Slot
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import shown
from holdfast.state.edits import Edit
from holdfast.state.entries import (
    Answer,
    Body,
    BranchSummary,
    Compaction,
    Decision,
    Entry,
    Label,
    Note,
    Request,
    Said,
    Usage,
)

REWRITTEN = "rewritten"
"""Reason of the note that stands where lines did that said or named what is shorter now."""
QUOTES = {claude_code.LINES, f"{codex.NOTE}compacted", f"{pi.NOTE}compaction", f"{pi.NOTE}branch_summary"}
"""Reasons of notes whose lines are written instead of the entry behind them."""


def reduced(recording: Recording) -> Recording:
    """Return the way to the leaf with the decisions in force applied to its messages; other branches are left out.

    Usage of the newest answer goes where the request held more than the next one will: a tool takes a session for full
    by it. That of older ones which counted what is shorter now is marked: it was paid, and measures nothing any more.
    The lines of a recorded compaction that kept a message which is shorter now are written anew.
    """
    branch, way = context(recording), path(recording)
    short = _short(branch)
    there = {entry.id for entry in way}
    bodies = _bodies(way, branch, short) if short else {}
    kept = (entry for entry in recording.entries if entry.id in there or _names(entry, there))
    entries = tuple(replace(entry, body=bodies.get(entry.id, entry.body)) for entry in kept)
    return replace(recording, entries=entries, sidechains=tuple(reduced(one) for one in recording.sidechains))


def _short(branch: Branch) -> dict[int, Slot]:
    """Return the messages of which parts gave way, as they are shown, by slot."""
    parted = (index for index, edits in branch.edits.items() if all(edit.span.part is not None for edit in edits))
    return {index: _measured(slot) for index in parted for slot in shown(branch, index)}


def _measured(slot: Slot) -> Slot:
    return replace(measure(slot.message), api=slot.api, base=slot.base)


def _names(entry: Entry, there: set[str]) -> bool:
    """Return whether ``entry`` is a label of something on the way."""
    return isinstance(entry.body, Label) and entry.body.target in there and entry.parent in there


def _bodies(way: Sequence[Entry], branch: Branch, short: Mapping[int, Slot]) -> dict[str, Body]:
    """Return what the entries say instead that do not stay as they are."""
    said = [entry for entry in way if isinstance(entry.body, Said | BranchSummary)]
    bodies = {entry.id: new for entry in way if (new := _without(entry.body, short)) is not None}
    bodies |= _marked(way, _changed_at(way, branch, short))
    bodies |= _unpaid(way, {id_ for id_, _ in branch.law})
    bodies |= _unquoted(way, branch, {said[index].id for index in short})
    return bodies | {said[index].id: _said(said[index].body, slot) for index, slot in short.items()}


def _said(body: Body, slot: Slot) -> Body:
    return BranchSummary(slot, body.source) if isinstance(body, BranchSummary) else Said(slot)


def _without(body: Body, short: Mapping[int, Slot]) -> Body | None:
    """Return a decision or compaction without the edits that its messages say now; nothing if it has none."""
    if not isinstance(body, Decision | Compaction) or not any(_is_said(edit, short) for edit in body.edits):
        return None
    return replace(body, edits=tuple(edit for edit in body.edits if not _is_said(edit, short)))


def _is_said(edit: Edit, short: Mapping[int, Slot]) -> bool:
    return any(index in short for index in _covered(edit))


def _changed_at(way: Sequence[Entry], branch: Branch, short: Mapping[int, Slot]) -> list[int]:
    """Return for each number of slots where on the way the last decision stands that made one of them shorter."""
    law = {id_ for id_, _ in branch.law}
    at: dict[int, int] = {}
    for place, entry in enumerate(way):
        body = entry.body
        if entry.id in law and isinstance(body, Decision | Compaction):
            at |= dict.fromkeys((index for edit in body.edits for index in _covered(edit) if index in short), place)
    return [*accumulate((at.get(index, -1) for index in range(len(branch.slots))), max, initial=-1)]


def _covered(edit: Edit) -> range:
    return range(edit.span.start, edit.span.stop)


def _marked(way: Sequence[Entry], changed_at: Sequence[int]) -> dict[str, Body]:
    """Return the answers whose requests showed in full what was decided to be shorter only later."""
    asked, bodies = 0, dict[str, Body]()
    for place, entry in enumerate(way):
        body = entry.body
        if isinstance(body, Request):
            asked = body.slots
        elif isinstance(body, Answer) and body.usage.total and changed_at[asked] > place:
            bodies[entry.id] = replace(body, basis=PAID)
    return bodies


def _unpaid(way: Sequence[Entry], law: set[str]) -> dict[str, Body]:
    """Return the newest answer and its message without usage, where something in force was decided behind it."""
    for index in range(len(way) - 1, -1, -1):
        body, said = way[index].body, way[index - 1]
        if way[index].id in law:
            law = set()
        elif isinstance(body, Answer) and body.usage.total:
            anew = {said.id: Said(said.body.slot)} if isinstance(said.body, Said) else {}
            return {} if law else {**anew, way[index].id: replace(body, usage=Usage())}
    return {}


def _unquoted(way: Sequence[Entry], branch: Branch, short: set[str]) -> dict[str, Body]:
    """Return the notes of lines that say what is said shorter now: before the compaction in force, and summaries."""
    made = next((id_ for id_, body in reversed(branch.law) if isinstance(body, Compaction)), "")
    place = next((index for index, entry in enumerate(way) if entry.id == made), 0)
    if not short.isdisjoint(entry.id for entry in way[:place]):
        short = {*short, made}
    pairs = ((before.body, before.id) for before, entry in pairwise(way) if entry.id in short)
    return {id_: Note(REWRITTEN) for note, id_ in pairs if isinstance(note, Note) and note.reason in QUOTES}
