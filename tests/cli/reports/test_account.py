"""``holdfast stats``: tokens saved, what that cost in cache, and the forecast of an observed session."""

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
from holdfast.config import Configuration, load_shipped_catalog
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.reports.messages.decision_undo import list_undoable
from holdfast.reports.requests.dry_run import PolicyForecast, forecast_session
from holdfast.reports.requests.next_plan import describe_active_decisions
from holdfast.reports.requests.request_size import measure_session_request
from holdfast.reports.sessions.account import LargestRequest, compute_savings_and_state
from holdfast.reports.sessions.branches import find_overflow_refusals
from holdfast.reports.sessions.history import build_branch_history
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
def stats(run, edited_session):
    """Return a function that returns the session's figures."""

    def ask() -> dict:
        return json.loads(run("stats", edited_session, "--json").stdout)

    return ask


def append_bodies(store, key: str, *bodies: object) -> None:
    """Append entries after the leaf."""
    for body in bodies:
        leaf = store.get_session(key).leaf_id
        store.append_entries(key, [Entry(f"x{len(store.read_entries(key))}", leaf, body)])


def build_user_entry(text: str) -> MessageEntry:
    return MessageEntry(build_sized_message(Message.from_text("user", text)))


@pytest.fixture
def scale_size(store):
    """Return a function that scales an estimated size to the session's tokens."""

    def tokens(size: int) -> int:
        (info,) = store.list_sessions()
        return measure_session_request(info, build_branch_history(store.read_path(info.key)).state).scale_tokens(size)

    return tokens


def get_tokens_shown_before(store, key: str) -> int:
    """Return the tokens a request shows without the session's last answer, which no request had shown."""
    branch = build_branch_history(store.read_path(key)).state
    return branch.view.shown_tokens - branch.history.sized_messages[11].tokens


def test_savings_of_all_rules_add_up(stats, store, edited_session):
    """The rules' savings add up to all tokens less those a request shows, whatever was decided or revoked."""
    entries = store.read_path(edited_session)
    for stop in range(len(entries) + 1):
        state = build_branch_history(entries[:stop]).state
        account = compute_account(entries[:stop])
        total_tokens = state.history.cumulative_tokens[-1] if len(state.history.sized_messages) else 0
        assert (account.said_tokens, account.saved_tokens) == (total_tokens, total_tokens - state.view.shown_tokens)
        assert sum(rule.saved_tokens for rule in account.rules) == account.saved_tokens
    assert {rule["rule"]: (rule["in_force"], rule["revoked_edits"]) for rule in stats()["rules"]} == {
        "spill": (1, 0),
        "compaction": (1, 0),
    }


def test_stats_counts_active_savings_for_each_request(stats, store, edited_session):
    """An active decision saves its tokens in every later request until it is revoked."""
    stats_before = stats()
    append_bodies(store, edited_session, RequestEntry("b1", 12), RequestEntry("b2", 12))
    report = stats()
    assert report["requests"] - stats_before["requests"] == 2
    assert report["saved_in_total"] - stats_before["saved_in_total"] == 2 * report["saved_tokens"] > 0
    assert report["saved_dollars"] == pytest.approx(report["saved_in_total"] * 0.3 / 1e6, rel=0.01)


def test_stats_counts_no_savings_after_undo(stats, run, store, edited_session):
    """A revoked decision is counted as such; what it saved before stays in the total."""
    append_bodies(store, edited_session, RequestEntry("b1", 12))
    run("undo", edited_session, "d1")
    rules = {rule["rule"]: rule for rule in stats()["rules"]}
    assert (rules["spill"]["in_force"], rules["spill"]["revoked_edits"], rules["spill"]["saved_tokens"]) == (0, 1, 0)
    assert rules["spill"]["saved_in_total"] > 0


def test_stats_counts_the_tokens_rewritten_after_a_prefix_break(stats, store, edited_session, scale_size):
    """A request after a decision on shown messages breaks the prefix once; one that only appends does not."""
    assert stats()["breaks"] == {}, "no request came since the decisions"
    append_bodies(store, edited_session, AnswerEntry("b0", Usage(9_000, cache_read=8_000)), RequestEntry("b1", 12))
    report = stats()
    again = scale_size(get_tokens_shown_before(store, edited_session))
    assert report["breaks"] == {"spill + compaction": 1}
    assert report["rewritten"] == again
    assert report["rewritten_dollars"] == pytest.approx(again * (3.75 - 0.3) / 1e6, rel=0.01)
    append_bodies(store, edited_session, build_user_entry("go on"), RequestEntry("b2", 13), RequestEntry("b2", 13))
    assert stats()["rewritten"] == report["rewritten"], (
        "requests that extend the one before, and retries, break nothing"
    )


