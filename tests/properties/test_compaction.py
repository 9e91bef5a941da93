"""Compaction: when it happens, where it cuts, what it says, and that it is worth it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy
from msgspec.structs import replace
from planning_loop import drive_agent_loop, find_request_points
from sample_conversations import make_text

from holdfast import ConversationState, PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.budget import compute_budget
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.extract import build_extract
from holdfast.planning.extract.user_words import OLDER_SHARE
from holdfast.planning.pipeline import plan_request
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings
from holdfast.state.entries import AnswerEntry, Entry, FailureEntry, MessageEntry, RequestSetup, Usage
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import ModelLimits
from holdfast.state.view import build_projection

OURS = Policy()
HEADINGS = [
    "## Goal",
    "## Constraints & Preferences",
    "## Progress",
    "### Done",
    "### In Progress",
    "### Blocked",
    "## Key Decisions",
    "## Next Steps",
    "## Critical Context",
    "## Relevant Files",
]
NOT_COMPACTED = {"breaker", "nothing-to-compact", "not-smaller"}
SUMMARISING = [name for name, preset in PRESETS.items() if preset.settings.compaction.enabled]
WHERE = get_target("anthropic", "claude-sonnet-4-5", window=9_000)
windows = st.sampled_from([7_000, 9_000, 20_000])
long_talks = conversation_strategy(turns=4, steps=6, longest=6_000, pictures=False)


def place(window, frame=0):
    return get_target("anthropic", "claude-sonnet-4-5", window=window, setup=RequestSetup("f" * bool(frame), frame))


def compacted(steps):
    return [step for step in steps if step.plan.compaction is not None]


def work(turns, chars=4_000, start=0):
    """Return a conversation of ``turns`` finished turns that each read a file of ``chars`` characters."""
    out = []
    for turn in range(start, start + turns):
        out += [
            Message.from_text(
                "user", f"Request number {turn}: look at src/app/part_{turn}.py and never touch main_{turn}.py"
            ),
            Message("assistant", (ToolCall(f"c{turn}", "read", f'{{"path":"src/app/part_{turn}.py"}}'),)),
            Message("tool", (ToolResult(f"c{turn}", "read", (Text(make_text(turn, chars)),)),)),
            Message.from_text("assistant", f"Part {turn} reads config_{turn}, because compute_total_{turn} needs it."),
        ]
    return out


# -- whether it is worth it --------------------------------------------------------------------------------------------


@given(long_talks, windows, st.integers(0, 1_000))
def test_a_compaction_makes_the_request_smaller_and_keeps_it_so(messages, window, frame):
    """compaction-must-gain: what is committed is smaller, within its goal, not over its own trigger, and gains what it
    must.
    """
    where = place(window, frame)
    room, settings = compute_budget(where, OURS.settings), OURS.settings
    for step in compacted(drive_agent_loop(messages, where, OURS)):
        made = step.plan
        assert made.after < made.before
        assert made.after <= room.setup_tokens + room.compute_share(settings.compaction.goal_share)
        assert made.compaction.tokens_before <= made.before
        assert made.after == made.compaction.tokens_after
        gain = max(settings.compaction.min_gain_share * (made.compaction.tokens_before - room.setup_tokens), 0)
        least = min(settings.compaction.min_gain_tokens, room.compute_share(settings.compaction.min_gain_share))
        assert made.compaction.tokens_before - made.after >= min(gain, least) or made.before > room.usable
        again = PlanBuilder(made.state, where, settings, PlanInputs(), room)
        assert not OURS.rules.is_over_trigger(again)


@given(long_talks | broken_history_strategy(longest=6_000), windows)
def test_what_is_not_worth_it_changes_nothing_and_is_told(messages, window):
    """compaction-must-gain, failed-attempt-changes-nothing: over the trigger there is either a compaction or a notice
    that says why, and then nothing is hidden.
    """
    where = place(window)
    policy = OURS.replace_stage("largest", lambda draft: draft)
    for step in drive_agent_loop(messages, where, policy, worlds=[PlanInputs(force_compaction=True), PlanInputs()]):
        made = step.plan
        told = [notice for notice in made.notices if notice.rule in NOT_COMPACTED]
        assert not (told and made.compaction)
        if told:
            assert all(notice.why for notice in told)
            assert made.state.view.first_kept == max(step.branch.view.first_kept, made.state.view.pinned_count)
            assert made.state.view.compaction == step.branch.view.compaction
        room = compute_budget(where, OURS.settings)
        draft = PlanBuilder(made.state, where, OURS.settings, step.world, room)
        assert told or made.compaction or not OURS.rules.is_over_trigger(draft)


@pytest.mark.parametrize("name", [name for name in SUMMARISING if name != "opencode"])
def test_a_loop_that_never_reports_usage_goes_on_compacting(name):
    """bounded-attempts counts compactions between answers; a loop that tells no usage answers too, so it goes on
    compacting.
    """
    where = get_target("anthropic", "claude-sonnet-4-5", window=60_000)
    policy = Policy.preset(name)
    if name == "openclaw":  # its guard in the loop leaves nothing to compact
        policy = policy.with_settings(preset={"loop_share": 0.0})
    steps = drive_agent_loop(work(60, 12_000), where, policy)
    assert len(compacted(steps)) > 3
    assert all(notice.rule != "breaker" for step in steps for notice in step.plan.notices)


def test_no_more_than_two_compactions_between_two_answers():
    """bounded-attempts: requests that are repeated without an answer compact at most twice by themselves."""
    branch = ConversationState()
    made = 0
    for message in work(16, 6_000):
        branch = apply_entry(branch, Entry("", None, MessageEntry(build_sized_message(message))))
        if message.role != "tool":
            continue
        plan_ = plan_request(branch, WHERE, OURS)
        made += plan_.compaction is not None
        branch = plan_.state
    assert made > 2
    user = [Message.from_text("user", make_text(number, 9_000)) for number in range(12)]
    stuck, made = ConversationState(), 0
    for message in user:
        stuck = apply_entry(stuck, Entry("", None, MessageEntry(build_sized_message(message))))
        plan_ = plan_request(stuck, WHERE, OURS)
        made += plan_.compaction is not None
        stuck = plan_.state
    assert made <= 2


def test_failures_open_the_breaker():
    """After the failures in a row that the settings name, no automatic compaction is tried; force still does."""
    branch = ConversationState.from_entries(
        Entry("", None, MessageEntry(build_sized_message(message))) for message in work(6)
    )
    assert plan_request(branch, WHERE, OURS).compaction is not None
    for _ in range(OURS.settings.compaction.breaker_failures):
        branch = apply_entry(branch, Entry("", None, FailureEntry("no-gain")))
    stopped = plan_request(branch, WHERE, OURS)
    assert stopped.compaction is None
    assert "breaker" in [notice.rule for notice in stopped.notices]
    assert plan_request(branch, WHERE, OURS, PlanInputs(force_compaction=True)).compaction is not None


@pytest.mark.parametrize("name", SUMMARISING)
def test_the_breaker_stops_what_is_automatic_only(name):
    """With the breaker open nothing is compacted by itself, and what is asked for is."""
    policy = Policy.preset(name)
    said = work(8, 20_000)
    where = get_target("anthropic", "claude-sonnet-4-5", window=60_000)
    off = plan(said, where, policy, inputs=PlanInputs(is_breaker_closed=False))
    assert off.compaction is None
    forced = plan(said, where, policy, inputs=PlanInputs(is_breaker_closed=False, force_compaction=True))
    assert forced.compaction is not None
    assert (
        plan(
            said, where, policy.with_settings(compaction={"enabled": False}), inputs=PlanInputs(force_compaction=True)
        ).compaction
        is None
    )


@given(long_talks, windows, st.booleans())
def test_off_never_compacts(messages, window, force):
    """``compact = "off"`` shows everything, forced or not, in a window however small."""
    policy = OURS.with_settings(compaction={"enabled": False})
    for step in drive_agent_loop(messages, place(window), policy, worlds=[PlanInputs(force_compaction=force)]):
        assert step.plan.compaction is None
        assert len(build_projection(step.plan.state)) == step.count


def test_nothing_is_forced_where_nothing_can_be():
    """A forced compaction of a short history changes nothing and says so."""
    for said in ([], [Message.from_text("system", "s")], [Message.from_text("user", "a")]):
        made = plan(said, WHERE, OURS, inputs=PlanInputs(force_compaction=True))
        assert made.compaction is None
        assert made.record == ()
        assert [notice.rule for notice in made.notices] in (["nothing-to-compact"], ["not-smaller"])


# -- where it cuts -----------------------------------------------------------------------------------------------------


@given(
    long_talks | broken_history_strategy(longest=6_000),
    windows,
    st.sampled_from(SUMMARISING),
    st.sampled_from([0, 3, 3, 3]),
)
def test_the_tail_starts_at_a_legal_place(messages, window, name, forced):
    """calls-with-results: of what is shown, a call and its results are on one side of the cut, and no open call is
    folded away.
    """
    window = max(window, 16_000) if name == "openclaw" else window
    worlds = [PlanInputs(force_compaction=number == forced) for number in range(4)]
    for step in compacted(drive_agent_loop(messages, place(window), Policy.preset(name), worlds=worlds)):
        before = max(step.branch.view.first_kept, step.plan.state.view.pinned_count)
        shown = messages[before : step.count]
        assert step.plan.compaction.first_kept - before in find_cut_points(shown)
        assert step.plan.compaction.first_kept > before


@given(long_talks | broken_history_strategy(max_wounds=3, longest=3_000), windows, st.sampled_from(SUMMARISING))
def test_everything_is_in_the_head_or_in_the_tail(messages, window, name):
    """Every message is either shown or lies before the cut; none is lost between two compactions."""
    window = max(window, 16_000) if name == "openclaw" else window
    for step in drive_agent_loop(messages, place(window), Policy.preset(name)):
        branch = step.plan.state
        assert (
            len(build_projection(branch))
            == branch.view.pinned_count + (branch.view.compaction is not None) + step.count - branch.view.first_kept
        )
        assert list(branch.history.messages) == messages[: step.count]


positions = st.integers(0, 40)


@given(broken_history_strategy(max_wounds=5))
def test_legal_cuts_never_part_a_call_from_its_result(messages):
    """calls-with-results: no legal cut has a call before it and that call's result behind it, and none stands before a
    result.
    """
    cuts = find_cut_points(messages)
    assert cuts == sorted(set(cuts))
    assert all(0 <= cut <= len(messages) for cut in cuts)
    ids = [call.id for one in messages for call in one.calls if one.role == "assistant"]
    for cut in cuts:
        assert cut == len(messages) or messages[cut].role != "tool"
        for id_ in {one for one in ids if ids.count(one) == 1}:
            called = next(at for at, one in enumerate(messages) if id_ in [call.id for call in one.calls])
            answered = [
                at for at, one in enumerate(messages) if at > called and id_ in [r.call_id for r in one.results]
            ]
            assert not (answered and called < cut <= answered[0])
    newest = max((at for at, one in enumerate(messages) if one.role == "assistant"), default=None)
    waiting = [] if newest is None else [call.id for call in messages[newest].calls]
    given_ids = [] if newest is None else [r.call_id for one in messages[newest:] for r in one.results]
    if any(waiting.count(id_) > given_ids.count(id_) for id_ in waiting):
        assert all(cut <= newest for cut in cuts)


@given(conversation_strategy())
def test_a_sound_conversation_can_be_cut_before_every_message_but_results(messages):
    """calls-with-results forbids no more than it must: each group of a sound conversation is a place to cut."""
    assert find_cut_points(messages) == [
        place for place in range(len(messages) + 1) if place == len(messages) or messages[place].role != "tool"
    ]


# -- what it says ------------------------------------------------------------------------------------------------------


def headings(text):
    return [line for line in text.split("\n") if line in HEADINGS]


@given(
    long_talks | broken_history_strategy(max_wounds=4, longest=2_000),
    st.sampled_from([300, 1_000, 4_000, 20_000]),
    positions,
)
def test_an_extract_has_its_headings_and_its_size(messages, budget, cut):
    """summary-form: all headings in order, and no more than the budget, or than the newest request and what is said
    beside it.

    That is fixed lines, and half of the user's share of what was said before.
    """
    slots = [build_sized_message(message) for message in messages]
    cut = min(cut, len(slots))
    text = build_extract(slots[:cut], slots[cut:], budget)
    assert headings(text) == HEADINGS
    newest = [message.text.strip() for message in messages[:cut] if message.is_turn_start and message.text.strip()][-1:]
    whole = sum(estimate_text_tokens(one) for one in newest)
    assert estimate_text_tokens(text) <= max(
        budget, whole + 400 + round(OLDER_SHARE * Settings().summary.user_share * budget)
    )


@pytest.mark.parametrize("budget", [600, 1_000, 2_000, 5_000, 10_000])
def test_an_extract_whose_lines_come_from_everywhere_keeps_its_size(budget):
    """summary-form: the headings that tell where quoted lines stood are within the budget, as the lines are."""
    said = []
    for turn in range(400):
        path = f"src/app/module_{turn}/part_{turn}.py"
        text = f"def compute_{turn}(): return total_{turn}\n"
        said += [
            Message("assistant", (ToolCall(f"c{turn}", "read", f'{{"path":"{path}"}}'),)),
            Message("tool", (ToolResult(f"c{turn}", "read", (Text(text),)),)),
        ]
    text = build_extract(
        [build_sized_message(message) for message in [Message.from_text("user", "Go."), *said]], [], budget
    )
    assert 0.75 * budget <= estimate_text_tokens(text) <= budget
    assert "\n[module_" in text


@given(long_talks, st.sampled_from([400, 3_000]))
def test_an_extract_is_always_the_same(messages, budget):
    """no-clock-in-decisions: the same head and tail give the same words."""
    slots = [build_sized_message(message) for message in messages]
    half = len(slots) // 2
    assert build_extract(slots[:half], slots[half:], budget) == build_extract(
        list(slots[:half]), list(slots[half:]), budget
    )


SCRIPT = """
from holdfast.planning.extract.extract import build_extract
from sample_conversations import build_conversation
from holdfast.messages.size.tokens import build_sized_message
turns = [(n, 200, [(3, n, 3_000, 1), (2, n + 5, 900, 0)], True) for n in range(12)]
slots = [build_sized_message(message) for message in build_conversation(turns)]
print(build_extract(slots[:-3], slots[-3:], 900))
"""


def test_an_extract_does_not_depend_on_the_hash_seed():
    """no-clock-in-decisions: another process, with other hashes, writes the same summary."""
    support = str(Path(__file__).parents[1] / "support")
    made = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": support},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1
    assert b"## Goal" in made.pop()


def test_an_extract_keeps_the_words_of_the_user():
    """The newest request stands verbatim, the first one too, and those between while there is room."""
    said = work(6, 500)
    said[0] = Message.from_text("user", "First: build the ☂ importer.\nSecond line of it.")
    text = build_extract([build_sized_message(message) for message in said], [], 4_000)
    assert "First: build the ☂ importer.\nSecond line of it." in text
    assert "Request number 5: look at src/app/part_5.py and never touch main_5.py" in text
    assert "User: Request number 3: look at src/app/part_3.py and never touch main_3.py" in text
    small = build_extract([build_sized_message(message) for message in said], [], 300)
    assert "Request number 5: look at src/app/part_5.py and never touch main_5.py" in small


def test_an_extract_names_files_commands_and_errors():
    """files-and-commands-kept: files read and edited, commands with how they ended, and errors are told without a
    model.
    """
    said = [
        Message.from_text("user", "fix it"),
        Message(
            "assistant",
            (
                ToolCall("a", "read", '{"path":"src/app/billing.py"}'),
                ToolCall("b", "bash", '{"command":"pytest -k totals"}'),
            ),
        ),
        Message(
            "tool",
            (
                ToolResult("a", "", (Text("def total(): ..."),)),
                ToolResult("b", "", (Text("..F\nerror: total is 3, not 4"),), is_error=True),
            ),
        ),
        Message("assistant", (ToolCall("c", "edit", '{"file_path":"src/app/billing.py"}'),)),
        Message("tool", (ToolResult("c", "", (Text("ok"),)),)),
        Message.from_text("assistant", "Fixed, because the root cause is an off-by-one in total_price."),
        Message.from_text("user", "thanks"),
    ]
    text = build_extract([build_sized_message(message) for message in said], [], 3_000)
    assert "src/app/billing.py: edit, read" in text.split("## Relevant Files")[1]
    assert "$ pytest -k totals -> FAILED error: total is 3, not 4" in text
    assert "root cause is an off-by-one" in text.split("## Key Decisions")[1]
    assert "error: total is 3, not 4" in text.split("### Blocked")[1].split("## Key")[0]


@pytest.mark.parametrize("name", SUMMARISING)
def test_a_summary_is_data_of_the_user(name):
    """summary-is-user-data: the summary stands behind the pinned system prompt as a user's message with all its
    headings.
    """
    said = [Message.from_text("system", "Be brief."), *work(20, 8_000), Message.from_text("user", "go on")]
    where = get_target("openai-chat", "gpt-5", window=100_000)
    made = plan(said, where, Policy.preset(name), inputs=PlanInputs(force_compaction=True))
    sent = apply(said, made)
    assert made.compaction is not None
    assert sent[0] == said[0]
    assert sent[1].role == "user"
    assert headings(sent[1].text) == HEADINGS
    assert f"({made.compaction.first_kept - 1} messages)" in sent[1].text
    assert "go on" in sent[-1].text


def test_the_second_extract_is_made_from_the_log():
    """Y: a later summary covers the whole head from the log, not the summary before it."""
    said = work(30, 6_000)
    where = place(20_000)
    steps = compacted(drive_agent_loop(said, where, OURS, usage=lambda made: made.after))
    assert len(steps) >= 2
    first, last = steps[0].plan.compaction.summary.text, steps[-1].plan.compaction.summary.text
    assert "Request number 0:" in first
    assert "Request number 0:" in last
    assert last.count("replaced by this extract") == 1


def test_spilled_words_do_not_come_back_whole():
    """A user's words that were spilled are told in the summary as they were shown."""
    said = [Message.from_text("user", make_text(7, 60_000)), *work(8, 4_000)[1:]]
    where = place(20_000)
    steps = compacted(drive_agent_loop(said, where, OURS))
    assert steps
    text = steps[-1].plan.compaction.summary.text
    assert "<persisted_tool_result" in text
    assert len(text) < 40_000


