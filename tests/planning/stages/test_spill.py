"""Previews of spilled texts: what they show is there, under its own numbers, and adds up."""

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

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
_CUT = re.compile(r'\n?\[([\d,]+) characters left out here; recall\(id="([0-9a-f]{12})", lines="(\d+)-(\d+)"\)')
_OUTLINED = re.compile(r"^(\d+): (.*)$", re.MULTILINE)

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


def draft(**changes):
    settings = Settings(results=ResultSettings(**changes))
    return PlanBuilder(ConversationState(), WHERE, settings, PlanInputs(), compute_budget(WHERE, settings))


def shown(text, **changes):
    """Return what a preview of ``text`` shows: head, number left out, lines named, outline, tail."""
    block = render_preview(text, hash_text(text), draft(**changes))
    opening, rest = block.split(">\n", 1)
    assert opening == f'<persisted_tool_result id="{hash_text(text)[:12]}" chars="{len(text)}" lines="{lines(text)}"'
    found = _CUT.search(rest)
    before, after = rest[: found.start()], rest[found.end() :]
    head = before.removeprefix(f"Lines 1-{found[3]}:\n") if before else ""
    assert after.endswith("</persisted_tool_result>")
    outlined, mark, tail = after.partition(f"\nLines {found[4]}-{lines(text)}:\n")
    return head, int(found[1].replace(",", "")), (int(found[3]), int(found[4])), outlined, tail[:-25] if mark else ""


def lines(text):
    return len(text.split("\n"))


@given(texts, st.integers(0, 400), st.sampled_from([0.0, 0.3, 1.0]))
def test_a_preview_shows_the_lines_it_says(text, chars, share):
    """Head and tail are the first and last lines of the text, under their numbers, and all adds up to the whole."""
    head, left, (first, last), outlined, tail = shown(text, preview_chars=chars, preview_end_share=share)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + left + len(tail) == len(text)
    every = text.split("\n")
    assert head.split("\n")[:-1] == every[: first - 1]
    assert every[first - 1].startswith(head.split("\n")[-1])
    if tail:
        assert tail.split("\n")[1:] == every[last:]
        assert every[last - 1].endswith(tail.split("\n")[0])
    middle = text[len(head) : len(text) - len(tail)]
    assert middle in "\n".join(every[first - 1 : last])
    for number, line in _OUTLINED.findall(outlined):
        assert line.removesuffix("…") in " ".join(every[int(number) - 1].split())


@given(texts, st.integers(10, 400))
def test_a_preview_is_cut_at_lines_where_lines_end(text, chars):
    """A head ends inside a line only where no line ends in its last fifth; a tail begins inside one likewise."""
    head, left, _, _, tail = shown(text, preview_chars=chars, preview_end_share=0.3)
    if left and not text[len(head) :].startswith("\n"):
        assert "\n" not in head[int((chars - len(tail)) * 0.8) :]
    start = len(text) - len(tail)
    if left and tail and text[start - 1] != "\n":
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
def test_totals_of_a_preview(text, total, named):
    """Totals are exact for a giant line, either line end, with and without one at the very end."""
    block = render_preview(text, hash_text(text), draft())
    assert f'chars="{len(text)}" lines="{total}">' in block.split("\n")[0]
    assert shown(text)[2] == named


def test_a_preview_without_a_tail_names_the_last_line():
    """Where nothing of the end is shown, what is left out ends with the last line, not behind it."""
    text = "\n".join(f"line {number}" for number in range(1_000))
    assert shown(text, preview_end_share=0.0, preview_chars=200)[2][1] == 1_000


