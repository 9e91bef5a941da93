"""An agent loop that plans each of its requests, and the log that it would write, for property tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.providers.requests.request_body import build_request_body
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, DecisionEntry, Entry, EntryBody, MessageEntry, RequestEntry, Usage
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import build_projection

_RAW_FIELDS = Decoder(dict[str, Raw])
_RAW_MESSAGE_LIST = Decoder(list[Raw])


class LoopRequest(Struct, frozen=True):
    """One request of the loop; ``entries`` is the log before it and ``state`` the folded state before it."""

    count: int
    """The number of messages of the conversation so far."""
    entries: tuple[Entry, ...]
    state: ConversationState
    inputs: PlanInputs
    plan: Plan

    @property
    def sent_messages(self) -> list[SizedMessage]:
        """The messages of the request."""
        return build_messages_to_send(self.plan)

    @property
    def shown_count(self) -> int:
        """The number of messages of the projection before normalization."""
        return len(build_projection(self.plan.state))


def find_request_points(messages: Sequence[Message]) -> list[int]:
    """Return the message counts at which an agent loop calls its model: before each answer, and at the end."""
    points = [index for index, message in enumerate(messages) if message.role == "assistant" and index]
    return [*points, len(messages)] if messages and messages[-1].role != "assistant" else points


def drive_agent_loop(
    messages: Sequence[Message],
    target: Target,
    policy: Policy = Policy(),
    *,
    request_points: Sequence[int] | None = None,
    usage: Callable[[Plan], int] | None = None,
    plan_inputs: Sequence[PlanInputs] = (),
    before_request: Callable[[ConversationState], ConversationState] = lambda state: state,
) -> list[LoopRequest]:
    """Return the requests of an agent loop over ``messages``, each planned from the state after the one before.

    ``request_points`` are the message counts at which the loop calls its model, by default those of
    ``find_request_points``. ``usage`` returns the input tokens that the provider reports for a plan; without it nothing
    is reported. ``plan_inputs`` are used in turn. ``before_request`` may change the state before each request.
    """
    state, entries = ConversationState(), [Entry("0", None, target.setup, 0)]
    state = apply_entry(state, entries[0])
    requests: list[LoopRequest] = []
    for number, count in enumerate(find_request_points(messages) if request_points is None else request_points):
        for message in messages[len(state.history.sized_messages) : count]:
            entries.append(_make_next_entry(entries, MessageEntry(build_sized_message(message))))
            state = apply_entry(state, entries[-1])
        state = before_request(state)
        inputs = plan_inputs[number % len(plan_inputs)] if plan_inputs else PlanInputs()
        plan = plan_request(state, target, policy, inputs)
        requests.append(LoopRequest(count, tuple(entries), state, inputs, plan))
        entries += make_plan_entries(entries, plan, count, target.model)
        state = plan.state
        if usage is not None:
            entries.append(
                _make_next_entry(entries, AnswerEntry(state.last_request.prefix_digest, Usage(usage(plan), 1)))
            )
            state = apply_entry(state, entries[-1])
    return requests


def make_plan_entries(entries: Sequence[Entry], plan: Plan, count: int, model: str) -> list[Entry]:
    """Return the entries that a store appends for ``plan``: a decision, a compaction and a request."""
    new_entries: list[Entry] = []
    if plan.record:
        new_entries.append(_make_next_entry([*entries, *new_entries], DecisionEntry(plan.record)))
    if plan.compaction is not None:
        new_entries.append(_make_next_entry([*entries, *new_entries], plan.compaction))
    request = RequestEntry(
        plan.state.last_request.prefix_digest,
        count,
        model,
        plan.state.last_request.configured_window,
        plan.state.last_request.api,
    )
    return [*new_entries, _make_next_entry([*entries, *new_entries], request)]


def _make_next_entry(entries: Sequence[Entry], body: EntryBody) -> Entry:
    last = entries[-1]
    return Entry(str(last.seq + 1), last.id, body, last.seq + 1)


def get_wire_messages(target: Target, messages: Sequence[SizedMessage]) -> list[bytes]:
    """Return the messages of the request that shows ``messages``, byte for byte, without cache breakpoints."""
    body_fields = _RAW_FIELDS.decode(build_request_body(target.api, target.model, messages))
    return [bytes(raw) for raw in _RAW_MESSAGE_LIST.decode(body_fields["messages"])]
