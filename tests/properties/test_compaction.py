"""Compaction: when it happens, where it cuts, what it says, and that it is worth it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from histories import words
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from planning_loop import drive, points
from strategies import broken_histories, conversations

from holdfast import Branch, Policy, World, apply, plan
from holdfast.config import target
from holdfast.messages.cut_points import legal_cuts
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import count, measure
from holdfast.normalize.projection import send_slots
from holdfast.planning.budget import measure_room
from holdfast.planning.builder import Draft
from holdfast.planning.extract.extract import extract
from holdfast.planning.extract.user_words import OLDER
from holdfast.planning.pipeline import advance
from holdfast.planning.presets.presets import PRESETS
from holdfast.planning.settings import Settings
from holdfast.planning.stages.compaction import over_trigger
from holdfast.state.branch.branch import extend
from holdfast.state.branch.view import project
from holdfast.state.entries import Answer, Entry, Failure, Frame, Said, Usage
from holdfast.state.target import Limits

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
SUMMARISING = [name for name, settings in PRESETS.items() if settings.compact == "summary"]
WHERE = target("anthropic", "claude-sonnet-4-5", window=9_000)
windows = st.sampled_from([7_000, 9_000, 20_000])
long_talks = conversations(turns=4, steps=6, longest=6_000, pictures=False)


def place(window, frame=0):
    return target("anthropic", "claude-sonnet-4-5", window=window, frame=Frame("f" * bool(frame), frame))


def compacted(steps):
    return [step for step in steps if step.plan.compaction is not None]


def work(turns, chars=4_000, start=0):
    """Return a conversation of ``turns`` finished turns that each read a file of ``chars`` characters."""
    out = []
    for turn in range(start, start + turns):
        out += [
            Message.of("user", f"Request number {turn}: look at src/app/part_{turn}.py and never touch main_{turn}.py"),
            Message("assistant", (ToolCall(f"c{turn}", "read", f'{{"path":"src/app/part_{turn}.py"}}'),)),
            Message("tool", (ToolResult(f"c{turn}", "read", (Text(words(turn, chars)),)),)),
            Message.of("assistant", f"Part {turn} reads config_{turn}, because compute_total_{turn} needs it."),
        ]
    return out


# -- whether it is worth it --------------------------------------------------------------------------------------------


@given(long_talks, windows, st.integers(0, 1_000))
def test_a_compaction_makes_the_request_smaller_and_keeps_it_so(messages, window, frame):
    """P1: what is committed is smaller, within its goal, not over its own trigger, and gains what it must."""
    where = place(window, frame)
    room, settings = measure_room(where, OURS.settings), OURS.settings
    for step in compacted(drive(messages, where, OURS)):
        made = step.plan
        assert made.after < made.before
        assert made.after <= room.frame + room.share(settings.goal_share)
        assert made.compaction.before <= made.before
        assert made.after == made.compaction.after
        gain = max(settings.gain_share * (made.compaction.before - room.frame), 0)
        least = min(settings.gain_tokens, room.share(settings.gain_share))
        assert made.compaction.before - made.after >= min(gain, least) or made.before > room.usable
        again = Draft(made.branch, where, settings, World(), room)
        assert not over_trigger(again)


@given(long_talks | broken_histories(longest=6_000), windows)
def test_what_is_not_worth_it_changes_nothing_and_is_told(messages, window):
    """P1, P6: over the trigger there is either a compaction or a notice that says why, and then nothing is hidden."""
    where = place(window)
    policy = OURS.replace("relief", lambda draft: draft)
    for step in drive(messages, where, policy, worlds=[World(force=True), World()]):
        made = step.plan
        told = [notice for notice in made.notices if notice.rule in NOT_COMPACTED]
        assert not (told and made.compaction)
        if told:
            assert all(notice.why for notice in told)
            assert made.branch.keep == max(step.branch.keep, made.branch.pinned)
            assert made.branch.compaction == step.branch.compaction
        room = measure_room(where, OURS.settings)
        draft = Draft(made.branch, where, OURS.settings, step.world, room)
        assert told or made.compaction or not over_trigger(draft)


@pytest.mark.parametrize("name", [name for name in SUMMARISING if Policy.preset(name).settings.measure != "usage"])
def test_a_loop_that_never_reports_usage_goes_on_compacting(name):
    """P2 counts compactions between answers; a loop that tells no usage answers too, so it goes on compacting."""
    where = target("anthropic", "claude-sonnet-4-5", window=60_000)
    policy = Policy.preset(name).with_settings(loop_share=0.0)  # a guard in the loop leaves nothing to compact
    steps = drive(work(60, 12_000), where, policy)
    assert len(compacted(steps)) > 3
    assert all(notice.rule != "breaker" for step in steps for notice in step.plan.notices)


def test_no_more_than_two_compactions_between_two_answers():
    """P2: requests that are repeated without an answer compact at most twice by themselves."""
    branch = Branch()
    made = 0
    for message in work(16, 6_000):
        branch = extend(branch, Entry("", None, Said(measure(message))))
        if message.role != "tool":
            continue
        plan_ = advance(branch, WHERE, OURS)
        made += plan_.compaction is not None
        branch = plan_.branch
    assert made > 2
    user = [Message.of("user", words(number, 9_000)) for number in range(12)]
    stuck, made = Branch(), 0
    for message in user:
        stuck = extend(stuck, Entry("", None, Said(measure(message))))
        plan_ = advance(stuck, WHERE, OURS)
        made += plan_.compaction is not None
        stuck = plan_.branch
    assert made <= 2


def test_failures_open_the_breaker():
    """After the failures in a row that the settings name, no automatic compaction is tried; force still does."""
    branch = Branch.build(Entry("", None, Said(measure(message))) for message in work(6))
    assert advance(branch, WHERE, OURS).compaction is not None
    for _ in range(OURS.settings.breaker_failures):
        branch = extend(branch, Entry("", None, Failure("no-gain")))
    stopped = advance(branch, WHERE, OURS)
    assert stopped.compaction is None
    assert "breaker" in [notice.rule for notice in stopped.notices]
    assert advance(branch, WHERE, OURS, World(force=True)).compaction is not None


@pytest.mark.parametrize("name", SUMMARISING)
def test_the_breaker_stops_what_is_automatic_only(name):
    """With the breaker open nothing is compacted by itself, and what is asked for is."""
    policy = Policy.preset(name)
    said = work(8, 20_000)
    where = target("anthropic", "claude-sonnet-4-5", window=60_000)
    off = plan(said, where, policy, world=World(breaker=False))
    assert off.compaction is None
    forced = plan(said, where, policy, world=World(breaker=False, force=True))
    assert forced.compaction is not None
    assert plan(said, where, policy.with_settings(compact="off"), world=World(force=True)).compaction is None


@given(long_talks, windows, st.booleans())
def test_off_never_compacts(messages, window, force):
    """``compact = "off"`` shows everything, forced or not, in a window however small."""
    policy = OURS.with_settings(compact="off")
    for step in drive(messages, place(window), policy, worlds=[World(force=force)]):
        assert step.plan.compaction is None
        assert len(project(step.plan.branch)) == step.count


def test_nothing_is_forced_where_nothing_can_be():
    """A forced compaction of a short history changes nothing and says so."""
    for said in ([], [Message.of("system", "s")], [Message.of("user", "a")]):
        made = plan(said, WHERE, OURS, world=World(force=True))
        assert made.compaction is None
        assert made.record == ()
        assert [notice.rule for notice in made.notices] in (["nothing-to-compact"], ["not-smaller"])


# -- where it cuts -----------------------------------------------------------------------------------------------------


@given(
    long_talks | broken_histories(longest=6_000), windows, st.sampled_from(SUMMARISING), st.sampled_from([0, 3, 3, 3])
)
def test_the_tail_starts_at_a_legal_place(messages, window, name, forced):
    """C1: of what is shown, a call and its results are on one side of the cut, and no open call is folded away."""
    window = max(window, 16_000) if name == "openclaw" else window
    worlds = [World(force=number == forced) for number in range(4)]
    for step in compacted(drive(messages, place(window), Policy.preset(name), worlds=worlds)):
        before = max(step.branch.keep, step.plan.branch.pinned)
        shown = messages[before : step.count]
        assert step.plan.compaction.keep - before in legal_cuts(shown)
        assert step.plan.compaction.keep > before


@given(long_talks | broken_histories(most=3, longest=3_000), windows, st.sampled_from(SUMMARISING))
def test_everything_is_in_the_head_or_in_the_tail(messages, window, name):
    """Every message is either shown or lies before the cut; none is lost between two compactions."""
    window = max(window, 16_000) if name == "openclaw" else window
    for step in drive(messages, place(window), Policy.preset(name)):
        branch = step.plan.branch
        assert len(project(branch)) == branch.pinned + (branch.compaction is not None) + step.count - branch.keep
        assert list(branch.messages) == messages[: step.count]


positions = st.integers(0, 40)


@given(broken_histories(most=5))
def test_legal_cuts_never_part_a_call_from_its_result(messages):
    """C1: no legal cut has a call before it and that call's result behind it, and none stands before a result."""
    cuts = legal_cuts(messages)
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


