"""Guard, history, cover, outline, ledger, salience and the policy itself, by example."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import Policy, World, plan
from holdfast.config import target
from holdfast.errors import ConfigError, UnknownPolicy, WindowTooSmall
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.planning.budget import guard, measure_room
from holdfast.planning.extract.ledger import command_lines, deeds, file_lines, first_error
from holdfast.planning.extract.max_coverage import lazy_greedy
from holdfast.planning.extract.outline import outline
from holdfast.planning.extract.salience import Trace, lines, text_refs, traces, weigh
from holdfast.planning.pipeline import OVER_WINDOW
from holdfast.planning.presets.presets import PRESETS
from holdfast.planning.settings import Settings, origin
from holdfast.state.entries import Frame

OURS = Settings()


def place(window, frame=0, asked=None):
    return target(
        "anthropic", "claude-sonnet-4-5", window=window, frame=Frame("f", frame, exact=True), asked_output=asked
    )


# -- guard -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "asked", "reserve"),
    [
        (200_000, None, 20_000),
        (64_000, None, 16_000),
        (64_000, 4_000, 4_000),
        (64_000, 100, 1_024),
        (3_000, None, 1_024),
    ],
)
def test_the_reserve(window, asked, reserve):
    """The reserve is what was asked for, between 1,024 and the smaller of 20,000 and a quarter of the window."""
    room = measure_room(place(window, 2_000, asked), OURS)
    assert (room.reserve, room.usable, room.size) == (reserve, window - reserve, window - reserve - 2_000)


def test_the_smallest_room():
    """P3: one token under the smallest room is refused with the numbers, the smallest room is not."""
    least = OURS.room_min
    fits = place(20_000, 20_000 - 5_000 - least)
    assert guard(fits, OURS)[0].size == least
    with pytest.raises(WindowTooSmall, match=rf"leaves {least - 1} tokens; {least} are needed") as told:
        guard(place(20_000, 20_000 - 5_000 - least + 1), OURS)
    assert "window 20000 (asked for)" in str(told.value)
    assert isinstance(told.value, ValueError)


def test_openclaws_guard():
    """[O] under 16,000 is refused in its words, under 32,000 warned of, both strictly."""
    policy = Policy.preset("openclaw")
    said = [Message.of("user", "a")]
    with pytest.raises(WindowTooSmall, match=r"Model context window too small \(15999 tokens\). Minimum is 16000\."):
        plan(said, place(15_999), policy)
    assert [notice.rule for notice in plan(said, place(16_000), policy).notices] == ["small-window"]
    assert [notice.rule for notice in plan(said, place(31_999), policy).notices] == ["small-window"]
    assert plan(said, place(32_000), policy).notices == ()


# -- cover -------------------------------------------------------------------------------------------------------------


def ref(name):
    return ("id", name)


def test_the_heaviest_for_their_cost_come_first():
    """Candidates come by weight for their cost, each reference counts once, and the budget holds."""
    weights = {ref("a"): 3.0, ref("b"): 2.0, ref("c"): 1.0}
    candidates = [([ref("a"), ref("b")], 10), ([ref("a")], 2), ([ref("c")], 1), ([ref("b")], 4), ([ref("x")], 1)]
    left = dict(weights)
    assert list(lazy_greedy(candidates, left, 20)) == [1, 2, 3]
    assert left == {}
    assert list(lazy_greedy(candidates, dict(weights), 3)) == [1, 2]
    assert list(lazy_greedy(candidates, dict(weights), 0)) == []
    assert list(lazy_greedy([], dict(weights), 5)) == []


names = st.lists(st.sampled_from("abcdefg"), max_size=3).map(lambda found: [ref(name) for name in found])


@given(st.lists(st.tuples(names, st.integers(1, 9)), max_size=8), st.integers(0, 30))
def test_a_cover_is_greedy(candidates, budget):
    """Each one taken has the most weight left for its cost among those that still fit, and covers something new."""
    weights = {ref(name): float(number + 1) for number, name in enumerate("abcdefg")}
    left, spent = dict(weights), 0
    for number in lazy_greedy(candidates, dict(weights), budget):
        gains = [sum(left.get(one, 0.0) for one in refs) / cost for refs, cost in candidates]
        fitting = [gain for gain, (_, cost) in zip(gains, candidates, strict=True) if cost <= budget - spent]
        assert gains[number] == pytest.approx(max(fitting))
        assert gains[number] > 0
        refs, cost = candidates[number]
        spent += cost
        for one in refs:
            left.pop(one, None)
    assert spent <= budget


# -- outline -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 400), st.integers(1, 90))
def test_an_outline_is_within_its_budget_and_in_order(chars, first):
    """Lines come by their own numbers, in order, each a line of the text, together within the budget."""
    text = "\n".join(
        f"  def compute_total_{n}(price_{n % 3}):  # {'x' * (n % 140)}" if n % 2 else "" for n in range(30)
    )
    found = outline(text, chars, first)
    assert sum(len(line) + 1 for line in found) <= chars
    numbers = [int(line.split(":")[0]) for line in found]
    assert numbers == sorted(set(numbers))
    whole = text.split("\n")
    for line in found:
        number, _, said = line.partition(": ")
        assert " ".join(whole[int(number) - first].split()).startswith(said.rstrip("…"))


def test_an_outline_names_different_things():
    """A name that was told once is not told again while another one is left."""
    text = "call fold_ledger()\ncall fold_ledger()\ncall mend_spool()\nnothing here"
    assert outline(text, 60) == ["1: call fold_ledger()", "3: call mend_spool()"]
    assert outline("nothing of note\n" * 9, 500) == []


# -- ledger ------------------------------------------------------------------------------------------------------------


def did(name, arguments, text="ok", *, error=False, id_="t"):
    return [
        Message("assistant", (ToolCall(id_, name, arguments),)),
        Message("tool", (ToolResult(id_, name, (Text(text),), error),)),
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "verb", "what"),
    [
        ("Read", '{"file_path":"a/b.py"}', "read", "a/b.py"),
        ("str_replace", '{"path":"a/b.py"}', "edit", "a/b.py"),
        ("bash", '{"command":"ls  -l\\n"}', "run", "ls -l"),
        ("shell", '{"command":["git","log"]}', "run", "git log"),
        ("grep", '{"pattern":"TODO"}', "ask", "TODO"),
        ("odd", "[1]", "ask", ""),
        ("odd", "{", "ask", ""),
        ("odd", '{"path":7,"cmd":"make"}', "run", "make"),
    ],
)
def test_what_a_call_did(name, arguments, verb, what):
    """A path is read or edited, a command runs, anything else asks; broken arguments say nothing."""
    (one,) = deeds(did(name, arguments))
    assert (one.verb, one.what, one.tool, one.failed) == (verb, what, name, False)


def test_how_a_command_ended():
    """A command failed when its result says so; what a file that was read says is no failure."""
    (ran,) = deeds(did("bash", '{"command":"make"}', "cc main.c\nfatal: no such file\nerror: 1"))
    assert (ran.failed, ran.error) == (True, "fatal: no such file")
    (read,) = deeds(did("read", '{"path":"a.py"}', "raise an error"))
    assert not read.failed
    (told,) = deeds(did("read", '{"path":"a.py"}', "permission denied", error=True))
    assert (told.failed, told.error) == (True, "permission denied")
    (waits,) = deeds(did("bash", '{"command":"sleep"}')[:1])
    assert not waits.failed


@pytest.mark.parametrize(
    "text",
    ["ValueError: no such row", "E   AssertionError: 3 != 4", "java.lang.NullPointerException: x", "error TS2304: y"],
)
def test_errors_by_their_own_names(text):
    """The line that names an error is told, also where the word is the end of a longer name."""
    assert first_error(f"some output\n{text}\nmore") == text.replace("   ", " ")


def test_lines_of_the_ledger():
    """A file is told once with how often, last touched first; a command once, newest first, as it ended last."""
    history = [
        *did("read", '{"path":"a.py"}', id_="1"),
        *did("read", '{"path":"b.py"}', id_="2"),
        *did("edit", '{"path":"a.py"}', id_="3"),
        *did("read", '{"path":"a.py"}', id_="4"),
        *did("bash", '{"command":"pytest"}', "error: 1", id_="5"),
        *did("bash", '{"command":"ls"}', id_="6"),
        *did("bash", '{"command":"pytest"}', "fine", id_="7"),
    ]
    done = list(deeds(history))
    assert file_lines(done) == ["a.py: edit, read x2", "b.py: read"]
    assert command_lines(done) == ["$ pytest", "$ ls"]


def test_ids_that_repeat_keep_their_own_ends():
    """Two commands under one id each end with their own result."""
    history = [*did("bash", '{"command":"one"}', "error: x"), *did("bash", '{"command":"two"}', "fine")]
    assert [(one.what, one.failed) for one in deeds(history)] == [("one", True), ("two", False)]


# -- salience ----------------------------------------------------------------------------------------------------------


def test_lines_that_hold_references():
    """Lines without a reference go, numbers and blanks at their start go, long ones are cut, each stands once."""
    found = lines(
        "1→ def load_config():\n\n  2: def load_config():\njust words\n- [ ] rename old_name\n" + "other_name x " * 40
    )
    assert [one.text for one in found[:2]] == ["def load_config():", "- [ ] rename old_name"]
    assert [one.point for one in found[:2]] == [False, True]
    assert all(len(one.text) <= 130 for one in found)
    assert ("id", "load_config") in found[0].refs


def test_what_is_used_often_and_lately_weighs_more():
    """More uses, a later one, a place in a plan: each makes a reference weigh more; a hash weighs least."""
    base = Trace(messages=3, used=1, last=5_000, last_used=5_000)
    often = Trace(messages=3, used=3, last=5_000, last_used=5_000)
    late = Trace(messages=3, used=1, last=9_000, last_used=9_000)
    plan_ = Trace(messages=3, used=1, last=5_000, last_used=5_000, point=True)
    name = ("id", "load_config")
    assert all(weigh(name, one, 10_000) > weigh(name, base, 10_000) for one in (often, late, plan_))
    assert weigh(("hex", "abcdef1"), base, 10_000) < weigh(("number", "4242"), base, 10_000) < weigh(name, base, 10_000)


def test_traces_tell_use_from_sight():
    """What the agent or the user says is use, what a tool says is not."""
    history = [
        Message.of("user", "see load_config"),
        Message("tool", (ToolResult("t", "", (Text("old_name load_config"),)),)),
    ]
    found = traces([measure(one) for one in history])
    assert (found["id", "load_config"].messages, found["id", "load_config"].used) == (2, 1)
    assert (found["id", "old_name"].used, found["id", "old_name"].last_used) == (0, -1)
    assert set(text_refs("load_config")) == {("id", "load_config")}


# -- the policy --------------------------------------------------------------------------------------------------------


def test_every_preset_is_a_policy():
    """Each preset has its name and settings; an unknown name is told with the list."""
    for name, settings in PRESETS.items():
        policy = Policy.preset(name)
        assert (policy.name, policy.settings) == (name, settings)
    with pytest.raises(UnknownPolicy, match="holdfast") as told:
        Policy.preset("nobody")
    assert isinstance(told.value, LookupError)


def test_every_number_has_an_origin():
    """Each setting says where its number comes from."""
    numbers = [name for name in Settings.__struct_fields__ if type(getattr(OURS, name)) in (int, float)]
    assert len(numbers) > 30
    unsaid = [name for name in numbers if not origin(name).startswith("[")]
    assert unsaid in ([], ["summary_tokens"])


def test_stages_can_be_replaced_and_added():
    """A stage of one's own stands in place of another or before it; the policy it was made from stays."""
    seen = []

    def mine(draft):
        seen.append(len(draft.branch.slots))
        return draft.note("mine", "was here")

    policy = Policy()
    names = [name for name, _ in policy.stages]
    changed = policy.replace("prune", mine).before("compaction", "extra", mine)
    assert [name for name, _ in policy.stages] == names
    assert [name for name, _ in changed.stages if name != "extra"] == names
    made = plan([Message.of("user", "a")], place(50_000), changed)
    assert [notice.rule for notice in made.notices] == ["mine", "mine"]
    assert seen == [1, 1]
    for wrong in (lambda: policy.replace("nobody", mine), lambda: policy.before("nobody", "x", mine)):
        with pytest.raises(UnknownPolicy, match="prune"):
            wrong()


