"""Summaries written by the client: recognized by their opening, carried into later extracts, constraints first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_conversations import make_text

from holdfast import ConversationState, PlanInputs, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.carried_summary import render_previous_summary
from holdfast.planning.extract.extract import EXTRACT_PREFACE, SHORT_EXTRACT_PREFACE, build_extract
from holdfast.planning.extract.previous_summary import (
    PREVIOUS_SUMMARY_OPENING,
    extract_client_summary,
    find_newest_client_summary,
    iter_user_texts,
)
from holdfast.planning.summary.must_keep import find_newest_user_text
from holdfast.state.entries import CompactionEntry, Entry
from holdfast.state.fold.fold_entries import apply_entry

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=32_000)
CONSTRAINT = "The folder data is holy, hands off."
SUMMARY = f"""1. Primary Request and Intent:
   The storage layer becomes three modules, kelp, tide and rock.
2. Files and Code Sections:
   - src/store/base.py: line 120 holds the bug in `def put`
6. All user messages:
   - "{CONSTRAINT}"
7. Pending Tasks:
   - write the migration for schema 4
8. Current Work:
   half of rock.py is written, the function `anchor` is missing"""
CLAUDE = "This session is being continued from a previous conversation that ran out of context. "
GO_ON = "without asking the user any further questions."
CLAUDE_CODE_END = (
    "\n\nIf you need specific details from before compaction, read the full transcript at: /x/y.jsonl\n"
    f"Continue the conversation from where it left off {GO_ON} Resume directly."
)
CODEX = "Another language model started to solve this problem and produced a summary of its thinking process. "
WRAPPERS = {
    "claude-code": (
        f"{CLAUDE}The summary below covers the earlier portion of the conversation.\n\nSummary:\n",
        CLAUDE_CODE_END,
    ),
    "claude-code-tail": (
        f"{CLAUDE}The summary below covers the earlier portion of the conversation.\n\nSummary:\n",
        "\n\nRecent messages are preserved verbatim.",
    ),
    "claude-code-1": (
        f"{CLAUDE}The conversation is summarized below:\n",
        f"\nPlease continue the conversation from where we left it off {GO_ON}",
    ),
    "claude-code-2": (
        f"{CLAUDE}The conversation is summarized below:\n",
        f"\nPlease continue the conversation from where we left off {GO_ON}",
    ),
    "codex": (f"{CODEX}Here is the summary produced by the other language model:\n", ""),
    "pi": (
        "The conversation history before this point was compacted into the following summary:\n\n<summary>\n",
        "\n</summary>",
    ),
    "holdfast": (f"{EXTRACT_PREFACE.format(messages=40)}\n", ""),
    "holdfast-short": (f"{SHORT_EXTRACT_PREFACE.format(messages=40)}\n", ""),
    "gemini-cli": ("<state_snapshot>\n", "\n</state_snapshot>"),
    "gemini-cli-thinking": ("<scratchpad>Hm.</scratchpad>\n\n<state_snapshot>\n", "\n</state_snapshot>"),
}
CLIENTS = [*WRAPPERS, "opencode"]
NEW_LINE = "\n"


def build_opening(client: str, summary: str) -> list[Message]:
    """Return the first messages that ``client`` sends when it continues from ``summary``."""
    if client == "opencode":
        return [Message.from_text("user", "What did we do so far?"), Message.from_text("assistant", summary)]
    before, after_summary = WRAPPERS[client]
    reminder = (Text("<system-reminder>\nUse ripgrep.\n</system-reminder>"),) * client.startswith("claude")
    return [Message("user", (*reminder, Text(before + summary + after_summary)))]


def build_turns(turns: int, start: int = 0, chars: int = 4_000) -> list[Message]:
    """Return turns that each read a file."""
    messages = []
    for turn in range(start, start + turns):
        messages += [
            Message.from_text("user", f"Turn {turn}: look at the log please."),
            Message("assistant", (ToolCall(f"c{turn}", "read", f'{{"path":"src/part_{turn}.py"}}'),)),
            Message("tool", (ToolResult(f"c{turn}", "read", (Text(make_text(turn, chars)),)),)),
            Message.from_text("assistant", f"ok {turn}"),
        ]
    return messages


def join_summary_texts(plan_with_compaction) -> str:
    """Return the summary texts of a plan's compaction."""
    return "\n\n".join(part.text for part in plan_with_compaction.compaction.summary.parts if isinstance(part, Text))


def build_extracts(first_messages: list[Message], state: ConversationState | None = None, times: int = 3) -> list[str]:
    """Return the extracts of ``times`` compactions in a row of a conversation that begins with ``first_messages``."""
    messages, texts = [*first_messages], []
    for number in range(times):
        messages += build_turns(6, 6 * number)
        new_plan = plan(messages, TARGET, state=state, inputs=PlanInputs(force_compaction=True))
        assert new_plan.compaction is not None
        assert apply(messages, new_plan)
        state = new_plan.state
        texts.append(join_summary_texts(new_plan))
    return texts


