"""Previews of spilled texts: the lines shown are real, correctly numbered, and add up to the whole text."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_conversations import make_text

from holdfast import ConversationState, PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.text_cuts import flatten_to_line, hash_text
from holdfast.planning.budget import compute_budget
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.constants import MAX_OUTLINE_SCAN_CHARS, MIN_REPLACEABLE_CHARS
from holdfast.planning.extract.outline import build_text_outline
from holdfast.planning.settings import ResultSettings, Settings
from holdfast.planning.stages.spill import SpillableText, build_spill_edit, is_json_text, render_preview

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
_OMITTED_RE = re.compile(r'\n?\[([\d,]+) characters left out here; recall\(id="([0-9a-f]{12})", lines="(\d+)-(\d+)"\)')
_OUTLINE_LINE_RE = re.compile(r"^(\d+): (.*)$", re.MULTILINE)

PIECES = [
    "word ",
    "a_name = 12345\n",
    "\n",
    "\r\n",
    "\r",
    "x" * 90,
    "src/app/main.py:17: error\r\n",
    "配置 ",
    "\U0001f980",
    "\ud83d",
    "\udc00\n",
    "\x00\x01",
    "\u2028",
    "e\u0301",
]
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=120).map("".join)


def build_plan_builder(**changes):
    settings = Settings(results=ResultSettings(**changes))
    return PlanBuilder(ConversationState(), TARGET, settings, PlanInputs(), compute_budget(TARGET, settings))


def parse_preview(text, **changes):
    """Return the fields of a preview of ``text``: head, omitted characters, omitted line range, outline, tail."""
    block = render_preview(text, hash_text(text), build_plan_builder(**changes))
    opening, rest = block.split(">\n", 1)
    assert (
        opening == f'<persisted_tool_result id="{hash_text(text)[:12]}" chars="{len(text)}" lines="{count_lines(text)}"'
    )
    found = _OMITTED_RE.search(rest)
    before, after = rest[: found.start()], rest[found.end() :]
    head = before.removeprefix(f"Lines 1-{found[3]}:\n") if before else ""
    assert after.endswith("</persisted_tool_result>")
    outlined, mark, tail = after.partition(f"\nLines {found[4]}-{count_lines(text)}:\n")
    return head, int(found[1].replace(",", "")), (int(found[3]), int(found[4])), outlined, tail[:-25] if mark else ""


def count_lines(text):
    return len(text.split("\n"))


@given(texts, st.integers(0, 400), st.sampled_from([0.0, 0.3, 1.0]))
def test_render_preview_numbers_the_lines_it_shows(text, chars, share):
    """Head and tail are the first and last lines of the text under their numbers, and the parts add up to the whole."""
    head, omitted_count, (first, last), outlined, tail = parse_preview(
        text, preview_chars=chars, preview_end_share=share
    )
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + omitted_count + len(tail) == len(text)
    all_lines = text.split("\n")
    assert head.split("\n")[:-1] == all_lines[: first - 1]
    assert all_lines[first - 1].startswith(head.split("\n")[-1])
    if tail:
        assert tail.split("\n")[1:] == all_lines[last:]
        assert all_lines[last - 1].endswith(tail.split("\n")[0])
    middle = text[len(head) : len(text) - len(tail)]
    assert middle in "\n".join(all_lines[first - 1 : last])
    for number, line in _OUTLINE_LINE_RE.findall(outlined):
        assert line.removesuffix("…") in " ".join(all_lines[int(number) - 1].split())


@given(texts, st.integers(10, 400))
def test_render_preview_cuts_at_line_ends(text, chars):
    """A head ends inside a line only if no line ends in its last fifth; a tail begins inside one only likewise."""
    head, omitted_count, _, _, tail = parse_preview(text, preview_chars=chars, preview_end_share=0.3)
    if omitted_count and not text[len(head) :].startswith("\n"):
        assert "\n" not in head[int((chars - len(tail)) * 0.8) :]
    start = len(text) - len(tail)
    if omitted_count and tail and text[start - 1] != "\n":
        assert "\n" not in tail[: int(chars * 0.3) // 5]


@pytest.mark.parametrize(
    ("text", "total", "named"),
    [
        ("x" * 9_000, 1, (1, 1)),
        ("line\n" * 2_000, 2_001, (281, 1_882)),
        ("line\r\n" * 2_000, 2_001, (234, 1_902)),
        ("line\n" * 1_999 + "line", 2_000, (280, 1_881)),
        ("\n" * 9_000, 9_001, (1_401, 8_402)),
    ],
)
def test_render_preview_states_exact_totals(text, total, named):
    """Totals are exact for a giant line, for either line end, and with or without one at the very end."""
    block = render_preview(text, hash_text(text), build_plan_builder())
    assert f'chars="{len(text)}" lines="{total}">' in block.split("\n")[0]
    assert parse_preview(text)[2] == named


def test_render_preview_without_a_tail_ends_at_the_last_line():
    """When no tail is shown, the omitted range ends with the last line, not after it."""
    text = "\n".join(f"line {number}" for number in range(1_000))
    assert parse_preview(text, preview_end_share=0.0, preview_chars=200)[2][1] == 1_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": [1, 2.5e3, null, "\\u2028"]}', True),
        (' \n[{"配": "置"}]\n', True),
        ("[]", True),
        ('{"a": 1}\n{"a": 2}', False),
        ('{"a": 1', False),
        ("[see below]", False),
        ("12", False),
        ("", False),
        ('["\ud83d"]', False),
        ("[" * 100_000, False),
        ("[1, NaN]", False),
    ],
)
def test_is_json_text_accepts_whole_objects_and_arrays(text, expected):
    """JSON is one object or array from end to end; JSON lines, bare numbers and broken or endless nesting are text."""
    assert is_json_text(text) is expected


def test_render_preview_marks_json():
    """The opening tag of a JSON text has a type attribute; that of another text has none."""
    text = "[" + ",\n".join(f'{{"number": {number}}}' for number in range(900)) + "]"
    assert ' type="json">' in render_preview(text, hash_text(text), build_plan_builder()).split("\n")[0]
    assert "type=" not in render_preview(text[1:], hash_text(text), build_plan_builder()).split("\n")[0]


def test_build_spill_edit_uses_a_line_where_a_preview_saves_nothing():
    """A text with dense ends and a cheap middle gets a line, since a preview would have more tokens."""
    text = "\U0001f980" * 1_400 + " " * 3_000 + "\U0001f980" * 600
    edit, blob = build_spill_edit(
        build_plan_builder(), SpillableText(0, 0, Text(text), text, estimate_text_tokens(text)), "spill"
    )
    assert edit.replacement[0].text.startswith("[5,000 characters left out here")
    assert edit.saves == estimate_text_tokens(text) - estimate_text_tokens(edit.replacement[0].text) > 0
    assert blob.text == text


@given(texts)
def test_build_spill_edit_is_shorter_or_saves_nothing(text):
    """The replacement has fewer characters and tokens than the text, or the edit states that it saves nothing."""
    text = text * 5 + "." * MIN_REPLACEABLE_CHARS
    edit, _ = build_spill_edit(
        build_plan_builder(preview_chars=300),
        SpillableText(0, 0, Text(text), text, estimate_text_tokens(text)),
        "spill",
    )
    replacement = edit.replacement[0].text
    assert edit.saves == estimate_text_tokens(text) - estimate_text_tokens(replacement)
    assert edit.saves <= 0 or len(replacement) < len(text)


@given(texts)
def test_hash_text_is_the_sha256_of_the_bytes(text):
    """A text hashed in pieces gives the hash of the whole, beyond one piece and with lone surrogates."""
    for sample in (text, text * 2_000):
        assert hash_text(sample) == sha256(sample.encode("utf-8", "surrogatepass")).hexdigest()


def test_plan_spills_binary_and_lone_surrogates():
    """A result of any code points is spilled, its blob is the text, and the state survives a dump."""
    text = "".join(map(chr, range(0x80))) * 300 + "\udc00\ud83d\ufffe\x00" * 5_000
    messages = [
        Message.from_text("user", "go"),
        Message("assistant", (ToolCall("t", "bash"),)),
        Message("tool", (ToolResult("t", "bash", (Text(text),)),)),
    ]
    new_plan = plan(messages, TARGET)
    assert [blob.text for blob in new_plan.blobs] == [text]
    assert new_plan.blobs[0].hash == sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    assert ConversationState.load(new_plan.state.dump()).view.edits == new_plan.state.view.edits


def test_plan_keeps_media_of_a_spilled_result():
    """Only the text of a result is spilled; a picture in it stays."""
    picture = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
    messages = [
        Message.from_text("user", "go"),
        Message("assistant", (ToolCall("t", "read"),)),
        Message("tool", (ToolResult("t", "read", (Text(make_text(1, 60_000)), picture)),)),
    ]
    (edit,) = plan(messages, TARGET, Policy()).record
    assert edit.replacement[0].content[1:] == (picture,)
    assert get_result_text(edit.replacement[0]).startswith("<persisted_tool_result ")


# -- outlines of long texts --------------------------------------------------------------------------------------------


def test_build_text_outline_samples_a_very_long_text():
    """Of a text beyond the scan limit places from beginning to end are read, under their true line numbers."""
    text = "\n".join(f"call to function_number_{number} failed" for number in range(100_000))
    assert len(text) > 3 * MAX_OUTLINE_SCAN_CHARS
    found = build_text_outline(text, 2_000)
    lines = text.split("\n")
    numbers = [int(line.split(":")[0]) for line in found]
    assert len(found) > 20
    assert all(line == f"{number}: {lines[number - 1]}" for number, line in zip(numbers, found, strict=True))


@given(texts, st.integers(0, 100), st.integers(0, 100))
def test_build_text_outline_of_a_range_equals_that_of_the_slice(text, start, less):
    """Outlining a range of a text equals outlining the text of that range."""
    stop = max(start, len(text) - less)
    assert build_text_outline(text, 300, 7, start, stop) == build_text_outline(text[start:stop], 300, 7)


@pytest.mark.parametrize("line", ["a " * 2_000_000, " " * 2_000_000 + "a b c", "x" * 2_000_000, " \n" * 9])
def test_flatten_to_line_equals_flattening_the_whole_text(line):
    """The result is the same as flattening the whole text and cutting it, however long the text is."""
    flat = " ".join(line.split())
    assert flatten_to_line(line, 40) == (flat if len(flat) <= 40 else flat[:39] + "…")