@given(conversations())
def test_a_sound_conversation_can_be_cut_before_every_message_but_results(messages):
    """C1 forbids no more than it must: each group of a sound conversation is a place to cut."""
    assert legal_cuts(messages) == [
        place for place in range(len(messages) + 1) if place == len(messages) or messages[place].role != "tool"
    ]


# -- what it says ------------------------------------------------------------------------------------------------------


def headings(text):
    return [line for line in text.split("\n") if line in HEADINGS]


@given(long_talks | broken_histories(most=4, longest=2_000), st.sampled_from([300, 1_000, 4_000, 20_000]), positions)
def test_an_extract_has_its_headings_and_its_size(messages, budget, cut):
    """Y1: all headings in order, and no more than the budget, or than the newest request and what is said beside it.

    That is fixed lines, and half of the user's share of what was said before.
    """
    slots = [measure(message) for message in messages]
    cut = min(cut, len(slots))
    text = extract(slots[:cut], slots[cut:], budget)
    assert headings(text) == HEADINGS
    newest = [message.text.strip() for message in messages[:cut] if message.starts_turn and message.text.strip()][-1:]
    whole = sum(count(one) for one in newest)
    assert count(text) <= max(budget, whole + 400 + round(OLDER * Settings().summary_user_share * budget))


@pytest.mark.parametrize("budget", [600, 1_000, 2_000, 5_000, 10_000])
def test_an_extract_whose_lines_come_from_everywhere_keeps_its_size(budget):
    """Y1: the headings that tell where quoted lines stood are within the budget, as the lines are."""
    said = []
    for turn in range(400):
        path = f"src/app/module_{turn}/part_{turn}.py"
        text = f"def compute_{turn}(): return total_{turn}\n"
        said += [
            Message("assistant", (ToolCall(f"c{turn}", "read", f'{{"path":"{path}"}}'),)),
            Message("tool", (ToolResult(f"c{turn}", "read", (Text(text),)),)),
        ]
    text = extract([measure(message) for message in [Message.of("user", "Go."), *said]], [], budget)
    assert 0.75 * budget <= count(text) <= budget
    assert "\n[module_" in text


