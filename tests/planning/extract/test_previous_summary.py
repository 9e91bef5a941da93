"""A client's own summary of what came before: known by its opening, carried on by extracts, constraints first."""

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
from holdfast.planning.extract.previous_summary import extract_client_summary, iter_user_texts
from holdfast.planning.summary.must_keep import find_newest_user_text
from holdfast.state.entries import CompactionEntry, Entry
from holdfast.state.fold.fold_entries import apply_entry

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=32_000)
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
END = (
    "\n\nIf you need specific details from before compaction, read the full transcript at: /x/y.jsonl\n"
    f"Continue the conversation from where it left off {GO_ON} Resume directly."
)
CODEX = "Another language model started to solve this problem and produced a summary of its thinking process. "
WRAPPED = {
    "claude-code": (
        f"{CLAUDE}The summary below covers the earlier portion of the conversation.\n\nSummary:\n",
        END,
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
    "gemini-cli": ("<state_snapshot>\n", "\n</state_snapshot>"),
    "gemini-cli-thinking": ("<scratchpad>Hm.</scratchpad>\n\n<state_snapshot>\n", "\n</state_snapshot>"),
}
CLIENTS = [*WRAPPED, "opencode"]


def opening(client: str, summary: str) -> list[Message]:
    """Return how a conversation of ``client`` begins that goes on from ``summary``."""
    if client == "opencode":
        return [Message.from_text("user", "What did we do so far?"), Message.from_text("assistant", summary)]
    before, behind = WRAPPED[client]
    reminder = (Text("<system-reminder>\nUse ripgrep.\n</system-reminder>"),) * client.startswith("claude")
    return [Message("user", (*reminder, Text(before + summary + behind)))]


def work(turns: int, start: int = 0, chars: int = 4_000) -> list[Message]:
    """Return turns that each read a file."""
    out = []
    for turn in range(start, start + turns):
        out += [
            Message.from_text("user", f"Turn {turn}: look at the log please."),
            Message("assistant", (ToolCall(f"c{turn}", "read", f'{{"path":"src/part_{turn}.py"}}'),)),
            Message("tool", (ToolResult(f"c{turn}", "read", (Text(make_text(turn, chars)),)),)),
            Message.from_text("assistant", f"ok {turn}"),
        ]
    return out


def texts(made) -> str:
    """Return what stands for the turns that gave way."""
    return "\n\n".join(part.text for part in made.compaction.summary.parts if isinstance(part, Text))


def extracts(begun: list[Message], branch: ConversationState | None = None, times: int = 3) -> list[str]:
    """Return so many extracts, one after the other, of a conversation that goes on from ``begun``."""
    said, found = [*begun], []
    for number in range(times):
        said += work(6, 6 * number)
        made = plan(said, WHERE, state=branch, inputs=PlanInputs(force_compaction=True))
        assert made.compaction is not None
        assert apply(said, made)
        branch = made.state
        found.append(texts(made))
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_a_clients_summary_is_carried_on_whole(client):
    """It stands in each extract as it was said, once, and what the client wraps around it does not."""
    for told in extracts([*opening(client, SUMMARY), *work(1, 90)]):
        assert told.count(SUMMARY) == 1
        assert told.count(CONSTRAINT) == 1
        for boilerplate in (
            "continued from a previous",
            "Another language model",
            "transcript",
            "questions",
            "so far?",
        ):
            assert boilerplate not in told


def test_words_of_the_user_beside_a_summary_are_theirs():
    """What the client sends in one message with its summary is still the user's."""
    begun = Message("user", (*opening("claude-code", SUMMARY)[0].parts, Text("Only ever use tabs here.")))
    told = extracts([begun, *work(1, 90)])[-1]
    assert "Only ever use tabs here." in told
    assert told.count(SUMMARY) == 1


@pytest.mark.parametrize("client", [name for name in WRAPPED if name != "codex"])
@pytest.mark.parametrize("quoted", [0, 1, 2])
def test_words_behind_a_summary_are_the_users(client, quoted):
    """What stands behind its end is no part of it, and an end that it quotes does not end it."""
    before, end = WRAPPED[client]
    text = f"{before}{(SUMMARY + end) * quoted}{SUMMARY}{end}\n\nNever touch the vendor folder."
    told = extract_client_summary(text)
    assert told.startswith(SUMMARY[:40])
    assert told.count(CONSTRAINT) == quoted + 1
    assert list(iter_user_texts([Message.from_text("user", text)])) == ["Never touch the vendor folder."]


@given(st.integers(1, 400), st.integers(100, 4_000))
def test_however_many_sections_there_are_the_room_is_used(sections, room):
    """A summary that is cut has most of what it may have, be its sections as small as they like."""
    summary = "\n".join(
        f"## {at}\nThe tide takes the harbour wall, rock by rock, and nobody minds." for at in range(sections)
    )
    held = estimate_text_tokens(render_previous_summary(summary, room))
    assert held <= room
    assert held >= min(0.6 * (room - 60), 0.9 * estimate_text_tokens(summary))


def test_a_summary_of_blanks_is_none():
    """An opening behind which nothing is said stands for nothing, however long that is."""
    history = [Message.from_text("user", WRAPPED["codex"][0] + " \n" * 4_000), *work(20)]
    assert plan(history, WHERE, inputs=PlanInputs(force_compaction=True)).compaction is not None


def test_the_newest_summary_stands():
    """Of two the later one covers the earlier."""
    begun = [*opening("codex", "Old: the lexer is next."), *work(1, 90), *opening("codex", SUMMARY)]
    told = extracts(begun)[-1]
    assert SUMMARY in told
    assert "Old: the lexer" not in told


def test_a_question_of_the_user_is_none():
    """What opencode puts first, a user may ask later: the answer is an answer."""
    begun = [*work(1, 90), *opening("opencode", SUMMARY)]
    told = extracts(begun)[-1]
    assert "What did we do so far?" in told
    assert SUMMARY not in told


@pytest.mark.parametrize("by", ["", "model"])
@pytest.mark.parametrize("parts", [(SUMMARY,), ("Refactor it.", "".join((WRAPPED["codex"][0], SUMMARY)))])
def test_an_imported_summary_is_carried_on(parts, by):
    """The summary that is in force, made by the tool that the session came from, goes on in the extracts after it."""
    said = [*work(4, 90)]
    made = CompactionEntry(4, Message("user", tuple(map(Text, parts))), 200, author=by)
    branch = apply_entry(plan(said, WHERE).state, Entry("", None, made))
    for told in extracts(said, branch):
        assert told.count(SUMMARY) == 1


@pytest.mark.parametrize("client", sorted(WRAPPED))
def test_what_a_client_summarised_since_goes_before_what_is_in_force(client):
    """A summary that somebody wrote is carried on until a client sends a newer one: that covers it."""
    said = [*work(4, 90)]
    made = CompactionEntry(4, Message.from_text("user", "Refactor the lexer."), 200, author="model")
    branch = apply_entry(plan(said, WHERE).state, Entry("", None, made))
    made = plan([*said, *opening(client, SUMMARY)], WHERE, state=branch)
    for told in extracts([*said, *opening(client, SUMMARY)], made.state):
        assert told.count(SUMMARY) == 1
        assert "Refactor the lexer." not in told


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
def test_a_constraint_of_a_long_summary_is_shown(client, where, at, length):
    """Wherever it stands in what a client's summary says, two extracts later it is shown; what is cut is counted."""
    lines = ["3. Files and Code Sections:", *LINES[:length]]
    lines.insert(min(at, len(lines)), PLACES[where].format(one=CONSTRAINT))
    for told in extracts([*opening(client, "\n".join(lines)), *work(1, 90)], times=2):
        assert CONSTRAINT in told
        assert "part5.py" in told
        assert "left out here" in told or all(line in told for line in lines)


@given(st.integers(0, 10), st.sampled_from(["Constraints", "User preferences", "Rules", "All user messages"]))
def test_laws_have_half_of_the_room_however_they_are_put(at, heading):
    """What stands under a heading of laws sounds like none, and stays where sections as long lose most of theirs."""
    sections = [f"## Step {number}\n" + "\n".join(LINES[:60]) for number in range(10)]
    laws = [f"- the folder pool{number} is holy" for number in range(100)]
    sections.insert(at, f"## {heading}\n" + "\n".join(laws))
    told = render_previous_summary("\n".join(sections), 2_000)
    assert [law for law in laws if law not in told] == []
    assert estimate_text_tokens(told) <= 2_000


def test_sections_are_cut_each_for_itself():
    """A long section leaves room for those behind it."""
    long = "\n".join([f"## Done {name}\n" + "\n".join(LINES[:200]) for name in "abc"])
    told = extracts([*opening("pi", f"{long}\n## Current Work\n`anchor` is missing in rock.py"), *work(1, 90)])[-1]
    assert "`anchor` is missing in rock.py" in told
    assert all(f"## Done {name}" in told for name in "abc")


def test_without_such_a_message_nothing_is_said_of_one():
    """An ordinary conversation has no such part."""
    assert not any("earlier summary" in told.lower() for told in extracts(work(2)))


def test_a_summary_is_no_request_of_the_user():
    """A writer need not repeat what a client wraps around its own summary: only the user asks for something."""
    assert find_newest_user_text([*opening("claude-code", SUMMARY), Message.from_text("assistant", "ok")]) == ""
    assert find_newest_user_text([Message.from_text("user", "Go."), *opening("pi", SUMMARY)]) == "Go."
    assert find_newest_user_text(opening("opencode", SUMMARY)) == ""