@pytest.mark.parametrize(
    ("usage", "price"),
    [
        (Usage(9_000), 0.0),
        (Usage(9_000, cache_write=8_000), 3.75 - 0.3),
        (Usage(9_000, cache_write=8_000, cache_write_1h=8_000), 2 * 3 - 0.3),
    ],
    ids=["no cache", "five minutes", "an hour"],
)
def test_stats_prices_a_break_by_the_cache_in_use(stats, store, edited_session, usage, price):
    """If no answer used a cache nothing is lost; a one-hour cache costs more to write again."""
    model = build_branch_history(store.read_path(edited_session)).state.last_request.model
    append_bodies(store, edited_session, AnswerEntry("b0", usage), RequestEntry("b1", 12, model))
    report = stats()
    assert report["rewritten"] > 0
    assert report["rewritten_dollars"] == pytest.approx(report["rewritten"] * price / 1e6, rel=0.01)


def test_stats_counts_no_rewrite_before_the_break(run, session, store, scale_size):
    """A decision on a late message leaves the messages before it in the cache."""
    run("import", session)
    key = "5e551011-aaaa"
    entries = store.read_path(key)
    branch = build_branch_history(entries).state
    from holdfast.messages.parts import Text

    sized_message = branch.history.sized_messages[8]
    short = Message(sized_message.message.role, (Text("short"),))
    edit = Edit(Span(8, 9, 0), short.parts, "largest", "", sized_message.tokens - build_sized_message(short).tokens)
    append_bodies(store, key, RequestEntry("b0", 12), DecisionEntry((edit,)), RequestEntry("b1", 12))
    report = json.loads(run("stats", key, "--json").stdout)
    after = build_branch_history(store.read_path(key)).state
    assert report["breaks"] == {"largest": 1}
    assert report["rewritten"] == scale_size(after.view.shown_tokens - branch.history.cumulative_tokens[7])


def test_stats_counts_a_changed_setup_as_its_own_break(stats, store, edited_session, scale_size):
    """Tools and system prompt precede all messages, so changing them rewrites everything."""
    append_bodies(store, edited_session, RequestEntry("b1", 12), RequestSetup("f", 700), RequestEntry("b2", 12))
    report = stats()
    assert report["breaks"] == {"spill + compaction": 1, "system prompt or tools": 1}
    shown_tokens = build_branch_history(store.read_path(edited_session)).state.view.shown_tokens
    assert report["rewritten"] == scale_size(get_tokens_shown_before(store, edited_session) + shown_tokens + 700)


def test_stats_prices_usage_by_kind_of_token(stats, store, edited_session):
    """Input, output, cache reads and cache writes cost the model's prices."""
    stats_before = stats()
    usage = Usage(input=100_000, output=1_000, cache_read=90_000, cache_write=8_000)
    append_bodies(store, edited_session, RequestEntry("b", 12, "claude-sonnet-4-5"), AnswerEntry("b", usage))
    report = stats()
    dollars = (2_000 * 3.0 + 90_000 * 0.3 + 8_000 * 3.75 + 1_000 * 15.0) / 1e6
    assert report["dollars"] - stats_before["dollars"] == pytest.approx(dollars)
    assert report["answers"] - stats_before["answers"] == 1
    assert report["cache_hit"] == pytest.approx(90_000 / report["input"])


def test_stats_reports_no_cost_for_a_model_without_a_price(stats, run, store, edited_session):
    """Without a price the cost is unknown, and no other model's price stands in."""
    store.create_session("house")
    usage = Usage(input=100_000, output=1_000)
    store.append_entries(
        "house", [Entry("r", None, RequestEntry("b", 0, "house-7b")), Entry("a", "r", AnswerEntry("b", usage))]
    )
    report = json.loads(run("stats", "house", "--json").stdout)
    assert (report["dollars"], report["input"], report["unpriced_calls"]) == (None, 100_000, 1)
    assert (report["saved_dollars"], report["rewritten_dollars"]) == (None, None)
    words = " ".join(run("stats", "house").stdout.split())
    assert "1,000 tokens out; cost unknown: the model has no known price" in words
    assert json.loads(run("why", "house", "r", "--json").stdout)["dollars"] is None
    assert "1,000 out, price unknown" in " ".join(run("why", "house", "r").stdout.split())
    total = json.loads(run("stats", "--json").stdout)["all"]
    assert (total["dollars"], total["unpriced_calls"]) == (stats()["dollars"], 1)


