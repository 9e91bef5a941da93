"""opencode and Claude Code: output is cut when it arrives, and old results are cleared."""

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

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)


def build_turn(number, *texts, tool="bash", error=False):
    """Return a turn in which a tool returned ``texts``, one result each."""
    ids = [f"c{number}.{index}" for index in range(len(texts))]
    results = [ToolResult(id_, tool, (Text(text),), error) for id_, text in zip(ids, texts, strict=True)]
    return [
        Message.from_text("user", f"turn {number}"),
        Message("assistant", tuple(ToolCall(id_, tool) for id_ in ids)),
        Message("tool", tuple(results)),
        Message.from_text("assistant", "done"),
    ]


def list_sent_results(messages, policy, inputs=PlanInputs()):
    """Return the texts of the results in the request."""
    return [
        get_result_text(result)
        for message in apply(messages, plan(messages, TARGET, policy, inputs=inputs))
        for result in message.results
    ]


# -- output cut when it arrives ----------------------------------------------------------------------------------------


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
def test_truncate_lines_keeps_whole_lines_of_one_end(text, lines, size, end, found):
    """[C] Whole lines of one end are kept; the unit that ran out, lines or bytes, gives the removed count; None if all
    fits.
    """
    assert truncate_lines(text, lines, size, end) == found


@given(
    st.text("ab\n\u00e9\U0001f600\ud83d", max_size=60),
    st.integers(1, 12),
    st.integers(1, 40),
    st.sampled_from(["head", "tail"]),
)
def test_truncate_lines_keeps_as_many_whole_lines_as_fit(text, lines, size, end):
    """The kept lines are within both limits, one more would not be, and kept plus removed is the whole text."""

    def count_bytes(part):
        return len(part.encode("utf-8", "surrogatepass"))

    def join_lines(count):
        kept = all_lines[:count] if end == "head" else all_lines[len(all_lines) - count :]
        return "\n".join(kept)

    found, all_lines = truncate_lines(text, lines, size, end), text.split("\n")
    if found is None:
        assert len(all_lines) <= lines
        assert count_bytes(text) <= size
        return
    assert found.text == join_lines(found.lines)
    assert found.lines <= lines
    assert count_bytes(found.text) <= size
    assert found.lines + 1 > lines or count_bytes(join_lines(found.lines + 1)) > size
    missing = {"lines": len(all_lines) - found.lines, "bytes": count_bytes(text) - count_bytes(found.text)}
    assert found.removed_count == missing[found.unit] > 0


@given(
    st.text("ab\n\u00e9\U0001f600\ud83d", max_size=60),
    st.integers(0, 12),
    st.integers(1, 40),
    st.sampled_from(["head", "tail"]),
)
def test_add_partial_line_fills_the_bytes_left_by_whole_lines(text, lines, size, end):
    """A line longer than the byte limit fills what the whole lines leave, to within a character; shorter lines are not
    split. Where the kept whole lines are all blank, any line is split.
    """

    def count_bytes(part):
        return len(part.encode("utf-8", "surrogatepass"))

    found = truncate_lines(text, lines, size, end)
    if found is None:
        return
    extended, all_lines = add_partial_line(found, text, size, end), text.split("\n")
    next_line = all_lines[found.lines] if end == "head" else all_lines[-1 - found.lines]
    if found.unit == "lines" or (count_bytes(next_line) <= size and found.text.strip()):
        assert extended is found
        return
    assert text.startswith(extended.text) if end == "head" else text.endswith(extended.text)
    assert count_bytes(found.text) <= count_bytes(extended.text) <= size
    assert size - count_bytes(extended.text) < 4 + (found.lines > 0)
    assert extended.lines == found.lines
    assert extended.removed_count == count_bytes(text) - count_bytes(extended.text)


@pytest.mark.parametrize("preset", ["opencode", "pi"])
@pytest.mark.parametrize("tool", ["bash", "read"])
def test_plan_shows_part_of_a_single_long_line(preset, tool):
    """Output without a line break leaves more than a notice, also before or after short lines."""
    policy = Policy.preset(preset).with_settings(preset={"output_bytes": 2_000})
    end = slice(-2_000, None) if (preset, tool) == ("pi", "bash") else slice(2_000)
    for text in ("0123456789" * 3_000, "0123456789" * 3_000 + "\n", "[\n" + "0123456789" * 3_000 + "\n]"):
        (shown,) = list_sent_results([*build_turn(0, text, tool=tool), Message.from_text("user", "go on")], policy)
        assert text[end] in shown
        assert "bytes truncated..." in shown
        assert len(shown) < 2_200


