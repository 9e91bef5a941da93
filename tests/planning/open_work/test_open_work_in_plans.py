"""Open work in plans: in every kind of summary, behind every limit, and in texts that were shortened."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from open_work_scripts import WORK_SCRIPTS, build_exchange, build_note
from sample_conversations import make_text

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.planning.budget import compute_budget
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.open_work.find_open_work import list_open_work
from holdfast.planning.open_work.section import is_open_work_section
from holdfast.planning.policy_rules import ResultLimits
from holdfast.planning.stages.truncate import truncate_entry_messages
from holdfast.state.entries import CompactionEntry, Entry, MessageEntry
from holdfast.state.target import SummaryResult

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=20_000)
SCRIPTS = {script.label: script for script in WORK_SCRIPTS}
CLAUDE_AGENT, CODEX_SHELL = SCRIPTS["claude-code agent"], SCRIPTS["codex shell"]
FORCED = PlanInputs(force_compaction=True)


def build_turns(turns: int, chars: int = 4_000) -> list[Message]:
    """Return finished turns that each read a file of ``chars`` characters."""
    messages = []
    for turn in range(turns):
        messages += [
            Message.from_text("user", f"Request {turn}: look at src/part_{turn}.py"),
            Message("assistant", (ToolCall(f"c{turn}", "read", f'{{"path":"src/part_{turn}.py"}}'),)),
            Message("tool", (ToolResult(f"c{turn}", "read", (Text(make_text(turn, chars)),)),)),
            Message.from_text("assistant", f"Part {turn} is done."),
        ]
    return messages


def list_summary_texts(new_plan) -> list[str]:
    return [part.text for part in new_plan.compaction.summary.parts]


def find_sections(messages: Sequence[Message]) -> list[str]:
    """Return the sections about open work in the messages of a request."""
    texts = [part.text for message in messages for part in message.parts if isinstance(part, Text)]
    return [text for text in texts if is_open_work_section(text)]


def write_summary(messages: list[Message], text: str):
    """Return the plan with ``text`` as the summary that a model wrote."""
    inputs = PlanInputs(force_compaction=True, can_summarize=True)
    request = plan(messages, TARGET, inputs=inputs).summary_request
    assert request is not None
    return plan(messages, TARGET, inputs=replace(inputs, summary=SummaryResult(request.stop, text)))


# -- summaries ---------------------------------------------------------------------------------------------------------


def test_plan_lists_open_work_beside_an_extract_and_a_written_summary():
    """The section stands beside an extract, beside a summary that a model wrote, and in the smallest request, always
    with what is open alone.
    """
    messages = [
        *build_exchange("TodoWrite", {"todos": [{"content": "Fix the login", "status": "pending"}]}, "ok"),
        *CLAUDE_AGENT.start("a7470ed", "Review tests"),
        *CLAUDE_AGENT.start("ae499f1", "Review design"),
        *CLAUDE_AGENT.end("ae499f1"),
        *build_turns(12),
    ]
    expected = "## Still Open\n- sub-agent a7470ed: Review tests\n- to-do [pending]: Fix the login"
    for new_plan in (
        plan(messages, TARGET, inputs=FORCED),
        write_summary(messages, "A model wrote this."),
        plan(messages, TARGET, inputs=PlanInputs(overflow_step="fallback")),
    ):
        assert find_sections(apply(messages, new_plan)) == [expected]


def test_plan_pays_the_section_from_the_budget_of_the_summary():
    """A compaction with many open items meets its goal as one without: the section is paid first, not on top."""
    shells = [message for number in range(40) for message in CODEX_SHELL.start(str(500 + number), "bun test")]
    new_plan = plan([*shells, *build_turns(12)], TARGET, inputs=FORCED)
    budget = compute_budget(TARGET, Policy().settings)
    assert new_plan.after <= budget.setup_tokens + budget.compute_share(Policy().settings.compaction.goal_share)
    (section,) = find_sections(apply([*shells, *build_turns(12)], new_plan))
    assert all(str(500 + number) in section for number in range(40))


def test_plan_without_open_work_has_no_section():
    """A conversation in which nothing is open gets the summary that it always got."""
    messages = [*CLAUDE_AGENT.start("a7470ed", "Review tests"), *CLAUDE_AGENT.end("a7470ed"), *build_turns(12)]
    assert find_sections(apply(messages, plan(messages, TARGET, inputs=FORCED))) == []


def test_plan_lists_open_work_from_before_an_earlier_compaction():
    """The section is made from the log: an item outlives any number of compactions, and its end in between counts."""
    messages = [*CODEX_SHELL.start("90862", "bun dev"), *CODEX_SHELL.start("36099", "bun test"), *build_turns(8)]
    first = plan(messages, TARGET, inputs=FORCED)
    messages += [*CODEX_SHELL.end("36099"), *build_turns(8)]
    second = plan(messages, TARGET, state=first.state, inputs=FORCED)
    assert find_sections(apply(messages, second)) == ["## Still Open\n- shell 90862: bun dev"]


def test_plan_does_not_repeat_what_the_kept_tail_tells_of():
    """An item that a kept message tells of has no line."""
    messages = [*build_turns(12), *CODEX_SHELL.start("90862", "bun dev")]
    new_plan = plan(messages, TARGET, inputs=FORCED)
    assert new_plan.compaction.first_kept <= len(messages) - 2
    assert find_sections(apply(messages, new_plan)) == []


def test_plan_replaces_an_older_section():
    """A summary that is updated or carried on has one section, the newest."""
    messages = [*CLAUDE_AGENT.start("a7470ed", "Review tests"), *build_turns(12)]
    first = write_summary(messages, "The model wrote this.")
    messages += [*CLAUDE_AGENT.end("a7470ed"), *CODEX_SHELL.start("90862", "bun dev"), *build_turns(12)]
    second = plan(messages, TARGET, state=first.state, inputs=FORCED)
    assert find_sections(apply(messages, second)) == ["## Still Open\n- shell 90862: bun dev"]
    assert "a7470ed" not in "\n".join(list_summary_texts(second)[1:])


# -- other ways to hide messages ---------------------------------------------------------------------------------------


def test_limit_history_turns_lists_open_work_of_hidden_turns():
    """Turns that a limit hides leave what they left open; a later cut has the section of then."""
    policy = Policy().with_settings(history={"max_turns": 4})
    messages = [Message.from_text("user", "Start."), *CODEX_SHELL.start("90862", "bun dev"), *build_turns(6, 100)]
    first = plan(messages, TARGET, policy)
    assert find_sections(apply(messages, first)) == ["## Still Open\n- shell 90862: bun dev"]
    messages += [*CODEX_SHELL.end("90862"), *CODEX_SHELL.start("36099", "bun test"), *build_turns(8, 100)]
    second = plan(messages, TARGET, policy, state=first.state)
    assert find_sections(apply(messages, second)) == ["## Still Open\n- shell 36099: bun test"]
    messages += [*CODEX_SHELL.end("36099"), *build_turns(8, 100)]
    third = plan(messages, TARGET, policy, state=second.state)
    assert third.compaction is not None
    assert third.compaction.summary is None
    assert find_sections(apply(messages, third)) == []


def hide_all_but_the_newest(builder: PlanBuilder) -> PlanBuilder:
    """A stage of a caller's own that hides messages without a word about them."""
    cut_points = find_cut_points(builder.state.history.messages.slice())
    keep = [cut for cut in cut_points if cut < len(builder.state.history.sized_messages)][-1]
    return builder.add_compaction(CompactionEntry(keep))


