"""What is asked of the writer, and what of its answer is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.summary import prompts
from holdfast.planning.summary.judge import (
    SummaryAnswer,
    SummaryRequirements,
    find_summary_problems,
    strip_fence_and_introduction,
)
from holdfast.planning.summary.must_keep import (
    collect_newest_identifiers,
    extract_keywords,
    find_identifiers,
    find_missing_identifiers,
    find_newest_user_text,
    has_request_keywords,
)
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS, SummaryPromptOptions

GOOD = "\n".join(f"## {name}\n- kelp" for name in SUMMARY_HEADINGS)
WANTED = SummaryRequirements(1_000)

# -- prompts -----------------------------------------------------------------------------------------------------------


def test_the_template_has_every_heading_in_order():
    """The form that is asked for holds the seven headings, once each, in their order."""
    told = prompts.build_summary_prompt("record", SummaryPromptOptions(500))
    places = [told.index(f"## {name}\n") for name in SUMMARY_HEADINGS]
    assert places == sorted(places)
    assert [told.count(f"## {name}\n") for name in SUMMARY_HEADINGS] == [1] * 7
    for inner in ("### Done", "### In Progress", "### Blocked", "(none)", "500 words", "language", "letter by letter"):
        assert inner in told


def test_what_stands_where():
    """The record and the earlier notes are data between tags, then come additions, the task, and the reasons."""
    order = SummaryPromptOptions(
        500, "OLD", ("/srv/a/b",), "dwell on tests", ("from a hook",), rejection_reasons=("it was empty",)
    )
    told = prompts.build_summary_prompt("RECORD", order, prompts.format_part_label(2, 3))
    pieces = ["<previous-summary>\nOLD", "[Part 2 of 3]", "<conversation>\nRECORD", "<added-context>\nfrom a hook"]
    pieces += ["Bring them up to date", "## Goal", "/srv/a/b", "<user-focus>\ndwell on tests", "- it was empty"]
    places = [told.index(piece) for piece in pieces]
    assert places == sorted(places)


def test_parts_are_merged_oldest_first():
    """A merge names each part by its age and holds the earlier notes once."""
    told = prompts.build_merge_prompt(["A", "B", "C"], SummaryPromptOptions(500, "OLD"))
    pieces = [
        "OLD",
        "Part 1 of 3, the oldest",
        "A",
        "Part 2 of 3]",
        "B",
        "Part 3 of 3, the newest",
        "C",
        "Make one of them",
    ]
    places = [told.index(piece) for piece in pieces]
    assert places == sorted(places)
    assert prompts.format_part_label(1, 1) == "Part 1 of 1"


def test_a_wish_is_cut_between_characters():
    """The user's own instructions keep 800 characters, none of them torn."""
    assert prompts.clip_focus("a" * 799 + "👩\u200d🔬", 800) == "a" * 799
    assert prompts.clip_focus("  short ", 800) == "short"


def test_a_replaced_prompt_is_all_there_is():
    """A hook's prompt takes the place of task and form."""
    told = prompts.build_inline_summary_prompt(SummaryPromptOptions(500, custom_prompt="Do it your way."))
    assert "Do it your way." in told
    assert "## Goal" not in told


# -- what must be kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("at https://ex.org/a?b=1, or (http://x.io/y).", ["https://ex.org/a?b=1", "http://x.io/y"]),
        ("see /srv/app/main.py and ~/notes/todo.md", ["/srv/app/main.py", "~/notes/todo.md"]),
        (r"in C:\work\main.py", [r"C:\work\main.py"]),
        ("0xdeadbeef Cafebabe12 deadbeef", ["deadbeef", "Cafebabe12", "deadbeef"]),
        ("db.internal:5432 localhost:8080 10.0.0.7:22", ["db.internal:5432", "localhost:8080", "10.0.0.7:22"]),
        ("ticket 1234567 but not 12345 nor a/b", ["1234567"]),
        ("defaced facade 12:30 and/or", []),
        ("ab12" * 100 + " https://x.io/" + "q" * 300, []),
    ],
)
def test_identifiers(text, found):
    """Addresses, hosts with ports, absolute paths, eight hexadecimal and six decimal digits."""
    assert [*find_identifiers(text)] == found


def test_identifiers_of_the_newest_messages():
    """What user and agent said and called counts, newest first, as it was written; what tools gave back does not."""
    said = [
        Message.from_text("user", "old 111111"),
        Message.from_text("user", "new 222222"),
        Message("assistant", (Text("hash cafebabe12"), ToolCall("1", "read", '{"path": "/srv/a/b.py"}'))),
        Message("tool", (ToolResult("1", "read", (Text("333333 /etc/x/y"),)),)),
    ]
    assert collect_newest_identifiers(said, 3, 12) == ("cafebabe12", "/srv/a/b.py", "222222")
    assert collect_newest_identifiers(said, 3, 1) == ("cafebabe12",)
    assert collect_newest_identifiers(said, 0, 12) == ()
    assert find_missing_identifiers("CAFEBABE12 and /srv/a/b.py", collect_newest_identifiers(said, 3, 12)) == (
        "222222",
    )


