"""Recall at cuts, counted by hand and checked by properties."""

from __future__ import annotations

import json
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.references import iter_reference_texts
from holdfast.messages.size.tokens import build_sized_message
from holdfast.replay import conditional_compression as gain
from holdfast.replay.evidence import TextIndex
from holdfast.replay.measure import (
    MeasurementSettings,
    SessionStudy,
    compute_usable_window,
    make_target_at_cuts,
)
from holdfast.replay.recall import find_answer_positions
from holdfast.replay.recall_at_cuts import (
    MIN_SESSION_TOKENS,
    CutScore,
    SessionCut,
    choose_oracle_lines,
    compute_interval,
    find_call_paths,
    find_cut_positions,
    pool_scores,
)
from holdfast.replay.session import AnswerStep, ReplaySession


def make_call(id_: str, name: str = "read", **arguments: str) -> Message:
    """Return an assistant message with one call."""
    return Message("assistant", (ToolCall(id_, name, json.dumps(arguments)),))


def make_result(id_: str, text: str) -> Message:
    """Return the message that answers call ``id_``."""
    return Message("tool", (ToolResult(id_, "read", (Text(text),)),))


HISTORY = [
    Message.from_text("user", "the ticket 8123 asks for a faster scan_header, please keep wire_form as it is now"),
    make_call("call-1", file_path="/src/wire/scan.py"),
    make_result("call-1", "def scan_header(raw): pass\nLIMIT_ROWS = 64\nclass RowBuffer: size counted in old_unit"),
    make_call("call-2", "edit", file_path="/src/wire/scan.py", old="size", new="length"),
    make_result("call-2", "edited"),
]
FUTURE = [
    make_call("call-3", cmd="grep LIMIT_ROWS and RowBuffer"),
    make_result("call-3", "wire_form appears here"),
    Message.from_text("assistant", "wire_form and LIMIT_ROWS and scan_header of ticket 8123, new_thing"),
]
"""LIMIT_ROWS and RowBuffer are used at once, wire_form only after it was shown again, new_thing was never known."""


def make_cut() -> SessionCut:
    """Return the cut between HISTORY and FUTURE; one token is one character."""
    return SessionCut([*HISTORY, *FUTURE], len(HISTORY), len)


def test_session_cut_dependencies() -> None:
    """A dependency is known before the cut, used within the next steps, and not shown again before its first use."""
    assert make_cut().dependencies == [
        ("id", "LIMIT_ROWS"),
        ("id", "RowBuffer"),
        ("id", "scan_header"),
        ("number", "8123"),
    ]


def test_pool_scores_omits_only_the_figure_that_failed() -> None:
    """A gain or oracle that could not be computed is None, also among others, and the counted figures stay."""
    whole = make_cut().score_context(HISTORY, 10_000)
    for name, figure in (("without_gain", "z_gain"), ("without_oracle", "oracle")):
        figures = pool_scores([whole, replace(whole, **{name: 1})])
        assert getattr(pool_scores([whole]), figure) is not None
        assert getattr(figures, figure) is None
        assert (figures.dependencies, figures.fact_recall) == (8, 1.0)


def test_score_context_without_memory_omits_only_the_gain() -> None:
    """Where zstd gets no memory, the score is computed without its gain."""

    class FailingFuture(gain.FutureText, frozen=True):
        def count_saved_bytes(self, context: bytes) -> int:
            raise MemoryError

    cut = make_cut()
    cut._future = FailingFuture(b"", b"", 2, 1)
    score = cut.score_context(HISTORY, 10_000)
    assert (score.without_gain, score.saved_bytes, score.max_saved) == (1, 0, 0)
    assert (score.kept_facts, score.oracle) == (4, 4)


def test_session_cut_horizon_is_thirty_steps() -> None:
    """A first use in step 30 counts, and one in step 31 does not."""
    idle = [Message.from_text("assistant", "wait")] * 29
    assert len(SessionCut([*HISTORY, *idle, *FUTURE], len(HISTORY), len).dependencies) == 2
    assert (
        SessionCut([*HISTORY, *idle, Message.from_text("assistant", "wait"), *FUTURE], len(HISTORY), len).dependencies
        == []
    )