def test_stats_credits_no_avoided_overflow_to_another_tools_compaction(stats, store, edited_session):
    """The compaction is counted, but no overflow that Holdfast avoided."""
    append_bodies(store, edited_session, RequestEntry("b", 12, "m", 1_000), AnswerEntry("b", Usage(input=900)))
    report = stats()
    assert (report["compactions"], report["avoided_overflows"], report["refusals"]) == (1, 0, 0)
    assert compute_account(store.read_path(edited_session)).avoided_overflows > 0


def build_overflow(**more: object) -> FailureEntry:
    return FailureEntry("overflow", "too large", 1_500, 2_000, **more)


def compute_account(entries: Sequence[Entry]):
    """Return the savings account of a branch, given its entries from the root on."""
    return compute_savings_and_state("", entries, entries[-1].id if entries else None, load_shipped_catalog())[0]


def build_entries(*bodies: object) -> list[Entry]:
    """Return a chain of entries with these bodies."""
    return [Entry(str(at), str(at - 1) if at else None, body) for at, body in enumerate(bodies)]


COMPACTION = CompactionEntry(1, Message.from_text("user", "before"), 2, tokens_before=900, tokens_after=500)
ANSWER_BODIES = (
    MessageEntry(build_sized_message(Message.from_text("assistant", "yes"))),
    AnswerEntry("b", Usage(input=900)),
)


@pytest.mark.parametrize(
    ("bodies", "refused", "avoided"),
    [
        ((build_overflow(), COMPACTION, RequestEntry("b", 1, "m", 9_000), *ANSWER_BODIES), 1, 1),
        ((build_overflow(), build_user_entry("shorter"), RequestEntry("b", 2, "m", 9_000), *ANSWER_BODIES), 1, 0),
        ((build_overflow(), RequestEntry("b", 1, "m", 9_000), *ANSWER_BODIES), 1, 0),
        (
            (
                *ANSWER_BODIES,
                build_overflow(),
                build_user_entry("more"),
                RequestEntry("b", 3, "m", 9_000),
                *ANSWER_BODIES,
            ),
            0,
            0,
        ),
        ((build_overflow(is_other_branch=True), *ANSWER_BODIES), 0, 0),
    ],
    ids=["compacted", "the client made it smaller", "nothing was decided", "told by an answer", "of another branch"],
)
def test_account_counts_refusals_and_avoided_overflows(bodies, refused, avoided):
    """A refusal belongs to a request, and is avoided if a decision followed and the same messages were answered."""
    report = compute_account(build_entries(build_user_entry("hello"), RequestEntry("b", 1, "m", 9_000), *bodies))
    assert (report.refusals, report.avoided_overflows) == (refused, avoided)


def test_stats_largest_request_agrees_with_why(run, store):
    """The sizes agree also for a model with more tokens for a text, before any usage shows that."""
    long, yes, ok = (
        build_user_entry("word " * 9_000),
        build_user_entry("yes"),
        MessageEntry(build_sized_message(Message.from_text("assistant", "ok " * 90))),
    )
    request_entry = RequestEntry("", 2, "claude-opus-5-5", 100_000)
    store.create_session("s")
    append_bodies(store, "s", long, yes, COMPACTION, request_entry, ok, AnswerEntry("", Usage(input=900)))
    (request,) = (entry.id for entry in store.read_path("s") if isinstance(entry.body, RequestEntry))
    why = json.loads(run("why", "s", request, "--json").stdout)
    largest = json.loads(run("stats", "s", "--json").stdout)["largest"]
    assert (largest["from_client"], largest["sent_upstream"]) == (why["tokens"], why["shown_tokens"])


def test_largest_request_adds_only_the_summarized_tokens():
    """The size from the client adds the messages behind the summary, and no share of an unrecorded system prompt."""
    long, yes = build_user_entry("word " * 2_000), build_user_entry("yes")
    request = (RequestEntry("", 2, "m", 100_000), AnswerEntry("", Usage(input=50_000)))
    report = compute_account(build_entries(long, yes, COMPACTION, *request)).largest
    assert (report.sent_upstream, report.is_counted) == (50_000, False)
    assert report.from_client == 50_000 + long.sized_message.tokens - COMPACTION.head_tokens


