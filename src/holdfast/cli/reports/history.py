"""What happened to the messages of a session, told from its log alone: what ``why``, ``diff`` and ``show`` agree on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.cli.reports.request_size import ESTIMATOR_SIZE, RequestSize, build_state_at_request, format_tokens
from holdfast.errors import UnknownId
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.entries import (
    NOTE_POLICY,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RevokeEntry,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.view import list_projection_origins, list_shown_sized_messages_at, measure_summary
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.blobs.blob_names import NOTE_CAPPED, iter_named_hashes

MessageState: TypeAlias = Literal["whole", "reduced", "hidden"]
"""How a request shows a message: as it was said, with something in place of parts of it, or not at all."""
SHORT_ID = 8
"""Characters of an entry's id that are shown; any command takes them."""
MAX_NUMBER_DIGITS = 7
"""Digits of a message's number; longer ones are the beginning of an id."""


class BranchHistory(Struct, frozen=True):
    """One branch of a session: its entries from the root, what they fold to, and those that say something."""

    entries: tuple[Entry, ...]
    state: ConversationState
    message_entries: tuple[Entry, ...]
    """The entries of the messages, by their number."""


class MessageAction(Struct, frozen=True, omit_defaults=True):
    """Something that was done about a message: ``entry`` recorded it."""

    entry: str
    kind: Literal["decision", "compaction", "capped"]
    rule: str
    why: str
    saves: int = 0
    """Tokens that it frees while it is in force."""
    decided_by: str = ""
    """The policy that decided, or the tool that recorded it."""
    at: int | None = None
    recall: tuple[str, ...] = ()
    """Handles of the texts behind it."""
    revoked_by: str = ""
    """The entry that took it back."""


def build_branch_history(entries: Iterable[Entry]) -> BranchHistory:
    """Return the log of a branch, its entries given from the root on."""
    path = tuple(entries)
    return BranchHistory(
        path,
        ConversationState.from_entries(path),
        tuple(entry for entry in path if isinstance(entry.body, MessageEntry | BranchSummaryEntry)),
    )


def load_branch_history(store: SessionStore, key: str, leaf: str | None = None) -> BranchHistory:
    """Return the log up to ``leaf``, or to where the session goes on."""
    return build_branch_history(store.read_path(key, leaf))


def get_entries_to_leaf(by_id: Mapping[str, Entry], leaf: str | None) -> list[Entry]:
    """Return the entries from the root to ``leaf``, out of those of the whole tree by their ids."""
    path: list[Entry] = []
    while leaf is not None and leaf in by_id:
        path.append(by_id[leaf])
        leaf = by_id[leaf].parent
    return path[::-1]


# -- what a request shows ----------------------------------------------------------------------------------------------


def list_message_visibility(state: ConversationState) -> list[MessageState]:
    """Return how the next request shows each message."""
    there = set(list_projection_origins(state))
    return [
        "hidden" if index not in there else "reduced" if state.view.edits.get(index) else "whole"
        for index in range(len(state.history.sized_messages))
    ]


def get_shown_messages(state: ConversationState, index: int) -> tuple[SizedMessage, ...]:
    """Return what stands for a message that is not hidden, with the size of each."""
    return tuple(
        sized_message if sized_message.tokens else build_sized_message(sized_message.message)
        for sized_message in list_shown_sized_messages_at(state, index)
    )


def sum_message_sizes(messages: Iterable[SizedMessage]) -> int:
    """Return the estimator's tokens of ``messages``."""
    return sum(sized_message.tokens for sized_message in messages)


def list_active_decisions(state: ConversationState) -> list[tuple[str, DecisionEntry | CompactionEntry]]:
    """Return what the next request repeats, oldest first: what a later compaction hides acts no more."""
    return [
        (id_, body)
        for id_, body in state.view.active_decisions
        if body == state.view.compaction or list_shown_edits(state, body)
    ]


def list_shown_edits(state: ConversationState, body: DecisionEntry | CompactionEntry) -> list[Edit]:
    """Return the edits of ``body`` that are about messages the next request shows."""
    return [edit for edit in body.edits if edit.span.start >= state.view.first_kept]


def count_compacted_tokens(state: ConversationState) -> int:
    """Return what the next request lacks by the compaction in force: all that was said before it, but its summary."""
    if state.view.compaction is None:
        return 0
    pinned_tokens, before = (
        state.history.cumulative_tokens[slot - 1] if slot else 0
        for slot in (state.view.pinned_count, state.view.first_kept)
    )
    return (
        before
        - pinned_tokens
        - measure_summary(state.view.compaction, state.last_request.model, state.last_request.api)
    )