def test_session_cut_ignores_references_shown_before_use() -> None:
    """A reference that was shown again before its first use is not a dependency of a later use either."""
    after = [
        make_result("x", "LIMIT_ROWS"),
        Message.from_text("assistant", "LIMIT_ROWS"),
        Message.from_text("assistant", "LIMIT_ROWS"),
    ]
    assert SessionCut([*HISTORY, *after], len(HISTORY), len).dependencies == []


def test_session_cut_ignores_answers_that_are_no_steps() -> None:
    """An assistant message that is not a step, such as an aborted one, neither uses nor shows anything."""
    session = [*HISTORY, FUTURE[0], FUTURE[1], FUTURE[2]]
    assert SessionCut(session, 5, len, steps=[1, 3, 7]).dependencies == [
        ("id", "LIMIT_ROWS"),
        ("id", "scan_header"),
        ("number", "8123"),
    ]


def test_session_cut_ignores_references_of_the_setup() -> None:
    """A reference in the setup is not a dependency."""
    setup = frozenset({("id", "RowBuffer"), ("number", "8123")})
    found = SessionCut([*HISTORY, *FUTURE], len(HISTORY), len, setup).dependencies
    assert found == [("id", "LIMIT_ROWS"), ("id", "scan_header")]


def test_score_context_with_the_whole_history_keeps_all() -> None:
    """The whole history has all names, facts and handles, the whole gain, and nothing to read again."""
    score = make_cut().score_context(HISTORY)
    assert (score.dependencies, score.kept_names, score.kept_facts, score.reachable, score.reread_tokens) == (
        4,
        4,
        4,
        4,
        0,
    )
    assert score.saved_bytes == score.max_saved > 0


def test_score_context_empty_keeps_nothing() -> None:
    """An empty context keeps none of four dependencies."""
    score = make_cut().score_context([])
    assert score == CutScore(dependencies=4, max_saved=score.max_saved)


def test_score_context_distinguishes_names_and_facts() -> None:
    """A line of the history keeps a fact, a bare name keeps only the name, and other text keeps neither."""
    context = [Message.from_text("user", "scan_header\n8123\nLIMIT_ROWS = 64\nsomething else entirely")]
    score = make_cut().score_context(context)
    assert (score.kept_names, score.kept_facts) == (3, 1)


def test_score_context_accepts_path_id_and_blob_as_handles() -> None:
    """The path, the call id or the blob id of a result leads to the three references that it holds."""
    text = "def scan_header(raw): pass\nLIMIT_ROWS = 64\nclass RowBuffer: size counted in old_unit"
    blob = sha256(text.encode()).hexdigest()[:12]
    for handle in ("see wire/scan.py", "see /src/wire/scan.py:3", "recall(call-1)", f'recall(id="{blob}")'):
        score = make_cut().score_context([Message.from_text("user", handle)])
        assert (score.kept_names, score.reachable, score.reread_tokens) == (0, 3, len(text)), handle
    assert make_cut().score_context([Message.from_text("user", "see other/scan.py")]).reachable == 0


def test_score_context_treats_a_cleared_result_as_a_handle() -> None:
    """A call that is still shown leads to its result, whatever replaced the result."""
    score = make_cut().score_context([HISTORY[1], make_result("call-1", "[cleared]")])
    assert (score.kept_names, score.reachable) == (0, 3)


def test_score_context_rereads_only_missing_results_once() -> None:
    """A reference that is present needs no handle, and a result that leads to several is read once."""
    score = make_cut().score_context(
        [Message.from_text("user", "see wire/scan.py for LIMIT_ROWS, RowBuffer and scan_header")]
    )
    assert (score.kept_names, score.reachable, score.reread_tokens) == (3, 3, 0)


def test_score_context_handle_reaches_50_000_characters() -> None:
    """A handle does not reach what its result holds after the first 50,000 characters."""
    for pad, handles in ((49_989, 1), (49_990, 0)):
        messages = [make_call("call-9", path="big/log.txt"), make_result("call-9", " " * pad + " LIMIT_ROWS")]
        after = [Message.from_text("assistant", "LIMIT_ROWS")]
        score = SessionCut([*messages, *after], len(messages), len).score_context(
            [Message.from_text("user", "big/log.txt")]
        )
        assert (score.dependencies, score.reachable) == (1, handles)


