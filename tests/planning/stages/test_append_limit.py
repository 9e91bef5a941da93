"""The limit at append: a long text is cut with a notice, and its blob returns the whole text."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, wild_history_strategy
from sample_conversations import make_text

from holdfast import PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, count_message_chars, get_result_text
from holdfast.messages.parts import Media, Part, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import bound_message_chars
from holdfast.planning.settings import Settings
from holdfast.planning.stages.append_limit import cap_message_texts
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import build_request_body

NEWLINE = "\n"
SMALL = Policy().with_settings(results={"append_chars": 1_000}).settings
PICTURE = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
NOTICE = (
    "[Content truncated during persistence — original exceeded size limit of 1,000 characters; 5,000 characters{}; "
    'recall(id="{}"{}) returns them]'
)


def get_text(part: Part) -> str:
    return get_result_text(part) if isinstance(part, ToolResult) else part.text if isinstance(part, Text) else ""


@given(wild_history_strategy(), st.integers(1, 60))
def test_count_message_chars_is_at_least_the_length_of_the_texts(messages, limit):
    """The quick count is never below the length of the texts, so no text over the limit is missed."""
    for message in messages:
        texts = [get_text(part) for part in message.parts]
        assert sum(map(len, texts)) <= count_message_chars(message)
        short, blobs = cap_message_texts(message, Policy().with_settings(results={"append_chars": limit}).settings)
        assert (short is message) is (not blobs)
        assert {blob.text for blob in blobs} <= {text for text in texts if len(text) > limit}


@given(broken_history_strategy() | wild_history_strategy(), st.sampled_from(sorted(API_SPECS)))
def test_bound_message_chars_is_never_below_the_characters(messages, api):
    """A message's bytes are never fewer than its characters, so no text over the limit is missed."""
    assume(messages)
    for sized in parse_request(
        build_request_body(api, "m", [build_sized_message(message) for message in messages]), api
    ).messages:
        assert count_message_chars(sized.message) <= bound_message_chars(sized)


@pytest.mark.parametrize(("chars", "is_capped"), [(999, False), (1_000, False), (1_001, True), (90_000, True)])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_cap_message_texts_cuts_only_above_the_limit(chars, is_capped, role):
    """Only a text strictly longer than the limit is cut; otherwise the same message object is returned and no blob."""
    text = make_text(1, chars)
    part = Text(text) if role == "user" else ToolResult("t", "bash", (Text(text),))
    message = Message(role, (part,))
    short, blobs = cap_message_texts(message, SMALL)
    assert (short is not message) is is_capped
    assert [blob.text for blob in blobs] == [text] * is_capped


@pytest.mark.parametrize("can_spill", [True, False])
def test_cap_message_texts_names_the_blob_in_the_notice(can_spill):
    """Head and tail surround one line with the limit, the length, the handle and the omitted lines, without any tag."""
    text = make_text(3, 5_000)
    short, (blob,) = cap_message_texts(
        Message.from_text("user", text),
        SMALL if can_spill else Policy(settings=SMALL).with_settings(results={"spill_chars": 0}).settings,
    )
    assert blob.hash == sha256(text.encode()).hexdigest()
    lines, count = text.split("\n"), text.count("\n") + 1
    last = re.search(r'lines="[0-9]+-([0-9]+)"', short.text)
    first = short.text.split("[Content")[0].count("\n")
    lines_argument = f', lines="{first}-{last[1]}"' if can_spill else ""
    notice = NOTICE.format(f" in {count} lines" if can_spill else "", blob.hash[:12], lines_argument)
    head, tail = short.text.split(f"\n{notice}\n")
    if can_spill:
        assert lines[first - 1].startswith(head.split("\n")[-1])
        assert lines[int(last[1]) - 1].endswith(tail.split("\n")[0])
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) > len(tail) > 100
    assert len(short.text) <= 1_000
    assert "<" not in short.text


def test_cap_message_texts_keeps_other_parts():
    """Other parts, pictures in a result, its name and its error flag stay unchanged."""
    result = ToolResult("t", "bash", (Text(make_text(1, 3_000)), PICTURE), is_error=True)
    short, blobs = cap_message_texts(Message("user", (result, Text("and now?"), PICTURE)), SMALL)
    assert len(blobs) == 1
    assert short.parts[1:] == (Text("and now?"), PICTURE)
    kept = short.results[0]
    assert (kept.call_id, kept.name, kept.is_error, kept.content[1:]) == ("t", "bash", True, (PICTURE,))


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_cap_message_texts_skips_assistant_and_system_messages(role):
    """Only user and tool texts are cut: what the model wrote is sent back to it unchanged."""
    message = Message(role, (Text(make_text(1, 5_000)), ToolCall("t", "write", "x" * 5_000)))
    assert cap_message_texts(message, SMALL) == (message, ())


