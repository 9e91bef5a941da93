"""Extracts that are extended: while only the agent works, a compaction adds to the extract in force."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_conversations import make_text

from holdfast import ConversationState, PlanInputs, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.extract.extract import build_extension, build_extract
from holdfast.planning.extract.previous_summary import (
    EXTENSION_OPENING,
    EXTENSION_PREFACE,
    EXTRACT_OPENING,
    iter_user_texts,
)
from holdfast.planning.extract.returned_extract import expand_returned_extracts
from holdfast.providers.requests.request_body import build_request_body
from holdfast.state.target import Target

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=64_000)


def build_step(number: int, chars: int = 6_000) -> list[Message]:
    """Return a call of the agent that reads a file, and its result."""
    call = ToolCall(f"c{number}", "read", f'{{"path":"src/store/part_{number}.py"}}')
    result = ToolResult(f"c{number}", "read", (Text(make_text(number, chars)),))
    return [Message("assistant", (call,)), Message("tool", (result,))]


@dataclass
class Agent:
    """A conversation under way: each step is planned, and the summaries that were made are kept."""

    target: Target = TARGET
    messages: list[Message] = field(default_factory=lambda: [Message.from_text("user", "Tidy up src/store.")])
    state: ConversationState | None = None
    summaries: list[list[str]] = field(default_factory=list)

    def work(self, steps: int, inputs: PlanInputs = PlanInputs()) -> None:
        """Let the agent read ``steps`` files."""
        for _ in range(steps):
            self.messages += build_step(len(self.messages))
            self.plan(inputs)

    def say(self, text: str) -> None:
        """Let the user say something."""
        self.messages.append(Message.from_text("user", text))
        self.plan()

    def plan(self, inputs: PlanInputs = PlanInputs()) -> None:
        """Plan the next request."""
        self.newest_plan = plan(self.messages, self.target, state=self.state, inputs=inputs)
        self.state = self.newest_plan.state
        compaction = self.newest_plan.compaction
        if compaction is not None:
            self.summaries.append([part.text for part in compaction.summary.parts])


def list_extract_texts(summary: list[str]) -> list[str]:
    """Return the texts of an extract and its extensions."""
    return [text for text in summary if text.startswith((EXTRACT_OPENING, EXTENSION_OPENING))]


@settings(max_examples=15)
@given(st.integers(500, 9_000))
def test_compaction_extends_the_extract_while_only_the_agent_works(chars):
    """An extended summary begins with all texts of the extract before it, byte for byte, so the cache holds them."""
    agent = Agent()
    while len(agent.summaries) < 4:
        agent.messages += build_step(len(agent.messages), chars)
        agent.plan()
    extended_count = 0
    for before, after in zip(agent.summaries, agent.summaries[1:], strict=False):
        if after[0] == before[0]:
            assert list_extract_texts(after)[:-1] == list_extract_texts(before)
            extended_count += 1
    assert extended_count > 0


def test_compaction_makes_a_new_extract_after_the_user_spoke():
    """The user's words stand in the sections for them, so a summary that hides new ones is made anew."""
    agent = Agent()
    agent.work(25)
    count = len(agent.summaries)
    agent.say("From now on leave src/store/part_3.py alone.")
    while len(agent.summaries) < count + 2:
        agent.work(1)
    assert len(list_extract_texts(agent.summaries[-1])) <= 2
    assert "leave src/store/part_3.py alone" in agent.summaries[-1][0]


def test_compaction_makes_a_new_extract_in_a_cold_cache():
    """Nothing is cached then that an extension would keep."""
    agent = Agent()
    while not agent.summaries:
        agent.work(1)
    while len(agent.summaries) < 2:
        agent.work(1, PlanInputs(cache_state="cold"))
    assert len(list_extract_texts(agent.summaries[1])) == 1


