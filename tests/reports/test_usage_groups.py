"""Usage by group: the groups add up to what ``holdfast stats`` says, days are those of the calendar, for any log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import log_strategy
from msgspec import Raw
from msgspec.structs import asdict, replace
from sample_entries import make_message_entry_body

from holdfast.config import Configuration, load_configuration
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.reports.requests.request_size import TargetCache
from holdfast.reports.sessions.account import SessionSavings
from holdfast.reports.sessions.recorded_calls import read_recorded_calls
from holdfast.reports.sessions.session_filter import SessionFilter
from holdfast.reports.sessions.session_savings import load_session_savings
from holdfast.reports.sessions.usage_groups import (
    GROUP_KINDS,
    CallFilter,
    UsageReader,
    UsageReport,
    UsageTotal,
    find_day,
    name_time_group,
    read_usage,
)
from holdfast.state.costs import SummaryCall, build_summary_cost_note
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.view import measure_summary
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

BERLIN = ZoneInfo("Europe/Berlin")
"""A zone with a day of 23 hours (2026-03-29) and one of 25 (2026-10-25)."""
MODELS = ("claude-opus-4-5", "gpt-5", "a-model-without-a-price", "")
NOON = 1_772_366_400_000
"""2026-03-01, 12:00 UTC."""
DAY_MS = 86_400_000


@st.composite
def tree_strategy(draw: st.DrawFn) -> list[Entry]:
    """Logs with a fork, models with and without prices, use of the cache, costs of summaries, and some times."""
    entries = [_add_figures(draw, entry) for entry in draw(log_strategy(max_messages=10).filter(bool))]
    fork = draw(st.integers(0, len(entries) - 1))
    parent = entries[fork].id
    count = sum(isinstance(entry.body, MessageEntry) for entry in entries[: fork + 1])
    for number in range(draw(st.integers(0, 6))):
        bodies: list[Any] = [
            make_message_entry_body(f"other branch {number}"),
            RequestEntry("other", count, draw(st.sampled_from(MODELS))),
            AnswerEntry("other", _draw_usage(draw)),
            CompactionEntry(draw(st.integers(0, count)), Message.from_text("user", "what was said"), 9),
            RevokeEntry(draw(st.sampled_from(entries)).id),
        ]
        entries.append(Entry(f"f{number}", parent, draw(st.sampled_from(bodies)), time_ms=_draw_time(draw)))
        parent = entries[-1].id
    call = SummaryCall("anthropic-messages", draw(st.sampled_from(MODELS)), _draw_usage(draw))
    entries.append(Entry("n", parent, build_summary_cost_note(call), time_ms=_draw_time(draw)))
    return entries


def _add_figures(draw: st.DrawFn, entry: Entry) -> Entry:
    body = entry.body
    if isinstance(body, RequestEntry):
        body = replace(body, model=draw(st.sampled_from(MODELS)))
    elif isinstance(body, AnswerEntry) and draw(st.booleans()):
        body = replace(body, usage=_draw_usage(draw))
    return replace(entry, body=body, time_ms=_draw_time(draw), seq=0)


def _draw_usage(draw: st.DrawFn) -> Usage:
    total = draw(st.integers(0, 200_000))
    read = draw(st.integers(0, total))
    write = draw(st.integers(0, total - read))
    return Usage(total, draw(st.integers(0, 9_000)), read, write, cache_write_1h=draw(st.integers(0, write)))


def _draw_time(draw: st.DrawFn) -> int | None:
    return draw(st.none() | st.integers(NOON, NOON + 90 * DAY_MS))


@pytest.fixture(scope="module")
def configuration() -> Configuration:
    return load_configuration()


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    """Return a store in a file, whose headers are read without bodies."""
    with SqliteStore(tmp_path_factory.mktemp("usage") / "store.db") as store:
        yield store


def add_session(store: SessionStore, key: str, entries: list[Entry], **fields: Any) -> SessionInfo:
    store.create_session(key, SessionInfo(key, **fields))
    store.append_entries(key, entries)
    return store.get_session(key)


def read_all(store: SessionStore, configuration: Configuration, **fields: Any) -> UsageReport:
    return read_usage(store, configuration.catalog, TargetCache(configuration), CallFilter(**fields))


def sum_totals(totals: list[UsageTotal]) -> UsageTotal:
    out = UsageTotal()
    for total in totals:
        out.add_total(total)
    return out


def assert_same_total(total: UsageTotal, expected: UsageTotal) -> None:
    """Counts are equal, and dollars to a millionth of a cent: sums of floats depend on their order."""
    figures, expected_figures = asdict(total), asdict(expected)
    del figures["sessions"], expected_figures["sessions"]
    assert figures == pytest.approx(expected_figures, rel=1e-9, abs=1e-8)


def assert_agrees_with_stats(total: UsageTotal, account: SessionSavings) -> None:
    for name in ("requests", "answers", "answers_without_usage", "unpriced_calls"):
        assert getattr(total, name) == getattr(account, name), name
    for name in ("input", "output", "cache_read", "cache_write"):
        assert getattr(total, name) == getattr(account, name), name
    assert total.dollars == pytest.approx(account.dollars, abs=1e-8)
    assert total.saved_dollars == pytest.approx(account.saved_dollars, rel=1e-9, abs=1e-8)
    # stats rounds the savings of each rule.
    assert total.saved_tokens == pytest.approx(account.saved_in_total, abs=0.5 * len(account.rules) + 1e-3)


@given(tree_strategy(), st.sampled_from(GROUP_KINDS))
def test_groups_add_up_to_what_stats_says(sqlite_store, configuration, entries, by):
    """For any log and any kind of group, the sum of the groups is the account of the whole session."""
    places = TargetCache(configuration)
    for store in (MemoryStore(), sqlite_store):
        for old in store.list_sessions():
            store.remove_session(old.key)
        info = add_session(store, "s", entries, model="claude-sonnet-4-5")
        report = read_usage(store, configuration.catalog, places, CallFilter(by))
        assert_same_total(sum_totals([*report.groups.values()]), report.total)
        assert_agrees_with_stats(report.total, load_session_savings(store, info, configuration.catalog, places))


def test_savings_follow_compactions_and_undo(sqlite_store, configuration):
    """A compaction hides edits before it and no system message; undoing it shows them again; a branch has its own."""
    for old in sqlite_store.list_sessions():
        sqlite_store.remove_session(old.key)
    spill = DecisionEntry((Edit(Span(2, 3, 0), (Text("short"),), "spill", saves=700),))
    bodies = [
        *(make_message_entry_body("word " * 900, role) for role in ("system", "user", "user", "user", "user")),
        spill,
        RequestEntry("1", 5, "gpt-5"),
        CompactionEntry(3, Message.from_text("user", "what was said"), 9),
        RequestEntry("2", 5, "gpt-5"),
        RevokeEntry("e7"),
        RequestEntry("3", 5, "gpt-5"),
        DecisionEntry((Edit(Span(4, 5, 0), (Text("short"),), "spill", saves=50),)),
        RequestEntry("4", 5, "gpt-5"),
    ]
    entries = [Entry(f"e{n}", f"e{n - 1}" if n else None, body) for n, body in enumerate(bodies)]
    entries.append(Entry("other", "e6", RequestEntry("5", 5, "gpt-5")))
    info = add_session(sqlite_store, "s", entries)
    calls = read_recorded_calls(sqlite_store, info, configuration.catalog).calls
    (message_tokens,) = {sized.tokens for sized in [body.sized_message for body in bodies[1:4]]}
    summary_tokens = measure_summary(bodies[7])
    compacted = 2 * message_tokens - summary_tokens
    assert [call.saved_tokens for call in calls] == [700, compacted, 700, 750, 700]
    places = TargetCache(configuration)
    account = load_session_savings(sqlite_store, info, configuration.catalog, places)
    assert_agrees_with_stats(read_all(sqlite_store, configuration).total, account)


def test_savings_of_a_native_compaction_follow_the_model(configuration):
    """Another model is shown the readable summary; stats counts that from the next setup on, and so here."""
    store = MemoryStore()
    native = Raw(b'{"api":"openai-responses","model":"gpt-5","items":[{"type":"compaction"}]}')
    summary = Message.from_text("user", "what was said, at some length, for readers")
    bodies = [
        *(make_message_entry_body("word " * 900, role) for role in ("user", "assistant", "user")),
        RequestEntry("1", 3, "gpt-5", api="openai-responses"),
        CompactionEntry(2, summary, 500, native=native, readable_tokens=30),
        RequestEntry("2", 3, "gpt-5", api="openai-responses"),
        RequestEntry("3", 3, "gpt-5.1", api="openai-responses"),
        RequestSetup("other tools", 5),
        RequestEntry("4", 3, "gpt-5.1", api="openai-responses"),
    ]
    info = add_session(store, "s", [Entry(f"e{n}", f"e{n - 1}" if n else None, body) for n, body in enumerate(bodies)])
    calls = read_recorded_calls(store, info, configuration.catalog).calls
    saved_tokens = [call.saved_tokens for call in calls]
    assert saved_tokens[1] == saved_tokens[2] < saved_tokens[3]
    places = TargetCache(configuration)
    account = load_session_savings(store, info, configuration.catalog, places)
    assert_agrees_with_stats(read_all(store, configuration).total, account)


@given(tree_strategy(), st.integers(-2, 92), st.sampled_from([None, UTC, BERLIN]))
def test_since_and_until_part_the_calls(configuration, entries, days, time_zone):
    """Each call with a time is on one side of any day: until it, or since the next one. Others are on neither side."""
    store = MemoryStore()
    add_session(store, "s", entries)
    cut = date(2026, 3, 1) + timedelta(days)
    before = read_all(store, configuration, until=cut, time_zone=time_zone)
    after = read_all(store, configuration, since=cut + timedelta(1), time_zone=time_zone)
    assert all(name <= cut.isoformat() for name in before.groups)
    assert all(name > cut.isoformat() for name in after.groups)
    whole = read_all(store, configuration, time_zone=time_zone)
    parts = [before.total, after.total, whole.groups.get("", UsageTotal())]
    assert_same_total(sum_totals(parts), whole.total)


@given(st.lists(st.tuples(tree_strategy(), st.sampled_from(["/a", "/a/b", ""])), min_size=1, max_size=3))
def test_filters_choose_the_groups_of_the_same_name(configuration, sessions):
    """A model's, a tool's or a folder's total is the same as a group and as a filter."""
    store = MemoryStore()
    for number, (entries, cwd) in enumerate(sessions):
        add_session(store, f"s{number}", entries, cwd=cwd, format="codex" if number else "pi")
    for name, total in read_all(store, configuration, by="model").groups.items():
        if name:
            filtered = read_all(store, configuration, sessions=SessionFilter(model=name.upper()))
            assert_same_total(filtered.total, total)
            assert filtered.total.sessions == total.sessions
    for name, total in read_all(store, configuration, by="tool").groups.items():
        assert_same_total(read_all(store, configuration, sessions=SessionFilter(tool=name)).total, total)
    projects = read_all(store, configuration, by="project").groups
    below_a = sum_totals([total for name, total in projects.items() if name])
    assert_same_total(read_all(store, configuration, sessions=SessionFilter(project="/a/")).total, below_a)