def test_settings_are_checked_by_name():
    """A setting that does not exist is refused, with those that are spelled like it."""
    assert Policy().with_settings(tail_share=0.5).settings.tail_share == 0.5
    with pytest.raises(ConfigError, match=r"'tail_shares'.*: tail_share"):
        Policy().with_settings(tail_shares=0.5)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("spill_chars", -1, "it is negative; allowed is a whole number, 0 or more"),
        ("recovery_rungs", ("x",), "'x'.* one of 'compact', 'truncate', 'media', 'fallback'"),
        ("compact", "nope", "one of 'off', 'slide', 'summary'"),
        ("tail_share", 1.5, "a number from 0 to 1"),
        ("reserve_min", 30_000, "reserve_min 30,000 is over reserve_max 20,000"),
    ],
)
def test_settings_are_checked_by_value(name, value, said):
    """A value that a file may not have, alone or beside the others, a program may not have either."""
    with pytest.raises(ConfigError, match=said):
        Policy().with_settings(**{name: value})


def test_a_plan_without_anything_to_do_is_empty():
    """Where nothing is decided or repaired the plan is empty and the world told it is warm."""
    made = plan([Message.of("user", "a")], place(50_000), world=World())
    assert made.is_empty
    assert made.before == made.after > 0


@pytest.mark.parametrize("name", PRESETS)
def test_a_request_that_does_not_fit_says_so(name):
    """Whatever the policy could do: a request over the window is told with its numbers and one thing to do."""
    where = target("anthropic", "claude-sonnet-4-5", window=20_000)
    policy = Policy.preset(name).with_settings(compact="off", truncate_share=0.0, loop_share=0.0, goal_share=0.0)
    for length, told in ((2_000, 0), (40_000, 1)):
        made = plan([Message.of("user", " word" * length)], where, policy, world=World(spill=False))
        why = [notice.why for notice in made.notices if notice.rule == OVER_WINDOW]
        assert len(why) == told == (made.after > 20_000)
        assert all(f"{made.after:,}" in one and "20,000" in one and "larger window" in one for one in why)


def test_an_input_limit_counts_as_the_window():
    """Where a model takes less than its window holds, that is what must not be passed."""
    where = target("anthropic", "claude-sonnet-4-5", window=200_000)
    where = replace(where, limits=replace(where.limits, max_input=20_000))
    made = plan([Message.of("user", " word" * 40_000)], where, Policy.preset("append-only"))
    assert "20,000" in made.notices[-1].why
    assert made.notices[-1].rule == OVER_WINDOW
