"""``holdfast stats``: what was saved, and what that cost in cache."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.cli.commands import stats as stats_command
from holdfast.cli.commands.undo import list_undoable
from holdfast.cli.reports.account import LargestRequest, compute_savings_and_state
from holdfast.cli.reports.branches import find_overflow_refusals
from holdfast.cli.reports.dry_run import PolicyForecast, forecast_session
from holdfast.cli.reports.history import build_branch_history
from holdfast.cli.reports.next_plan import describe_active_decisions
from holdfast.cli.reports.request_size import measure_session_request
from holdfast.config import Configuration, load_shipped_catalog
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
    Usage,
)
from holdfast.store.base import SessionInfo


@pytest.fixture
def stats(run, decided):
    """Return a function that gives the figures of the session."""

    def ask() -> dict:
        return json.loads(run("stats", decided, "--json").stdout)

    return ask


def go_on(store, key: str, *bodies: object) -> None:
    """Append entries behind the leaf."""
    for body in bodies:
        leaf = store.get_session(key).leaf_id
        store.append_entries(key, [Entry(f"x{len(store.read_entries(key))}", leaf, body)])


def said(text: str) -> MessageEntry:
    return MessageEntry(build_sized_message(Message.from_text("user", text)))


@pytest.fixture
def of(store):
    """Return a function that gives the tokens of something that the estimator gives a size."""

    def tokens(size: int) -> int:
        (info,) = store.list_sessions()
        return measure_session_request(info, build_branch_history(store.read_path(info.key)).state).scale_tokens(size)

    return tokens


def shown_before(store, key: str) -> int:
    """Return what a request holds less the recorded session's last answer, which no request had shown."""
    branch = build_branch_history(store.read_path(key)).state
    return branch.view.shown_tokens - branch.history.sized_messages[11].tokens


def test_what_the_next_request_saves_adds_up(stats, store, decided):
    """The rules add up to what was said less what a request holds, whatever was decided or taken back."""
    entries = store.read_path(decided)
    for stop in range(len(entries) + 1):
        branch = build_branch_history(entries[:stop]).state
        found = account_of(entries[:stop])
        whole = branch.history.cumulative_tokens[-1] if len(branch.history.sized_messages) else 0
        assert (found.said_tokens, found.saved_tokens) == (whole, whole - branch.view.shown_tokens)
        assert sum(rule.saved_tokens for rule in found.rules) == found.saved_tokens
    assert {rule["rule"]: (rule["in_force"], rule["revoked_edits"]) for rule in stats()["rules"]} == {
        "spill": (1, 0),
        "compaction": (1, 0),
    }


def test_each_request_saves_again(stats, store, decided):
    """What is in force is saved by every request from then on, and no longer once it was taken back."""
    before = stats()
    go_on(store, decided, RequestEntry("b1", 12), RequestEntry("b2", 12))
    found = stats()
    assert found["requests"] - before["requests"] == 2
    assert found["saved_in_total"] - before["saved_in_total"] == 2 * found["saved_tokens"] > 0
    assert found["saved_dollars"] == pytest.approx(found["saved_in_total"] * 0.3 / 1e6, rel=0.01)


def test_what_was_undone_saves_no_more(stats, run, store, decided):
    """It is counted as taken back; what it saved before stays in the account."""
    go_on(store, decided, RequestEntry("b1", 12))
    run("undo", decided, "d1")
    rules = {rule["rule"]: rule for rule in stats()["rules"]}
    assert (rules["spill"]["in_force"], rules["spill"]["revoked_edits"], rules["spill"]["saved_tokens"]) == (0, 1, 0)
    assert rules["spill"]["saved_in_total"] > 0


def test_a_break_costs_what_must_be_written_again(stats, store, decided, of):
    """A request behind a decision on something shown before breaks the prefix once; one that only adds does not."""
    assert stats()["breaks"] == {}, "no request came since the decisions"
    go_on(store, decided, AnswerEntry("b0", Usage(9_000, cache_read=8_000)), RequestEntry("b1", 12))
    found = stats()
    again = of(shown_before(store, decided))
    assert found["breaks"] == {"spill + compaction": 1}
    assert found["rewritten"] == again
    assert found["rewritten_dollars"] == pytest.approx(again * (3.75 - 0.3) / 1e6, rel=0.01)
    go_on(store, decided, said("go on"), RequestEntry("b2", 13), RequestEntry("b2", 13))
    assert stats()["rewritten"] == found["rewritten"], "requests that extend the one before, and retries, break nothing"


