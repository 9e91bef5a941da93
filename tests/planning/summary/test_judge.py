"""What the summary writer is asked for, and which of its answers are accepted."""

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
    strip_summary_wrapping,
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

GOOD_SUMMARY = "\n".join(f"## {name}\n- kelp" for name in SUMMARY_HEADINGS)
REQUIREMENTS = SummaryRequirements(1_000)

# -- prompts -----------------------------------------------------------------------------------------------------------


def test_build_summary_prompt_has_every_heading_in_order():
    """The template contains the seven headings, once each and in their order."""
    prompt = prompts.build_summary_prompt("record", SummaryPromptOptions(500))
    places = [prompt.index(f"## {name}\n") for name in SUMMARY_HEADINGS]
    assert places == sorted(places)
    assert [prompt.count(f"## {name}\n") for name in SUMMARY_HEADINGS] == [1] * 7
    for phrase in ("### Done", "### In Progress", "### Blocked", "(none)", "500 words", "language", "letter by letter"):
        assert phrase in prompt


def test_build_summary_prompt_orders_its_sections():
    """Record and previous summary are data between tags; additions, task and rejection reasons follow."""
    options = SummaryPromptOptions(
        500, "OLD", ("/srv/a/b",), "dwell on tests", ("from a hook",), rejection_reasons=("it was empty",)
    )
    prompt = prompts.build_summary_prompt("RECORD", options, prompts.format_part_label(2, 3))
    pieces = ["<previous-summary>\nOLD", "[Part 2 of 3]", "<conversation>\nRECORD", "<added-context>\nfrom a hook"]
    pieces += ["Bring them up to date", "## Goal", "/srv/a/b", "<user-focus>\ndwell on tests", "- it was empty"]
    places = [prompt.index(piece) for piece in pieces]
    assert places == sorted(places)


def test_build_merge_prompt_lists_parts_oldest_first():
    """A merge labels each part by its age and contains the previous summary once."""
    prompt = prompts.build_merge_prompt(["A", "B", "C"], SummaryPromptOptions(500, "OLD"))
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
    places = [prompt.index(piece) for piece in pieces]
    assert places == sorted(places)
    assert prompts.format_part_label(1, 1) == "Part 1 of 1"


def test_clip_focus_cuts_between_characters():
    """The user's own instructions keep 800 characters, and no grapheme is split."""
    assert prompts.clip_focus("a" * 799 + "👩\u200d🔬", 800) == "a" * 799
    assert prompts.clip_focus("  short ", 800) == "short"


def test_build_inline_summary_prompt_uses_a_custom_prompt_alone():
    """A hook's prompt replaces both task and template."""
    prompt = prompts.build_inline_summary_prompt(SummaryPromptOptions(500, custom_prompt="Do it your way."))
    assert "Do it your way." in prompt
    assert "## Goal" not in prompt


# -- identifiers and keywords ------------------------------------------------------------------------------------------


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
def test_find_identifiers_finds_urls_paths_hosts_and_long_numbers(text, found):
    """URLs, hosts with ports, absolute paths, and runs of eight hexadecimal or six decimal digits are identifiers."""
    assert [*find_identifiers(text)] == found


def test_collect_newest_identifiers_takes_messages_and_calls():
    """Identifiers of user and assistant texts and calls count, newest first, as written; those of results do not."""
    messages = [
        Message.from_text("user", "old 111111"),
        Message.from_text("user", "new 222222"),
        Message("assistant", (Text("hash cafebabe12"), ToolCall("1", "read", '{"path": "/srv/a/b.py"}'))),
        Message("tool", (ToolResult("1", "read", (Text("333333 /etc/x/y"),)),)),
    ]
    assert collect_newest_identifiers(messages, 3, 12) == ("cafebabe12", "/srv/a/b.py", "222222")
    assert collect_newest_identifiers(messages, 3, 1) == ("cafebabe12",)
    assert collect_newest_identifiers(messages, 0, 12) == ()
    assert find_missing_identifiers("CAFEBABE12 and /srv/a/b.py", collect_newest_identifiers(messages, 3, 12)) == (
        "222222",
    )


def test_find_newest_user_text_skips_results_and_blanks():
    """The newest user text is the request; a message of results alone is none."""
    messages = [
        Message.from_text("user", "do it"),
        Message("user", (ToolResult("1", "", (Text("r"),)),)),
        Message.from_text("user", " "),
    ]
    assert find_newest_user_text(messages) == "do it"
    assert find_newest_user_text([]) == ""