# -- what was done -----------------------------------------------------------------------------------------------------


def iter_message_actions(
    log: BranchHistory, index: int, recorded_by: str = "", size: RequestSize = ESTIMATOR_SIZE
) -> Iterator[MessageAction]:
    """Yield what was done about message ``index``, oldest first, taken back or not, its tokens by ``size``.

    ``recorded_by`` is the tool that the session came from: what it brought along was decided there. What was taken back
    frees nothing: that is what a compaction behind it frees now.
    """
    revoked_by = {
        revoke_entry.body.revoked_id: revoke_entry.id
        for revoke_entry in log.entries
        if isinstance(revoke_entry.body, RevokeEntry)
    }
    by, before = recorded_by, ConversationState()
    for entry in log.entries:
        body = entry.body
        if isinstance(body, NoteEntry):
            by = _get_policy_name(body) or by
        if (
            isinstance(body, NoteEntry)
            and body.reason == NOTE_CAPPED
            and _find_next_message(log, entry.id) == log.message_entries[index].id
        ):
            handles = tuple(hash_[:HANDLE_CHARS] for hash_ in iter_named_hashes(body))
            yield MessageAction(
                entry.id, "capped", NOTE_CAPPED, "it was longer than an entry may hold", 0, by, entry.time_ms, handles
            )
        if isinstance(body, DecisionEntry | CompactionEntry):
            for edit in _merge_spill_edits(_filter_edits(body.edits, index)):
                yield _make_edit_action(entry, edit, by, revoked_by.get(entry.id, ""), size)
        if isinstance(body, CompactionEntry) and before.view.pinned_count <= index < body.first_kept:
            yield _make_compaction_action(
                entry, body, _count_shown_tokens(before, index), by, revoked_by.get(entry.id, ""), size
            )
        before = before if entry.id in revoked_by else apply_entry(before, entry)


def _get_policy_name(note: NoteEntry) -> str:
    name = note.data.get("name") if note.reason == NOTE_POLICY else None
    return name if isinstance(name, str) else ""


def _filter_edits(edits: Iterable[Edit], index: int) -> Iterator[Edit]:
    return (edit for edit in edits if edit.span.start <= index < max(edit.span.stop, edit.span.start + 1))


def _merge_spill_edits(edits: Iterable[Edit]) -> Iterator[Edit]:
    """Yield ``edits``; of those behind which one text lies together, and of which one line is shown, only the first."""
    before: Edit | None = None
    for edit in edits:
        if (
            edit.replacement
            or before is None
            or not edit.blob_hash
            or (edit.rule, edit.blob_hash) != (before.rule, before.blob_hash)
        ):
            yield edit
        before = edit


def _find_next_message(log: BranchHistory, note: str) -> str:
    """Return the id of the message that comes next after entry ``note``."""
    has_passed_note = False
    for entry in log.entries:
        has_passed_note = has_passed_note or entry.id == note
        if has_passed_note and isinstance(entry.body, MessageEntry):
            return entry.id
    return ""


def _make_edit_action(entry: Entry, edit: Edit, by: str, revoked_by: str, size: RequestSize) -> MessageAction:
    recall = (edit.blob_hash[:HANDLE_CHARS],) if edit.blob_hash else ()
    return MessageAction(
        entry.id, "decision", edit.rule, edit.why, size.scale_tokens(edit.saves), by, entry.time_ms, recall, revoked_by
    )


def _make_compaction_action(
    entry: Entry, body: CompactionEntry, saves: int, by: str, revoked_by: str, size: RequestSize
) -> MessageAction:
    if body.summary is None:
        why = f"nothing stands for messages before #{body.first_kept}"
    else:
        why = (
            f"a summary of {format_tokens(size.scale_tokens(body.head_tokens))} tokens stands for messages "
            f"before #{body.first_kept}"
        )
    trigger = "compaction" if body.trigger in {"", "auto"} else f"compaction ({body.trigger})"
    return MessageAction(
        entry.id, "compaction", trigger, why, size.scale_tokens(saves), by, entry.time_ms, (), revoked_by
    )


def _count_shown_tokens(state: ConversationState, index: int) -> int:
    """Return the tokens that a request held for a message, if it held any."""
    is_there = index < len(state.history.sized_messages) and (
        index < state.view.pinned_count or index >= state.view.first_kept
    )
    return sum_message_sizes(get_shown_messages(state, index)) if is_there else 0