@pytest.mark.parametrize("client", CLIENTS)
def test_extract_carries_a_client_summary_whole(client):
    """Each extract contains the client's summary verbatim and once, without the text that the client wraps
    around it.
    """
    for text in build_extracts([*build_opening(client, SUMMARY), *build_turns(1, 90)]):
        assert text.count(SUMMARY) == 1
        assert text.count(CONSTRAINT) == 1
        for boilerplate in (
            "continued from a previous",
            "Another language model",
            "transcript",
            "questions",
            "so far?",
        ):
            assert boilerplate not in text


def test_extract_that_comes_back_is_carried_with_the_summary_it_carried():
    """A client that begins a new conversation with the messages of its last request sends an extract of ours back, and
    in the same message the earlier summary that the extract carried on.
    """
    first_plan = plan(
        [*build_opening("pi", SUMMARY), *build_turns(6)], TARGET, inputs=PlanInputs(force_compaction=True)
    )
    extract, carried = (part.text for part in first_plan.compaction.summary.parts)
    assert SUMMARY in carried
    message = Message("user", (Text(extract), Text(carried)))
    assert find_newest_client_summary([message]) == SUMMARY
    text = build_extracts([message, *build_turns(1, 90)])[-1]
    assert SUMMARY in text
    assert "Turn 5: look at the log please." in text


def test_extract_of_nothing_but_a_summary_adds_no_line_with_each_copy():
    """If all of an extract is the summary that it carries on, that summary alone is carried on when it comes back."""
    text = f"{build_extract([], [], 400)}{NEW_LINE * 2}{PREVIOUS_SUMMARY_OPENING}{SUMMARY}"
    assert find_newest_client_summary([Message.from_text("user", text)]) == SUMMARY


def test_extract_keeps_user_text_beside_a_client_summary():
    """Text in the same message as the client's summary is still quoted as the user's."""
    first_messages = Message(
        "user", (*build_opening("claude-code", SUMMARY)[0].parts, Text("Only ever use tabs here."))
    )
    text = build_extracts([first_messages, *build_turns(1, 90)])[-1]
    assert "Only ever use tabs here." in text
    assert text.count(SUMMARY) == 1


@pytest.mark.parametrize("client", [name for name, (_, end) in WRAPPERS.items() if end])
@pytest.mark.parametrize("quoted", [0, 1, 2])
def test_extract_client_summary_ends_at_its_own_end_marker(client, quoted):
    """Text after the end marker belongs to the user, and an end marker quoted inside the summary does not end it."""
    before, end = WRAPPERS[client]
    text = f"{before}{(SUMMARY + end) * quoted}{SUMMARY}{end}\n\nNever touch the vendor folder."
    summary = extract_client_summary(text)
    assert summary.startswith(SUMMARY[:40])
    assert summary.count(CONSTRAINT) == quoted + 1
    assert list(iter_user_texts([Message.from_text("user", text)])) == ["Never touch the vendor folder."]


@given(st.integers(1, 400), st.integers(100, 4_000))
def test_render_previous_summary_uses_most_of_its_budget(sections, budget):
    """A summary that has to be cut still fills most of its budget, however small its sections are."""
    summary = "\n".join(
        f"## {at}\nThe tide takes the harbour wall, rock by rock, and nobody minds." for at in range(sections)
    )
    tokens = estimate_text_tokens(render_previous_summary(summary, budget))
    assert tokens <= budget
    assert tokens >= min(0.6 * (budget - 60), 0.9 * estimate_text_tokens(summary))


def test_plan_ignores_a_blank_client_summary():
    """An opening followed by nothing but blanks is no summary, however long it is."""
    history = [Message.from_text("user", WRAPPERS["codex"][0] + " \n" * 4_000), *build_turns(20)]
    assert plan(history, TARGET, inputs=PlanInputs(force_compaction=True)).compaction is not None


def test_extract_keeps_only_the_newest_client_summary():
    """Of two summaries, the later one covers the earlier."""
    first_messages = [
        *build_opening("codex", "Old: the lexer is next."),
        *build_turns(1, 90),
        *build_opening("codex", SUMMARY),
    ]
    text = build_extracts(first_messages)[-1]
    assert SUMMARY in text
    assert "Old: the lexer" not in text


def test_extract_treats_a_later_opencode_question_as_a_question():
    """The sentence that opens an opencode summary may be asked by a user later; then the reply is an ordinary
    answer.
    """
    first_messages = [*build_turns(1, 90), *build_opening("opencode", SUMMARY)]
    text = build_extracts(first_messages)[-1]
    assert "What did we do so far?" in text
    assert SUMMARY not in text


