"""The cap at append: long texts are cut with a notice, and come back whole through their blob."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Policy
from holdfast.model.messages import Message, result_text
from holdfast.model.parts import Media, Text, ToolCall, ToolResult
from holdfast.policy.capping import cap
from holdfast.policy.settings import Settings
from holdfast.testing.histories import words

SMALL = Settings(append_chars=1_000)
PICTURE = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
NOTICE = (
    "[Content truncated during persistence — original exceeded size limit of 1,000 characters; 5,000 characters; "
    'recall(id="{}") returns them]'
)


@pytest.mark.parametrize(("chars", "capped"), [(999, False), (1_000, False), (1_001, True), (90_000, True)])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_only_what_is_over_is_cut(chars, capped, role):
    """Strictly more than the cap is cut; anything else is the very same message with nothing to store."""
    text = words(1, chars)
    part = Text(text) if role == "user" else ToolResult("t", "bash", (Text(text),))
    message = Message(role, (part,))
    short, blobs = cap(message, SMALL)
    assert (short is not message) is capped
    assert [blob.text for blob in blobs] == [text] * capped


def test_the_notice_tells_where_the_whole_is():
    """Head and tail stand around one line with the limit, the length and the handle; no tag of ours is used."""
    text = words(3, 5_000)
    short, (blob,) = cap(Message.of("user", text), SMALL)
    assert blob.hash == sha256(text.encode()).hexdigest()
    head, tail = short.text.split(f"\n{NOTICE.format(blob.hash[:12])}\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) > len(tail) > 100
    assert len(short.text) <= 1_000
    assert "<" not in short.text


def test_the_rest_of_a_message_stays():
    """Other parts, pictures in a result, its name and whether it failed stay as they are."""
    result = ToolResult("t", "bash", (Text(words(1, 3_000)), PICTURE), is_error=True)
    short, blobs = cap(Message("user", (result, Text("and now?"), PICTURE)), SMALL)
    assert len(blobs) == 1
    assert short.parts[1:] == (Text("and now?"), PICTURE)
    kept = short.results[0]
    assert (kept.call_id, kept.name, kept.is_error, kept.content[1:]) == ("t", "bash", True, (PICTURE,))


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_the_model_and_the_system_are_not_cut(role):
    """Only words of users and tools are cut: what the model said goes back to it as it was."""
    message = Message(role, (Text(words(1, 5_000)), ToolCall("t", "write", "x" * 5_000)))
    assert cap(message, SMALL) == (message, ())


def test_no_cap_and_a_tiny_one():
    """0 cuts nothing; a cap under its own notice cuts only what is longer than that notice."""
    message = Message.of("user", words(1, 5_000))
    assert cap(message, Settings(append_chars=0)) == (message, ())
    short = Message.of("user", words(1, 100))
    assert cap(short, Settings(append_chars=10)) == (short, ())
    assert len(cap(message, Settings(append_chars=10))[0].text) < 250
    assert Settings().append_chars == 8_000_000
    assert Policy.preset("append-only").settings.append_chars == 0


@given(
    st.lists(st.sampled_from(["word ", "\n", "\ud83d", "配", "\x00", "\r\n", "x" * 300]), max_size=60).map("".join),
    st.integers(0, 2_000),
)
def test_a_capped_text_is_shorter_and_nothing_is_lost(text, most):
    """What stays is shorter, within the cap where that has room for the notice, and the blob is the whole text."""
    message = Message("tool", (ToolResult("t", "", (Text(text),)),))
    short, blobs = cap(message, Settings(append_chars=most))
    kept = result_text(short.results[0])
    if not blobs:
        assert short is message
        assert not most or len(text) <= max(most, 250)
        return
    assert blobs[0].text == text
    assert len(kept) < len(text)
    assert len(kept) <= max(most, 250)
    assert cap(short, Settings(append_chars=max(most, 250))) == (short, ())