@given(long_talks, st.sampled_from([400, 3_000]))
def test_an_extract_is_always_the_same(messages, budget):
    """S8: the same head and tail give the same words."""
    slots = [measure(message) for message in messages]
    half = len(slots) // 2
    assert extract(slots[:half], slots[half:], budget) == extract(list(slots[:half]), list(slots[half:]), budget)


SCRIPT = """
from holdfast.planning.extract.extract import extract
from histories import conversation
from holdfast.messages.size.tokens import measure
turns = [(n, 200, [(3, n, 3_000, 1), (2, n + 5, 900, 0)], True) for n in range(12)]
slots = [measure(message) for message in conversation(turns)]
print(extract(slots[:-3], slots[-3:], 900))
"""


def test_an_extract_does_not_depend_on_the_hash_seed():
    """S8: another process, with other hashes, writes the same summary."""
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
    said[0] = Message.of("user", "First: build the ☂ importer.\nSecond line of it.")
    text = extract([measure(message) for message in said], [], 4_000)
    assert "First: build the ☂ importer.\nSecond line of it." in text
    assert "Request number 5: look at src/app/part_5.py and never touch main_5.py" in text
    assert "User: Request number 3: look at src/app/part_3.py and never touch main_3.py" in text
    small = extract([measure(message) for message in said], [], 300)
    assert "Request number 5: look at src/app/part_5.py and never touch main_5.py" in small


