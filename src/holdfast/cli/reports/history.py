"""What happened to the messages of a session, told from its log alone: what ``why``, ``diff`` and ``show`` agree on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.cli.reports.request_size import PLAIN, Measured, about, requested
from holdfast.errors import UnknownId
from holdfast.messages.size.tokens import measure
from holdfast.messages.sized_message import Slot
from holdfast.planning.settings import HANDLE
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.branch.view import origins, shown, summary_size
from holdfast.state.edits import Edit
from holdfast.state.entries import POLICY, BranchSummary, Compaction, Decision, Entry, Note, Request, Revoke, Said
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.blobs.blob_names import CAPPED, blobs_of

State: TypeAlias = Literal["whole", "reduced", "hidden"]
"""How a request shows a message: as it was said, with something in place of parts of it, or not at all."""
SHORT = 8
"""Characters of an entry's id that are shown; any command takes them."""
LONGEST_NUMBER = 7
"""Digits of a message's number; longer ones are the beginning of an id."""


class Log(Struct, frozen=True):
    """One branch of a session: its entries from the root, what they fold to, and those that say something."""

    entries: tuple[Entry, ...]
    branch: Branch
    said: tuple[Entry, ...]
    """The entries of the messages, by their number."""


class Act(Struct, frozen=True, omit_defaults=True):
    """Something that was done about a message: ``entry`` recorded it."""

    entry: str
    kind: Literal["decision", "compaction", "capped"]
    rule: str
    why: str
    saves: int = 0
    """Tokens that it frees while it is in force."""
    by: str = ""
    """The policy that decided, or the tool that recorded it."""
    at: int | None = None
    recall: tuple[str, ...] = ()
    """Handles of the texts behind it."""
    revoked: str = ""
    """The entry that took it back."""


def log_of(entries: Iterable[Entry]) -> Log:
    """Return the log of a branch, its entries given from the root on."""
    path = tuple(entries)
    return Log(path, Branch.build(path), tuple(one for one in path if isinstance(one.body, Said | BranchSummary)))


def read_log(store: SessionStore, key: str, leaf: str | None = None) -> Log:
    """Return the log up to ``leaf``, or to where the session goes on."""
    return log_of(store.path(key, leaf))


def path_to(by_id: Mapping[str, Entry], leaf: str | None) -> list[Entry]:
    """Return the entries from the root to ``leaf``, out of those of the whole tree by their ids."""
    path: list[Entry] = []
    while leaf is not None and leaf in by_id:
        path.append(by_id[leaf])
        leaf = by_id[leaf].parent
    return path[::-1]


# -- what a request shows ----------------------------------------------------------------------------------------------


def states(branch: Branch) -> list[State]:
    """Return how the next request shows each message."""
    there = set(origins(branch))
    return [
        "hidden" if index not in there else "reduced" if branch.edits.get(index) else "whole"
        for index in range(len(branch.slots))
    ]


def as_shown(branch: Branch, index: int) -> tuple[Slot, ...]:
    """Return what stands for a message that is not hidden, with the size of each."""
    return tuple(slot if slot.size else measure(slot.message) for slot in shown(branch, index))


def tokens_of(slots: Iterable[Slot]) -> int:
    """Return the estimator's tokens of ``slots``."""
    return sum(slot.size for slot in slots)


def acting(branch: Branch) -> list[tuple[str, Decision | Compaction]]:
    """Return what the next request repeats, oldest first: what a later compaction hides acts no more."""
    return [(id_, body) for id_, body in branch.law if body == branch.compaction or edits_shown(branch, body)]


def edits_shown(branch: Branch, body: Decision | Compaction) -> list[Edit]:
    """Return the edits of ``body`` that are about messages the next request shows."""
    return [edit for edit in body.edits if edit.span.start >= branch.keep]


def folded(branch: Branch) -> int:
    """Return what the next request lacks by the compaction in force: all that was said before it, but its summary."""
    if branch.compaction is None:
        return 0
    pinned, before = (branch.sums[slot - 1] if slot else 0 for slot in (branch.pinned, branch.keep))
    return before - pinned - summary_size(branch.compaction, branch.model, branch.api)


# -- what was done -----------------------------------------------------------------------------------------------------


def acts(log: Log, index: int, recorded_by: str = "", size: Measured = PLAIN) -> Iterator[Act]:
    """Yield what was done about message ``index``, oldest first, taken back or not, its tokens by ``size``.

    ``recorded_by`` is the tool that the session came from: what it brought along was decided there. What was taken back
    frees nothing: that is what a compaction behind it frees now.
    """
    revoked = {one.body.id: one.id for one in log.entries if isinstance(one.body, Revoke)}
    by, before = recorded_by, Branch()
    for entry in log.entries:
        body = entry.body
        if isinstance(body, Note):
            by = _policy(body) or by
        if isinstance(body, Note) and body.reason == CAPPED and _next_said(log, entry.id) == log.said[index].id:
            handles = tuple(hash_[:HANDLE] for hash_ in blobs_of(body))
            yield Act(entry.id, "capped", CAPPED, "it was longer than an entry may hold", 0, by, entry.at, handles)
        if isinstance(body, Decision | Compaction):
            for edit in _together(_about(body.edits, index)):
                yield _of_edit(entry, edit, by, revoked.get(entry.id, ""), size)
        if isinstance(body, Compaction) and before.pinned <= index < body.keep:
            yield _of_compaction(entry, body, _held(before, index), by, revoked.get(entry.id, ""), size)
        before = before if entry.id in revoked else extend(before, entry)


def _policy(note: Note) -> str:
    name = note.data.get("name") if note.reason == POLICY else None
    return name if isinstance(name, str) else ""


