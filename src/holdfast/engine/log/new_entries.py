"""What the log takes: of a message, of a plan, and at the beginning of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

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
    """Return the note that names the policy that decides from here on."""
    return NoteEntry(NOTE_POLICY, data={"name": policy})


def is_replan_forced(plan_inputs: PlanInputs) -> bool:
    """Whether the request is to be planned anew, whatever was planned before."""
    return plan_inputs.force_compaction or bool(plan_inputs.overflow_step) or plan_inputs.summary is not None


def convert_to_sized_message(message: Message | SizedMessage) -> SizedMessage:
    """Return ``message`` as a slot with size and digest; ``LogConflict`` where it is no message."""
    try:
        if isinstance(message, Message):
            return build_sized_message(message)
        return (
            message
            if message.digest
            else replace(
                build_sized_message(message.message), api=message.api, raw=message.raw, base_raw=message.base_raw
            )
        )
    except (TypeError, AttributeError, KeyError) as error:
        why = describe_type_mismatch(message, SizedMessage if isinstance(message, SizedMessage) else Message) or str(
            error
        )
        raise _make_message_error(why) from error


def check_message_types(message: Message) -> Message:
    """Return ``message``; ``LogConflict`` where it is none, of the right types all through."""
    why = describe_type_mismatch(message, Message)
    if why:
        raise _make_message_error(why)
    return message


def _make_message_error(why: str) -> LogConflict:
    return LogConflict(f"this is no message: {why}; nothing was written: give a value of that type")


def make_plan_entry_bodies(state: ConversationState, plan: Plan, target: Target, policy: str) -> list[EntryBody]:
    """Return what the log takes for ``plan``: a frame that changed, a decision, a compaction, and the request.

    Where another policy decides than the log names, its name comes before what it decided.
    """
    bodies: list[EntryBody] = [] if target.setup == state.setup else [target.setup]
    if policy != state.policy_name and (plan.record or plan.compaction is not None):
        bodies.append(make_policy_note(policy))
    if plan.record:
        bodies.append(DecisionEntry(plan.record))
    if plan.compaction is not None:
        bodies.append(plan.compaction)
    slots, window = len(plan.state.history.sized_messages), target.limits.window
    return [*bodies, RequestEntry(plan.state.last_request.prefix_digest, slots, target.model, window, target.api)]


def make_answer_entry_body(state: ConversationState, usage: Usage, stop: str, *, as_planned: bool) -> AnswerEntry:
    """Return what the newest request of ``state`` cost; of one that went out otherwise it says nothing of its size.

    ``LogConflict`` for what is no usage: every later request would be planned by it.
    """
    raise_if_wrong_type(LogConflict, usage=(usage, Usage), stop=(stop, str))
    if why := describe_type_mismatch(usage, Usage):
        raise LogConflict(f"this is no usage: {why}; nothing was written: give Usage(input=…, output=…) in tokens")
    return AnswerEntry(state.last_request.prefix_digest if as_planned else "", usage, stop)


def resolve_decision_id(ids: Sequence[str], prefix: str | None) -> str:
    """Return the newest of ``ids``, those of what is in force, or the one that begins with ``prefix``."""
    if prefix is None:
        if not ids:
            raise UnknownId("nothing is in force that could be undone: no decision and no compaction")
        return ids[-1]
    matches = [id_ for id_ in ids if id_ == prefix] or [id_ for id_ in ids if prefix and id_.startswith(prefix)]
    if len(matches) != 1:
        problem = (
            f"{len(matches)} decisions in force begin with {prefix!r}"
            if matches
            else f"no decision in force is {prefix!r}"
        )
        cure = f"give the id of one; newest: {', '.join(ids[-5:])}" if ids else "there is none that could be undone"
        raise UnknownId(f"{problem}; {cure}")
    return matches[0]


def add_unstored_notice(plan: Plan, store_error: StoreError) -> Plan:
    """Return ``plan`` with a notice that texts stay whole."""
    why = f"texts could not be stored away, so every one stays whole: {store_error}"
    return replace(plan, notices=(*plan.notices, Notice("unstored", why)))


def begin_session(
    store: SessionStore, key: str, policy: Policy, clock: Callable[[], int], ids: Callable[[int], list[str]]
) -> str | None:
    """Return the leaf of session ``key``; a new one begins with a note of its policy."""
    with suppress(UnknownId):
        if (info := store.get_session(key)).key == key:
            return info.leaf_id
    return store.import_entries(key, [Entry(ids(1)[0], None, make_policy_note(policy.name), time_ms=clock())]).leaf