def test_score_context_matches_short_ids_only_as_ids() -> None:
    """A short id occurs in any text by chance, so it counts only where it is a call's id."""
    messages = [make_call("1", cmd="x"), make_result("1", "LIMIT_ROWS")]
    found = SessionCut([*messages, Message.from_text("assistant", "LIMIT_ROWS")], 2, len)
    assert found.score_context([Message.from_text("user", "1 of 100")]).reachable == 0
    assert found.score_context([messages[0]]).reachable == 1


def test_find_call_paths_reads_short_arguments_and_patches() -> None:
    """A call's paths are those in its short arguments and patch headers, and bare file names where there is no path."""
    tool_call = ToolCall("c", "write", json.dumps({"path": "a/b/c.py", "content": "x " * 250 + "d/e/f.py"}))
    assert find_call_paths(tool_call) == {("path", "b/c.py")}
    assert find_call_paths(ToolCall("c", "read", '{"path": "notes.md"}')) == {("file", "notes.md")}
    patch = "*** Begin Patch\n*** Update File: src/one/two.py\n@@\n-x\n+y/z/other.py" + " " * 400
    assert find_call_paths(ToolCall("c", "apply_patch", json.dumps({"input": patch}))) == {("path", "one/two.py")}


def test_score_context_counts_stale_facts() -> None:
    """Three facts have lines of scan.py, which was edited after it was read; the ticket's line belongs to no path."""
    score = make_cut().score_context(HISTORY)
    assert (score.dated_facts, score.stale) == (3, 3)
    before = SessionCut([*HISTORY[:3], *FUTURE], 3, len).score_context(HISTORY[:3])
    assert (before.dated_facts, before.stale) == (3, 0)


def test_score_context_dates_a_fact_by_its_newest_line() -> None:
    """A fact is as old as the newest line that the context keeps of it."""
    again = [*HISTORY, make_call("call-5", file_path="/src/wire/scan.py"), make_result("call-5", "LIMIT_ROWS = 128")]
    found = SessionCut([*again, Message.from_text("assistant", "LIMIT_ROWS")], len(again), len)
    assert found.score_context(again).stale == 0
    assert found.score_context(HISTORY).stale == 1
    assert found.score_context([Message.from_text("user", "LIMIT_ROWS = 64")]).stale == 1


def test_count_oracle_kept_takes_the_best_lines_first() -> None:
    """The oracle takes lines by references for their price: 16 characters with the line end, 27, 42, then 82."""
    found = make_cut()
    budgets = {0: 0, 15: 0, 16: 1, 43: 2, 84: 2, 85: 3, 166: 3, 167: 4}
    assert {budget: found.count_oracle_kept(budget) for budget in budgets} == budgets


def test_score_context_with_a_budget_has_an_oracle() -> None:
    """A score with a budget includes what the oracle keeps in it."""
    assert make_cut().score_context([], 1_000).oracle == 4
    assert make_cut().score_context([]).oracle == 0


def test_choose_oracle_lines_considers_forty_lines_each() -> None:
    """Of a reference that occurs in many lines only the newest forty are candidates."""
    texts = [f"line {n} holds LIMIT_ROWS among words{n}" for n in range(60)]
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 1

    assert choose_oracle_lines({("id", "LIMIT_ROWS"): texts}, 1_000, count, TextIndex()) == [texts[0]]
    assert counted == texts[:40]


def test_find_cut_positions_takes_four_shares_of_the_tokens() -> None:
    """Cuts are at the first step at or after 40, 55, 70 and 85 % of the tokens."""
    session = [Message.from_text("user" if n % 2 == 0 else "assistant", f"m{n}") for n in range(20)]
    assert find_cut_positions(session, [2_000] * 20) == [9, 11, 15, 17]


