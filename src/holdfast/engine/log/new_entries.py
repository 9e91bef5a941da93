"""Build the entries that the log stores: for a message, for a plan, and for the beginning of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.errors import LogConflict, StoreError, UnknownId, raise_if_wrong_type
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.pipeline import Policy
from holdfast.state.codec.packing import describe_type_mismatch
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    NOTE_POLICY,
    AnswerEntry,
    DecisionEntry,
    Entry,
    EntryBody,
    NoteEntry,
    RequestEntry,
    Usage,
)
from holdfast.state.plan import Notice, Plan
from holdfast.state.target import PlanInputs, Target
from holdfast.store.base import SessionStore


def make_policy_note(policy: str) -> NoteEntry:
    """Make the note that names the policy that decides from here on."""
    return NoteEntry(NOTE_POLICY, data={"name": policy})


def is_replan_forced(plan_inputs: PlanInputs) -> bool:
    """Return whether the request has to be planned anew, even if a plan for it is already there."""
    has_summary = plan_inputs.summary is not None
    return plan_inputs.force_compaction or bool(plan_inputs.overflow_step) or has_summary


def convert_to_sized_message(message: Message | SizedMessage) -> SizedMessage:
    """Return ``message`` with its size and digest. Raises ``LogConflict`` if its values have wrong types."""
    try:
        if isinstance(message, Message):
            return build_sized_message(message)
        if message.digest:
            return message
        measured_message = build_sized_message(message.message)
        return replace(
            measured_message,
            api=message.api,
            raw=message.raw,
            base_raw=message.base_raw,
        )
    except (TypeError, AttributeError, KeyError) as error:
        # Types are checked only once measuring has failed: on the way of every request the check would cost more.
        expected_type = SizedMessage if isinstance(message, SizedMessage) else Message
        reason = describe_type_mismatch(message, expected_type) or str(error)
        raise _make_message_error(reason) from error


def check_message_types(message: Message) -> Message:
    """Return ``message`` itself. Raises ``LogConflict`` if its values have wrong types."""
    reason = describe_type_mismatch(message, Message)
    if reason:
        raise _make_message_error(reason)
    return message


def _make_message_error(reason: str) -> LogConflict:
    return LogConflict(f"this is not a message: {reason}; nothing was written: give a value of that type")


def make_plan_entry_bodies(
    state: ConversationState,
    plan: Plan,
    target: Target,
    policy: str,
) -> list[EntryBody]:
    """Build the entries that record ``plan``, in order: a changed setup, the policy, a decision, a compaction, and last
    the request.

    The policy's name is recorded only if it changed and something was decided.
    """
    bodies: list[EntryBody] = []
    if target.setup != state.setup:
        bodies.append(target.setup)
    if policy != state.policy_name and (plan.record or plan.compaction is not None):
        bodies.append(make_policy_note(policy))
    if plan.record:
        bodies.append(DecisionEntry(plan.record))
    if plan.compaction is not None:
        bodies.append(plan.compaction)
    prefix_digest = plan.state.last_request.prefix_digest
    message_count = len(plan.state.history.sized_messages)
    bodies.append(
        RequestEntry(
            prefix_digest,
            message_count,
            target.model,
            target.limits.window,
            target.api,
        )
    )
    return bodies


def make_answer_entry_body(
    state: ConversationState,
    usage: Usage,
    stop: str,
    *,
    as_planned: bool,
    container: str = "",
) -> AnswerEntry:
    """Build the entry with the usage of the newest request of ``state``.

    If the messages sent were not the planned ones, the entry gets no digest: its size then measures no request of the
    log. Raises ``LogConflict`` for a malformed usage: every later request would be planned by it.
    """
    raise_if_wrong_type(LogConflict, usage=(usage, Usage), stop=(stop, str))
    reason = describe_type_mismatch(usage, Usage)
    if reason:
        raise LogConflict(
            f"this is not a usage: {reason}; nothing was written: give Usage(input=…, output=…) in tokens"
        )
    return AnswerEntry(state.last_request.prefix_digest if as_planned else "", usage, stop, container)


def resolve_decision_id(ids: Sequence[str], prefix: str | None) -> str:
    """Return the one of ``ids``, those of the decisions in force, that begins with ``prefix``; the newest if None.

    Raises ``UnknownId`` if none or several begin with it.
    """
    if prefix is None and not ids:
        raise UnknownId("there is nothing to undo: no decision and no compaction is active")
    return _resolve_id(ids, prefix, "active", "there is no decision to undo")


def resolve_undone_id(ids: Sequence[str], prefix: str | None) -> str:
    """Return the one of ``ids``, those of undone decisions, that begins with ``prefix``; the last undone if None.

    Raises ``UnknownId`` if none or several begin with it.
    """
    if prefix is None and not ids:
        raise UnknownId("there is nothing to restore: no decision of this branch is undone")
    return _resolve_id(ids, prefix, "undone", "there is no decision to restore")


def _resolve_id(ids: Sequence[str], prefix: str | None, kind: str, none_left: str) -> str:
    if prefix is None:
        return ids[-1]
    matches = [id_ for id_ in ids if id_ == prefix]
    if not matches and prefix:
        matches = [id_ for id_ in ids if id_.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    problem = f"no {kind} decision has the id {prefix!r}"
    if matches:
        problem = f"{len(matches)} {kind} decisions have an id that begins with {prefix!r}"
    advice = none_left
    if ids:
        advice = f"give the id of one; newest: {', '.join(ids[-5:])}"
    raise UnknownId(f"{problem}; {advice}")


def add_unstored_notice(plan: Plan, store_error: StoreError) -> Plan:
    """Return ``plan`` with a notice that texts stay whole because the store did not take them."""
    text = f"long texts could not be stored, so they stay in the request: {store_error}"
    return replace(plan, notices=(*plan.notices, Notice("unstored", text)))


def begin_session(
    store: SessionStore,
    key: str,
    policy: Policy,
    clock: Callable[[], int],
    ids: Callable[[int], list[str]],
) -> str | None:
    """Return the leaf of session ``key``; if it does not exist, create it with a note of its policy."""
    try:
        info = store.get_session(key)
    except UnknownId:
        info = None
    # The store also finds a session by the beginning of its key; that is another session.
    if info is not None and info.key == key:
        return info.leaf_id
    first_entry = Entry(ids(1)[0], None, make_policy_note(policy.name), time_ms=clock())
    return store.import_entries(key, [first_entry]).leaf