@pytest.mark.parametrize("author", ["", "model"])
@pytest.mark.parametrize("parts", [(SUMMARY,), ("Refactor it.", "".join((WRAPPERS["codex"][0], SUMMARY)))])
def test_extract_carries_an_imported_summary(parts, author):
    """A summary imported from another tool's session is carried into the extracts that follow."""
    messages = [*build_turns(4, 90)]
    compaction = CompactionEntry(4, Message("user", tuple(map(Text, parts))), 200, author=author)
    state = apply_entry(plan(messages, TARGET).state, Entry("", None, compaction))
    for text in build_extracts(messages, state):
        assert text.count(SUMMARY) == 1


@pytest.mark.parametrize("client", sorted(WRAPPERS))
def test_extract_prefers_a_newer_client_summary_over_the_compaction(client):
    """The summary of a compaction is carried on until the client sends a newer one, which covers it."""
    messages = [*build_turns(4, 90)]
    compaction = CompactionEntry(4, Message.from_text("user", "Refactor the lexer."), 200, author="model")
    state = apply_entry(plan(messages, TARGET).state, Entry("", None, compaction))
    new_plan = plan([*messages, *build_opening(client, SUMMARY)], TARGET, state=state)
    for text in build_extracts([*messages, *build_opening(client, SUMMARY)], new_plan.state):
        assert text.count(SUMMARY) == 1
        assert "Refactor the lexer." not in text


LINES = [f"   - src/store/part{at}.py: the function f{at} was moved and its callers were adapted." for at in range(900)]
PLACES = {
    "a section of its own": "7. Constraints:\n   - {one}",
    "what the user said": "6. All user messages:\n   - {one}",
    "a tag": "<active_constraints>\n{one}\n</active_constraints>",
    "a heading": "## Constraints & Preferences\n- {one}",
    "bold": "**Constraints:**\n- {one}",
    "a rule anywhere": "- never deploy on a Friday: {one}",
}


@given(st.sampled_from(CLIENTS), st.sampled_from(sorted(PLACES)), st.integers(0, 900), st.integers(300, 900))
def test_extract_shows_a_constraint_from_a_long_summary(client, place, at, length):
    """A constraint anywhere in a client's summary is still shown two extracts later, and cut text is counted."""
    lines = ["3. Files and Code Sections:", *LINES[:length]]
    lines.insert(min(at, len(lines)), PLACES[place].format(one=CONSTRAINT))
    for text in build_extracts([*build_opening(client, "\n".join(lines)), *build_turns(1, 90)], times=2):
        assert CONSTRAINT in text
        assert "part5.py" in text
        assert "left out here" in text or all(line in text for line in lines)


@given(st.integers(0, 10), st.sampled_from(["Constraints", "User preferences", "Rules", "All user messages"]))
def test_render_previous_summary_reserves_half_for_constraints(at, heading):
    """Lines under a constraint heading are kept even if they do not sound like rules, while sections as long
    are cut.
    """
    sections = [f"## Step {number}\n" + "\n".join(LINES[:60]) for number in range(10)]
    constraints = [f"- the folder pool{number} is holy" for number in range(100)]
    sections.insert(at, f"## {heading}\n" + "\n".join(constraints))
    text = render_previous_summary("\n".join(sections), 2_000)
    assert [constraint for constraint in constraints if constraint not in text] == []
    assert estimate_text_tokens(text) <= 2_000


def test_render_previous_summary_cuts_each_section_on_its_own():
    """A long section leaves room for the sections after it."""
    long = "\n".join([f"## Done {name}\n" + "\n".join(LINES[:200]) for name in "abc"])
    text = build_extracts(
        [*build_opening("pi", f"{long}\n## Current Work\n`anchor` is missing in rock.py"), *build_turns(1, 90)]
    )[-1]
    assert "`anchor` is missing in rock.py" in text
    assert all(f"## Done {name}" in text for name in "abc")


def test_extract_has_no_earlier_summary_section_without_one():
    """An ordinary conversation gets no section about an earlier summary."""
    assert not any("earlier summary" in text.lower() for text in build_extracts(build_turns(2)))


def test_find_newest_user_text_skips_client_summaries():
    """A client's summary is no request of the user, so a summary writer need not repeat it."""
    assert find_newest_user_text([*build_opening("claude-code", SUMMARY), Message.from_text("assistant", "ok")]) == ""
    assert find_newest_user_text([Message.from_text("user", "Go."), *build_opening("pi", SUMMARY)]) == "Go."
    assert find_newest_user_text(build_opening("opencode", SUMMARY)) == ""