@given(tree_strategy(), st.data())
def test_a_second_reading_equals_a_new_one(configuration, entries, data):
    """What a reader remembers of sessions that did not change is what a new one reads, also after more entries."""
    store = MemoryStore()
    stop = data.draw(st.integers(1, len(entries)))
    call_filter = CallFilter(data.draw(st.sampled_from(GROUP_KINDS)))
    reader = UsageReader(configuration.catalog, TargetCache(configuration))
    add_session(store, "other", entries)
    add_session(store, "s", entries[:stop])
    for more in (entries[stop:], []):
        for info in store.list_sessions():
            reader.read_session(store, info, call_filter)
        if more:
            store.append_entries("s", more)
    fresh = read_usage(store, configuration.catalog, TargetCache(configuration), call_filter)
    infos = store.list_sessions()
    for info in infos:
        reader.read_session(store, info, call_filter)
    assert reader.build_report(infos) == fresh


def make_call(number: int, sent: datetime, answered: datetime | None, parent: str | None = None) -> list[Entry]:
    """Return a message, a request and, if it was answered, its answer."""
    sent_ms = int(sent.timestamp() * 1_000)
    names = [f"m{number}", f"r{number}", f"a{number}"]
    entries = [
        Entry(names[0], parent, make_message_entry_body("hello"), time_ms=sent_ms),
        Entry(names[1], names[0], RequestEntry("d", 1, "gpt-5"), time_ms=sent_ms),
    ]
    if answered is not None:
        answer = AnswerEntry("d", Usage(1_000, 10))
        entries.append(Entry(names[2], names[1], answer, time_ms=int(answered.timestamp() * 1_000)))
    return entries


