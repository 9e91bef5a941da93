"""Where facts are lost: groups counted by hand, and sums that agree with recall on any small session."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from holdfast.config import get_target
from holdfast.formats import read_recording
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning.pipeline import Policy
from holdfast.replay.losses import (
    AGE_NAMES,
    GROUP_ORDER,
    LossCount,
    LossRecorder,
    LossReport,
    describe_action,
    encode_losses,
    name_age,
    name_mentions,
    pool_losses,
)
from holdfast.replay.measure import MeasurementSettings, PolicyFigures, SessionStudy, measure_policy
from holdfast.replay.report_losses import make_loss_heading, make_loss_table, make_worst_steps
from holdfast.replay.session import make_replay_session
from holdfast.state.entries import RequestSetup

FILLER = "plain words without any names " * 400
"""Some 2,000 tokens."""


def build_study(messages: list[dict], window: int) -> SessionStudy:
    """Return the study of a request body with ``messages`` in a window without setup."""
    body = json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": messages}).encode()
    target = get_target("anthropic", "claude-sonnet-4-5", window=window, setup=RequestSetup("t", 0, is_exact=True))
    session = make_replay_session(read_recording(body), "anthropic")
    return SessionStudy(session, MeasurementSettings(window, 0, target, "estimate", estimate_text_tokens))


def measure_losses(messages: list[dict], window: int, policy: str = "sliding") -> tuple[PolicyFigures, LossReport]:
    """Replay ``messages`` and return the figures and the losses."""
    study = build_study(messages, window)
    recorder = LossRecorder(study, "a.jsonl")
    figures = measure_policy(study, Policy.preset(policy), watch_needs=recorder.add_request)
    return figures, recorder.make_report()


def make_call(id_: str, command: str) -> dict:
    """Return the answer that calls Bash."""
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id_, "name": "Bash", "input": {"c": command}}]}


def make_result(id_: str, text: str, *, is_error: bool = False) -> dict:
    """Return the message with the result of a call."""
    block = {"type": "tool_result", "tool_use_id": id_, "content": text, "is_error": is_error}
    return {"role": "user", "content": [block]}


def make_forgetful_session() -> list[dict]:
    """Return a session that uses a name of a failed result again when the window has long lost it."""
    messages = [
        {"role": "user", "content": "begin"},
        make_call("t0", "run"),
        make_result("t0", "error in scan_header at line 8123", is_error=True),
    ]
    for number in range(1, 12):
        messages += [make_call(f"t{number}", "look"), make_result(f"t{number}", FILLER)]
    messages.append({"role": "assistant", "content": "scan_header is repaired"})
    return messages


def render(*renderables: object) -> str:
    """Return what a terminal of 100 columns would show."""
    out = Console(width=100, color_system=None, force_terminal=False)
    with out.capture() as capture:
        for renderable in renderables:
            out.print(renderable)
    return capture.get()


def test_losses_of_a_forgotten_error() -> None:
    """The one fact that is needed once it is gone is told with its kind, source, age, tool and place."""
    figures, report = measure_losses(make_forgetful_session(), 16_000)
    assert figures.online.total == 1
    assert report.count == LossCount(1, 1)
    assert report.names_known == 0
    [step] = report.worst_steps
    assert (step.file, step.answer, step.message, step.action) == ("a.jsonl", 13, 25, "scan_header is repaired")
    [fact] = step.facts
    assert (fact.name, fact.kind, fact.message, fact.mentions) == ("scan_header", "identifier", 2, 1)
    assert (fact.source, fact.tool, fact.place) == ("failed result", "Bash", "older")
    assert fact.age == pytest.approx(11 * estimate_text_tokens(FILLER), rel=0.05)
    one = LossCount(1, 1)
    assert report.tables == {
        "kind": {"identifier": one},
        "age": {name_age(fact.age): one},
        "mentions": {"1 message": one},
        "source": {"failed result": one},
        "place": {"older": one},
    }


def test_losses_of_append_only_are_none() -> None:
    """A policy that never removes anything loses nothing: the fact is needed, and stands in the kept part."""
    _, report = measure_losses(make_forgetful_session(), 1_000_000, "append-only")
    assert report.count == LossCount(0, 1)
    assert report.tables["place"] == {"in the kept part": LossCount(0, 1)}
    assert report.worst_steps == ()
    assert make_loss_table(report) is None
    assert "none of the 1 fact used again was lost" in make_loss_heading("append-only", report).plain


NAMES = ("scan_header", "split_fields", "wire_reader", "src/pkg/parse.py", "8123")


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=14))
def test_losses_agree_with_recall(turns: list[tuple[str, str, bool]]) -> None:
    """In any session each table adds up to the losses, and these to what online fact recall lacks."""
    messages: list[dict] = [{"role": "user", "content": "begin"}]
    for number, (used, shown, is_long) in enumerate(turns):
        filler = FILLER if is_long else ""
        messages += [make_call(f"t{number}", f"look at {used}"), make_result(f"t{number}", f"{filler}\nfound {shown}")]
    messages.append({"role": "assistant", "content": "done"})
    figures, report = measure_losses(messages, 8_000)
    online = figures.online
    assert report.count == LossCount(online.total - online.facts, online.total)
    assert report.names_known == online.names - online.facts
    for counts in report.tables.values():
        assert sum(counts.values(), LossCount()) == report.count
    pooled = pool_losses([report, report])
    assert pooled.count == report.count + report.count
    assert list(pooled.tables) == list(GROUP_ORDER)


def test_encode_losses_names_each_table() -> None:
    """The JSON has the sums, a table for each grouping, and the worst steps with all their facts."""
    _, report = measure_losses(make_forgetful_session(), 16_000)
    encoded = json.loads(json.dumps(encode_losses(report)))
    assert list(encoded) == ["lost", "needed", "names_known", *(f"by_{table}" for table in GROUP_ORDER), "worst_steps"]
    assert encoded["by_kind"] == {"identifier": {"lost": 1, "needed": 1}}
    assert encoded["worst_steps"][0]["facts"][0]["name"] == "scan_header"


def test_loss_report_is_readable_and_clean() -> None:
    """A terminal shows the sentence, the bars and the worst steps, without control characters of the session."""
    messages = make_forgetful_session()
    messages[-1]["content"] += " \x1b[31mred"
    _, report = measure_losses(messages, 16_000)
    steps = make_worst_steps(report, clean_single_line, 100, names_files=True)
    text = render(make_loss_heading("sliding", report), make_loss_table(report), steps)
    assert "sliding: 1 of the 1 facts used again were lost (100.0%)" in text
    assert "identifier" in text
    assert "█" * 20 in text
    assert "a.jsonl, answer 13 (message 25) missed 1 fact: scan_header is repaired" in text
    assert "scan_header: failed result of Bash in message 2" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("tokens", "group"), [(0, 0), (7_999, 0), (8_000, 1), (63_999, 3), (127_999, 4), (128_000, 5), (10**9, 5)]
)
def test_name_age_limits(tokens: int, group: int) -> None:
    """A limit belongs to the group above it."""
    assert name_age(tokens) == AGE_NAMES[group]


def test_name_mentions_limits() -> None:
    """One, two, a few and many messages."""
    names = [name_mentions(count) for count in (1, 2, 3, 5, 6, 99)]
    assert names == ["1 message", "2 messages", "3 to 5 messages", "3 to 5 messages", "6 and more", "6 and more"]


def test_describe_action_prefers_calls() -> None:
    """An answer is described by its calls with their first argument; without calls by its text, on one line."""
    calls = (Text("I look."), ToolCall("a", "Read", '{"path": "a.py"}'), ToolCall("b", "Stop", "{}"))
    assert describe_action(Message("assistant", calls)) == "Read a.py; Stop"
    assert describe_action(Message.from_text("assistant", "all\n  done")) == "all done"