def test_an_extract_names_files_commands_and_errors():
    """Y7: files read and edited, commands with how they ended, and errors are told without a model."""
    said = [
        Message.of("user", "fix it"),
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
        Message.of("assistant", "Fixed, because the root cause is an off-by-one in total_price."),
        Message.of("user", "thanks"),
    ]
    text = extract([measure(message) for message in said], [], 3_000)
    assert "src/app/billing.py: edit, read" in text.split("## Relevant Files")[1]
    assert "$ pytest -k totals -> FAILED error: total is 3, not 4" in text
    assert "root cause is an off-by-one" in text.split("## Key Decisions")[1]
    assert "error: total is 3, not 4" in text.split("### Blocked")[1].split("## Key")[0]


@pytest.mark.parametrize("name", SUMMARISING)
def test_a_summary_is_data_of_the_user(name):
    """Y4: the summary stands behind the pinned system prompt as a user's message with all its headings."""
    said = [Message.of("system", "Be brief."), *work(20, 8_000), Message.of("user", "go on")]
    where = target("openai-chat", "gpt-5", window=100_000)
    made = plan(said, where, Policy.preset(name), world=World(force=True))
    sent = apply(said, made)
    assert made.compaction is not None
    assert sent[0] == said[0]
    assert sent[1].role == "user"
    assert headings(sent[1].text) == HEADINGS
    assert f"({made.compaction.keep - 1} messages)" in sent[1].text
    assert "go on" in sent[-1].text


def test_the_second_extract_is_made_from_the_log():
    """Y: a later summary covers the whole head from the log, not the summary before it."""
    said = work(30, 6_000)
    where = place(20_000)
    steps = compacted(drive(said, where, OURS, usage=lambda made: made.after))
    assert len(steps) >= 2
    first, last = steps[0].plan.compaction.summary.text, steps[-1].plan.compaction.summary.text
    assert "Request number 0:" in first
    assert "Request number 0:" in last
    assert last.count("replaced by this extract") == 1


def test_spilled_words_do_not_come_back_whole():
    """A user's words that were spilled are told in the summary as they were shown."""
    said = [Message.of("user", words(7, 60_000)), *work(8, 4_000)[1:]]
    where = place(20_000)
    steps = compacted(drive(said, where, OURS))
    assert steps
    text = steps[-1].plan.compaction.summary.text
    assert "<persisted_tool_result" in text
    assert len(text) < 40_000


# -- triggers of the presets -------------------------------------------------------------------------------------------