@pytest.mark.parametrize(
    ("usage", "price"),
    [
        (Usage(9_000), 0.0),
        (Usage(9_000, cache_write=8_000), 3.75 - 0.3),
        (Usage(9_000, cache_write=8_000, cache_write_1h=8_000), 2 * 3 - 0.3),
    ],
    ids=["no cache", "five minutes", "an hour"],
)
def test_a_break_costs_what_its_cache_does(stats, store, decided, usage, price):
    """Where no answer told of a cache nothing is lost; what is kept for an hour costs more to write again."""
    model = build_branch_history(store.read_path(decided)).state.last_request.model
    go_on(store, decided, AnswerEntry("b0", usage), RequestEntry("b1", 12, model))
    found = stats()
    assert found["rewritten"] > 0
    assert found["rewritten_dollars"] == pytest.approx(found["rewritten"] * price / 1e6, rel=0.01)


def test_what_stands_before_the_break_is_not_written_again(run, session, store, of):
    """A decision on a late message leaves what stands before it in the cache."""
    run("import", session)
    key = "5e551011-aaaa"
    entries = store.read_path(key)
    branch = build_branch_history(entries).state
    from holdfast.messages.parts import Text

    slot = branch.history.sized_messages[8]
    short = Message(slot.message.role, (Text("short"),))
    edit = Edit(Span(8, 9, 0), short.parts, "largest", "", slot.tokens - build_sized_message(short).tokens)
    go_on(store, key, RequestEntry("b0", 12), DecisionEntry((edit,)), RequestEntry("b1", 12))
    found = json.loads(run("stats", key, "--json").stdout)
    after = build_branch_history(store.read_path(key)).state
    assert found["breaks"] == {"largest": 1}
    assert found["rewritten"] == of(after.view.shown_tokens - branch.history.cumulative_tokens[7])


def test_another_system_prompt_is_a_break_of_its_own(stats, store, decided, of):
    """Tools and system prompt stand before everything."""
    go_on(store, decided, RequestEntry("b1", 12), RequestSetup("f", 700), RequestEntry("b2", 12))
    found = stats()
    assert found["breaks"] == {"spill + compaction": 1, "system prompt or tools": 1}
    held = build_branch_history(store.read_path(decided)).state.view.shown_tokens
    assert found["rewritten"] == of(shown_before(store, decided) + held + 700)


def test_money_is_what_the_answers_say(stats, store, decided):
    """Tokens in and out, of the cache and into it, at the prices of the model."""
    before = stats()
    usage = Usage(input=100_000, output=1_000, cache_read=90_000, cache_write=8_000)
    go_on(store, decided, RequestEntry("b", 12, "claude-sonnet-4-5"), AnswerEntry("b", usage))
    found = stats()
    dollars = (2_000 * 3.0 + 90_000 * 0.3 + 8_000 * 3.75 + 1_000 * 15.0) / 1e6
    assert found["dollars"] - before["dollars"] == pytest.approx(dollars)
    assert found["answers"] - before["answers"] == 1
    assert found["cache_hit"] == pytest.approx(90_000 / found["input"])


def test_what_nobody_priced_costs_no_dollars(stats, run, store, decided):
    """Of a model without a price the dollars are not known, and no other model's stand for them."""
    store.create_session("house")
    usage = Usage(input=100_000, output=1_000)
    store.append_entries(
        "house", [Entry("r", None, RequestEntry("b", 0, "house-7b")), Entry("a", "r", AnswerEntry("b", usage))]
    )
    found = json.loads(run("stats", "house", "--json").stdout)
    assert (found["dollars"], found["input"], found["unpriced_calls"]) == (None, 100_000, 1)
    assert (found["saved_dollars"], found["rewritten_dollars"]) == (None, None)
    words = " ".join(run("stats", "house").stdout.split())
    assert "1,000 tokens out; cost unknown: the model has no known price" in words
    assert json.loads(run("why", "house", "r", "--json").stdout)["dollars"] is None
    assert "1,000 out, price unknown" in " ".join(run("why", "house", "r").stdout.split())
    total = json.loads(run("stats", "--json").stdout)["all"]
    assert (total["dollars"], total["unpriced_calls"]) == (stats()["dollars"], 1)


