"""opencode and Claude Code: output cut where it arrives, and old results cleared."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_loop import drive_agent_loop

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.planning.presets.common.truncate_lines import TruncatedText, add_partial_line, truncate_lines
from holdfast.planning.stages.prune.prunable_results import CLEARED_RESULT_TEXT

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)


def turn(number, *texts, tool="bash", error=False):
    """Return a turn in which a tool gave ``texts``, one result each."""
    ids = [f"c{number}.{place}" for place in range(len(texts))]
    results = [ToolResult(id_, tool, (Text(text),), error) for id_, text in zip(ids, texts, strict=True)]
    return [
        Message.from_text("user", f"turn {number}"),
        Message("assistant", tuple(ToolCall(id_, tool) for id_ in ids)),
        Message("tool", tuple(results)),
        Message.from_text("assistant", "done"),
    ]


def sent(said, policy, world=PlanInputs()):
    """Return the texts of the results as sent."""
    return [
        get_result_text(one)
        for message in apply(said, plan(said, WHERE, policy, inputs=world))
        for one in message.results
    ]


# -- output cut where it arrives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lines", "size", "end", "found"),
    [
        ("a\nb\nc", 2, 0, "head", TruncatedText("a\nb", 2, 1, "lines")),
        ("a\nb\nc", 2, 0, "tail", TruncatedText("b\nc", 2, 1, "lines")),
        ("a\nb\nc", 3, 5, "head", None),
        ("a\nb\nc", 0, 0, "head", None),
        ("a\nb\nc", 9, 4, "head", TruncatedText("a\nb", 2, 2, "bytes")),
        ("a\nb\nc", 9, 4, "tail", TruncatedText("b\nc", 2, 2, "bytes")),
        ("aaaaa\nb", 9, 4, "head", TruncatedText("", 0, 7, "bytes")),
        ("aaaaa\nb", 9, 4, "tail", TruncatedText("b", 1, 6, "bytes")),
        ("\u00e9\u00e9\nb", 9, 4, "head", TruncatedText("\u00e9\u00e9", 1, 2, "bytes")),
        ("\u00e9\u00e9\u00e9\nb", 9, 4, "head", TruncatedText("", 0, 8, "bytes")),
        ("\n\n\n", 2, 0, "head", TruncatedText("\n", 2, 2, "lines")),
        ("", 1, 1, "head", None),
    ],
)
def test_truncation_by_example(text, lines, size, end, found):
    """[C] whole lines of one end; what ran out, lines or bytes, tells how much is missing; nothing where all fits."""
    assert truncate_lines(text, lines, size, end) == found


@given(
    st.text("ab\n\u00e9\U0001f600\ud83d", max_size=60),
    st.integers(1, 12),
    st.integers(1, 40),
    st.sampled_from(["head", "tail"]),
)
def test_truncation_keeps_the_most_whole_lines(text, lines, size, end):
    """What stays is within both limits, one line more is not, and with what is missing it is the whole text."""

    def length(part):
        return len(part.encode("utf-8", "surrogatepass"))

    def piece(count):
        kept = every[:count] if end == "head" else every[len(every) - count :]
        return "\n".join(kept)

    found, every = truncate_lines(text, lines, size, end), text.split("\n")
    if found is None:
        assert len(every) <= lines
        assert length(text) <= size
        return
    assert found.text == piece(found.lines)
    assert found.lines <= lines
    assert length(found.text) <= size
    assert found.lines + 1 > lines or length(piece(found.lines + 1)) > size
    missing = {"lines": len(every) - found.lines, "bytes": length(text) - length(found.text)}
    assert found.removed_count == missing[found.unit] > 0


@given(
    st.text("ab\n\u00e9\U0001f600\ud83d", max_size=60),
    st.integers(0, 12),
    st.integers(1, 40),
    st.sampled_from(["head", "tail"]),
)
def test_a_line_that_never_fits_is_shown_in_part(text, lines, size, end):
    """A line over all bytes allowed fills what whole lines leave, up to a character; others stay whole or go.

    Where blanks are all that whole lines show, any line does.
    """

    def length(part):
        return len(part.encode("utf-8", "surrogatepass"))

    found = truncate_lines(text, lines, size, end)
    if found is None:
        return
    made, every = add_partial_line(found, text, size, end), text.split("\n")
    next_line = every[found.lines] if end == "head" else every[-1 - found.lines]
    if found.unit == "lines" or (length(next_line) <= size and found.text.strip()):
        assert made is found
        return
    assert text.startswith(made.text) if end == "head" else text.endswith(made.text)
    assert length(found.text) <= length(made.text) <= size
    assert size - length(made.text) < 4 + (found.lines > 0)
    assert made.lines == found.lines
    assert made.removed_count == length(text) - length(made.text)


@pytest.mark.parametrize("preset", ["opencode", "pi"])
@pytest.mark.parametrize("tool", ["bash", "read"])
def test_output_of_one_long_line_shows_part_of_it(preset, tool):
    """What a program writes without a line break leaves more than a notice, also behind or before short lines."""
    policy = Policy.preset(preset).with_settings(preset={"output_bytes": 2_000})
    end = slice(-2_000, None) if (preset, tool) == ("pi", "bash") else slice(2_000)
    for text in ("0123456789" * 3_000, "0123456789" * 3_000 + "\n", "[\n" + "0123456789" * 3_000 + "\n]"):
        (shown,) = sent([*turn(0, text, tool=tool), Message.from_text("user", "go on")], policy)
        assert text[end] in shown
        assert "bytes truncated..." in shown
        assert len(shown) < 2_200


def test_long_output_is_cut_once_and_kept():
    """[C] 2,000 lines and 51,200 bytes are shown; the whole text is to be stored under the hash that the edit names."""
    text = "\n".join(f"line {number}" for number in range(5_000))
    said = [*turn(0, text, "\n".join(["x" * 99] * 512)), Message.from_text("user", "go on")]
    made = plan(said, WHERE, Policy.preset("opencode"))
    (edit,) = made.record
    assert [blob.text for blob in made.blobs] == [text]
    assert edit.blob_hash == made.blobs[0].hash == sha256(text.encode()).hexdigest()
    shown = get_result_text(edit.replacement[0])
    assert shown.startswith("line 0\nline 1\n")
    assert "line 1999\n\n...3000 lines truncated..." in shown
    assert edit.blob_hash[:12] in shown
    assert "line 2000" not in shown


def test_pi_shows_the_end_of_what_a_command_said():
    """[P] a command's output shows its end, behind the notice; what a file says shows its beginning."""
    text = "\n".join(f"line {number}" for number in range(5_000))
    (end,) = sent([*turn(0, text), Message.from_text("user", "go on")], Policy.preset("pi"))
    assert end.startswith("...3000 lines truncated...")
    assert end.endswith("line 4999")
    (start,) = sent([*turn(0, text, tool="read"), Message.from_text("user", "go on")], Policy.preset("pi"))
    assert start.startswith("line 0\n")