# -- places in a log ---------------------------------------------------------------------------------------------------


def find_session_or_entry(store: SessionStore, name: str) -> tuple[SessionInfo, Entry | None]:
    """Return the session whose key begins with ``name``, else the one with the entry whose id does, and that entry.

    Raises ``UnknownId`` where that is none, or more than one.
    """
    try:
        return store.get_session(name), None
    except UnknownId as error:
        matches = list(_iterate_sessions_with_entry(store, name)) if len(name) >= SHORT_ID else []
        if not matches:
            raise
        if len(matches) > 1:
            keys = ", ".join(info.key for info, _ in matches)
            raise UnknownId(
                f"entry {name!r} is in {len(matches)} sessions: {keys}; name one of them as well"
            ) from error
        return matches[0]


def _iterate_sessions_with_entry(store: SessionStore, name: str) -> Iterator[tuple[SessionInfo, Entry]]:
    """Yield each session with the one entry in it whose id begins with ``name``."""
    for info in store.list_sessions():
        with suppress(UnknownId):
            yield info, store.get_entry(info.key, name)


def find_entry(store: SessionStore, key: str, log: BranchHistory, name: str) -> Entry:
    """Return the entry that ``name`` means: a message's number (``12`` or ``#12``), a label, or an id's beginning.

    A number is no id's beginning: where the branch has no such message, none is meant. Of several entries whose ids
    begin so the decision or compaction is meant, else the message. Raises ``UnknownId`` that says what there is.
    """
    number, labels = parse_message_number(name), {label: id_ for id_, label in store.read_labels(key).items()}
    if number is not None and number < len(log.message_entries):
        return log.message_entries[number]
    if number is None or name in labels:
        return _find_entry_by_id(store, key, log, labels.get(name, name))
    last = f"its last one is #{len(log.message_entries) - 1}" if log.message_entries else "it has none"
    elsewhere = "a message of another branch is named by the id of its entry, in 8 characters or more"
    raise UnknownId(f"the branch where the session goes on has no message #{number} ({last}); {elsewhere}")


def _find_entry_by_id(store: SessionStore, key: str, log: BranchHistory, name: str) -> Entry:
    """Return the entry whose id begins with ``name``, of several the one that decides, else the one that says."""
    try:
        return store.get_entry(key, name)
    except UnknownId:
        candidates = [entry for entry in log.entries if name and entry.id.startswith(name)]
        acts = [entry for entry in candidates if isinstance(entry.body, DecisionEntry | CompactionEntry)]
        matches = acts or [entry for entry in candidates if isinstance(entry.body, MessageEntry | BranchSummaryEntry)]
        if len(matches) != 1:
            raise
        return matches[0]


def parse_message_number(name: str) -> int | None:
    """Return the number of a message that ``name`` is, if it is one."""
    number = name.removeprefix("#")
    return int(number) if number.isdecimal() and len(number) <= MAX_NUMBER_DIGITS else None


def find_continuation_leaf(store: SessionStore, key: str, entry: Entry) -> Entry:
    """Return the entry behind which a session goes on from ``entry``: an answer ends with what it cost."""
    return next(
        (answer_entry for answer_entry in store.read_entries(key, "answer") if answer_entry.parent == entry.id), entry
    )


def load_history_through_entry(store: SessionStore, key: str, log: BranchHistory, entry: Entry) -> BranchHistory:
    """Return ``log`` if ``entry`` lies on it, else the log of the newest branch that goes through it."""
    if any(log_entry.id == entry.id for log_entry in log.entries):
        return log
    tree, behind = store.read_entries(key), {entry.id}
    for log_entry in tree:
        if log_entry.parent in behind:
            behind.add(log_entry.id)
    tips = (tip.id for tip in reversed(store.read_tips(key)) if tip.id in behind)
    return build_branch_history(
        get_entries_to_leaf({log_entry.id: log_entry for log_entry in tree}, next(tips, entry.id))
    )


def build_state_at_entry(store: SessionStore, key: str, entry: Entry | None) -> ConversationState:
    """Return the branch as it goes on, or up to ``entry``; of a request with what its end told of its size."""
    if entry is None or not isinstance(entry.body, RequestEntry):
        return store.open_state(key, entry.id if entry is not None else None)
    log = load_history_through_entry(store, key, load_branch_history(store, key), entry)
    return build_state_at_request(
        log.entries, next(number for number, log_entry in enumerate(log.entries) if log_entry.id == entry.id)
    )