def test_what_another_tool_compacted_is_its_merit(stats, store, decided):
    """The compaction is counted, and no overflow that Holdfast avoided."""
    go_on(store, decided, RequestEntry("b", 12, "m", 1_000), AnswerEntry("b", Usage(input=900)))
    found = stats()
    assert (found["compactions"], found["avoided_overflows"], found["refusals"]) == (1, 0, 0)
    assert account_of(store.read_path(decided)).avoided_overflows > 0


def overflow(**more: object) -> FailureEntry:
    return FailureEntry("overflow", "too large", 1_500, 2_000, **more)


def account_of(entries: Sequence[Entry]):
    """Return the account of a branch, its entries given from the root on."""
    return compute_savings_and_state("", entries, entries[-1].id if entries else None, load_shipped_catalog())[0]


def saying(*bodies: object) -> list[Entry]:
    """Return a branch that says ``bodies``."""
    return [Entry(str(at), str(at - 1) if at else None, body) for at, body in enumerate(bodies)]


MADE = CompactionEntry(1, Message.from_text("user", "before"), 2, tokens_before=900, tokens_after=500)
ANSWERED = (
    MessageEntry(build_sized_message(Message.from_text("assistant", "yes"))),
    AnswerEntry("b", Usage(input=900)),
)


@pytest.mark.parametrize(
    ("bodies", "refused", "avoided"),
    [
        ((overflow(), MADE, RequestEntry("b", 1, "m", 9_000), *ANSWERED), 1, 1),
        ((overflow(), said("shorter"), RequestEntry("b", 2, "m", 9_000), *ANSWERED), 1, 0),
        ((overflow(), RequestEntry("b", 1, "m", 9_000), *ANSWERED), 1, 0),
        ((*ANSWERED, overflow(), said("more"), RequestEntry("b", 3, "m", 9_000), *ANSWERED), 0, 0),
        ((overflow(is_other_branch=True), *ANSWERED), 0, 0),
    ],
    ids=["compacted", "the client made it smaller", "nothing was decided", "told by an answer", "of another branch"],
)
def test_only_what_was_refused_and_kept_from_the_client_is_told_so(bodies, refused, avoided):
    """A refusal is of a request; it was avoided where something was decided and the same words were answered."""
    found = account_of(saying(said("hello"), RequestEntry("b", 1, "m", 9_000), *bodies))
    assert (found.refusals, found.avoided_overflows) == (refused, avoided)


def test_the_largest_is_as_large_as_why_says(run, store):
    """Of a model that has more tokens for a text than others too, before any count of it could tell so."""
    long, yes, ok = (
        said("word " * 9_000),
        said("yes"),
        MessageEntry(build_sized_message(Message.from_text("assistant", "ok " * 90))),
    )
    asked = RequestEntry("", 2, "claude-opus-5-5", 100_000)
    store.create_session("s")
    go_on(store, "s", long, yes, MADE, asked, ok, AnswerEntry("", Usage(input=900)))
    (request,) = (entry.id for entry in store.read_path("s") if isinstance(entry.body, RequestEntry))
    why = json.loads(run("why", "s", request, "--json").stdout)
    largest = json.loads(run("stats", "s", "--json").stdout)["largest"]
    assert (largest["from_client"], largest["sent_upstream"]) == (why["tokens"], why["shown_tokens"])


def test_what_nobody_told_does_not_grow_with_what_was_said():
    """A request lacked the words behind its summary, and no share of the system prompt that the record has none of."""
    long, yes = said("word " * 2_000), said("yes")
    asked = (RequestEntry("", 2, "m", 100_000), AnswerEntry("", Usage(input=50_000)))
    found = account_of(saying(long, yes, MADE, *asked)).largest
    assert (found.sent_upstream, found.is_counted) == (50_000, False)
    assert found.from_client == 50_000 + long.sized_message.tokens - MADE.head_tokens


