"""The history of a session's messages, read from its log alone; the common basis of ``why``, ``diff`` and ``show``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.errors import UnknownId
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.reports.requests.request_size import ESTIMATOR_SIZE, RequestSize, build_state_at_request, format_tokens
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
"""How requests show a message: in full, with parts replaced, or not at all."""
SHORT_ID = 8
"""Characters of an entry's id that are shown; every command accepts them."""
MAX_NUMBER_DIGITS = 7
"""Digits of a message number; longer ones are the beginning of an id."""


class BranchHistory(Struct, frozen=True):
    """One branch of a session: its entries from the root, the state they fold to, and the entries of messages."""

    entries: tuple[Entry, ...]
    state: ConversationState
    message_entries: tuple[Entry, ...]
    """The entries of messages, indexed by message number."""


class MessageAction(Struct, frozen=True, omit_defaults=True):
    """An action on a message, recorded by ``entry``."""

    entry: str
    kind: Literal["decision", "compaction", "capped"]
    rule: str
    why: str
    saves: int = 0
    """Tokens it saves while it is in force."""
    decided_by: str = ""
    """The policy that decided it, or the tool that recorded it."""
    at: int | None = None
    recall: tuple[str, ...] = ()
    """Handles that read back the replaced texts."""
    revoked_by: str = ""
    """The entry that undid it."""


def build_branch_history(entries: Iterable[Entry]) -> BranchHistory:
    """Build the history of a branch from its entries, root first."""
    path = tuple(entries)
    return BranchHistory(
        path,
        ConversationState.from_entries(path),
        tuple(entry for entry in path if isinstance(entry.body, MessageEntry | BranchSummaryEntry)),
    )


def load_branch_history(store: SessionStore, key: str, leaf: str | None = None) -> BranchHistory:
    """Load the history up to ``leaf``, or of the session's current branch."""
    return build_branch_history(store.read_path(key, leaf))


def get_entries_to_leaf(by_id: Mapping[str, Entry], leaf: str | None) -> list[Entry]:
    """Return the entries from the root to ``leaf``, taken from the entries of the whole tree by id."""
    path: list[Entry] = []
    while leaf is not None and leaf in by_id:
        path.append(by_id[leaf])
        leaf = by_id[leaf].parent
    return path[::-1]


# -- what a request shows ----------------------------------------------------------------------------------------------


def list_message_visibility(state: ConversationState) -> list[MessageState]:
    """Return how the next request shows each message, by message number."""
    shown_numbers = set(list_projection_origins(state))
    visibility: list[MessageState] = []
    for number in range(len(state.history.sized_messages)):
        if number not in shown_numbers:
            visibility.append("hidden")
        elif state.view.edits.get(number):
            visibility.append("reduced")
        else:
            visibility.append("whole")
    return visibility


def get_shown_messages(state: ConversationState, index: int) -> tuple[SizedMessage, ...]:
    """Return the messages shown for one that is not hidden, each with its size."""
    shown_messages = []
    for sized_message in list_shown_sized_messages_at(state, index):
        if sized_message.tokens:
            shown_messages.append(sized_message)
        else:
            shown_messages.append(build_sized_message(sized_message.message))
    return tuple(shown_messages)


def sum_message_sizes(messages: Iterable[SizedMessage]) -> int:
    """Return the total of ``messages`` in the estimator's tokens."""
    return sum(sized_message.tokens for sized_message in messages)


def list_active_decisions(state: ConversationState) -> list[tuple[str, DecisionEntry | CompactionEntry]]:
    """List the decisions that the next request repeats, oldest first, without those a later compaction hides."""
    active_decisions = []
    for id_, body in state.view.active_decisions:
        if body == state.view.compaction or list_shown_edits(state, body):
            active_decisions.append((id_, body))
    return active_decisions


def list_shown_edits(state: ConversationState, body: DecisionEntry | CompactionEntry) -> list[Edit]:
    """Return the edits of ``body`` on messages that the next request shows."""
    return [edit for edit in body.edits if edit.span.start >= state.view.first_kept]


def count_compacted_tokens(state: ConversationState) -> int:
    """Return the tokens that the compaction in force saves: the messages it replaces less its summary."""
    compaction = state.view.compaction
    if compaction is None:
        return 0
    # Pinned messages at the start are shown in spite of the compaction.
    pinned_tokens = _sum_first_messages(state, state.view.pinned_count)
    tokens_before_kept = _sum_first_messages(state, state.view.first_kept)
    summary_tokens = measure_summary(compaction, state.last_request.model, state.last_request.api)
    return tokens_before_kept - pinned_tokens - summary_tokens


def _sum_first_messages(state: ConversationState, count: int) -> int:
    return state.history.cumulative_tokens[count - 1] if count else 0


