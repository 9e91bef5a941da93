"""Planning over plain messages: the pure door for authors of agent loops."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import raise_if_wrong_type
from holdfast.messages.message import ROLES, Message
from holdfast.messages.signatures import copy_signing_models, has_known_signer, set_sized_signing_model
from holdfast.messages.size.tokens import build_sized_message, measure_messages
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.state.codec.packing import describe_type_mismatch
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Entry, MessageEntry
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.fold.rewind import replace_raw_bytes, rewind_state
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target


def plan(
    messages: Sequence[Message],
    target: Target,
    policy: Policy = Policy(),
    *,
    state: ConversationState | None = None,
    inputs: PlanInputs = PlanInputs(),
) -> Plan:
    """Return what to do before the next request over ``messages``; nothing is sent, stored or waited for.

    ``messages`` is the whole conversation, oldest first. Pass ``plan.state`` of the call before as ``state``: then
    only what is new is looked at. Raises ``WindowTooSmall`` where the window cannot hold what must be sent, and
    ``TypeError`` for what is none of these, ``ValueError`` for a number in them that cannot be.
    """
    raise_if_wrong_type(TypeError, messages=(messages, Sequence), state=(state, ConversationState | None))
    raise_if_wrong_type(TypeError, target=(target, Target), policy=(policy, Policy), inputs=(inputs, PlanInputs))
    if fault := target.validation_problem or inputs.validation_problem:
        raise fault.error(fault.why)
    return plan_request(
        _attribute_signatures(reconcile_messages(state or ConversationState(), messages), target.model),
        target,
        policy,
        inputs,
    )


def apply(messages: Sequence[Message], plan: Plan) -> list[Message]:
    """Return the messages to send for ``messages``: the plan's decisions and repairs applied.

    Raises ``ValueError`` where the plan was made for another number of messages.
    """
    raise_if_wrong_type(TypeError, messages=(messages, Sequence), plan=(plan, Plan))
    if len(messages) != len(plan.state.history.sized_messages):
        raise ValueError(
            f"the plan was made for {len(plan.state.history.sized_messages)} messages and {len(messages)} were given; "
            "apply it to the list that was planned"
        )
    return [sized_message.message for sized_message in build_messages_to_send(plan)]


def reconcile_messages(state: ConversationState, messages: Sequence[Message]) -> ConversationState:
    """Return ``state`` grown to ``messages``.

    Where they part, the past was edited: the branch goes on from there, with the decisions about what stands. The same
    words in other bytes (a cache marker that moved on) are no edit.
    """
    messages, count = _restore_signatures(state, messages), len(state.history.sized_messages)
    if count > len(messages) or not state.history.messages.has_same_start(messages, count):
        common_messages = _match_common_prefix(state, messages)
        state = replace_raw_bytes(rewind_state(state, len(common_messages)), common_messages)
        count = len(common_messages)
    return apply_entries(
        state,
        [Entry("", None, MessageEntry(sized_message)) for sized_message in _measure_messages(messages[count:], count)],
    )


def _attribute_signatures(state: ConversationState, model: str) -> ConversationState:
    """Return ``state`` as it goes to ``model``: where another was asked until now, what is sealed is known as its."""
    if model == state.last_request.model or not state.last_request.model:
        return state
    return replace_raw_bytes(
        state,
        [
            set_sized_signing_model(sized_message, state.last_request.model)
            for sized_message in state.history.sized_messages
        ],
    )


def _restore_signatures(state: ConversationState, messages: Sequence[Message]) -> Sequence[Message]:
    """Return ``messages`` with what ``state`` knows of whose seals are in them: their bytes do not say it."""
    if not state.history.messages.sum_from(has_known_signer):
        return messages
    previous_messages = state.history.messages.slice(0, len(messages))
    try:
        signed_messages = [
            copy_signing_models(*pair) if has_known_signer(pair[1]) else pair[0]
            for pair in zip(messages, previous_messages, strict=False)
        ]
    except (TypeError, AttributeError):
        return messages  # one is no message; it is named where it is measured
    return [*signed_messages, *messages[len(signed_messages) :]]


def _measure_messages(messages: Sequence[Message], first_index: int) -> list[SizedMessage]:
    """Return ``messages``, numbered from ``first_index``, weighed together; ``TypeError`` names the first that is
    none.
    """
    try:
        if all(map(_is_valid_message, messages)):
            pairs = zip(messages, measure_messages(messages), strict=True)
            return [SizedMessage(message, *measures) for message, measures in pairs]
    except (KeyError, TypeError, AttributeError):
        pass  # it is named below
    return [_measure_message(message, index) for index, message in enumerate(messages, first_index)]


def _is_valid_message(message: Message) -> bool:
    """Return whether this may be a message: its parts are not looked into, but for the arguments of calls."""
    return (
        isinstance(message, Message)
        and message.role in ROLES
        and all(type(call.arguments) is str for call in message.calls)
    )


def _measure_message(message: Message, index: int) -> SizedMessage:
    if not isinstance(message, Message):
        raise TypeError(
            f"messages[{index}] is a {type(message).__name__}; plan takes Message values, "
            "which holdfast.decode_messages(api, …) makes of dicts"
        )
    if message.role not in ROLES:
        raise TypeError(f"messages[{index}] is no message: its role is {message.role!r}, not one of {ROLES}")
    try:
        if _is_valid_message(message):
            return build_sized_message(message)
        why = describe_type_mismatch(message, Message)
    except (KeyError, TypeError, AttributeError) as error:
        why = describe_type_mismatch(message, Message) or str(error)
    raise TypeError(f"messages[{index}] is no message: {why}; Message.from_text(role, text) makes one of words")


def _match_common_prefix(state: ConversationState, messages: Sequence[Message]) -> list[SizedMessage]:
    """Return the slots of what the branch and ``messages`` have in common from the start, in the newer bytes."""
    common_messages: list[SizedMessage] = []
    for index, (sized_message, message) in enumerate(zip(state.history.sized_messages, messages, strict=False)):
        new = sized_message if sized_message.message is message else _measure_message(message, index)
        if new.digest != sized_message.digest:
            break
        common_messages.append(new)
    return common_messages