def test_the_largest_is_told_or_estimated():
    """What nobody counted has its estimate, answered or not; only what was answered went up and was."""
    small, large = said("word " * 90), said("word " * 900)
    untold = (ANSWERED[0], AnswerEntry("", Usage()))
    asked = RequestEntry("", 1, "m", 9_000)
    found = account_of(saying(small, asked, *untold, large, replace(asked, message_count=3))).largest
    sizes = small.sized_message.tokens, untold[0].sized_message.tokens, large.sized_message.tokens
    assert found == LargestRequest(sum(sizes), sizes[0], 9_000)
    counted = account_of(
        saying(small, asked, untold[0], AnswerEntry("", Usage(input=150)), large, asked, *untold)
    ).largest
    assert (counted.is_counted, counted.is_upstream_counted) == (False, False)
    assert counted.sent_upstream == counted.from_client > 900
    assert (found.merge_larger(counted), counted.apply_window_limit(500).window) == (counted, 500)


def test_the_window_is_what_an_overflow_told():
    """What went up before is told as a share of the window that was learned later."""
    asked = RequestEntry("", 1, "m", 9_000)
    more = said("word " * 900)
    answered = (ANSWERED[0], AnswerEntry("", Usage(input=900)))
    found = account_of(saying(more, asked, *answered, more, replace(asked, message_count=3), overflow()))
    assert found.largest == LargestRequest(2_000, 900, 1_500, is_counted=True, is_upstream_counted=True)


def test_the_window_is_the_one_that_context_tells(run, store):
    """Where a request was refused without a number the window is a guess, and every command has the same one."""
    store.create_session("s")
    asked = RequestEntry("b", 1, "claude-sonnet-4-5", 100_000)
    answered = (
        MessageEntry(build_sized_message(Message.from_text("assistant", "yes"))),
        AnswerEntry("b", Usage(input=20_000)),
    )
    go_on(store, "s", said("word " * 20_000), asked, *answered, said("word " * 9_000), replace(asked, message_count=3))
    go_on(store, "s", FailureEntry("overflow", "too large"))
    window = json.loads(run("context", "s", "--json").stdout)["window"]
    assert json.loads(run("stats", "s", "--json").stdout)["largest"]["window"] == window < 100_000


def test_all_branches_count_once(stats, store, run, session):
    """What stands on another branch is counted, what both share once, and what the new one repeats not again."""
    run("import", session)
    key = "5e551011-aaaa"
    leaf, before = store.get_session(key).leaf_id, json.loads(run("stats", key, "--json").stdout)
    usage = AnswerEntry("b", Usage(input=5_000))
    old = [said("old"), RequestEntry("b", 13, "m", 9_000), overflow(), MADE, RequestEntry("b", 13, "m", 9_000), usage]
    new = [RequestEntry("b", 12, "m", 9_000), overflow(), MADE, said("new"), RequestEntry("c", 13, "m", 9_000), usage]
    for name, bodies in (("o", old), ("n", new)):
        names = [leaf, *(f"{name}{at}" for at in range(len(bodies)))]
        entries = [Entry(names[at + 1], names[at], body) for at, body in enumerate(bodies)]
        store.append_entries(key, entries, expected_leaf=leaf)
    found = json.loads(run("stats", key, "--json").stdout)
    gained = {name: found[name] - before[name] for name in ("answers", "input", "refusals", "compactions")}
    assert gained == {"answers": 2, "input": 10_000, "refusals": 1, "compactions": 1}


def test_what_two_conversations_met_alike_counts_twice(stats, store, run, session):
    """A branch that has words and requests of its own repeats nobody: its refusals and compactions are its own."""
    run("import", session)
    key = "5e551011-aaaa"
    leaf, before = store.get_session(key).leaf_id, json.loads(run("stats", key, "--json").stdout)
    for name in ("o", "n"):
        bodies = [
            said(name),
            RequestEntry(name, 13, "m", 9_000),
            overflow(),
            MADE,
            RequestEntry(f"{name}+", 13, "m", 9_000),
        ]
        names = [leaf, *(f"{name}{at}" for at in range(len(bodies)))]
        entries = [Entry(names[at + 1], names[at], body) for at, body in enumerate(bodies)]
        store.append_entries(key, entries, expected_leaf=leaf)
    found = json.loads(run("stats", key, "--json").stdout)
    assert [found[name] - before[name] for name in ("refusals", "compactions")] == [2, 2]