def test_largest_request_is_counted_or_estimated():
    """A request without usage has its estimate, answered or not; only an answered one counts as sent."""
    small, large = build_user_entry("word " * 90), build_user_entry("word " * 900)
    untold = (ANSWER_BODIES[0], AnswerEntry("", Usage()))
    request = RequestEntry("", 1, "m", 9_000)
    report = compute_account(build_entries(small, request, *untold, large, replace(request, message_count=3))).largest
    sizes = small.sized_message.tokens, untold[0].sized_message.tokens, large.sized_message.tokens
    assert report == LargestRequest(sum(sizes), sizes[0], 9_000)
    counted = compute_account(
        build_entries(small, request, untold[0], AnswerEntry("", Usage(input=150)), large, request, *untold)
    ).largest
    assert (counted.is_counted, counted.is_upstream_counted) == (False, False)
    assert counted.sent_upstream == counted.from_client > 900
    assert (report.merge_larger(counted), counted.apply_window_limit(500).window) == (counted, 500)


def test_largest_request_uses_the_window_learned_later():
    """The size is a share of the window that a later overflow taught."""
    request = RequestEntry("", 1, "m", 9_000)
    more = build_user_entry("word " * 900)
    answered = (ANSWER_BODIES[0], AnswerEntry("", Usage(input=900)))
    report = compute_account(
        build_entries(more, request, *answered, more, replace(request, message_count=3), build_overflow())
    )
    assert report.largest == LargestRequest(2_000, 900, 1_500, is_counted=True, is_upstream_counted=True)


def test_stats_window_agrees_with_context(run, store):
    """If an overflow stated no limit the window is a guess, and every command reports the same one."""
    store.create_session("s")
    request = RequestEntry("b", 1, "claude-sonnet-4-5", 100_000)
    answered = (
        MessageEntry(build_sized_message(Message.from_text("assistant", "yes"))),
        AnswerEntry("b", Usage(input=20_000)),
    )
    append_bodies(
        store,
        "s",
        build_user_entry("word " * 20_000),
        request,
        *answered,
        build_user_entry("word " * 9_000),
        replace(request, message_count=3),
    )
    append_bodies(store, "s", FailureEntry("overflow", "too large"))
    window = json.loads(run("context", "s", "--json").stdout)["window"]
    assert json.loads(run("stats", "s", "--json").stdout)["largest"]["window"] == window < 100_000


def test_stats_counts_each_branch_once(stats, store, run, session):
    """Entries of another branch are counted, shared ones once, and repeated ones not again."""
    run("import", session)
    key = "5e551011-aaaa"
    leaf, stats_before = store.get_session(key).leaf_id, json.loads(run("stats", key, "--json").stdout)
    usage = AnswerEntry("b", Usage(input=5_000))
    old = [
        build_user_entry("old"),
        RequestEntry("b", 13, "m", 9_000),
        build_overflow(),
        COMPACTION,
        RequestEntry("b", 13, "m", 9_000),
        usage,
    ]
    new = [
        RequestEntry("b", 12, "m", 9_000),
        build_overflow(),
        COMPACTION,
        build_user_entry("new"),
        RequestEntry("c", 13, "m", 9_000),
        usage,
    ]
    for name, bodies in (("o", old), ("n", new)):
        names = [leaf, *(f"{name}{at}" for at in range(len(bodies)))]
        entries = [Entry(names[at + 1], names[at], body) for at, body in enumerate(bodies)]
        store.append_entries(key, entries, expected_leaf=leaf)
    report = json.loads(run("stats", key, "--json").stdout)
    gained = {name: report[name] - stats_before[name] for name in ("answers", "input", "refusals", "compactions")}
    assert gained == {"answers": 2, "input": 10_000, "refusals": 1, "compactions": 1}