# -- triggers of the presets -------------------------------------------------------------------------------------------


def draft_of(policy, window, tokens, *, frame=0, output=None, world=PlanInputs()):
    """Return a draft whose last reported usage, told twice, is ``tokens``; what came later is an empty answer."""
    where = replace(place(window, frame), limits=ModelLimits(window, output))
    made = plan([Message.from_text("user", "a")], where, policy)
    answer = Entry("", None, AnswerEntry(made.state.last_request.prefix_digest, Usage(tokens, 0)))
    branch = apply_entry(apply_entry(made.state, answer), answer)
    if policy.name == "opencode":
        branch = apply_entry(
            branch, Entry("", None, MessageEntry(replace(build_sized_message(Message("assistant")), tokens=0)))
        )
    return PlanBuilder(branch, where, policy.settings, world, compute_budget(where, policy.settings), policy.rules)


@pytest.mark.parametrize(
    ("name", "window", "output", "last_quiet"),
    [
        ("pi", 200_000, None, 200_000 - 16_384),
        ("pi", 64_000, None, 64_000 - 16_384),
        ("opencode", 200_000, 32_000, 200_000 - 32_000 - 1),
        ("opencode", 200_000, 64_000, 200_000 - 32_000 - 1),
        ("opencode", 200_000, 8_192, 200_000 - 8_192 - 1),
        ("claude-code", 200_000, 64_000, 200_000 - 20_000 - 13_000),
        ("claude-code", 200_000, 8_000, 200_000 - 8_000 - 13_000),
        ("openclaw", 200_000, None, 200_000 - 20_000),
        ("openclaw", 40_000, None, 40_000 - 10_000),
    ],
)
def test_presets_compact_at_their_own_number(name, window, output, last_quiet):
    """Each preset's trigger is the documented one to the token: opencode at its limit, the others above it."""
    policy = Policy.preset(name)
    assert not policy.rules.is_over_trigger(draft_of(policy, window, last_quiet, output=output))
    assert policy.rules.is_over_trigger(draft_of(policy, window, last_quiet + 1, output=output))


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_our_trigger_is_a_share_of_the_room(cache):
    """Ours: strictly over frame plus the share of the room, a smaller one where the cache is cold."""
    settings = OURS.settings
    room = compute_budget(place(64_000, 10_000), settings)
    share = settings.compaction.trigger_share if cache == "warm" else settings.compaction.cold_trigger_share
    limit = room.setup_tokens + int(room.message_tokens * share)
    assert not OURS.rules.is_over_trigger(draft_of(OURS, 64_000, limit, frame=10_000, world=PlanInputs(cache)))
    assert OURS.rules.is_over_trigger(draft_of(OURS, 64_000, limit + 1, frame=10_000, world=PlanInputs(cache)))