def test_a_request_counts_on_the_day_of_its_answer(configuration):
    """A request and its tokens are in one group, also over midnight; without an answer it counts when it was sent."""
    store = MemoryStore()
    sent = datetime(2026, 5, 3, 23, 59, tzinfo=UTC)
    add_session(store, "s", make_call(1, sent, sent + timedelta(minutes=2)))
    add_session(store, "t", make_call(1, sent, None))
    groups = read_all(store, configuration, time_zone=UTC).groups
    assert {name: (total.requests, total.answers) for name, total in groups.items()} == {
        "2026-05-04": (1, 1),
        "2026-05-03": (1, 0),
    }


def test_an_imported_request_without_a_time_counts_with_its_answer(configuration):
    """Recordings have the time of the answer alone; a request that was never answered has that of its message."""
    store = MemoryStore()
    at = datetime(2026, 5, 3, 12, tzinfo=UTC)
    answered = [replace(entry, time_ms=None) if entry.id == "r1" else entry for entry in make_call(1, at, at)]
    unanswered = [
        replace(entry, time_ms=None) if entry.id == "r2" else entry
        for entry in make_call(2, at + timedelta(days=1), None, "a1")
    ]
    add_session(store, "s", answered + unanswered)
    groups = read_all(store, configuration, time_zone=UTC).groups
    assert {name: total.requests for name, total in groups.items()} == {"2026-05-04": 1, "2026-05-03": 1}