def test_stats_counts_refusals_of_separate_branches_separately(stats, store, run, session):
    """A branch with messages and requests of its own has its own refusals and compactions."""
    run("import", session)
    key = "5e551011-aaaa"
    leaf, stats_before = store.get_session(key).leaf_id, json.loads(run("stats", key, "--json").stdout)
    for name in ("o", "n"):
        bodies = [
            build_user_entry(name),
            RequestEntry(name, 13, "m", 9_000),
            build_overflow(),
            COMPACTION,
            RequestEntry(f"{name}+", 13, "m", 9_000),
        ]
        names = [leaf, *(f"{name}{at}" for at in range(len(bodies)))]
        entries = [Entry(names[at + 1], names[at], body) for at, body in enumerate(bodies)]
        store.append_entries(key, entries, expected_leaf=leaf)
    report = json.loads(run("stats", key, "--json").stdout)
    assert [report[name] - stats_before[name] for name in ("refusals", "compactions")] == [2, 2]


def test_account_and_undo_agree_on_active_decisions():
    """Only the newest compaction is active, and no edit of a message that it hides."""
    short = Edit(Span(0, 1), (), "largest", "", 2)
    talk = [build_user_entry(f"number {at}") for at in range(6)]
    bodies = [*talk, DecisionEntry((short,)), COMPACTION, replace(COMPACTION, first_kept=3)]
    entries = build_entries(*bodies)
    log = build_branch_history(entries)
    assert [(rule.rule, rule.in_force) for rule in compute_account(entries).rules if rule.in_force] == [
        ("compaction", 1)
    ]
    assert (
        [decision.id for decision in describe_active_decisions(log.state)]
        == [decision.id for decision in list_undoable(SessionInfo("s"), log)]
        == ["8"]
    )


def test_stats_counts_each_spilled_text_once(stats, store, edited_session):
    """Each stored text is counted once, with its bytes."""
    (hash_,) = store.blobs.iter_hashes()
    assert (stats()["spills"], stats()["spill_bytes"]) == (1, store.blobs.get_size(hash_))


def test_stats_without_a_session_lists_and_sums_all(run, edited_session, home, make_session_lines, write_lines):
    """Each session has a line, and the sums and rules of all follow."""
    run("import", write_lines(home / "second.jsonl", make_session_lines(2, session="second")))
    report = json.loads(run("stats", "--json").stdout)
    assert {session_figures["session"] for session_figures in report["sessions"]} == {edited_session, "second"}
    for name in ("requests", "saved_tokens", "input", "dollars", "spill_bytes"):
        assert report["all"][name] == pytest.approx(
            sum(session_figures[name] for session_figures in report["sessions"])
        )
    assert [rule["rule"] for rule in report["all"]["rules"]] == ["spill", "compaction"]
    assert run("stats").stdout.splitlines()[-1].startswith("all")


def test_stats_reports_that_nothing_was_reduced(run, session):
    """A session without decisions has no reductions and no prefix break."""
    run("import", session)
    printed = run("stats", "5e55").stdout
    assert "nothing was reduced" in printed
    assert "never broke" in printed


def test_stats_forecast_without_changes_equals_what_was_sent(run, session):
    """A request that no policy would change has the same size in the forecast as when it was sent."""
    assert run("import", session).exit_code == 0
    stats_report = json.loads(run("stats", "5e55", "--json").stdout)
    foreseen = stats_report["foreseen"]
    assert (foreseen["compactions"], foreseen["reduced_requests"]) == (0, 0)
    assert foreseen["largest"] == foreseen["largest_planned"] == stats_report["largest"]["sent_upstream"]


def test_stats_no_foresee_omits_the_forecast(run, session):
    """Without the forecast a line says how to get it, JSON has null, and the other figures are the same."""
    run("import", session)
    with_it = json.loads(run("stats", "5e55", "--json", "--foresee").stdout)
    without = json.loads(run("stats", "5e55", "--json", "--no-foresee").stdout)
    assert with_it["foreseen"]["requests"] == with_it["requests"]
    assert without == with_it | {"foreseen": None}
    printed = " ".join(run("stats", "5e55", "--no-foresee").stdout.split())
    assert "to forecast what its policy would have done to 6 requests: holdfast stats 5e551011 --foresee" in printed


def test_stats_forecasts_a_long_session_only_on_request(run, session, monkeypatch):
    """More requests than can be planned in a moment are forecast only with --foresee."""
    run("import", session)
    requests = json.loads(run("stats", "5e55", "--json").stdout)["requests"]
    for most, is_told in ((requests, True), (requests - 1, False)):
        monkeypatch.setattr(stats_command, "MAX_UNASKED_DRY_RUN", most)
        assert (json.loads(run("stats", "5e55", "--json").stdout)["foreseen"] is not None) is is_told
    assert json.loads(run("stats", "5e55", "--json", "--foresee").stdout)["foreseen"]["requests"] == requests