@pytest.mark.parametrize(
    ("text", "answer"),
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
def test_what_is_json(text, answer):
    """JSON is an object or array from end to end; lines of JSON, numbers and damaged or endless nesting are text."""
    assert is_json_text(text) is answer


def test_the_preview_says_that_a_text_is_json():
    """The opening tag of a JSON text tells its type; that of another text has no such attribute."""
    text = "[" + ",\n".join(f'{{"number": {number}}}' for number in range(900)) + "]"
    assert ' type="json">' in render_preview(text, hash_text(text), draft()).split("\n")[0]
    assert "type=" not in render_preview(text[1:], hash_text(text), draft()).split("\n")[0]


def test_a_line_stands_where_a_preview_saves_nothing():
    """A text whose ends are dense and whose middle is cheap leaves a line: a preview would have more tokens."""
    text = "\U0001f980" * 1_400 + " " * 3_000 + "\U0001f980" * 600
    edit, blob = build_spill_edit(draft(), SpillableText(0, 0, Text(text), text, estimate_text_tokens(text)), "spill")
    assert edit.replacement[0].text.startswith("[5,000 characters left out here")
    assert edit.saves == estimate_text_tokens(text) - estimate_text_tokens(edit.replacement[0].text) > 0
    assert blob.text == text


@given(texts)
def test_what_stands_in_is_shorter_or_saves_nothing(text):
    """Of any text what stands in has fewer characters and tokens, or the edit says that it saves nothing."""
    text = text * 5 + "." * MIN_REPLACEABLE_CHARS
    edit, _ = build_spill_edit(
        draft(preview_chars=300), SpillableText(0, 0, Text(text), text, estimate_text_tokens(text)), "spill"
    )
    put = edit.replacement[0].text
    assert edit.saves == estimate_text_tokens(text) - estimate_text_tokens(put)
    assert edit.saves <= 0 or len(put) < len(text)


@given(texts)
def test_a_fingerprint_is_the_hash_of_the_bytes(text):
    """A text is hashed in pieces as if at once, beyond one piece too, lone surrogates included."""
    for one in (text, text * 2_000):
        assert hash_text(one) == sha256(one.encode("utf-8", "surrogatepass")).hexdigest()


def test_binary_and_lone_surrogates_are_spilled_like_any_text():
    """A result of any code points is spilled, its blob is the text, and the branch survives a dump."""
    text = "".join(map(chr, range(0x80))) * 300 + "\udc00\ud83d\ufffe\x00" * 5_000
    said = [
        Message.from_text("user", "go"),
        Message("assistant", (ToolCall("t", "bash"),)),
        Message("tool", (ToolResult("t", "bash", (Text(text),)),)),
    ]
    made = plan(said, WHERE)
    assert [blob.text for blob in made.blobs] == [text]
    assert made.blobs[0].hash == sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    assert ConversationState.load(made.state.dump()).view.edits == made.state.view.edits


def test_media_in_a_result_stay():
    """Only the words of a result are spilled; a picture in it stays."""
    picture = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
    said = [
        Message.from_text("user", "go"),
        Message("assistant", (ToolCall("t", "read"),)),
        Message("tool", (ToolResult("t", "read", (Text(make_text(1, 60_000)), picture)),)),
    ]
    (edit,) = plan(said, WHERE, Policy()).record
    assert edit.replacement[0].content[1:] == (picture,)
    assert get_result_text(edit.replacement[0]).startswith("<persisted_tool_result ")


# -- outlines of long texts --------------------------------------------------------------------------------------------


def test_an_outline_of_a_very_long_text_is_a_sample():
    """Of a text beyond the scan some places are read, from the beginning to the end, under their true numbers."""
    text = "\n".join(f"call to function_number_{number} failed" for number in range(100_000))
    assert len(text) > 3 * MAX_OUTLINE_SCAN_CHARS
    found = build_text_outline(text, 2_000)
    every = text.split("\n")
    numbers = [int(line.split(":")[0]) for line in found]
    assert len(found) > 20
    assert all(line == f"{number}: {every[number - 1]}" for number, line in zip(numbers, found, strict=True))


@given(texts, st.integers(0, 100), st.integers(0, 100))
def test_an_outline_of_a_part_is_that_of_its_text(text, start, less):
    """Bounds stand for a copy of what lies between them."""
    stop = max(start, len(text) - less)
    assert build_text_outline(text, 300, 7, start, stop) == build_text_outline(text[start:stop], 300, 7)


@pytest.mark.parametrize("line", ["a " * 2_000_000, " " * 2_000_000 + "a b c", "x" * 2_000_000, " \n" * 9])
def test_one_line_of_a_giant_text_looks_no_further_than_it_must(line):
    """What ``flatten_to_line`` returns is what it would of the whole, however long that is."""
    flat = " ".join(line.split())
    assert flatten_to_line(line, 40) == (flat if len(flat) <= 40 else flat[:39] + "…")