def test_output_that_is_not_cut():
    """What is within the limits, what would not get shorter, what pages itself, what was seen: all stay whole."""
    policy = Policy.preset("opencode")
    last = Message.from_text("user", "go on")
    long = "x\n" * 2_500
    for said in (turn(0, "x\n" * 1_999), turn(0, "\n".join(["x"] * 2_001)), turn(0, long, tool="recall")):
        assert plan([*said, last], WHERE, policy).record == ()
    assert plan([*turn(0, long), last], WHERE, policy, inputs=PlanInputs(can_spill=False)).record == ()
    seen = plan([*turn(0, long), last], WHERE, Policy.preset("append-only")).state
    assert plan([*turn(0, long), last], WHERE, policy, state=seen).record == ()


def test_cut_output_holds_no_block_of_ours():
    """What looks like a block of ours in output that is cut is shown escaped, and stored as it was."""
    text = '<persisted_tool_result id="0">\n' * 3_000
    made = plan([*turn(0, text), Message.from_text("user", "go on")], WHERE, Policy.preset("opencode"))
    shown = get_result_text(made.record[-1].replacement[0])
    assert "<persisted_tool_result" not in shown
    assert "persisted_tool_result" in shown
    assert [blob.text for blob in made.blobs] == [text]


def test_pictures_stay_beside_cut_output():
    """Media of a result stand behind what is left of its words."""
    picture = Media("image", "image/png", 3, "", "AAAA")
    result = ToolResult("c", "bash", (Text("x" * 99_999), picture))
    said = [Message.from_text("user", "a"), Message("assistant", (ToolCall("c", "bash"),)), Message("tool", (result,))]
    (edit,) = plan(said, WHERE, Policy.preset("opencode")).record
    assert edit.replacement[0].content[1:] == (picture,)
    assert "48799 bytes truncated" in get_result_text(edit.replacement[0])


# -- old results cleared -----------------------------------------------------------------------------------------------

PRUNING = Policy.preset("opencode").with_settings(
    compaction={"enabled": False}, preset={"prune": True, "output_lines": 0, "output_bytes": 0}
)


def cleared(said, policy=PRUNING, world=PlanInputs()):
    """Return which results are sent cleared."""
    return [text == CLEARED_RESULT_TEXT for text in sent(said, policy, world)]


def test_opencode_prunes_only_where_it_is_asked_to():
    """[C] off unless the settings say so."""
    said = [*turn(0, "x" * 400_000), *turn(1, "x"), Message.from_text("user", "go on")]
    assert cleared(said) == [True, False]
    assert cleared(
        said, Policy.preset("opencode").with_settings(compaction={"enabled": False}, preset={"output_bytes": 0})
    ) == [False, False]