@pytest.mark.parametrize(
    ("request_", "summary", "expected"),
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
def test_has_request_keywords_requires_two_of_three_or_more(request_, summary, expected):
    """A summary must contain two of three or more keywords, or one of fewer; a request without keywords always
    passes.
    """
    assert has_request_keywords(summary, request_) is expected


@given(st.text(max_size=80))
def test_has_request_keywords_accepts_the_request_itself(text):
    """Any text contains its own keywords and identifiers."""
    assert has_request_keywords(text, text)
    assert not find_missing_identifiers(text, find_identifiers(text))
    assert len(extract_keywords(text)) <= 12


# -- accepted answers --------------------------------------------------------------------------------------------------


def join_problems(text, tokens=500, requirements=REQUIREMENTS, **answer_fields):
    return "; ".join(find_summary_problems(SummaryAnswer(text, tokens, **answer_fields), requirements))


def test_find_summary_problems_accepts_a_good_summary():
    """A summary with all headings, a normal stop and a fair size has no problems."""
    assert join_problems(GOOD_SUMMARY) == ""
    assert join_problems(GOOD_SUMMARY.replace("## Goal", "# goal:")) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("I'm sorry, but I can\u2019t do that.\n" + GOOD_SUMMARY, "refusal"),
        ("As an AI I cannot", "refusal"),
        ("Rate limit reached, try again later", "message of a provider"),
        (prompts.render_summary_template(), "repeated"),
        (prompts.build_summary_prompt("record", SummaryPromptOptions(9)), "repeated"),
        ("[User]: hi\n\n[Assistant]: hi\n\n[Tool result]: x", "repeated"),
        (GOOD_SUMMARY + "\n<tool_call>\n{}", "tool call"),
        ('{"name": "read", "arguments": {"path": "a"}}', "tool call"),
        ("[TOOL_CALLS] [{}]\n" + GOOD_SUMMARY, "tool call"),
        (GOOD_SUMMARY.replace("## Progress", "Progress"), "not in their order: Progress"),
        ("\n".join(reversed(GOOD_SUMMARY.split("\n"))), "not in their order"),
    ],
)
def test_find_summary_problems_names_why_an_answer_is_no_summary(text, reason):
    """Empty, refusing, rate-limited, repeating, tool-calling and shapeless answers are each rejected with
    their reason.
    """
    assert reason in join_problems(text)


def test_find_summary_problems_allows_text_about_limits():
    """A summary about rate limits, refusals or tool calls is accepted: only how an answer begins counts."""
    work = GOOD_SUMMARY.replace(
        "kelp", "added a rate limit (429, try again later); `<tool_call>` parsing; I cannot repro"
    )
    assert join_problems(work) == ""


def test_find_summary_problems_checks_sizes_stops_and_calls():
    """Answers that are too short, too long, cut off, tool-calling or forgetful are rejected with the numbers."""
    assert "it has 20 tokens, and at least 200" in join_problems(GOOD_SUMMARY, 20, SummaryRequirements(1_000, 200))
    assert "it has 1,001 tokens, and at most 1,000" in join_problems(GOOD_SUMMARY, 1_001)
    assert "'length'" in join_problems(GOOD_SUMMARY, stop_reason="length")
    assert "'refusal'" in join_problems(GOOD_SUMMARY, stop_reason="refusal")
    assert "'read'" in join_problems(GOOD_SUMMARY, called_tools=("read",), stop_reason="tool")
    assert "/srv/a/b" in join_problems(GOOD_SUMMARY, requirements=SummaryRequirements(1_000, identifiers=("/srv/a/b",)))
    assert "asked for last" in join_problems(
        GOOD_SUMMARY, requirements=SummaryRequirements(1_000, newest_request="paint the boat red")
    )
    assert "word for word" in join_problems(
        GOOD_SUMMARY, requirements=SummaryRequirements(1_000, previous_summary=GOOD_SUMMARY)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"```markdown\n{GOOD_SUMMARY}\n```", GOOD_SUMMARY),
        (f"Here are the notes:\n\n{GOOD_SUMMARY}", GOOD_SUMMARY),
        (f"<summary>\n{GOOD_SUMMARY}\n</summary>", GOOD_SUMMARY),
        (f"  {GOOD_SUMMARY}\n\n", GOOD_SUMMARY),
        ("no headings", "no headings"),
        (f"You've hit your limit\n{GOOD_SUMMARY}", f"You've hit your limit\n{GOOD_SUMMARY}"),
        (f"Sure:\n<invoke name='read'>\n{GOOD_SUMMARY}", f"Sure:\n<invoke name='read'>\n{GOOD_SUMMARY}"),
        ("x" * 500 + f"\n{GOOD_SUMMARY}", "x" * 500 + f"\n{GOOD_SUMMARY}"),
    ],
)
def test_strip_summary_wrapping_removes_the_wrapping(text, expected):
    """A fence, a wrapping tag or a short introduction is removed; words that show that it is no summary stay."""
    assert strip_summary_wrapping(text) == expected
