"""The cap at append: long texts are cut with a notice, and come back whole through their blob."""

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
from holdfast.providers.requests.request_body import build_request_body, parse_request

NEWLINE = "\n"
SMALL = Policy().with_settings(results={"append_chars": 1_000}).settings
PICTURE = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
NOTICE = (
    "[Content truncated during persistence — original exceeded size limit of 1,000 characters; 5,000 characters{}; "
    'recall(id="{}"{}) returns them]'
)


def said(part: Part) -> str:
    return get_result_text(part) if isinstance(part, ToolResult) else part.text if isinstance(part, Text) else ""


@given(wild_history_strategy(), st.integers(1, 60))
def test_a_message_is_not_looked_into_where_all_of_it_is_short(messages, most):
    """A message has at least the characters of its texts, so that none over the cap is passed over."""
    for message in messages:
        texts = [said(part) for part in message.parts]
        assert sum(map(len, texts)) <= count_message_chars(message)
        short, blobs = cap_message_texts(message, Policy().with_settings(results={"append_chars": most}).settings)
        assert (short is message) is (not blobs)
        assert {blob.text for blob in blobs} <= {text for text in texts if len(text) > most}


@given(broken_history_strategy() | wild_history_strategy(), st.sampled_from(sorted(API_SPECS)))
def test_what_has_few_bytes_has_no_more_characters(messages, api):
    """The bytes of a message are never fewer than its characters, so that no text over a limit is passed over."""
    assume(messages)
    for slot in parse_request(
        build_request_body(api, "m", [build_sized_message(message) for message in messages]), api
    ).messages:
        assert count_message_chars(slot.message) <= bound_message_chars(slot)


@pytest.mark.parametrize(("chars", "capped"), [(999, False), (1_000, False), (1_001, True), (90_000, True)])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_only_what_is_over_is_cut(chars, capped, role):
    """Strictly more than the cap is cut; anything else is the very same message with nothing to store."""
    text = make_text(1, chars)
    part = Text(text) if role == "user" else ToolResult("t", "bash", (Text(text),))
    message = Message(role, (part,))
    short, blobs = cap_message_texts(message, SMALL)
    assert (short is not message) is capped
    assert [blob.text for blob in blobs] == [text] * capped


@pytest.mark.parametrize("spills", [True, False])
def test_the_notice_tells_where_the_whole_is(spills):
    """Head and tail stand around one line with limit, length and handle, and the lines between; no tag is used."""
    text = make_text(3, 5_000)
    short, (blob,) = cap_message_texts(
        Message.from_text("user", text),
        SMALL if spills else Policy(settings=SMALL).with_settings(results={"spill_chars": 0}).settings,
    )
    assert blob.hash == sha256(text.encode()).hexdigest()
    lines, count = text.split("\n"), text.count("\n") + 1
    last = re.search(r'lines="[0-9]+-([0-9]+)"', short.text)
    first = short.text.split("[Content")[0].count("\n")
    where = f', lines="{first}-{last[1]}"' if spills else ""
    notice = NOTICE.format(f" in {count} lines" if spills else "", blob.hash[:12], where)
    head, tail = short.text.split(f"\n{notice}\n")
    if spills:
        assert lines[first - 1].startswith(head.split("\n")[-1])
        assert lines[int(last[1]) - 1].endswith(tail.split("\n")[0])
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) > len(tail) > 100
    assert len(short.text) <= 1_000
    assert "<" not in short.text


def test_the_rest_of_a_message_stays():
    """Other parts, pictures in a result, its name and whether it failed stay as they are."""
    result = ToolResult("t", "bash", (Text(make_text(1, 3_000)), PICTURE), is_error=True)
    short, blobs = cap_message_texts(Message("user", (result, Text("and now?"), PICTURE)), SMALL)
    assert len(blobs) == 1
    assert short.parts[1:] == (Text("and now?"), PICTURE)
    kept = short.results[0]
    assert (kept.call_id, kept.name, kept.is_error, kept.content[1:]) == ("t", "bash", True, (PICTURE,))


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_the_model_and_the_system_are_not_cut(role):
    """Only words of users and tools are cut: what the model said goes back to it as it was."""
    message = Message(role, (Text(make_text(1, 5_000)), ToolCall("t", "write", "x" * 5_000)))
    assert cap_message_texts(message, SMALL) == (message, ())


def test_no_cap_and_a_tiny_one():
    """0 cuts nothing; a cap under its own notice cuts only what is longer than that notice."""
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
def test_a_capped_text_is_shorter_and_nothing_is_lost(text, most):
    """What stays is shorter, within the cap where that has room for the notice, and the blob is the whole text."""
    message = Message("tool", (ToolResult("t", "", (Text(text),)),))
    short, blobs = cap_message_texts(message, Policy().with_settings(results={"append_chars": most}).settings)
    kept = get_result_text(short.results[0])
    if not blobs:
        assert short is message
        assert not most or len(text) <= max(most, 250)
        return
    assert blobs[0].text == text
    assert len(kept) < len(text)
    assert len(kept) <= max(most, 250)
    assert cap_message_texts(short, Policy().with_settings(results={"append_chars": max(most, 250)}).settings) == (
        short,
        (),
    )


@pytest.mark.parametrize("role", ["user", "tool"])
def test_what_the_cap_leaves_is_never_spilled(role):
    """A policy that spills gets the ends of a preview at once: the model sees the whole's size and its handle only."""
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
    kept = short.text or get_result_text(short.results[0])
    assert 2_000 < len(kept) < 2_500
    assert f'400,000 characters in {text.count(NEWLINE) + 1:,} lines; recall(id="{blob.hash[:12]}", lines=' in kept
    said = [Message.from_text("user", "go"), Message("assistant", (ToolCall("t", "bash"),)), short]
    made = plan(said, get_target("anthropic", "claude-sonnet-4-5", window=200_000), Policy(settings=settings))
    assert (made.record, made.blobs) == ((), ())


def test_what_the_cap_leaves_is_not_pruned():
    """The handle of the whole text stands nowhere else, so its line stays when old results go."""
    result = ToolResult("t", "bash", (Text(make_text(5, 400_000)),))
    short, _ = cap_message_texts(
        Message("tool", (result,)), Policy().with_settings(results={"append_chars": 100_000}).settings
    )
    others = [ToolResult(f"u{n}", "bash", (Text(make_text(n, 9_000)),)) for n in range(30)]
    said = [Message.from_text("user", "go"), Message("assistant", (ToolCall("t", "bash"),)), short]
    said += [
        m for one in others for m in (Message("assistant", (ToolCall(one.call_id, "bash"),)), Message("tool", (one,)))
    ]
    said += [Message.from_text("assistant", "done"), Message.from_text("user", "more")]
    goal = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    policy = Policy().with_settings(compaction={"enabled": False, "goal_share": 0.0})
    first = plan(said[:-1], goal, policy)
    made = plan(said, goal, policy, state=first.state, inputs=PlanInputs(cache_state="cold"))
    pruned = {edit.span.start for edit in made.record if edit.rule == "prune"}
    assert 4 in pruned
    assert 2 not in pruned


def test_without_spilling_the_cap_is_what_stays():
    """OpenClaw's rule cuts to its limit and no further: nothing is spilled later that could lose the handle."""
    text = make_text(5, 500_000)
    short, _ = cap_message_texts(Message.from_text("user", text), Policy.preset("openclaw").settings)
    assert 399_000 < len(short.text) <= 400_000