def test_plan_lists_open_work_behind_a_stage_of_a_caller():
    """A stage of a caller's own takes no open work with what it hides. The sliding baseline does: it is measured as
    what puts nothing in place of what it drops.
    """
    messages = [*CODEX_SHELL.start("90862", "bun dev"), *build_turns(12)]
    policy = Policy().insert_stage_before("history", "hide", hide_all_but_the_newest)
    assert find_sections(apply(messages, plan(messages, TARGET, policy))) == ["## Still Open\n- shell 90862: bun dev"]
    sliding = plan([*messages, *build_turns(12)], TARGET, Policy.preset("sliding"))
    assert sliding.compaction is not None
    assert sliding.compaction.summary is None


# -- shortened texts ---------------------------------------------------------------------------------------------------


def lengthen(exchange: list[Message], chars: int) -> list[Message]:
    """Return a call and its result with ``chars`` characters of output after the text of the result."""
    (result,) = exchange[1].results
    text = f"{get_result_text(result)}\n{make_text(3, chars)}"
    return [exchange[0], Message("tool", (replace(result, content=(Text(text),)),))]


def find_result_texts(messages: Sequence[Message]) -> list[str]:
    return [get_result_text(result) for message in messages for result in message.results]


def test_plan_notes_open_work_in_a_spilled_result():
    """A line in place of a result keeps the id that the result told, as long as it is open."""
    policy = Policy().with_settings(results={"spill_chars": 1_000, "preview_chars": 0, "outline_chars": 0})
    messages = lengthen(CODEX_SHELL.start("90862", "bun dev"), 3_000)
    (text,) = find_result_texts(apply(messages, plan(messages, TARGET, policy)))
    assert text.endswith("returns them]\n[still open: shell 90862]")
    ended = [*messages, *CODEX_SHELL.end("90862")]
    (text, _) = find_result_texts(apply(ended, plan(ended, TARGET, policy)))
    assert "still open" not in text