def test_what_acts_no_more_is_not_in_force():
    """Of compactions only the newest acts, and no edit of a message that it hides: context and undo say the same."""
    short = Edit(Span(0, 1), (), "largest", "", 2)
    talk = [said(f"number {at}") for at in range(6)]
    bodies = [*talk, DecisionEntry((short,)), MADE, replace(MADE, first_kept=3)]
    entries = saying(*bodies)
    log = build_branch_history(entries)
    assert [(one.rule, one.in_force) for one in account_of(entries).rules if one.in_force] == [("compaction", 1)]
    assert (
        [one.id for one in describe_active_decisions(log.state)]
        == [one.id for one in list_undoable(SessionInfo("s"), log)]
        == ["8"]
    )


def test_spilled_texts_are_counted(stats, store, decided):
    """Each blob once, with the bytes it takes."""
    (hash_,) = store.blobs.iter_hashes()
    assert (stats()["spills"], stats()["spill_bytes"]) == (1, store.blobs.get_size(hash_))


def test_all_sessions_together(run, decided, home, talk, write):
    """Without a session each has a line, and sums and rules of all stand below."""
    run("import", write(home / "second.jsonl", talk(2, session="second")))
    found = json.loads(run("stats", "--json").stdout)
    assert {one["session"] for one in found["sessions"]} == {decided, "second"}
    for name in ("requests", "saved_tokens", "input", "dollars", "spill_bytes"):
        assert found["all"][name] == pytest.approx(sum(one[name] for one in found["sessions"]))
    assert [rule["rule"] for rule in found["all"]["rules"]] == ["spill", "compaction"]
    assert run("stats").stdout.splitlines()[-1].startswith("all")


def test_a_session_without_decisions(run, session):
    """It says that nothing was reduced and that the prefix never broke."""
    run("import", session)
    shown = run("stats", "5e55").stdout
    assert "nothing was reduced" in shown
    assert "never broke" in shown


def test_what_would_have_been_has_the_sizes_that_were_counted(run, session):
    """A request that no policy would have changed is as large in what would have been as in what was."""
    assert run("import", session).exit_code == 0
    told = json.loads(run("stats", "5e55", "--json").stdout)
    foreseen = told["foreseen"]
    assert (foreseen["compactions"], foreseen["reduced_requests"]) == (0, 0)
    assert foreseen["largest"] == foreseen["largest_planned"] == told["largest"]["sent_upstream"]


def test_foresight_is_left_out_when_not_wanted(run, session):
    """Without it a line says how to get it, and JSON has it as nothing; the other figures are the same."""
    run("import", session)
    with_it = json.loads(run("stats", "5e55", "--json", "--foresee").stdout)
    without = json.loads(run("stats", "5e55", "--json", "--no-foresee").stdout)
    assert with_it["foreseen"]["requests"] == with_it["requests"]
    assert without == with_it | {"foreseen": None}
    told = " ".join(run("stats", "5e55", "--no-foresee").stdout.split())
    assert "to forecast what its policy would have done to 6 requests: holdfast stats 5e551011 --foresee" in told


def test_foresight_of_a_long_session_is_asked_for(run, session, monkeypatch):
    """Of more requests than are planned in a moment it is told only with --foresee."""
    run("import", session)
    requests = json.loads(run("stats", "5e55", "--json").stdout)["requests"]
    for most, is_told in ((requests, True), (requests - 1, False)):
        monkeypatch.setattr(stats_command, "MAX_UNASKED_DRY_RUN", most)
        assert (json.loads(run("stats", "5e55", "--json").stdout)["foreseen"] is not None) is is_told
    assert json.loads(run("stats", "5e55", "--json", "--foresee").stdout)["foreseen"]["requests"] == requests