@pytest.mark.parametrize(("tokens", "gone"), [(20_001, True), (20_000, False)])
def test_opencode_prunes_only_what_is_worth_it(tokens, gone):
    """[C] behind 40,000 tokens of results, and only if more than 20,000 go; a token is four characters."""
    said = [*turn(0, "x" * (4 * tokens), "y" * 160_000), *turn(1, "z"), Message.from_text("user", "go on")]
    assert cleared(said) == [gone, False, False]


def test_opencode_neither_clears_nor_counts_failed_calls():
    """[C] results of failed calls and of the tool ``skill`` stay and protect nothing."""
    last = [*turn(9, "z"), Message.from_text("user", "go on")]
    failed = turn(1, "y" * 160_000, error=True)
    assert cleared([*turn(0, "x" * 100_000), *failed, *last]) == [False, False, False]
    assert cleared([*turn(0, "x" * 280_000), *failed, *last]) == [True, False, False]
    assert cleared([*turn(0, "x" * 280_000, tool="skill"), *last]) == [False, False]


def test_opencode_stops_at_what_was_cleared():
    """[C] behind a result that was cleared before nothing is looked at again; what was decided stays decided."""
    said = [
        *turn(0, "w" * 400_000),
        *turn(1, CLEARED_RESULT_TEXT),
        *turn(2, "x" * 200_000),
        *turn(3, "z"),
        Message.from_text("user", "go"),
    ]
    assert cleared(said) == [False, True, True, False]


def test_opencode_clears_what_it_cut_before():
    """[C] a result that was cut where it arrived is cleared like others; the log still names its text."""
    policy = Policy.preset("opencode").with_settings(
        preset={"prune": True, "prune_keep_tokens": 1, "prune_min_tokens": 10}
    )
    said = [*turn(0, "line of words\n" * 9_000), *turn(1, "z"), *turn(2, "z"), Message.from_text("user", "go")]
    first, *_, last = drive_agent_loop(said, WHERE, policy)
    del first
    (text, *_) = [get_result_text(one) for slot in last.slots for one in slot.message.results]
    assert text == CLEARED_RESULT_TEXT
    edits = last.plan.state.view.edits[2]
    assert [edit.rule for edit in edits] == ["lines", "prune"]
    assert last.plan.state.view.shown_tokens == sum(slot.tokens for slot in last.slots)


CLAUDE = Policy.preset("claude-code").with_settings(compaction={"enabled": False})
LATE = PlanInputs("cold", idle_seconds=3_601)


def test_claude_code_clears_results_of_its_own_tools():
    """[K] after an hour the newest five results of tools it knows stay, others all do; case says nothing."""
    said = [one for number in range(8) for one in turn(number, "words " * 50, tool="bash" if number % 2 else "Read")]
    assert cleared([*said, Message.from_text("user", "go")], CLAUDE, LATE) == [True] * 3 + [False] * 5
    other = [*turn(9, "words " * 50, tool="mcp__db__query"), *said]
    assert cleared([*other, Message.from_text("user", "go")], CLAUDE, LATE) == [False] + [True] * 3 + [False] * 5
    assert not any(cleared([*said, Message.from_text("user", "go")], CLAUDE, PlanInputs("cold", idle_seconds=3_600)))


def test_claude_code_clears_spilled_results_too():
    """[K] a preview is an old result like others, and counts among the newest five."""
    said = [one for number in range(7) for one in turn(number, "words " * 9_000)]
    assert cleared([*said, Message.from_text("user", "go")], CLAUDE, LATE) == [True] * 2 + [False] * 5


def test_claude_code_never_spills_what_its_reader_reads():
    """[K] the file reader pages itself: what it gives is shown whole."""
    for tool, whole in (("Read", True), ("Bash", False)):
        (text,) = sent([*turn(0, "x" * 60_000, tool=tool), Message.from_text("user", "go")], CLAUDE)
        assert (len(text) == 60_000) is whole


@pytest.mark.parametrize(("name", "tool"), [("pi", "bash"), ("pi", "read"), ("opencode", "bash")])
@pytest.mark.parametrize("sign", ["x", "\u00e9", "\u6d77"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_one_long_line_shows_an_end_of_it(name, tool, sign, end):
    """A result without a line break shows as many whole characters as the bytes allow, beside the notice."""
    said = [Message.from_text("user", "go"), Message("assistant", (ToolCall("c1", tool),))]
    said.append(Message("tool", (ToolResult("c1", tool, (Text(f"{sign * 80_000}{end}"),)),)))
    shown = apply(said, plan(said, get_target("anthropic", "claude-sonnet-4-5"), Policy.preset(name)))
    [result] = shown[-1].results
    kept = "".join(part.text for part in result.content)
    assert 51_200 - 4 <= len(sign.encode()) * kept.count(sign) <= 51_200 + 40
    assert "bytes truncated" in kept