@pytest.mark.parametrize(
    ("label", "kind", "id_"), [("codex shell", "shell", "90862"), ("goose delegate", "sub-agent", "tide")]
)
def test_plan_notes_the_end_of_work_that_the_summary_lists(label, kind, id_):
    """Where a summary lists an item, a shortened result that told of its end still says that it ended, by its kind."""
    policy = Policy().with_settings(results={"spill_chars": 1_000, "preview_chars": 0, "outline_chars": 0})
    script = SCRIPTS[label]
    messages = [*script.start(id_, "bun dev"), *build_turns(12)]
    first = plan(messages, TARGET, policy, inputs=FORCED)
    messages += lengthen(script.end(id_), 3_000)
    sent = apply(messages, plan(messages, TARGET, policy, state=first.state))
    assert find_sections(sent) == [f"## Still Open\n- {kind} {id_}: bun dev"]
    assert find_result_texts(sent)[-1].endswith(f"\n[ended: {kind} {id_}]")


def test_plan_keeps_the_handle_of_a_noted_result():
    """The edit with the note leads to the same stored text, and what both edits save is what the text lost."""
    policy = Policy().with_settings(results={"spill_chars": 1_000, "preview_chars": 0, "outline_chars": 0})
    messages = lengthen(CODEX_SHELL.start("90862", "bun dev"), 3_000)
    new_plan = plan(messages, TARGET, policy)
    assert {edit.blob_hash for edit in new_plan.record} == {new_plan.blobs[0].hash}
    assert {edit.rule for edit in new_plan.record} == {"spill"}
    (whole,) = find_result_texts(messages)
    (short,) = find_result_texts(apply(messages, new_plan))
    assert sum(edit.saves for edit in new_plan.record) == estimate_text_tokens(whole) - estimate_text_tokens(short)


def test_truncate_entry_messages_notes_open_work():
    """A copy of a branch that holds nothing but shortened results still tells what is open."""
    exchange = build_exchange("Bash", {"command": "npm run dev", "run_in_background": True}, "")
    output = make_text(5, 6_000) + "\nCommand running in background with ID: b12. Output is being written to: /tmp/b12"
    messages = [exchange[0], Message("tool", (replace(exchange[1].results[0], content=(Text(output),)),))]
    messages += build_turns(2, 6_000)
    entries = [Entry(str(n), None, MessageEntry(build_sized_message(message))) for n, message in enumerate(messages)]
    shortened = truncate_entry_messages(entries, ResultLimits(2_000))
    copy = [shortened.get(str(number), message) for number, message in enumerate(messages)]
    assert find_result_texts(copy)[0].endswith("\n[still open: shell b12]")
    assert [item.id for item in list_open_work(copy)] == ["b12"]


# -- complaints of users -----------------------------------------------------------------------------------------------


