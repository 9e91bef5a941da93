"""What is still open is named in every request, whatever was reduced; what has ended is in no new summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from open_work_scripts import WORK_SCRIPTS, WorkScript
from planning_loop import LoopRequest, drive_agent_loop
from sample_conversations import make_text

from holdfast import PlanInputs, Policy
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.references import iter_part_texts
from holdfast.planning.open_work.section import read_section_kinds
from holdfast.planning.presets.registry import PRESETS

WINDOWS = st.sampled_from([7_000, 12_000, 30_000])
SUMMARISING = [name for name, preset in PRESETS.items() if preset.settings.compaction.enabled]
LENGTHENED = frozenset({"codex shell", "claude-code agent", "openclaw shell", "openclaw approval", "copilot agent"})
"""Scripts whose results go on with output of any length after the line that matters."""
INPUTS = st.sampled_from(
    [
        PlanInputs(),
        PlanInputs(),
        PlanInputs(cache_state="cold"),
        PlanInputs(force_compaction=True),
        PlanInputs(can_spill=False),
        PlanInputs(overflow_step="compact"),
        PlanInputs(overflow_step="truncate"),
        PlanInputs(overflow_step="fallback"),
        PlanInputs(idle_seconds=10_000),
    ]
)


class Lifetime(NamedTuple):
    """The message indexes at which an item is told to have started and to have ended."""

    started: int
    ended: int


class WorkConversation(NamedTuple):
    """A conversation in which work of some client starts and ends."""

    messages: list[Message]
    lifetimes: dict[str, list[Lifetime]]

    def list_open_ids(self, count: int) -> set[str]:
        """Return the ids of what is open after the first ``count`` messages."""
        open_ids: set[str] = set()
        for id_, lifetimes in self.lifetimes.items():
            if any(lifetime.started < count <= lifetime.ended for lifetime in lifetimes):
                open_ids.add(id_)
        return open_ids


def lengthen_results(messages: Sequence[Message], seed: int, chars: int) -> list[Message]:
    """Return ``messages`` with ``chars`` characters of output after the text of each result."""
    lengthened: list[Message] = []
    for message in messages:
        parts = []
        for part in message.parts:
            if isinstance(part, ToolResult):
                text = "".join(inner.text for inner in part.content if isinstance(inner, Text))
                part = replace(part, content=(Text(f"{text}\n{make_text(seed, chars)}"),))  # noqa: PLW2901
            parts.append(part)
        lengthened.append(Message(message.role, tuple(parts)))
    return lengthened


def build_filler(number: int, chars: int) -> list[Message]:
    """Return an exchange that has nothing to do with open work."""
    id_ = f"f{number}"
    return [
        Message("assistant", (ToolCall(id_, "read", f'{{"path":"src/part_{number}.py"}}'),)),
        Message("tool", (ToolResult(id_, "read", (Text(make_text(number, chars)),)),)),
    ]


@st.composite
def work_conversations(draw: st.DrawFn) -> WorkConversation:
    """Draw a conversation of starts, questions, ends, requests of the user and filler in any order."""
    scripts: dict[str, WorkScript] = {}
    for number, script in enumerate(draw(st.lists(st.sampled_from(WORK_SCRIPTS), min_size=1, max_size=5))):
        scripts[script.make_id(7_001 + number)] = script
    messages: list[Message] = [Message.from_text("user", "Request number 0: keep the build green.")]
    started: dict[str, int] = {}
    lifetimes: dict[str, list[Lifetime]] = {id_: [] for id_ in scripts}
    actions = st.sampled_from(["filler", "filler", "filler", "user", *scripts, *scripts])
    for number, action in enumerate(draw(st.lists(actions, min_size=4, max_size=24))):
        if action == "filler":
            messages += build_filler(number, draw(st.sampled_from([300, 3_000, 9_000])))
        elif action == "user":
            messages.append(Message.from_text("assistant", f"Part {number} is done."))
            messages.append(Message.from_text("user", f"Request number {number}: go on with part {number}."))
        elif action not in started:
            script = scripts[action]
            exchange = script.start(action, f"work {number} of {script.label}")
            if script.label in LENGTHENED:
                exchange = lengthen_results(exchange, number, draw(st.sampled_from([0, 700, 3_500, 9_000])))
            messages += exchange
            started[action] = len(messages) - 1
        elif draw(st.booleans()):
            messages += scripts[action].go_on(action)
        else:
            # A notification has ended it with its first message, a result with its last.
            exchange = scripts[action].end(action)
            is_note = exchange[0].role == "user"
            end = len(messages) if is_note else len(messages) + 1
            messages += exchange
            lifetimes[action].append(Lifetime(started.pop(action), end))
    for id_, start in started.items():
        lifetimes[id_].append(Lifetime(start, len(messages) + 1))
    return WorkConversation(messages, lifetimes)


def collect_request_text(request: LoopRequest) -> str:
    """Return everything that the model reads in a request."""
    texts: list[str] = []
    for sized_message in request.sent_messages:
        for part in sized_message.message.parts:
            texts += [text for text in iter_part_texts(part) if text]
            if isinstance(part, ToolCall):
                texts.append(part.arguments)
    return "\n".join(texts)


def list_ids_in_new_summary(request: LoopRequest) -> set[str]:
    """Return the ids that the summary of this request's own compaction lists as open."""
    compaction = request.plan.compaction
    if compaction is None or compaction.summary is None:
        return set()
    ids: set[str] = set()
    for part in compaction.summary.parts:
        if isinstance(part, Text):
            ids.update(read_section_kinds(part.text))
    return ids