@pytest.mark.parametrize(("day", "hours"), [(date(2026, 3, 29), 23), (date(2026, 10, 25), 25), (date(2026, 7, 1), 24)])
def test_days_follow_the_change_to_summer_time(configuration, day, hours):
    """A call in every half hour: the day on which clocks change has 23 or 25 hours of calls, the ones around it 24."""
    store = MemoryStore()
    start = datetime(day.year, day.month, day.day, tzinfo=BERLIN).astimezone(UTC) - timedelta(days=1)
    entries: list[Entry] = []
    for number in range(3 * 48 + 2):
        at = start + timedelta(minutes=30 * number)
        entries += make_call(number, at, at, entries[-1].id if entries else None)
    add_session(store, "s", entries)
    groups = read_all(store, configuration, time_zone=BERLIN).groups
    assert groups[day.isoformat()].requests == 2 * hours
    assert groups[(day - timedelta(days=1)).isoformat()].requests == 48


@pytest.mark.parametrize(("zone", "expected"), [("Europe/Berlin", "2026-03-02"), ("America/New_York", "2026-03-01")])
def test_days_are_those_of_this_machine_unless_utc_is_wanted(monkeypatch, configuration, zone, expected):
    """Without a zone the local one counts, with the same day as the clock on the wall shows."""
    import time

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        at = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)
        store = MemoryStore()
        add_session(store, "s", make_call(1, at, at))
        assert list(read_all(store, configuration).groups) == [expected]
        assert list(read_all(store, configuration, time_zone=UTC).groups) == ["2026-03-01"]
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.dates(date(1971, 1, 1), date(2100, 1, 1)))
def test_a_week_begins_on_its_monday(day):
    """The name of a week is a Monday at most six days before, also over the turn of a year."""
    monday = date.fromisoformat(name_time_group("week", day))
    assert monday.weekday() == 0
    assert 0 <= (day - monday).days < 7
    assert name_time_group("month", day) == f"{day.year}-{day.month:02}"


