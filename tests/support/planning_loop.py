"""An agent loop that plans each of its requests, and the log it would write: what properties are stated over."""

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
    """One request of the loop: ``entries`` is the log before it, ``branch`` what the loop held then."""

    count: int
    """How many messages were said."""
    entries: tuple[Entry, ...]
    branch: ConversationState
    world: PlanInputs
    plan: Plan

    @property
    def slots(self) -> list[SizedMessage]:
        """What is sent."""
        return build_messages_to_send(self.plan)

    @property
    def shown_count(self) -> int:
        """How many slots the projection has before its repairs."""
        return len(build_projection(self.plan.state))


def find_request_points(messages: Sequence[Message]) -> list[int]:
    """Return after how many messages an agent loop calls its model: before each answer, and at the end."""
    places = [index for index, message in enumerate(messages) if message.role == "assistant" and index]
    return [*places, len(messages)] if messages and messages[-1].role != "assistant" else places


def drive_agent_loop(
    messages: Sequence[Message],
    target: Target,
    policy: Policy = Policy(),
    *,
    request_points: Sequence[int] | None = None,
    usage: Callable[[Plan], int] | None = None,
    worlds: Sequence[PlanInputs] = (),
    before_request: Callable[[ConversationState], ConversationState] = lambda branch: branch,
) -> list[LoopRequest]:
    """Return the requests of a loop over ``messages`` that plans each from what it held after the one before.

    ``request_points`` are the numbers of messages at which it asks, those of ``find_request_points`` by default.
    ``usage`` tells the input tokens that are reported back; ``worlds`` are taken in turn; ``before_request`` is done to
    the branch before each request.
    """
    branch, entries = ConversationState(), [Entry("0", None, target.setup, 0)]
    branch = apply_entry(branch, entries[0])
    steps: list[LoopRequest] = []
    for number, count in enumerate(find_request_points(messages) if request_points is None else request_points):
        for message in messages[len(branch.history.sized_messages) : count]:
            entries.append(_make_next_entry(entries, MessageEntry(build_sized_message(message))))
            branch = apply_entry(branch, entries[-1])
        branch = before_request(branch)
        world = worlds[number % len(worlds)] if worlds else PlanInputs()
        plan = plan_request(branch, target, policy, world)
        steps.append(LoopRequest(count, tuple(entries), branch, world, plan))
        entries += make_plan_entries(entries, plan, count, target.model)
        branch = plan.state
        if usage is not None:
            entries.append(
                _make_next_entry(entries, AnswerEntry(branch.last_request.prefix_digest, Usage(usage(plan), 1)))
            )
            branch = apply_entry(branch, entries[-1])
    return steps


def make_plan_entries(entries: Sequence[Entry], plan: Plan, count: int, model: str) -> list[Entry]:
    """Return what a store appends to ``entries`` for ``plan``: a decision, a compaction, a request."""
    out: list[Entry] = []
    if plan.record:
        out.append(_make_next_entry([*entries, *out], DecisionEntry(plan.record)))
    if plan.compaction is not None:
        out.append(_make_next_entry([*entries, *out], plan.compaction))
    request = RequestEntry(
        plan.state.last_request.prefix_digest,
        count,
        model,
        plan.state.last_request.configured_window,
        plan.state.last_request.api,
    )
    return [*out, _make_next_entry([*entries, *out], request)]


def _make_next_entry(entries: Sequence[Entry], body: EntryBody) -> Entry:
    last = entries[-1]
    return Entry(str(last.seq + 1), last.id, body, last.seq + 1)


def get_wire_messages(target: Target, messages: Sequence[SizedMessage]) -> list[bytes]:
    """Return the messages of the request that shows ``messages``, byte for byte, without cache breakpoints."""
    body_fields = _RAW_FIELDS.decode(build_request_body(target.api, target.model, messages))
    return [bytes(raw) for raw in _RAW_MESSAGE_LIST.decode(body_fields["messages"])]
