"""``plan`` and ``apply``: planning over plain messages, for authors of agent loops. No I/O."""

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
from holdfast.state.conversation_state import (
    ConversationState,
    Counters,
    LastRequest,
    MeasuredUsage,
    MessageHistory,
    ViewState,
)
from holdfast.state.entries import Entry, MessageEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.fold.rewind import replace_raw_bytes, rewind_state
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target
from holdfast.state.validation import is_valid_part


def plan(
    messages: Sequence[Message],
    target: Target,
    policy: Policy = Policy(),
    *,
    state: ConversationState | None = None,
    inputs: PlanInputs = PlanInputs(),
) -> Plan:
    """Plan the next request over ``messages``, without sending, storing or waiting.

    ``messages`` is the whole conversation, oldest first. Pass ``plan.state`` of the previous call as ``state``: then
    only new messages are looked at. Raises ``WindowTooSmall`` if the window cannot hold what must be sent,
    ``TypeError`` for an argument of another type, and ``ValueError`` for an impossible number in one.
    """
    raise_if_wrong_type(
        TypeError,
        messages=(messages, Sequence),
        state=(state, ConversationState | None),
    )
    raise_if_wrong_type(
        TypeError,
        target=(target, Target),
        policy=(policy, Policy),
        inputs=(inputs, PlanInputs),
    )
    if state is not None:
        _require_valid_state(state)
    problem = target.validation_problem or inputs.validation_problem
    if problem:
        raise problem.error(problem.why)
    reconciled_state = reconcile_messages(state or ConversationState(), messages)
    return plan_request(_attribute_signatures(reconciled_state, target.model), target, policy, inputs)


def apply(messages: Sequence[Message], plan: Plan) -> list[Message]:
    """Return the messages to send for ``messages``: the plan's decisions and repairs applied.

    Raises ``ValueError`` if the plan was made for another number of messages.
    """
    raise_if_wrong_type(TypeError, messages=(messages, Sequence), plan=(plan, Plan))
    planned_count = len(plan.state.history.sized_messages)
    if len(messages) != planned_count:
        raise ValueError(
            f"the plan was made for {planned_count} messages and {len(messages)} were given; "
            "apply it to the list that was planned"
        )
    return [sized_message.message for sized_message in build_messages_to_send(plan)]


def _require_valid_state(state: ConversationState) -> None:
    """Name the field of a state that was built by hand with a value of another type."""
    raise_if_wrong_type(
        TypeError,
        **{
            "state.history": (state.history, MessageHistory),
            "state.view": (state.view, ViewState),
            "state.setup": (state.setup, RequestSetup),
            "state.last_request": (state.last_request, LastRequest),
            "state.usage": (state.usage, MeasuredUsage),
            "state.counters": (state.counters, Counters),
        },
    )


def reconcile_messages(state: ConversationState, messages: Sequence[Message]) -> ConversationState:
    """Return ``state`` with its history made equal to ``messages``.

    Usually ``messages`` only has new ones at its end. If it differs earlier, the past was edited: the state is cut back
    to the common prefix, with the decisions about it, and continues from there. The same content in other bytes (a
    cache marker that moved, for example) is no edit.
    """
    messages = _restore_signatures(state, messages)
    known_count = len(state.history.sized_messages)
    is_extended = known_count <= len(messages) and state.history.messages.has_same_start(messages, known_count)
    if not is_extended:
        common_messages = _match_common_prefix(state, messages)
        known_count = len(common_messages)
        state = replace_raw_bytes(rewind_state(state, known_count), common_messages)
    new_messages = _measure_messages(messages[known_count:], known_count)
    return apply_entries(state, [Entry("", None, MessageEntry(sized_message)) for sized_message in new_messages])


def _attribute_signatures(state: ConversationState, model: str) -> ConversationState:
    """Return ``state`` for a request to ``model``.

    If another model was asked until now, the signed parts are marked as that model's. ``model`` cannot verify them, and
    without the mark nothing in them tells who signed them.
    """
    last_model = state.last_request.model
    if not last_model or model == last_model:
        return state
    marked_messages = []
    for sized_message in state.history.sized_messages:
        marked_messages.append(set_sized_signing_model(sized_message, last_model))
    return replace_raw_bytes(state, marked_messages)


def _restore_signatures(state: ConversationState, messages: Sequence[Message]) -> Sequence[Message]:
    """Return ``messages`` with the models that signed their parts, as ``state`` knows them.

    The caller's messages were decoded anew from bytes that do not name the model.
    """
    if not state.history.messages.sum_from(has_known_signer):
        return messages
    known_messages = state.history.messages.slice(0, len(messages))
    signed_messages: list[Message] = []
    try:
        for message, known_message in zip(messages, known_messages, strict=False):
            if has_known_signer(known_message):
                signed_messages.append(copy_signing_models(message, known_message))
            else:
                signed_messages.append(message)
    except (TypeError, AttributeError):
        # An item is not a Message; _measure_messages will name it.
        return messages
    return [*signed_messages, *messages[len(signed_messages) :]]


def _measure_messages(messages: Sequence[Message], first_index: int) -> list[SizedMessage]:
    """Return ``messages`` with their sizes and digests; they stand from ``first_index`` on in the caller's list.

    Raises ``TypeError`` that names the first item that is not a valid message.
    """
    # All at once, since short messages are counted together much faster than one by one.
    try:
        if all(map(_is_valid_message, messages)):
            pairs = zip(messages, measure_messages(messages), strict=True)
            return [SizedMessage(message, *measures) for message, measures in pairs]
    except (KeyError, TypeError, AttributeError):
        pass  # one of them is not valid; the loop below names it
    return [_measure_message(message, index) for index, message in enumerate(messages, first_index)]


def _is_valid_message(message: Message) -> bool:
    """Return whether ``message`` looks valid: its type, its role, and the fields of its parts."""
    if not isinstance(message, Message) or message.role not in ROLES:
        return False
    return all(map(is_valid_part, message.parts))


def _measure_message(message: Message, index: int) -> SizedMessage:
    """Return ``message`` with its size and digest; raises ``TypeError`` that says why it is not valid."""
    if not isinstance(message, Message):
        raise TypeError(
            f"messages[{index}] is a {type(message).__name__}; plan takes Message values, "
            "which holdfast.decode_messages(api, …) makes of dicts"
        )
    if message.role not in ROLES:
        raise TypeError(f"messages[{index}] is not a message: its role is {message.role!r}, not one of {ROLES}")
    try:
        if _is_valid_message(message):
            return build_sized_message(message)
        why = describe_type_mismatch(message, Message)
    except (KeyError, TypeError, AttributeError) as error:
        why = describe_type_mismatch(message, Message) or str(error)
    raise TypeError(f"messages[{index}] is not a message: {why}; Message.from_text(role, text) makes one of words")


def _match_common_prefix(state: ConversationState, messages: Sequence[Message]) -> list[SizedMessage]:
    """Return the messages that ``state`` and ``messages`` share from the start, with the bytes of ``messages``."""
    common_messages: list[SizedMessage] = []
    for index, (known_message, message) in enumerate(zip(state.history.sized_messages, messages, strict=False)):
        if known_message.message is message:
            common_messages.append(known_message)
            continue
        sized_message = _measure_message(message, index)
        if sized_message.digest != known_message.digest:
            break
        common_messages.append(sized_message)
    return common_messages