def test_presets_without_a_summary():
    """append-only shows everything for ever; sliding drops the oldest groups and says nothing in their place."""
    said = work(20, 6_000)
    where = place(20_000)
    whole = plan(said, where, Policy.preset("append-only"))
    assert apply(said, whole) == [*said, Message.from_text("user", "Continue.")][: len(apply(said, whole))]
    slid = plan(said, where, Policy.preset("sliding"))
    sent = apply(said, slid)
    assert slid.compaction.summary is None
    assert slid.compaction.first_kept in find_cut_points(said)
    assert sent[-2:] == [said[-1], Message.from_text("user", "Continue.")] or sent[-1] == said[-1]
    room = compute_budget(where, Policy.preset("sliding").settings)
    assert slid.after <= room.usable


# -- history limit -----------------------------------------------------------------------------------------------------


def test_a_history_limit_cuts_in_steps():
    """With hysteresis the limit cuts to half when it is passed, so between n/2 and n turns are shown."""
    policy = OURS.with_settings(history={"max_turns": 6})
    where = place(200_000)
    shown, cuts = [], 0
    for step in drive_agent_loop(work(30, 100), where, policy):
        turns = sum(slot.message.is_turn_start for slot in step.slots)
        shown.append(turns)
        cuts += step.plan.compaction is not None
    assert max(shown) == 6
    assert min(shown[12:]) == 3
    assert cuts == len(range(7, 31, 4))