def find_revoking_entries(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the undone decisions, each with the id of its undo; the newest word about a decision counts."""
    revoked_by: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry.body, RevokeEntry) and entry.body.is_restored:
            revoked_by.pop(entry.body.revoked_id, None)
        elif isinstance(entry.body, RevokeEntry):
            revoked_by[entry.body.revoked_id] = entry.id
    return revoked_by


# -- what was done -----------------------------------------------------------------------------------------------------


def iter_message_actions(
    log: BranchHistory,
    index: int,
    recorded_by: str = "",
    size: RequestSize = ESTIMATOR_SIZE,
) -> Iterator[MessageAction]:
    """Yield the actions on message ``index``, oldest first, including undone ones, with tokens measured by ``size``.

    ``recorded_by`` is the tool the session was imported from, which decided everything until a policy is noted.
    """
    revoked_by = find_revoking_entries(log.entries)
    decided_by = recorded_by
    state = ConversationState()
    for entry in log.entries:
        body = entry.body
        entry_revoked_by = revoked_by.get(entry.id, "")
        if isinstance(body, NoteEntry):
            decided_by = _get_policy_name(body) or decided_by
            # The note on a message that was too long comes right before that message.
            is_capped = body.reason == NOTE_CAPPED
            if is_capped and _find_next_message(log, entry.id) == log.message_entries[index].id:
                handles = tuple(hash_[:HANDLE_CHARS] for hash_ in iter_named_hashes(body))
                why = "it was too long for an entry of the log"
                yield MessageAction(
                    entry=entry.id,
                    kind="capped",
                    rule=NOTE_CAPPED,
                    why=why,
                    decided_by=decided_by,
                    at=entry.time_ms,
                    recall=handles,
                )
        if isinstance(body, DecisionEntry | CompactionEntry):
            for edit in _merge_spill_edits(_filter_edits(body.edits, index)):
                yield _make_edit_action(entry, edit, decided_by, entry_revoked_by, size)
        if isinstance(body, CompactionEntry) and state.view.pinned_count <= index < body.first_kept:
            saves = _count_shown_tokens(state, index)
            yield _make_compaction_action(entry, body, saves, decided_by, entry_revoked_by, size)
        # Undone decisions are left out of ``state``: a later compaction is credited with the whole message, as if they
        # had never been made.
        if entry.id not in revoked_by:
            state = apply_entry(state, entry)


def _get_policy_name(note: NoteEntry) -> str:
    name = note.data.get("name") if note.reason == NOTE_POLICY else None
    return name if isinstance(name, str) else ""


def _filter_edits(edits: Iterable[Edit], index: int) -> Iterator[Edit]:
    for edit in edits:
        if edit.span.covers(index):
            yield edit


def _merge_spill_edits(edits: Iterable[Edit]) -> Iterator[Edit]:
    """Yield ``edits``, but only the first of neighbors that share one stored text and are shown as one line."""
    before: Edit | None = None
    for edit in edits:
        shares_text = (
            before is not None
            and bool(edit.blob_hash)
            and (edit.rule, edit.blob_hash) == (before.rule, before.blob_hash)
        )
        if edit.replacement or not shares_text:
            yield edit
        before = edit


def _find_next_message(log: BranchHistory, note: str) -> str:
    """Return the id of the first message after entry ``note``, or an empty string."""
    has_passed_note = False
    for entry in log.entries:
        has_passed_note = has_passed_note or entry.id == note
        if has_passed_note and isinstance(entry.body, MessageEntry):
            return entry.id
    return ""


def _make_edit_action(
    entry: Entry,
    edit: Edit,
    decided_by: str,
    revoked_by: str,
    size: RequestSize,
) -> MessageAction:
    recall = (edit.blob_hash[:HANDLE_CHARS],) if edit.blob_hash else ()
    return MessageAction(
        entry=entry.id,
        kind="decision",
        rule=edit.rule,
        why=edit.why,
        saves=size.scale_tokens(edit.saves),
        decided_by=decided_by,
        at=entry.time_ms,
        recall=recall,
        revoked_by=revoked_by,
    )


def _make_compaction_action(
    entry: Entry,
    body: CompactionEntry,
    saves: int,
    decided_by: str,
    revoked_by: str,
    size: RequestSize,
) -> MessageAction:
    if body.summary is None:
        why = f"it removes the messages before #{body.first_kept}"
    else:
        tokens = format_tokens(size.scale_tokens(body.head_tokens))
        why = f"a summary of {tokens} tokens replaces the messages before #{body.first_kept}"
    trigger = "compaction" if body.trigger in {"", "auto"} else f"compaction ({body.trigger})"
    return MessageAction(
        entry=entry.id,
        kind="compaction",
        rule=trigger,
        why=why,
        saves=size.scale_tokens(saves),
        decided_by=decided_by,
        at=entry.time_ms,
        revoked_by=revoked_by,
    )


def _count_shown_tokens(state: ConversationState, index: int) -> int:
    """Return the tokens that requests held for a message, or 0 if they did not show it."""
    if index >= len(state.history.sized_messages):
        return 0
    # The messages between the pinned ones and the first kept one are hidden.
    if state.view.pinned_count <= index < state.view.first_kept:
        return 0
    return sum_message_sizes(get_shown_messages(state, index))


# -- places in a log ---------------------------------------------------------------------------------------------------


def find_session_or_entry(store: SessionStore, name: str) -> tuple[SessionInfo, Entry | None]:
    """Find the session with a key that begins with ``name``, or the entry with such an id and its session.

    Raises ``UnknownId`` without a match, or with more than one.
    """
    try:
        return store.get_session(name), None
    except UnknownId as error:
        matches = []
        # Every session is searched for the entry, so a name that is too short to be unique is not tried.
        if len(name) >= SHORT_ID:
            matches = list(_iterate_sessions_with_entry(store, name))
        if not matches:
            raise
        if len(matches) > 1:
            keys = ", ".join(info.key for info, _ in matches)
            raise UnknownId(f"entry {name!r} is in {len(matches)} sessions: {keys}; name the session too") from error
        return matches[0]


def _iterate_sessions_with_entry(store: SessionStore, name: str) -> Iterator[tuple[SessionInfo, Entry]]:
    """Yield each session that has exactly one entry with an id that begins with ``name``, with that entry."""
    for info in store.list_sessions():
        with suppress(UnknownId):
            yield info, store.get_entry(info.key, name)


def find_entry(store: SessionStore, key: str, log: BranchHistory, name: str) -> Entry:
    """Find the entry named by a message number (``12`` or ``#12``), a label, or the beginning of an id.

    A number never names an id, even if the branch has no such message. Of several entries with ids that begin with
    ``name``, the decision or compaction is taken, else the message. Raises ``UnknownId`` with the choices.
    """
    number = parse_message_number(name)
    labels = {label: id_ for id_, label in store.read_labels(key).items()}
    if number is not None and number < len(log.message_entries):
        return log.message_entries[number]
    if number is None or name in labels:
        return _find_entry_by_id(store, key, log, labels.get(name, name))
    last = "it has none"
    if log.message_entries:
        last = f"its last one is #{len(log.message_entries) - 1}"
    elsewhere = "for a message of another branch, give its entry's id (8 characters or more)"
    raise UnknownId(f"the current branch has no message #{number} ({last}); {elsewhere}")


def _find_entry_by_id(store: SessionStore, key: str, log: BranchHistory, name: str) -> Entry:
    """Find the entry with an id that begins with ``name``; of several take the decision, else the message."""
    try:
        return store.get_entry(key, name)
    except UnknownId:
        decisions = []
        messages = []
        for entry in log.entries:
            if not name or not entry.id.startswith(name):
                continue
            if isinstance(entry.body, DecisionEntry | CompactionEntry):
                decisions.append(entry)
            elif isinstance(entry.body, MessageEntry | BranchSummaryEntry):
                messages.append(entry)
        matches = decisions or messages
        if len(matches) != 1:
            raise
        return matches[0]


def parse_message_number(name: str) -> int | None:
    """Parse a message number, or return None."""
    number = name.removeprefix("#")
    return int(number) if number.isdecimal() and len(number) <= MAX_NUMBER_DIGITS else None


def find_continuation_leaf(store: SessionStore, key: str, entry: Entry) -> Entry:
    """Return the entry after which a session continues from ``entry``: its usage entry if it has one."""
    for answer_entry in store.read_entries(key, "answer"):
        if answer_entry.parent == entry.id:
            return answer_entry
    return entry


def load_history_through_entry(
    store: SessionStore,
    key: str,
    log: BranchHistory,
    entry: Entry,
) -> BranchHistory:
    """Return ``log`` if ``entry`` is on it, else the history of the newest branch through it."""
    if any(log_entry.id == entry.id for log_entry in log.entries):
        return log
    # Entries come parents first, so one pass finds everything after the entry.
    tree = store.read_entries(key)
    descendant_ids = {entry.id}
    for log_entry in tree:
        if log_entry.parent in descendant_ids:
            descendant_ids.add(log_entry.id)
    leaf = entry.id
    for tip in reversed(store.read_tips(key)):
        if tip.id in descendant_ids:
            leaf = tip.id
            break
    by_id = {log_entry.id: log_entry for log_entry in tree}
    return build_branch_history(get_entries_to_leaf(by_id, leaf))


def build_state_at_entry(store: SessionStore, key: str, entry: Entry | None) -> ConversationState:
    """Return the state at ``entry``, or of the current branch for None; for a request, include its reported size."""
    if entry is None or not isinstance(entry.body, RequestEntry):
        return store.open_state(key, entry.id if entry is not None else None)
    log = load_history_through_entry(store, key, load_branch_history(store, key), entry)
    ids = [log_entry.id for log_entry in log.entries]
    return build_state_at_request(log.entries, ids.index(entry.id))
