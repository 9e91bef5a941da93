"""Plan the requests of a conversation that somebody else keeps: a plugin's host, or an agent framework.

They give the whole conversation each time and send the requests themselves. What was decided is kept in the session's
log, so a message that was shortened once is the same in every later request, also after a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.messages.message import Message
from holdfast.messages.parts import Thinking
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.projection import find_invalid_thinking
from holdfast.state.calibration.usage import get_cache_lifetime
from holdfast.state.entries import RequestSetup, Usage
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import build_projection, list_projection_origins

SETUP_TOLERANCE = 0.25
"""Share by which the size of system prompt and tools may differ from the last one without being another setup: who
keeps the conversation estimates it anew for each request. Chosen by judgement."""
SUMMARY_ORIGIN = -1
"""Where ``list_projection_origins`` says that a summary came from."""


class GivenConversation(Struct, frozen=True):
    """A whole conversation, before its next request."""

    messages: tuple[SizedMessage, ...]
    usages: tuple[Usage | None, ...]
    """For each message, if it is an answer: what its request took, if that is known."""
    setup_tokens: int = 0
    """Tokens of the system prompt and the tools."""


class ShownMessage(Struct, frozen=True):
    """A message that the next request shows."""

    message: Message
    index: int | None = None
    """Which message of the conversation it is, as it is or with parts replaced; None for a new message, such as an
    extract."""


def plan_given_conversation(
    journal: Journal, conversation: GivenConversation, target: Target, inputs: PlanInputs = PlanInputs()
) -> PreparedRequest:
    """Append the new messages to the log, decide what the next request shows of all, and commit that.

    ``inputs`` say what is asked for; the age of the cache is found out here. Raises ``WindowTooSmall`` if the messages
    cannot be made to fit, and ``StoreError`` if the log cannot be read or written.
    """
    with journal.batch_writes():
        idle_seconds = journal.get_idle_seconds()
        is_cold = idle_seconds > get_cache_lifetime(journal.state, target.cache_rules)
        _record_answer(journal, conversation)
        # The shown messages are named by their place, so the branch must have the same messages.
        journal.follow_conversation(conversation.messages, allows_regrouping=False)
        journal.describe_session(target.model)
        target = _set_up_target(target, journal.state.setup, conversation.setup_tokens)
        all_inputs = replace(
            inputs,
            cache_state="cold" if is_cold else "warm",
            idle_seconds=idle_seconds,
            is_breaker_cooled=journal.is_breaker_cooled(),
        )
        return journal.prepare_request(target, all_inputs)


def list_shown_messages(prepared_request: PreparedRequest, messages: Sequence[SizedMessage]) -> list[ShownMessage]:
    """Return what ``prepared_request`` shows of ``messages``, the conversation that it was planned for.

    Not normalized for an API: that is the work of whoever sends the request.
    """
    state = prepared_request.plan.state
    origins = list_projection_origins(state)
    shown_counts = Counter(origins)
    shown_messages: list[ShownMessage] = []
    for sized_message, origin in zip(build_projection(state), origins, strict=True):
        shown = sized_message.message
        is_own = origin != SUMMARY_ORIGIN and shown_counts[origin] == 1
        # Compared with what was given: the log may hold a large text shortened from the start.
        if is_own and shown == messages[origin].message:
            shown_messages.append(ShownMessage(messages[origin].message, origin))
        elif is_own and _differ_only_in_texts(shown, messages[origin].message):
            shown_messages.append(ShownMessage(shown, origin))
        else:
            shown_messages.append(ShownMessage(shown))
    return shown_messages


def drop_refused_thinking(
    prepared_request: PreparedRequest, shown_messages: Sequence[ShownMessage]
) -> list[ShownMessage]:
    """Return ``shown_messages``, all of ``prepared_request``, without thinking that its provider would refuse.

    Some models sign their thinking over everything before it. Once that has changed (a compaction, a result that was
    shortened later), the thinking after it is refused, also in the newest turn, where these models do not demand any.
    For other models nothing is dropped.
    """
    refused_positions = find_invalid_thinking(prepared_request.plan.state, prepared_request.target.dialect)
    kept_messages: list[ShownMessage] = []
    for position, shown in enumerate(shown_messages):
        if position not in refused_positions:
            kept_messages.append(shown)
            continue
        parts = tuple([part for part in shown.message.parts if not isinstance(part, Thinking)])
        # No API takes an answer without content.
        if parts:
            kept_messages.append(replace(shown, message=replace(shown.message, parts=parts)))
    return kept_messages


def _differ_only_in_texts(shown: Message, given: Message) -> bool:
    has_same_calls = [call.id for call in shown.calls] == [call.id for call in given.calls]
    has_same_results = [result.call_id for result in shown.results] == [result.call_id for result in given.results]
    return shown.role == given.role and has_same_calls and has_same_results


def _set_up_target(target: Target, known_setup: RequestSetup, setup_tokens: int) -> Target:
    """Return ``target`` with the known setup, or with a new one if its size has changed too much for an estimate.

    A new setup means that the provider's cache holds nothing of the request. What an estimate has more than the known
    setup is taken from the window, so that the request fits.
    """
    more_tokens = setup_tokens - known_setup.tokens
    if abs(more_tokens) > SETUP_TOLERANCE * known_setup.tokens:
        return replace(target, setup=RequestSetup(tokens=setup_tokens))
    limits = target.limits
    if more_tokens > 0:
        limits = replace(limits, window=max(1, limits.window - ceil(more_tokens * target.prior_ratio)))
    return replace(target, setup=known_setup, limits=limits)


def _record_answer(journal: Journal, conversation: GivenConversation) -> None:
    """Record the answer to the request that was planned last, with its usage, if it is the first new message.

    What a provider counted makes our estimates better, and the commands show what a session cost. If something else was
    sent than we planned, since we did not answer in time, the calibration takes no count that is so far from our
    estimate.
    """
    state, messages = journal.state, conversation.messages
    known_count = len(state.history.sized_messages)
    is_answer_due = known_count > 0 and known_count == state.last_request.seen_count
    has_new_messages = len(messages) > known_count
    if not is_answer_due or not has_new_messages:
        return
    is_continued = journal.match_conversation(messages).one_to_one_count == known_count
    if not is_continued:
        return
    answer, usage = messages[known_count], conversation.usages[known_count]
    if usage is not None and answer.message.role == "assistant":
        journal.record_answer(answer, usage)