def test_a_history_limit_without_hysteresis_keeps_exactly_that_many():
    """The presets' way: always exactly the last n turns, with all that belongs to them."""
    policy = OURS.with_settings(history={"max_turns": 4, "hysteresis": False})
    said = work(10, 100)
    for step in drive_agent_loop(said, place(200_000), policy, request_points=find_request_points(said)):
        turns = sum(message.is_turn_start for message in said[: step.count])
        assert sum(slot.message.is_turn_start for slot in step.slots) == min(4, turns)


def test_a_limit_orphans_no_result():
    """A cut at a turn that begins while a tool runs leaves no result without its call."""
    policy = OURS.with_settings(history={"max_turns": 1, "hysteresis": False})
    said = [
        *work(2, 50),
        Message.from_text("user", "start"),
        Message("assistant", (ToolCall("slow", "bash"),)),
        Message.from_text("user", "hurry"),
        Message("tool", (ToolResult("slow", "bash", (Text("done"),)),)),
    ]
    made = plan(said, place(200_000), policy)
    sent = apply(said, made)
    ids = {call.id for one in sent for call in one.calls}
    assert all(result.call_id in ids for one in sent for result in one.results)
    assert any("hurry" in one.text for one in sent)


def test_a_compaction_is_told_to_nobody_twice():
    """The file a summary names is named once, whatever its reads: the ledger folds them."""
    said = [
        *work(1, 200),
        Message("assistant", (ToolCall("x", "read", '{"path":"src/app/part_0.py"}'),)),
        Message("tool", (ToolResult("x", "", (Text("again"),)),)),
        Message.from_text("assistant", "ok"),
    ]
    text = build_extract([build_sized_message(message) for message in said], [], 2_000)
    assert len(re.findall(r"src/app/part_0\.py: read x2", text)) == 1


def test_force_is_sent_and_valid():
    """After ``/compact`` the request shows summary and tail, in that order, and is what the plan says."""
    said = [*work(12, 3_000), Message.from_text("user", "and now?")]
    made = plan(said, place(60_000), OURS, inputs=PlanInputs(force_compaction=True))
    sent = [slot.message for slot in build_messages_to_send(made)]
    assert sent[0] == made.compaction.summary
    assert sent[1:] == said[made.compaction.first_kept :]