def test_extension_tells_only_of_new_messages_and_repeats_no_line():
    """The ledger of an extension is about the new messages; a reference that the extract shows has no line again."""
    steps = [build_step(number) for number in range(12)]
    head = [build_sized_message(message) for step in steps for message in step]
    extract = build_extract(head[:16], head[16:], 4_000)
    extension = build_extension(head, 8, (), 2_000, [extract])
    assert extension.startswith(EXTENSION_OPENING)
    assert "src/store/part_9.py" in extension
    assert "- src/store/part_2.py" not in extension
    lines = set(extension.split("## Critical Context\n")[-1].split("\n")) & set(extract.split("\n"))
    assert not [line for line in lines if line and not line.startswith(("[", "#", "- "))]


@pytest.mark.parametrize("joined", [False, True], ids=["parts", "one text"])
def test_extension_that_comes_back_is_not_the_users(joined):
    """A client that sends an extended extract back has it read as what it quotes, not as words of the user."""
    steps = [build_step(number) for number in range(12)]
    head = [
        build_sized_message(message)
        for message in [Message.from_text("user", "Tidy up."), *[message for step in steps for message in step]]
    ]
    extract = build_extract(head[:17], head[17:], 4_000)
    texts = [extract, build_extension(head, 8, (), 2_000, [extract])]
    if joined:
        texts = ["\n\n".join(texts)]
    returned = build_sized_message(Message("user", tuple(map(Text, texts))))
    messages = [sized_message.message for sized_message in expand_returned_extracts([returned])]
    assert list(iter_user_texts(messages)) == ["Tidy up."]
    assert any("part_9.py" in message.text for message in messages if message.role == "assistant")


def test_breakpoint_stands_after_the_lasting_parts_of_a_summary():
    """What is still open is told anew with each compaction, so the breakpoint stands before it."""
    agent = Agent()
    todos = '{"todos":[{"content":"Tidy part 9","status":"pending","activeForm":"Tidying"}]}'
    agent.messages += [
        Message("assistant", (ToolCall("t1", "TodoWrite", todos),)),
        Message("tool", (ToolResult("t1", "TodoWrite", (Text("ok"),)),)),
    ]
    while len(agent.summaries) < 2:
        agent.work(1)
    assert agent.summaries[-1][-1].startswith("## Still Open")
    lasting_count = len(list_extract_texts(agent.summaries[-1]))
    assert agent.newest_plan.options.inner_breakpoint == (0, lasting_count)
    body = build_request_body(
        "anthropic",
        "claude-sonnet-4-5",
        [build_sized_message(message) for message in apply(agent.messages, agent.newest_plan)],
        options=agent.newest_plan.options,
    )
    content = json.loads(body)["messages"][0]["content"]
    assert ["cache_control" in block for block in content].index(True) == lasting_count - 1


@pytest.mark.parametrize(
    "opening",
    [EXTENSION_OPENING, EXTENSION_PREFACE.format(messages=3) + " ", EXTENSION_PREFACE.format(messages=3) + "\n"],
)
def test_words_like_an_extension_are_the_users(opening):
    """A message of the user that begins as our extensions do is quoted like any other, in every later extract."""
    agent = Agent()
    agent.work(12)
    agent.say(opening + "that is odd. You must never touch src/ZEBRA_7.py.")
    agent.work(70)
    assert len(agent.summaries) > 3
    assert all("never touch src/ZEBRA_7.py" in "\n".join(texts) for texts in agent.summaries[1:])


def test_large_system_messages_do_not_keep_a_large_window_from_compactions():
    """System messages that stay are no reason to begin so early that no compaction could reach its goal."""
    agent = Agent(get_target("openai-chat", "gpt-5", window=200_000))
    agent.messages.insert(0, Message.from_text("system", make_text(3, 192_000)))
    edited_requests = 0
    for _ in range(100):
        agent.work(1)
        edited_requests += bool(agent.newest_plan.record)
    assert agent.summaries
    assert edited_requests == 0
