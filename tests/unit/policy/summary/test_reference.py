"""The numbers and texts of OpenClaw, pi and opencode around a summary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.messages import Message
from holdfast.model.parts import Media, Text, Thinking, ToolCall, ToolResult
from holdfast.policy.measures import estimate_tokens
from holdfast.policy.summary.reference import openclaw, opencode
from holdfast.policy.summary.reference.openclaw_chunks import (
    by_share,
    by_tokens,
    chunk_ratio,
    chunk_tokens,
    is_oversized,
    is_split,
    within_share,
)
from holdfast.policy.summary.reference.openclaw_turns import failures_section, quoted, recent, turns_kept
from holdfast.policy.summary.reference.pi import Files, carried, files, serialized
from holdfast.testing.strategies import conversations, messages


def words(tokens, role="user"):
    return Message.of(role, "k" * (4 * tokens))


def call(id_, tokens=1, **given):
    return Message("assistant", (Text("k" * (4 * tokens)), ToolCall(id_, "read", "{}")))


def result(id_, text="r", *, is_error=False, name="read"):
    return Message("tool", (ToolResult(id_, name, (Text(text),), is_error),))


# -- OpenClaw: chunks --------------------------------------------------------------------------------------------------


def test_the_share_of_a_chunk():
    """A chunk may have 0.4 of the window; where messages are over a tenth of it on average, less, down to 0.15."""
    assert chunk_ratio([100, 100], 100_000) == 0.4
    assert chunk_ratio([], 100_000) == 0.4
    assert chunk_ratio([10_000], 120_000) == 0.4
    assert chunk_ratio([11_000], 120_000) == pytest.approx(0.4 - 2 * 0.11)
    assert chunk_ratio([90_000], 100_000) == pytest.approx(0.15)
    assert chunk_tokens([100], 100_000) == 40_000 - 4_096
    assert chunk_tokens([100], 4_000) == 1


def test_when_it_is_split():
    """It is split from four messages and more than one chunk on; half the window makes a message too large."""
    assert is_split([10, 10, 10, 10], 39)
    assert not is_split([10, 10, 10], 5)
    assert not is_split([10, 10, 10, 10], 40)
    assert not is_split([10, 10, 10, 10], 5, parts=1)
    assert is_oversized(50_001, 120_000)
    assert not is_oversized(50_000, 120_000)


def test_chunks_by_tokens():
    """Chunks hold what fits over safety; a longer message ends its chunk; a call stays with its result."""
    said = [words(100), words(100), words(900), words(100)]
    assert [len(chunk) for chunk in by_tokens(said, 360)] == [2, 1, 1]
    assert [len(chunk) for chunk in by_tokens([words(200), call("1", 90), result("1")], 350)] == [1, 2]
    assert by_tokens([], 10) == []


def test_chunks_by_share():
    """Two chunks have about half of the tokens each; a call stays with its result."""
    assert [len(chunk) for chunk in by_share([words(100)] * 4)] == [2, 2]
    assert [len(chunk) for chunk in by_share([words(50), call("1", 60), result("1"), words(10)])] == [1, 3]
    assert [len(chunk) for chunk in by_share([words(100)], 2)] == [1]


@given(conversations(), st.integers(1, 4), st.integers(1, 4_000))
def test_chunks_hold_everything(head, number, most):
    """However it is divided, every message is there once and in order."""
    for chunks in (by_share(head, number), by_tokens(head, most)):
        assert [one for chunk in chunks for one in chunk] == list(head)
    assert len(by_share(head, number)) <= number


def test_history_within_its_share():
    """The older half goes until the rest is within its share of the window, a result never without its call."""
    said = [words(400), call("1", 400), result("1"), words(100)]
    found = within_share(said, 1_000)
    assert (found.kept, found.dropped, found.chunks, found.budget) == ((words(100),), tuple(said[:3]), 2, 500)
    giant = within_share([words(5_000)], 1_000)
    assert (giant.kept, giant.chunks) == ((words(5_000),), 0)
    assert sum(map(estimate_tokens, found.kept)) <= found.budget


# -- OpenClaw: turns and failures --------------------------------------------------------------------------------------


def test_recent_turns():
    """The newest turns with the results of their calls; where fewer users spoke, the newest messages too."""
    said = [words(1), words(1, "assistant"), words(1), call("1"), result("1"), words(1, "assistant"), words(1)]
    assert recent(said, 1) == {6}
    assert recent(said, 2) == {2, 3, 4, 5, 6}
    assert recent(said, 4) == set(range(7))
    assert recent(said[1:6], 2) == {0, 1, 2, 3, 4}
    assert recent(said[3:6], 1) == {0, 1, 2}
    assert recent(said, 0) == recent([], 3) == frozenset()


def test_how_many_turns_a_setting_means():
    """Whole numbers from 0 to 12, 3 for what is no number."""
    assert [turns_kept(one) for one in (None, 2.9, -4, 99, "x", True, float("nan"), 0)] == [3, 2, 0, 12, 3, 3, 3, 0]


def test_recent_turns_are_quoted():
    """User and agent are quoted with up to 600 characters each, and what was no text is named."""
    picture = Media("image", "image/png", 3)
    said = [
        Message("user", (Text("a" * 700), picture, picture)),
        result("1"),
        Message("assistant", (ToolCall("1", "t"),)),
    ]
    lines = quoted(said).split("\n")
    assert lines[0] == "## Recent turns preserved verbatim"
    assert lines[1] == f"- User: {'a' * 600}... [non-text content: image x2]"
    assert lines[2] == "- Assistant: [non-text content: tool call]"
    assert quoted([result("1")]) == ""


def test_failures_are_listed():
    """Each failed result is a line of 240 characters, the first of each call; the ninth is counted only."""
    said = [result(str(n), f"bad \n thing {n}", is_error=True) for n in range(10)]
    told = failures_section([*said, result("0", "again", is_error=True), result("x", "fine")]).split("\n")
    assert told[:2] == ["## Tool Failures", "- read: bad thing 0"]
    assert told[-1] == "- ...and 2 more"
    assert len(told) == 10
    (line,) = failures_section([result("1", "x" * 900, is_error=True)]).split("\n")[1:]
    assert line == f"- read: {'x' * 237}..."
    assert failures_section([result("1")]) == ""


# -- OpenClaw: the summary ---------------------------------------------------------------------------------------------


def test_a_summary_is_cut_to_its_size():
    """The body is cut and says so, what is added behind it stays whole, all of it is within the limit."""
    assert openclaw.capped("body", " suffix") == "body suffix"
    told = openclaw.capped("b" * 300, "SUFFIX", 100)
    assert told.endswith("[Compaction summary truncated to fit budget]SUFFIX")
    assert len(told) == 100
    assert openclaw.capped("b" * 300, "s" * 150, 100) == "s" * 100
    assert openclaw.capped("b" * 300, "s" * 90, 100) == "b" * 10 + "s" * 90


def test_what_its_summary_lacks():
    """Missing sections, identifiers and the newest ask are named; identifiers under the strict policy alone."""
    whole = "\n".join(openclaw.HEADINGS) + "\nmigrate billing database tonight"
    assert openclaw.complaints(whole, (), "migrate the billing database") == []
    assert openclaw.complaints(whole, ("/a/b", "CAFEBABE"), None) == ["missing_identifiers:/a/b,CAFEBABE"]
    assert openclaw.complaints(whole, ("/a/b",), None, "off") == []
    assert openclaw.complaints(whole, (), "paint the boat red") == ["latest_user_ask_not_reflected"]
    assert openclaw.complaints("", ()) == [f"missing_section:{heading}" for heading in openclaw.HEADINGS]


def test_identifiers_that_openclaw_asks_for():
    """The first twelve, each once, hexadecimal ones in capitals."""
    assert openclaw.identifiers("0xdeadbeef Cafebabe12 deadbeef") == ("DEADBEEF", "CAFEBABE12")
    numbers = [str(100_000 + n) for n in range(20)]
    assert openclaw.identifiers(" ".join(numbers)) == tuple(numbers[:12])


# -- pi ----------------------------------------------------------------------------------------------------------------


def test_how_pi_tells_a_conversation():
    """Labelled blocks, no media or thinking; a result keeps 2,000 characters as JavaScript counts, no half pair."""
    calls = (ToolCall("1", "read", '{"path": "a", "n": [1]}'), ToolCall("2", "bash", '{"command": "ls"}'))
    said = [
        Message("user", (Text("look"), Media("image", "image/png", 3))),
        Message("assistant", (Thinking("hm"), Text("yes"), *calls)),
        result("1", "x" * 1_999 + "😀" + "y" * 99, is_error=True),
        result("2", ""),
        result("2", "z" * 2_000),
    ]
    assert serialized(said).split("\n\n") == [
        "[User]: look",
        "[Assistant]: yes",
        '[Assistant tool calls]: read(path="a", n=[1]); bash(command="ls")',
        "[Tool result]: " + "x" * 1_999,
        "[... 101 more characters truncated]",
        "[Tool result]: " + "z" * 2_000,
    ]


@given(st.lists(messages(), max_size=4))
def test_pi_tells_anything(head):
    """Any messages can be told as pi does, as text that can be sent."""
    serialized(head).encode()


def test_files_of_calls():
    """Files are known from read, write and edit with a path; a changed one was not only read; both are sorted."""
    calls = [("read", "b"), ("edit", "b"), ("read", "a"), ("write", "z"), ("bash", "q"), ("read", None)]
    parts = tuple(
        ToolCall(str(n), name, f'{{"path": "{path}"}}' if path else "{}") for n, (name, path) in enumerate(calls)
    )
    found = files([Message("assistant", parts)], Files(("old", "z"), ("m",)))
    assert found == Files(("a", "old"), ("b", "m", "z"))
    assert found.tail.startswith("\n\n<read-files>\na\nold\n</read-files>\n\n<modified-files>\nb")
    assert Files().tail == ""


def test_files_carried_over():
    """The details of the summary before are believed unless a hook made it; what is no list of names is nothing."""
    told = {"readFiles": ["a", 1], "modifiedFiles": "m"}
    assert carried(told) == Files(("a",))
    assert carried(told, from_hook=True) == Files()


# -- opencode ----------------------------------------------------------------------------------------------------------


def test_what_is_said_afterwards():
    """Only an automatic compaction that cut a turn is followed by words; media are named only if some went."""
    assert opencode.continuation(auto=True) == opencode.CONTINUE
    assert opencode.continuation(auto=True, media_gone=True) == f"{opencode.MEDIA_GONE}\n\n{opencode.CONTINUE}"
    for quiet in ({"auto": False}, {"auto": True, "replayed": True}, {"auto": True, "allowed": False}):
        assert opencode.continuation(**quiet) == ""
    assert opencode.too_large(replayed=True) != opencode.too_large(replayed=False)


def test_opencode_waits_as_it_does():
    """[C] 2 s doubling, capped without headers alone; what the server says comes first, unless it is no number."""
    assert [opencode.delay(n, None) for n in (1, 2, 5)] == [2_000, 4_000, 30_000]
    assert opencode.delay(5, {}) == 32_000
    assert opencode.delay(1, {"retry-after": "2.5"}) == 2_500
    assert opencode.delay(1, {"retry-after": "soon", "retry-after-ms": "nan"}) == 2_000
    assert opencode.retries(500, told=False)
    assert not opencode.retries(404, told=False)
    assert opencode.retries(None, told=True)