def test_find_cut_positions_never_separates_calls_and_results() -> None:
    """A cut is moved behind the results of every call that is open where it would be."""
    session = [Message.from_text("user", "go")]
    for n in range(6):
        session += [make_call(f"call-{n}"), make_result(f"call-{n}", "x")]
    positions = find_cut_positions(session, [3_000] * len(session))
    assert positions
    assert all(session[at].role == "assistant" and session[at - 1].role != "assistant" for at in positions)
    late = [
        Message.from_text("user", "go"),
        make_call("a"),
        make_call("b"),
        make_result("a", "x"),
        make_call("c"),
        make_result("b", "x"),
        make_call("d"),
    ]
    assert find_cut_positions(late, [10_000] * 7) == [6]


def test_find_cut_positions_skips_short_sessions() -> None:
    """A session of fewer than 25,000 tokens is not cut."""
    session = [
        Message.from_text("user", "a"),
        Message.from_text("assistant", "b"),
        Message.from_text("user", "c"),
        Message.from_text("assistant", "d"),
    ]
    assert find_cut_positions(session, [MIN_SESSION_TOKENS // 4] * 4) == [3]
    assert find_cut_positions(session, [MIN_SESSION_TOKENS // 4 - 1] * 4) == []


def test_find_cut_positions_uses_only_steps() -> None:
    """An assistant message that is not a step sends no request, so nothing could be scored there."""
    session = [Message.from_text("user" if n % 2 == 0 else "assistant", f"m{n}") for n in range(20)]
    assert find_cut_positions(session, [2_000] * 20, steps=[1, 13, 19]) == [13, 19]


def test_pool_scores_is_a_micro_average() -> None:
    """Counts are added before they are divided, so a cut with more dependencies weighs more."""
    few = CutScore(
        10,
        kept_names=10,
        kept_facts=5,
        reachable=10,
        reread_tokens=7,
        dated_facts=4,
        stale=1,
        saved_bytes=1,
        max_saved=10,
        oracle=10,
    )
    many = CutScore(
        30, kept_names=10, kept_facts=5, reachable=20, reread_tokens=3, saved_bytes=9, max_saved=10, oracle=20
    )
    figures = pool_scores([few, many])
    assert (figures.dependencies, figures.name_recall, figures.fact_recall, figures.handle_recall) == (
        40,
        0.5,
        0.25,
        0.75,
    )
    assert (figures.reread_tokens, figures.z_gain, figures.stale, figures.oracle) == (10, 0.5, 0.25, 0.75)


def test_pool_scores_of_nothing_is_none() -> None:
    """Shares of nothing are None, not zero."""
    figures = pool_scores([CutScore()])
    assert figures.dependencies == figures.reread_tokens == 0
    assert {figures.name_recall, figures.fact_recall, figures.handle_recall, figures.oracle} == {None}
    assert figures.z_gain is figures.stale is None


def test_compute_interval_contains_the_average() -> None:
    """The interval is deterministic, contains the average of all sessions, and shrinks when they agree."""
    sessions = [(9, 10), (5, 10), (20, 40), (7, 10)]
    low, high = compute_interval(sessions) or (1.0, 0.0)
    assert (low, high) == compute_interval(sessions)
    assert 0.5 <= low < 41 / 70 < high <= 0.9
    assert compute_interval([(5, 10), (50, 100)]) == (0.5, 0.5)
    assert compute_interval([(0, 0)]) is None


lines = st.lists(
    st.sampled_from(["alpha_one", "betaTwo", "src/gamma/delta.py", "4711", "plain", "words", "between", "them"]),
    min_size=1,
    max_size=5,
).map(" ".join)
message = st.builds(
    Message.from_text, st.sampled_from(["user", "assistant"]), st.lists(lines, max_size=3).map("\n".join)
)


@given(st.lists(message, max_size=8), st.lists(message, max_size=6))
def test_score_context_has_bounds(history: list[Message], future: list[Message]) -> None:
    """The whole history keeps every dependency in every sense, and an empty context none."""
    found = SessionCut([*history, *future], len(history), len)
    full, none = found.score_context(history), found.score_context([])
    assert full.kept_names == full.kept_facts == full.reachable == full.dependencies == len(found.dependencies)
    assert (none.kept_names, none.kept_facts, none.reachable, none.saved_bytes) == (0, 0, 0, 0)


@given(st.lists(message, max_size=8), st.lists(message, max_size=6), st.lists(message, max_size=3), st.data())
def test_score_context_never_falls_with_more_context(
    history: list[Message], future: list[Message], extra: list[Message], data: st.DataObject
) -> None:
    """More context never keeps fewer names, facts or handles; a fact is a name, and a name needs no handle."""
    found = SessionCut([*history, *future], len(history), len)
    some = [m for m in history if data.draw(st.booleans())]
    less, more = found.score_context(some), found.score_context([*some, *extra])
    assert (
        less.kept_names <= more.kept_names,
        less.kept_facts <= more.kept_facts,
        less.reachable <= more.reachable,
    ) == (True,) * 3
    assert more.kept_facts <= more.kept_names <= more.reachable <= more.dependencies


@given(st.lists(message, max_size=8), st.lists(message, max_size=6), st.data())
def test_count_oracle_kept_beats_any_choice_of_lines(
    history: list[Message], future: list[Message], data: st.DataObject
) -> None:
    """Where a line for each dependency fits, no choice of lines within the budget keeps more than the oracle."""
    found = SessionCut([*history, *future], len(history), len)
    lines_of_history = [line for m in history for text in iter_reference_texts(m) for line in text.split("\n")]
    tried = [line for line in lines_of_history if data.draw(st.booleans())]
    budget = max(sum(len(line) + 1 for line in tried), sum(len(line) + 1 for line in set(lines_of_history)))
    assert (
        found.count_oracle_kept(budget) >= found.score_context([Message.from_text("user", "\n".join(tried))]).kept_facts
    )


@given(st.lists(message, min_size=1, max_size=30))
def test_find_cut_positions_are_ordered_steps(session: list[Message]) -> None:
    """Every cut is a step of the session with something before it, in order."""
    positions = find_cut_positions(session, [30_000 // len(session) + 1] * len(session))
    assert positions == sorted(set(positions))
    assert set(positions) <= set(find_answer_positions(session)) - {0}


def test_score_context_gives_no_facts_for_a_list_of_names() -> None:
    """A list of every name of the history has all names and no facts."""
    names = "LIMIT_ROWS\nRowBuffer\nscan_header\n8123"
    score = make_cut().score_context([Message.from_text("user", names)])
    assert (score.kept_names, score.kept_facts) == (4, 0)


def test_score_context_recognizes_edit_tools_by_name() -> None:
    """Every tool whose name contains edit, write or patch makes a fact stale, and reading does not."""
    for name, stale in (("MultiEdit", 1), ("write_file", 1), ("apply_patch", 1), ("read", 0), ("bash", 0)):
        messages = [*HISTORY[:3], make_call("call-2", name, file_path="/src/wire/scan.py"), make_result("call-2", "ok")]
        found = SessionCut([*messages, Message.from_text("assistant", "LIMIT_ROWS")], len(messages), len)
        assert found.score_context(messages).stale == stale, name


@given(st.integers(0, 3), st.integers(1, 40_000), st.integers(0, 20_000))
def test_window_at_cuts_leaves_the_budget_beside_leading_system_messages(count, budget, setup_tokens):
    """System messages at the beginning are the tool's system prompt: they take nothing of the budget."""
    messages = [*[Message.from_text("system", "Answer in one line. " * 30)] * count, *HISTORY, *FUTURE]
    sized_messages = tuple(map(build_sized_message, messages))
    target = get_target("anthropic", "claude-sonnet-4-5")
    setting = MeasurementSettings(64_000, setup_tokens, target, "characters", len)
    study = SessionStudy(ReplaySession(sized_messages, (AnswerStep(len(messages) - 1),)), setting)
    system_tokens = sum(map(study.count_message, sized_messages[:count]))
    window = make_target_at_cuts(setting, budget, study.count_system_tokens()).limits.window
    assert compute_usable_window(window) - setup_tokens - system_tokens >= budget
    assert compute_usable_window(window - 3) - setup_tokens - system_tokens < budget
