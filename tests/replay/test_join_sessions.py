"""Sessions joined for ``bench/large_windows.py``: longer than any recorded one, and as valid as their parts."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request
from holdfast.replay.session import AnswerStep, ReplaySession
from holdfast.state.entries import Usage

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from large_windows import join_sessions


def build_session(turns: int) -> ReplaySession:
    """Return a session of ``turns`` turns, each with a call whose id occurs in every session."""
    messages, steps = [], []
    for turn in range(turns):
        messages.append(Message.from_text("user", f"Read part {turn}."))
        for answer in (
            Message("assistant", (ToolCall(f"call_{turn}", "read", f'{{"path":"p{turn}.py"}}'),)),
            Message("assistant", (Text(f"Part {turn} is read."),)),
        ):
            steps.append(AnswerStep(len(messages), 1_000 * turn, Usage(9, 9), after_compaction=turn == 1))
            messages.append(answer)
            if answer.calls:
                messages.append(Message("tool", (ToolResult(f"call_{turn}", "read", (Text("body"),)),)))
    return ReplaySession(tuple(map(build_sized_message, messages)), tuple(steps), "m")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 3))
def test_join_sessions_keeps_words_and_steps_and_renames_ids(lengths, copies):
    """Every message is there with its words, every step is an answer, each id occurs once, and the whole is valid."""
    parts = [build_session(turns) for turns in lengths] * copies
    joined = join_sessions([build_session(turns) for turns in lengths], copies)
    assert [message.message.text for message in joined.messages] == [
        message.message.text for part in parts for message in part.messages
    ]
    assert len(joined.steps) == sum(len(part.steps) for part in parts)
    assert all(joined.messages[step.index].message.role == "assistant" for step in joined.steps)
    assert all(step.at is None and step.usage is None and not step.after_compaction for step in joined.steps)
    calls = Counter(call.id for message in joined.messages for call in message.message.calls)
    results = Counter(result.call_id for message in joined.messages for result in message.message.results)
    assert calls == results
    assert set(calls.values()) == {1}
    for message in joined.messages:
        assert (message.tokens, message.digest) == (
            build_sized_message(message.message).tokens,
            build_sized_message(message.message).digest,
        )
    body = build_request_body("anthropic", "claude-sonnet-4-5", list(joined.messages), setup_fields={"max_tokens": 9})
    assert not [finding for finding in validate_request(body, "anthropic") if finding.level == "error"]