def _about(edits: Iterable[Edit], index: int) -> Iterator[Edit]:
    return (edit for edit in edits if edit.span.start <= index < max(edit.span.stop, edit.span.start + 1))


def _together(edits: Iterable[Edit]) -> Iterator[Edit]:
    """Yield ``edits``; of those behind which one text lies together, and of which one line is shown, only the first."""
    before: Edit | None = None
    for edit in edits:
        if edit.put or before is None or not edit.blob or (edit.rule, edit.blob) != (before.rule, before.blob):
            yield edit
        before = edit


def _next_said(log: Log, note: str) -> str:
    """Return the id of the message that comes next after entry ``note``."""
    found = False
    for entry in log.entries:
        found = found or entry.id == note
        if found and isinstance(entry.body, Said):
            return entry.id
    return ""


def _of_edit(entry: Entry, edit: Edit, by: str, revoked: str, size: Measured) -> Act:
    recall = (edit.blob[:HANDLE],) if edit.blob else ()
    return Act(entry.id, "decision", edit.rule, edit.why, size.of(edit.saves), by, entry.at, recall, revoked)


def _of_compaction(entry: Entry, body: Compaction, saves: int, by: str, revoked: str, size: Measured) -> Act:
    if body.summary is None:
        why = f"nothing stands for messages before #{body.keep}"
    else:
        why = f"a summary of {about(size.of(body.size))} tokens stands for messages before #{body.keep}"
    trigger = "compaction" if body.trigger in {"", "auto"} else f"compaction ({body.trigger})"
    return Act(entry.id, "compaction", trigger, why, size.of(saves), by, entry.at, (), revoked)


def _held(branch: Branch, index: int) -> int:
    """Return the tokens that a request held for a message, if it held any."""
    is_there = index < len(branch.slots) and (index < branch.pinned or index >= branch.keep)
    return tokens_of(as_shown(branch, index)) if is_there else 0


# -- places in a log ---------------------------------------------------------------------------------------------------


def named(store: SessionStore, name: str) -> tuple[SessionInfo, Entry | None]:
    """Return the session whose key begins with ``name``, else the one with the entry whose id does, and that entry.

    Raises ``UnknownId`` where that is none, or more than one.
    """
    try:
        return store.session(name), None
    except UnknownId as error:
        found = list(_with_entry(store, name)) if len(name) >= SHORT else []
        if not found:
            raise
        if len(found) > 1:
            keys = ", ".join(info.key for info, _ in found)
            raise UnknownId(f"entry {name!r} is in {len(found)} sessions: {keys}; name one of them as well") from error
        return found[0]


def _with_entry(store: SessionStore, name: str) -> Iterator[tuple[SessionInfo, Entry]]:
    """Yield each session with the one entry in it whose id begins with ``name``."""
    for info in store.sessions():
        with suppress(UnknownId):
            yield info, store.entry(info.key, name)


def entry_named(store: SessionStore, key: str, log: Log, name: str) -> Entry:
    """Return the entry that ``name`` means: a message's number (``12`` or ``#12``), a label, or an id's beginning.

    A number is no id's beginning: where the branch has no such message, none is meant. Of several entries whose ids
    begin so the decision or compaction is meant, else the message. Raises ``UnknownId`` that says what there is.
    """
    number, labels = numbered(name), {label: id_ for id_, label in store.labels(key).items()}
    if number is not None and number < len(log.said):
        return log.said[number]
    if number is None or name in labels:
        return _entry(store, key, log, labels.get(name, name))
    last = f"its last one is #{len(log.said) - 1}" if log.said else "it has none"
    elsewhere = "a message of another branch is named by the id of its entry, in 8 characters or more"
    raise UnknownId(f"the branch where the session goes on has no message #{number} ({last}); {elsewhere}")


def _entry(store: SessionStore, key: str, log: Log, name: str) -> Entry:
    """Return the entry whose id begins with ``name``, of several the one that decides, else the one that says."""
    try:
        return store.entry(key, name)
    except UnknownId:
        meant = [one for one in log.entries if name and one.id.startswith(name)]
        acts = [one for one in meant if isinstance(one.body, Decision | Compaction)]
        found = acts or [one for one in meant if isinstance(one.body, Said | BranchSummary)]
        if len(found) != 1:
            raise
        return found[0]


def numbered(name: str) -> int | None:
    """Return the number of a message that ``name`` is, if it is one."""
    number = name.removeprefix("#")
    return int(number) if number.isdecimal() and len(number) <= LONGEST_NUMBER else None


def end_of(store: SessionStore, key: str, entry: Entry) -> Entry:
    """Return the entry behind which a session goes on from ``entry``: an answer ends with what it cost."""
    return next((one for one in store.entries(key, "answer") if one.parent == entry.id), entry)


def through(store: SessionStore, key: str, log: Log, entry: Entry) -> Log:
    """Return ``log`` if ``entry`` lies on it, else the log of the newest branch that goes through it."""
    if any(one.id == entry.id for one in log.entries):
        return log
    tree, behind = store.entries(key), {entry.id}
    for one in tree:
        if one.parent in behind:
            behind.add(one.id)
    tips = (tip.id for tip in reversed(store.leaves(key)) if tip.id in behind)
    return log_of(path_to({one.id: one for one in tree}, next(tips, entry.id)))


def branch_at(store: SessionStore, key: str, entry: Entry | None) -> Branch:
    """Return the branch as it goes on, or up to ``entry``; of a request with what its end told of its size."""
    if entry is None or not isinstance(entry.body, Request):
        return store.branch(key, entry.id if entry is not None else None)
    log = through(store, key, read_log(store, key), entry)
    return requested(log.entries, next(number for number, one in enumerate(log.entries) if one.id == entry.id))