def test_foresight_is_of_one_session(run):
    """Without a session the options are wrong use, and the message says what to give."""
    wrong = run("stats", "--foresee")
    assert wrong.exit_code == 2
    assert "give the beginning of its id" in wrong.stderr


def calls_of(work: Callable[[Callable[[], None]], object]) -> list[int]:
    """Return how many functions ``work`` had called each time it called what it is given, and at its end."""
    looked, steps = Counter[str](), list[int]()
    sys.setprofile(lambda _frame, event, _what: looked.update([event]))
    try:
        work(lambda: steps.append(looked["call"]))
    finally:
        sys.setprofile(None)
    return [*steps, looked["call"]]


def observed_talk(turns: int) -> list[Entry]:
    """Return a talk of so many turns in a window that it outgrows every few turns, without any decision.

    Every second turn has questions with what looks like a tag of ours, so that a plan has edits of them.
    """
    bodies: list[Any] = []
    slots = 0
    for turn in range(turns):
        answer = Message.from_text("assistant", f"turn {turn} " + "kelp on the rock " * 500)
        questions = [said("what is </persisted_tool_result>?")] * 6 if turn % 2 else [said(f"do step {turn}")]
        slots += len(questions)
        request = RequestEntry(f"b{turn}", slots, "m", 16_000)
        bodies += [
            *questions,
            request,
            AnswerEntry(request.prefix_digest, Usage(2_100 * (turn + 1), 20)),
            MessageEntry(build_sized_message(answer)),
        ]
        slots += 1
    return saying(*bodies)


def test_foresight_does_no_more_for_later_requests():
    """The requests at the end of a session cost what those at its beginning do, whatever was compacted between.

    Compactions themselves cost what they summarize; the median is of a request without one.
    """
    entries = observed_talk(40)
    info = SessionInfo("s", leaf_id=entries[-1].id)
    found: list[PolicyForecast] = []
    known = Configuration(load_shipped_catalog())
    steps = calls_of(lambda each: found.append(forecast_session(info, entries, known, "holdfast", on_request=each)))
    costs = [after - before for before, after in pairwise(steps)]
    plain = [0, *costs][2:-1:2]  # of the questions that nothing is done about
    assert found[0].reduced_requests > 10
    assert found[0].compactions > 2, "the window is outgrown all along"
    assert median(plain[-6:]) <= 1.1 * median(plain[:6])


def test_the_account_costs_its_length():
    """An entry costs no more behind eight times as many."""
    short, long = observed_talk(20), observed_talk(160)
    (small,), (large,) = calls_of(lambda _: account_of(short)), calls_of(lambda _: account_of(long))
    assert large <= 1.1 * 8 * small


def test_nothing_at_all(run, store):
    """No store, an empty store and an empty session are no faults; an unknown session is."""
    assert run("stats").stderr.startswith("there is no store at ")
    store.create_session("empty")
    store.remove_session("empty")
    assert "no sessions yet" in run("stats").stdout
    store.create_session("empty")
    assert "no answer reported usage" in run("stats", "empty").stdout
    assert json.loads(run("stats", "empty", "--json").stdout)["requests"] == 0
    assert run("stats", "nobody").exit_code == 2


def test_overflows_cost_what_they_are(work):
    """Twice as many refusals of one session take twice the work to count, not four times; a copy of one counts once."""
    needed = []
    for count in (100, 200):
        bodies = [
            body
            for at in range(count)
            for body in (
                said(f"words {at}"),
                RequestEntry(f"b{at}", at + 1, "m"),
                FailureEntry("overflow", "no", 9_000, 9_000 + at),
            )
        ]
        entries = [Entry(f"e{at}", f"e{at - 1}" if at else None, body) for at, body in enumerate(bodies)]
        copies = [Entry(f"c{at}", "e1", FailureEntry("overflow", "no", 9_000, 9_000 + at)) for at in range(count)]
        assert find_overflow_refusals(entries + copies) == {f"e{at}" for at in range(2, 3 * count, 3)}
        needed.append(work(lambda entries=entries + copies: find_overflow_refusals(entries)))
    assert needed[1] < 2.5 * needed[0]