def draft_of(policy, window, tokens, *, frame=0, output=None, world=World()):
    """Return a draft whose last reported usage, told twice, is ``tokens``; what came later is an empty answer."""
    where = replace(place(window, frame), limits=Limits(window, output))
    made = plan([Message.of("user", "a")], where, policy)
    answer = Entry("", None, Answer(made.branch.basis, Usage(tokens, 0)))
    branch = extend(extend(made.branch, answer), answer)
    if policy.settings.measure == "usage":
        branch = extend(branch, Entry("", None, Said(replace(measure(Message("assistant")), size=0))))
    return Draft(branch, where, policy.settings, world, measure_room(where, policy.settings))


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
    assert not over_trigger(draft_of(policy, window, last_quiet, output=output))
    assert over_trigger(draft_of(policy, window, last_quiet + 1, output=output))


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_our_trigger_is_a_share_of_the_room(cache):
    """Ours: strictly over frame plus the share of the room, a smaller one where the cache is cold."""
    settings = OURS.settings
    room = measure_room(place(64_000, 10_000), settings)
    share = settings.trigger_share if cache == "warm" else settings.trigger_cold_share
    limit = room.frame + int(room.size * share)
    assert not over_trigger(draft_of(OURS, 64_000, limit, frame=10_000, world=World(cache)))
    assert over_trigger(draft_of(OURS, 64_000, limit + 1, frame=10_000, world=World(cache)))


def test_presets_without_a_summary():
    """append-only shows everything for ever; sliding drops the oldest groups and says nothing in their place."""
    said = work(20, 6_000)
    where = place(20_000)
    whole = plan(said, where, Policy.preset("append-only"))
    assert apply(said, whole) == [*said, Message.of("user", "Continue.")][: len(apply(said, whole))]
    slid = plan(said, where, Policy.preset("sliding"))
    sent = apply(said, slid)
    assert slid.compaction.summary is None
    assert slid.compaction.keep in legal_cuts(said)
    assert sent[-2:] == [said[-1], Message.of("user", "Continue.")] or sent[-1] == said[-1]
    room = measure_room(where, Policy.preset("sliding").settings)
    assert slid.after <= room.usable


# -- history limit -----------------------------------------------------------------------------------------------------


def test_a_history_limit_cuts_in_steps():
    """With hysteresis the limit cuts to half when it is passed, so between n/2 and n turns are shown."""
    policy = OURS.with_settings(history_turns=6)
    where = place(200_000)
    shown, cuts = [], 0
    for step in drive(work(30, 100), where, policy):
        turns = sum(slot.message.starts_turn for slot in step.slots)
        shown.append(turns)
        cuts += step.plan.compaction is not None
    assert max(shown) == 6
    assert min(shown[12:]) == 3
    assert cuts == len(range(7, 31, 4))


def test_a_history_limit_without_hysteresis_keeps_exactly_that_many():
    """The presets' way: always exactly the last n turns, with all that belongs to them."""
    policy = OURS.with_settings(history_turns=4, history_hysteresis=False)
    said = work(10, 100)
    for step in drive(said, place(200_000), policy, at=points(said)):
        turns = sum(message.starts_turn for message in said[: step.count])
        assert sum(slot.message.starts_turn for slot in step.slots) == min(4, turns)


def test_a_limit_orphans_no_result():
    """A cut at a turn that begins while a tool runs leaves no result without its call."""
    policy = OURS.with_settings(history_turns=1, history_hysteresis=False)
    said = [
        *work(2, 50),
        Message.of("user", "start"),
        Message("assistant", (ToolCall("slow", "bash"),)),
        Message.of("user", "hurry"),
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
        Message.of("assistant", "ok"),
    ]
    text = extract([measure(message) for message in said], [], 2_000)
    assert len(re.findall(r"src/app/part_0\.py: read x2", text)) == 1


def test_force_is_sent_and_valid():
    """After ``/compact`` the request shows summary and tail, in that order, and is what the plan says."""
    said = [*work(12, 3_000), Message.of("user", "and now?")]
    made = plan(said, place(60_000), OURS, world=World(force=True))
    sent = [slot.message for slot in send_slots(made)]
    assert sent[0] == made.compaction.summary
    assert sent[1:] == said[made.compaction.keep :]