def test_the_newest_request():
    """The newest words of a user are the request; a message of results alone is none."""
    said = [
        Message.from_text("user", "do it"),
        Message("user", (ToolResult("1", "", (Text("r"),)),)),
        Message.from_text("user", " "),
    ]
    assert find_newest_user_text(said) == "do it"
    assert find_newest_user_text([]) == ""


@pytest.mark.parametrize(
    ("request_", "summary", "told"),
    [
        ("Please migrate the billing database", "billing database: migrated", True),
        ("Please migrate the billing database", "the database was fine", False),
        ("fix tests", "tests", True),
        ("and now?", "anything", True),
        ("請把帳單資料庫搬到新主機", "帳單資料庫已搬到新主機", True),
        ("請把帳單資料庫搬到新主機", "修好了登入頁面", False),
        ("", "", True),
    ],
)
def test_a_request_is_reflected(request_, summary, told):
    """Two of three or more telling words must stand in a summary, one of fewer; what says nothing asks for nothing."""
    assert has_request_keywords(summary, request_) is told


@given(st.text(max_size=80))
def test_a_text_reflects_itself(text):
    """Whatever was asked, its own words reflect it, and hold its identifiers."""
    assert has_request_keywords(text, text)
    assert not find_missing_identifiers(text, find_identifiers(text))
    assert len(extract_keywords(text)) <= 12


# -- what is taken -----------------------------------------------------------------------------------------------------


def why(text, tokens=500, wanted=WANTED, **more):
    return "; ".join(find_summary_problems(SummaryAnswer(text, tokens, **more), wanted))


def test_a_good_summary_is_taken():
    """All headings, a normal end, a fair size: no reason is given."""
    assert why(GOOD) == ""
    assert why(GOOD.replace("## Goal", "# goal:")) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("I'm sorry, but I can\u2019t do that.\n" + GOOD, "refusal"),
        ("As an AI I cannot", "refusal"),
        ("Rate limit reached, try again later", "message of a provider"),
        (prompts.render_summary_template(), "repeated"),
        (prompts.build_summary_prompt("record", SummaryPromptOptions(9)), "repeated"),
        ("[User]: hi\n\n[Assistant]: hi\n\n[Tool result]: x", "repeated"),
        (GOOD + "\n<tool_call>\n{}", "tool call"),
        ('{"name": "read", "arguments": {"path": "a"}}', "tool call"),
        ("[TOOL_CALLS] [{}]\n" + GOOD, "tool call"),
        (GOOD.replace("## Progress", "Progress"), "not in their order: Progress"),
        ("\n".join(reversed(GOOD.split("\n"))), "not in their order"),
    ],
)
def test_what_is_no_summary(text, reason):
    """Empty, refusing, limited, repeating, calling or shapeless answers are each refused for what they are."""
    assert reason in why(text)


def test_words_about_limits_are_no_limits():
    """A summary of work on rate limits, refusals or tool calls is one: only how an answer begins is judged."""
    work = GOOD.replace("kelp", "added a rate limit (429, try again later); `<tool_call>` parsing; I cannot repro")
    assert why(work) == ""


def test_sizes_stops_and_calls():
    """Too short, too long, broken off and calling answers are refused with the numbers; what it kept is looked at."""
    assert "it has 20 tokens, and at least 200" in why(GOOD, 20, SummaryRequirements(1_000, 200))
    assert "it has 1,001 tokens, and at most 1,000" in why(GOOD, 1_001)
    assert "'length'" in why(GOOD, stop_reason="length")
    assert "'refusal'" in why(GOOD, stop_reason="refusal")
    assert "'read'" in why(GOOD, called_tools=("read",), stop_reason="tool")
    assert "/srv/a/b" in why(GOOD, wanted=SummaryRequirements(1_000, identifiers=("/srv/a/b",)))
    assert "asked for last" in why(GOOD, wanted=SummaryRequirements(1_000, newest_request="paint the boat red"))
    assert "word for word" in why(GOOD, wanted=SummaryRequirements(1_000, previous_summary=GOOD))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"```markdown\n{GOOD}\n```", GOOD),
        (f"Here are the notes:\n\n{GOOD}", GOOD),
        (f"<summary>\n{GOOD}\n</summary>", GOOD),
        (f"  {GOOD}\n\n", GOOD),
        ("no headings", "no headings"),
        (f"You've hit your limit\n{GOOD}", f"You've hit your limit\n{GOOD}"),
        ("x" * 500 + f"\n{GOOD}", "x" * 500 + f"\n{GOOD}"),
    ],
)
def test_a_wrapping_is_taken_off(text, left):
    """A fence, a wrapping tag or a short introduction goes; what tells that it is no summary stays."""
    assert strip_fence_and_introduction(text) == left