def test_plan_opencode_truncates_long_output_once_and_stores_it():
    """[C] 2,000 lines and 51,200 bytes are shown, and the whole text is stored under the hash that the edit names."""
    text = "\n".join(f"line {number}" for number in range(5_000))
    messages = [*build_turn(0, text, "\n".join(["x" * 99] * 512)), Message.from_text("user", "go on")]
    new_plan = plan(messages, TARGET, Policy.preset("opencode"))
    (edit,) = new_plan.record
    assert [blob.text for blob in new_plan.blobs] == [text]
    assert edit.blob_hash == new_plan.blobs[0].hash == sha256(text.encode()).hexdigest()
    shown = get_result_text(edit.replacement[0])
    assert shown.startswith("line 0\nline 1\n")
    assert "line 1999\n\n...3000 lines truncated..." in shown
    assert edit.blob_hash[:12] in shown
    assert "line 2000" not in shown


def test_plan_pi_shows_the_end_of_command_output():
    """[P] Command output shows its end, after the notice; file content shows its beginning."""
    text = "\n".join(f"line {number}" for number in range(5_000))
    (end,) = list_sent_results([*build_turn(0, text), Message.from_text("user", "go on")], Policy.preset("pi"))
    assert end.startswith("...3000 lines truncated...")
    assert end.endswith("line 4999")
    (start,) = list_sent_results(
        [*build_turn(0, text, tool="read"), Message.from_text("user", "go on")], Policy.preset("pi")
    )
    assert start.startswith("line 0\n")


def test_plan_opencode_leaves_other_output_whole():
    """Output within the limits, output that cutting would not shorten, paging tools and seen results stay whole."""
    policy = Policy.preset("opencode")
    last = Message.from_text("user", "go on")
    long = "x\n" * 2_500
    for messages in (
        build_turn(0, "x\n" * 1_999),
        build_turn(0, "\n".join(["x"] * 2_001)),
        build_turn(0, long, tool="recall"),
    ):
        assert plan([*messages, last], TARGET, policy).record == ()
    assert plan([*build_turn(0, long), last], TARGET, policy, inputs=PlanInputs(can_spill=False)).record == ()
    seen_state = plan([*build_turn(0, long), last], TARGET, Policy.preset("append-only")).state
    assert plan([*build_turn(0, long), last], TARGET, policy, state=seen_state).record == ()


def test_plan_opencode_escapes_look_alike_tags_in_truncated_output():
    """Text in truncated output that looks like a Holdfast tag is shown escaped and stored unchanged."""
    text = '<persisted_tool_result id="0">\n' * 3_000
    new_plan = plan([*build_turn(0, text), Message.from_text("user", "go on")], TARGET, Policy.preset("opencode"))
    shown = get_result_text(new_plan.record[-1].replacement[0])
    assert "<persisted_tool_result" not in shown
    assert "persisted_tool_result" in shown
    assert [blob.text for blob in new_plan.blobs] == [text]


def test_plan_opencode_keeps_media_beside_truncated_output():
    """Media of a result stay after its truncated text."""
    picture = Media("image", "image/png", 3, "", "AAAA")
    result = ToolResult("c", "bash", (Text("x" * 99_999), picture))
    messages = [
        Message.from_text("user", "a"),
        Message("assistant", (ToolCall("c", "bash"),)),
        Message("tool", (result,)),
    ]
    (edit,) = plan(messages, TARGET, Policy.preset("opencode")).record
    assert edit.replacement[0].content[1:] == (picture,)
    assert "48799 bytes truncated" in get_result_text(edit.replacement[0])


# -- old results cleared -----------------------------------------------------------------------------------------------

PRUNING = Policy.preset("opencode").with_settings(
    compaction={"enabled": False}, preset={"prune": True, "output_lines": 0, "output_bytes": 0}
)


def list_cleared(messages, policy=PRUNING, inputs=PlanInputs()):
    """Return for each result of the request whether it is cleared."""
    return [text == CLEARED_RESULT_TEXT for text in list_sent_results(messages, policy, inputs)]


def test_plan_opencode_prunes_only_when_configured():
    """[C] Pruning is off unless the settings turn it on."""
    messages = [*build_turn(0, "x" * 400_000), *build_turn(1, "x"), Message.from_text("user", "go on")]
    assert list_cleared(messages) == [True, False]
    assert list_cleared(
        messages, Policy.preset("opencode").with_settings(compaction={"enabled": False}, preset={"output_bytes": 0})
    ) == [False, False]


@pytest.mark.parametrize(("tokens", "is_cleared"), [(20_001, True), (20_000, False)])
def test_plan_opencode_prunes_only_above_the_minimum(tokens, is_cleared):
    """[C] The newest 40,000 tokens of results stay, and older ones go only if that frees more than 20,000, at 4
    characters each.
    """
    messages = [
        *build_turn(0, "x" * (4 * tokens), "y" * 160_000),
        *build_turn(1, "z"),
        Message.from_text("user", "go on"),
    ]
    assert list_cleared(messages) == [is_cleared, False, False]