def test_cap_message_texts_handles_a_limit_of_zero_and_a_tiny_one():
    """0 cuts nothing; a limit shorter than the notice cuts only texts that are longer than the notice."""
    message = Message.from_text("user", make_text(1, 5_000))
    assert cap_message_texts(message, Policy().with_settings(results={"append_chars": 0}).settings) == (message, ())
    short = Message.from_text("user", make_text(1, 100))
    assert cap_message_texts(short, Policy().with_settings(results={"append_chars": 10}).settings) == (short, ())
    assert len(cap_message_texts(message, Policy().with_settings(results={"append_chars": 10}).settings)[0].text) < 250
    assert Settings().results.append_chars == 8_000_000
    assert Policy.preset("append-only").settings.results.append_chars == 0


@given(
    st.lists(st.sampled_from(["word ", "\n", "\ud83d", "配", "\x00", "\r\n", "x" * 300]), max_size=60).map("".join),
    st.integers(0, 2_000),
)
def test_cap_message_texts_shortens_and_stores_the_whole_text(text, limit):
    """The shown text is shorter and within the limit where the notice fits, and the blob has the whole text."""
    message = Message("tool", (ToolResult("t", "", (Text(text),)),))
    short, blobs = cap_message_texts(message, Policy().with_settings(results={"append_chars": limit}).settings)
    kept = get_result_text(short.results[0])
    if not blobs:
        assert short is message
        assert not limit or len(text) <= max(limit, 250)
        return
    assert blobs[0].text == text
    assert len(kept) < len(text)
    assert len(kept) <= max(limit, 250)
    assert cap_message_texts(short, Policy().with_settings(results={"append_chars": max(limit, 250)}).settings) == (
        short,
        (),
    )


@pytest.mark.parametrize("role", ["user", "tool"])
def test_plan_does_not_spill_a_capped_text(role):
    """A policy that spills caps to preview size at once, so the model sees the size and the handle of the
    whole text.
    """
    text = make_text(5, 400_000)
    part = Text(text) if role == "user" else ToolResult("t", "bash", (Text(text),))
    settings = (
        Policy()
        .with_settings(
            results={
                "append_chars": 100_000,
                "message_chars": 1,
                "message_share": 0.001,
                "spill_chars_by_tool": {"bash": 500},
            }
        )
        .settings
    )
    short, (blob,) = cap_message_texts(Message(role, (part,)), settings)
    shown = short.text or get_result_text(short.results[0])
    assert 2_000 < len(shown) < 2_500
    assert f'400,000 characters in {text.count(NEWLINE) + 1:,} lines; recall(id="{blob.hash[:12]}", lines=' in shown
    messages = [Message.from_text("user", "go"), Message("assistant", (ToolCall("t", "bash"),)), short]
    new_plan = plan(messages, get_target("anthropic", "claude-sonnet-4-5", window=200_000), Policy(settings=settings))
    assert (new_plan.record, new_plan.blobs) == ((), ())


def test_plan_does_not_prune_a_capped_text():
    """The handle of the whole text is nowhere else, so a capped result stays when old results are pruned."""
    result = ToolResult("t", "bash", (Text(make_text(5, 400_000)),))
    short, _ = cap_message_texts(
        Message("tool", (result,)), Policy().with_settings(results={"append_chars": 100_000}).settings
    )
    others = [ToolResult(f"u{n}", "bash", (Text(make_text(n, 9_000)),)) for n in range(30)]
    messages = [Message.from_text("user", "go"), Message("assistant", (ToolCall("t", "bash"),)), short]
    messages += [
        message
        for other in others
        for message in (Message("assistant", (ToolCall(other.call_id, "bash"),)), Message("tool", (other,)))
    ]
    messages += [Message.from_text("assistant", "done"), Message.from_text("user", "more")]
    target = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    policy = Policy().with_settings(compaction={"enabled": False, "goal_share": 0.0})
    first = plan(messages[:-1], target, policy)
    new_plan = plan(messages, target, policy, state=first.state, inputs=PlanInputs(cache_state="cold"))
    pruned = {edit.span.start for edit in new_plan.record if edit.rule == "prune"}
    assert 4 in pruned
    assert 2 not in pruned


def test_cap_message_texts_cuts_to_the_limit_without_spilling():
    """OpenClaw's rule cuts to its limit and no further: nothing is spilled later that could lose the handle."""
    text = make_text(5, 500_000)
    short, _ = cap_message_texts(Message.from_text("user", text), Policy.preset("openclaw").settings)
    assert 399_000 < len(short.text) <= 400_000