def test_stats_foresee_without_a_session_exits_2(run):
    """The option needs a session, and the message says so."""
    wrong = run("stats", "--foresee")
    assert wrong.exit_code == 2
    assert "give the beginning of its id" in wrong.stderr


def count_calls_per_step(action: Callable[[Callable[[], None]], object]) -> list[int]:
    """Return the function calls so far each time ``action`` calls its argument, and at its end."""
    counter, steps = Counter[str](), list[int]()
    sys.setprofile(lambda _frame, event, _argument: counter.update([event]))
    try:
        action(lambda: steps.append(counter["call"]))
    finally:
        sys.setprofile(None)
    return [*steps, counter["call"]]


def build_observed_session(turns: int) -> list[Entry]:
    """Return a session without decisions that outgrows its window every few turns. Every second turn has questions
    with a forged tag, so that a plan edits them.
    """
    bodies: list[Any] = []
    message_count = 0
    for turn in range(turns):
        answer = Message.from_text("assistant", f"turn {turn} " + "kelp on the rock " * 500)
        questions = (
            [build_user_entry("what is </persisted_tool_result>?")] * 6
            if turn % 2
            else [build_user_entry(f"do step {turn}")]
        )
        message_count += len(questions)
        request = RequestEntry(f"b{turn}", message_count, "m", 16_000)
        bodies += [
            *questions,
            request,
            AnswerEntry(request.prefix_digest, Usage(2_100 * (turn + 1), 20)),
            MessageEntry(build_sized_message(answer)),
        ]
        message_count += 1
    return build_entries(*bodies)


def test_forecast_session_costs_the_same_for_late_requests():
    """Late requests cost what early ones do, whatever was compacted between. Compactions cost what they summarize, so
    the median is that of requests without one.
    """
    entries = build_observed_session(40)
    info = SessionInfo("s", leaf_id=entries[-1].id)
    forecasts: list[PolicyForecast] = []
    configuration = Configuration(load_shipped_catalog())
    steps = count_calls_per_step(
        lambda each: forecasts.append(forecast_session(info, entries, configuration, "holdfast", on_request=each))
    )
    costs = [after - before for before, after in pairwise(steps)]
    plain = [0, *costs][2:-1:2]  # of the questions that nothing is done about
    assert forecasts[0].reduced_requests > 10
    assert forecasts[0].compactions > 2, "the window is outgrown all along"
    assert median(plain[-6:]) <= 1.1 * median(plain[:6])


def test_account_takes_linear_time():
    """An entry costs no more after eight times as many."""
    short, long = build_observed_session(20), build_observed_session(160)
    (small,) = count_calls_per_step(lambda _: compute_account(short))
    (large,) = count_calls_per_step(lambda _: compute_account(long))
    assert large <= 1.1 * 8 * small


def test_stats_handles_missing_and_empty_stores(run, store):
    """A missing store, an empty store and an empty session are no errors; an unknown session is."""
    assert run("stats").stderr.startswith("there is no store at ")
    store.create_session("empty")
    store.remove_session("empty")
    assert "no sessions yet" in run("stats").stdout
    store.create_session("empty")
    assert "no answer reported usage" in run("stats", "empty").stdout
    assert json.loads(run("stats", "empty", "--json").stdout)["requests"] == 0
    assert run("stats", "nobody").exit_code == 2


def test_find_overflow_refusals_takes_linear_time(count_calls):
    """Twice as many refusals take twice the work, not four times, and a copied refusal counts once."""
    calls_made = []
    for count in (100, 200):
        bodies = [
            body
            for at in range(count)
            for body in (
                build_user_entry(f"words {at}"),
                RequestEntry(f"b{at}", at + 1, "m"),
                FailureEntry("overflow", "no", 9_000, 9_000 + at),
            )
        ]
        entries = [Entry(f"e{at}", f"e{at - 1}" if at else None, body) for at, body in enumerate(bodies)]
        copies = [Entry(f"c{at}", "e1", FailureEntry("overflow", "no", 9_000, 9_000 + at)) for at in range(count)]
        assert find_overflow_refusals(entries + copies) == {f"e{at}" for at in range(2, 3 * count, 3)}
        calls_made.append(count_calls(lambda entries=entries + copies: find_overflow_refusals(entries)))
    assert calls_made[1] < 2.5 * calls_made[0]