def test_plan_opencode_neither_clears_nor_counts_failed_calls():
    """[C] Results of failed calls and of the tool ``skill`` stay and do not count as recent."""
    last = [*build_turn(9, "z"), Message.from_text("user", "go on")]
    failed = build_turn(1, "y" * 160_000, error=True)
    assert list_cleared([*build_turn(0, "x" * 100_000), *failed, *last]) == [False, False, False]
    assert list_cleared([*build_turn(0, "x" * 280_000), *failed, *last]) == [True, False, False]
    assert list_cleared([*build_turn(0, "x" * 280_000, tool="skill"), *last]) == [False, False]


def test_plan_opencode_stops_at_a_cleared_result():
    """[C] Results older than one that is already cleared are not considered again; earlier decisions stay."""
    messages = [
        *build_turn(0, "w" * 400_000),
        *build_turn(1, CLEARED_RESULT_TEXT),
        *build_turn(2, "x" * 200_000),
        *build_turn(3, "z"),
        Message.from_text("user", "go"),
    ]
    assert list_cleared(messages) == [False, True, True, False]


def test_plan_opencode_clears_results_it_truncated():
    """[C] A truncated result is cleared like any other, and the log still names its text."""
    policy = Policy.preset("opencode").with_settings(
        preset={"prune": True, "prune_keep_tokens": 1, "prune_min_tokens": 10}
    )
    messages = [
        *build_turn(0, "line of words\n" * 9_000),
        *build_turn(1, "z"),
        *build_turn(2, "z"),
        Message.from_text("user", "go"),
    ]
    first, *_, last = drive_agent_loop(messages, TARGET, policy)
    del first
    (text, *_) = [get_result_text(result) for sized in last.sent_messages for result in sized.message.results]
    assert text == CLEARED_RESULT_TEXT
    edits = last.plan.state.view.edits[2]
    assert [edit.rule for edit in edits] == ["lines", "prune"]
    assert last.plan.state.view.shown_tokens == sum(sized.tokens for sized in last.sent_messages)


CLAUDE = Policy.preset("claude-code").with_settings(compaction={"enabled": False})
LATE = PlanInputs("cold", idle_seconds=3_601)


def test_plan_claude_code_clears_old_results_of_its_own_tools():
    """[K] After an hour the newest five results of its own tools stay and older ones go; the case of a name does not
    matter.
    """
    messages = [
        message
        for number in range(8)
        for message in build_turn(number, "words " * 50, tool="bash" if number % 2 else "Read")
    ]
    assert list_cleared([*messages, Message.from_text("user", "go")], CLAUDE, LATE) == [True] * 3 + [False] * 5
    other = [*build_turn(9, "words " * 50, tool="mcp__db__query"), *messages]
    assert list_cleared([*other, Message.from_text("user", "go")], CLAUDE, LATE) == [False] + [True] * 3 + [False] * 5
    assert not any(
        list_cleared([*messages, Message.from_text("user", "go")], CLAUDE, PlanInputs("cold", idle_seconds=3_600))
    )


def test_plan_claude_code_clears_spilled_results():
    """[K] A preview is an old result like any other and counts among the newest five."""
    messages = [message for number in range(7) for message in build_turn(number, "words " * 9_000)]
    assert list_cleared([*messages, Message.from_text("user", "go")], CLAUDE, LATE) == [True] * 2 + [False] * 5


def test_plan_claude_code_never_spills_its_file_reader():
    """[K] The file reader pages its own output, so its results are shown whole."""
    for tool, is_whole in (("Read", True), ("Bash", False)):
        (text,) = list_sent_results([*build_turn(0, "x" * 60_000, tool=tool), Message.from_text("user", "go")], CLAUDE)
        assert (len(text) == 60_000) is is_whole


@pytest.mark.parametrize(("name", "tool"), [("pi", "bash"), ("pi", "read"), ("opencode", "bash")])
@pytest.mark.parametrize("sign", ["x", "\u00e9", "\u6d77"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_plan_shows_as_many_characters_of_one_line_as_fit(name, tool, sign, end):
    """A result without a line break shows as many whole characters as the byte limit allows, beside the notice."""
    messages = [Message.from_text("user", "go"), Message("assistant", (ToolCall("c1", tool),))]
    messages.append(Message("tool", (ToolResult("c1", tool, (Text(f"{sign * 80_000}{end}"),)),)))
    shown = apply(messages, plan(messages, get_target("anthropic", "claude-sonnet-4-5"), Policy.preset(name)))
    [result] = shown[-1].results
    kept = "".join(part.text for part in result.content)
    assert 51_200 - 4 <= len(sign.encode()) * kept.count(sign) <= 51_200 + 40
    assert "bytes truncated" in kept