def compact_twice(messages: list[Message], window: int = 20_000) -> list[Message]:
    """Return what is sent after two compactions with work between them."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=window)
    first = plan([*messages, *build_turns(8)], target, inputs=FORCED)
    history = [*messages, *build_turns(8), *build_turns(8)]
    return apply(history, plan(history, target, state=first.state, inputs=FORCED))


def test_claude_code_does_not_start_its_agents_again():
    """claude-code#90036: eleven agents lived across a compaction and were started a second time."""
    ids = [f"a{number:06x}" for number in range(11)]
    messages = [Message.from_text("user", "Review all eleven packages.")]
    for number, id_ in enumerate(ids):
        messages += CLAUDE_AGENT.start(id_, f"Review package {number}")
    messages += [*CLAUDE_AGENT.end(ids[0]), *CLAUDE_AGENT.end(ids[4])]
    (section,) = find_sections(compact_twice(messages))
    assert {id_ for id_ in ids if f"- sub-agent {id_}: Review package" in section} == set(ids) - {ids[0], ids[4]}


def test_claude_code_keeps_the_ids_of_its_background_shells():
    """claude-code#29263: after a compaction the id of the dev server was gone, and a second one was started."""
    shell = SCRIPTS["claude-code shell"]
    messages = [*shell.start("b7f3a2", "npm run dev"), *shell.start("b7f3a3", "npm test"), *shell.end("b7f3a3")]
    assert find_sections(compact_twice(messages)) == ["## Still Open\n- shell b7f3a2: npm run dev"]


def test_codex_keeps_its_agents_and_sessions():
    """codex#26728: spawned agents, and running sessions, were unknown after a compaction."""
    agent = SCRIPTS["codex agent"]
    messages = [
        *agent.start("0199c0de-1", "worker"),
        *agent.start("0199c0de-2", "explorer"),
        *agent.go_on("0199c0de-2"),
        *agent.start("0199c0de-3", "worker"),
        *agent.end("0199c0de-3"),
        *CODEX_SHELL.start("90862", "bun run typecheck"),
    ]
    (section,) = find_sections(compact_twice(messages))
    assert section.split("\n") == [
        "## Still Open",
        "- sub-agent 0199c0de-2 [finished, not closed]: explorer",
        "- sub-agent 0199c0de-1: worker",
        "- shell 90862: bun run typecheck",
    ]


def test_openclaw_does_not_spawn_its_children_again():
    """openclaw#116015: six children were spawned, and four of them again after a compaction."""
    session = SCRIPTS["openclaw session"]
    keys = [f"agent:main:subagent:0000000{number}" for number in range(6)]
    messages = [message for number, key in enumerate(keys) for message in session.start(key, f"market {number}")]
    messages += [*session.end(keys[1]), *session.end(keys[5])]
    (section,) = find_sections(compact_twice(messages))
    assert {key for key in keys if key in section} == {keys[0], keys[2], keys[3], keys[4]}


@pytest.mark.parametrize(
    ("label", "id_", "line"),
    [
        ("opencode task", "ses_5f0a1b2c", "- sub-agent ses_5f0a1b2c: explore the api"),
        ("openclaw approval", "bc5f3f08", "- approval bc5f3f08: explore the api"),
        ("copilot agent", "explore-api", "- sub-agent explore-api: explore the api"),
        ("copilot shell", "37", "- shell 37: explore the api"),
        ("goose delegate", "20260101_4", "- sub-agent 20260101_4: explore the api"),
        ("extension run", "run-7", "- sub-agent run-7: explore the api"),
    ],
)
def test_other_clients_keep_what_they_started(label, id_, line):
    """A task of opencode (#6535), an approval of OpenClaw, an agent and a shell of Copilot CLI (#3514), a delegate of
    goose and a run of an extension of pi survive two compactions.
    """
    assert find_sections(compact_twice(SCRIPTS[label].start(id_, "explore the api"))) == [f"## Still Open\n{line}"]


def test_waiting_words_of_the_user_are_listed():
    """Several messages that wait for an answer: those that a compaction does not keep are listed."""
    messages = [*build_turns(10), *build_note("Thanks.")]
    messages += [Message.from_text("user", "Also rename the flag."), Message.from_text("user", make_text(2, 30_000))]
    new_plan = plan(messages, TARGET, inputs=PlanInputs(overflow_step="fallback"))
    text = "\n".join(message.text for message in apply(messages, new_plan))
    assert "Also rename the flag." in text