def check_requests(conversation: WorkConversation, requests: Sequence[LoopRequest]) -> None:
    for request in requests:
        open_ids = conversation.list_open_ids(request.count)
        text = collect_request_text(request)
        assert {id_ for id_ in open_ids if id_ not in text} == set()
        assert list_ids_in_new_summary(request) <= open_ids


@given(work_conversations(), WINDOWS, st.lists(INPUTS, max_size=5))
def test_open_work_is_named_in_every_request(conversation, window, plan_inputs):
    """Law: the id of every open item is in every request: after compactions, spills, prunes, cuts and
    in the smallest request. No item that has ended is in a summary made after its end.
    """
    target = get_target("anthropic", "claude-sonnet-4-5", window=window)
    check_requests(conversation, drive_agent_loop(conversation.messages, target, plan_inputs=plan_inputs))


@given(work_conversations(), WINDOWS, st.lists(INPUTS, max_size=5), st.sampled_from([500, 2_000]))
def test_open_work_is_named_where_every_long_result_is_shortened(conversation, window, plan_inputs, spill_chars):
    """Law: neither a line in place of a result nor its clearing takes the id of what it started."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=window)
    policy = Policy().with_settings(
        results={"spill_chars": spill_chars, "preview_chars": 0, "outline_chars": 0},
        prune={"when": ("cold", "broken", "space"), "keep_share": 0.02, "min_tokens": 50, "min_share": 0.01},
    )
    check_requests(conversation, drive_agent_loop(conversation.messages, target, policy, plan_inputs=plan_inputs))


@pytest.mark.parametrize("name", SUMMARISING)
@given(work_conversations(), WINDOWS, st.lists(INPUTS, max_size=3))
def test_open_work_is_named_in_every_request_of_a_preset(name, conversation, window, plan_inputs):
    """Law: policies of other tools forget no open work either."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=window)
    policy = Policy.preset(name)
    policy = replace(policy, rules=policy.rules.without_window_minimum())
    check_requests(conversation, drive_agent_loop(conversation.messages, target, policy, plan_inputs=plan_inputs))


@given(work_conversations(), st.integers(1, 3), st.booleans())
def test_open_work_is_named_behind_a_limit_of_turns(conversation, max_turns, hysteresis):
    """Law: turns that a limit hides take no open item with them."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=30_000)
    policy = Policy().with_settings(history={"max_turns": max_turns, "hysteresis": hysteresis})
    check_requests(conversation, drive_agent_loop(conversation.messages, target, policy))