@pytest.mark.parametrize("time_ms", [None, 10**18, -(10**18)])
def test_times_outside_the_calendar_are_unknown(time_ms):
    """A recording may hold any number as its time."""
    assert find_day(time_ms, UTC) is None
    assert find_day(time_ms, None) is None


@given(st.dates() | st.sampled_from([date.min, date.max]), st.integers(-(2**62), 2**62))
def test_every_day_of_the_calendar_can_be_a_bound(day, time_ms):
    """The first and the last day of the calendar are bounds like all others, for any time of a session."""
    info = SessionInfo("one", updated_at=time_ms)
    changed = find_day(time_ms, UTC)
    is_possible = CallFilter(since=day, until=day, time_zone=UTC).can_have_calls(info)
    assert is_possible == (changed is None or changed.toordinal() + 1 >= day.toordinal())


def test_groups_are_sorted_newest_or_dearest_first(configuration):
    """Days run backwards; models with more cost come first, and what the log does not name is the last."""
    store = MemoryStore()
    at = datetime(2026, 5, 3, 12, tzinfo=UTC)
    cheap = make_call(1, at, at)
    dear = make_call(2, at + timedelta(days=9), at + timedelta(days=9), "a1")
    dear[1] = replace(dear[1], body=RequestEntry("d", 1, "claude-opus-4-5"))
    nameless = make_call(3, at, at, "a2")
    nameless[1] = replace(nameless[1], body=RequestEntry("d", 1))
    add_session(store, "s", cheap + dear + nameless)
    assert list(read_all(store, configuration, time_zone=UTC).groups) == ["2026-05-12", "2026-05-03"]
    assert list(read_all(store, configuration, by="model").groups) == ["claude-opus-4-5", "gpt-5", ""]


def test_a_damaged_session_is_named_and_left_out(tmp_path, configuration):
    """One answer that cannot be read loses the figures of its own session, and no others."""
    path: Path = tmp_path / "store.db"
    at = datetime(2026, 5, 3, 12, tzinfo=UTC)
    with SqliteStore(path) as store:
        for key in ("damaged", "sound"):
            add_session(store, key, make_call(1, at, at))
    with sqlite3.connect(path) as db:
        damaged = "(SELECT session FROM sessions WHERE key = 'damaged')"
        db.execute(f"UPDATE entries SET body = x'00' WHERE id = 'a1' AND session = {damaged}")
    db.close()
    with SqliteStore(path, readonly=True) as store:
        report = read_all(store, configuration, by="session")
    assert list(report.groups) == ["sound"]
    (left_out,) = report.left_out
    assert left_out.session == "damaged"
    assert "a1" in left_out.reason


def test_messages_are_not_read(tmp_path, configuration):
    """A message after the first can be unreadable: no figure needs it."""
    path: Path = tmp_path / "store.db"
    at = datetime(2026, 5, 3, 12, tzinfo=UTC)
    with SqliteStore(path) as store:
        add_session(store, "s", [*make_call(1, at, at), *make_call(2, at, at, "a1")])
    with sqlite3.connect(path) as db:
        db.execute("UPDATE entries SET body = x'00', raw = NULL WHERE id = 'm2'")
    db.close()
    with SqliteStore(path, readonly=True) as store:
        report = read_all(store, configuration)
    assert (report.total.requests, report.left_out) == (2, ())
