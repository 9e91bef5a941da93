"""The figures of ``holdfast watch``, read from a store that grows."""

from __future__ import annotations

from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import load_configuration
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.reports.requests.cache_misses import find_session_misses
from holdfast.reports.requests.request_size import measure_session_request
from holdfast.reports.sessions.account import compute_savings_and_state
from holdfast.reports.sessions.watched_sessions import KEPT_STATES, StoreFollower, describe_decision
from holdfast.state.cache_misses import UNREPORTED
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    EntryBody,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    RevokeEntry,
    Usage,
)
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store

MODEL = "claude-sonnet-4-5"
BASE = 1_800_000_000_000


def build_turn(number: int, *, cache_read: int = 0, model: str = MODEL) -> list[EntryBody]:
    """Return the entries of a turn: a question, its request, the reply and its usage."""
    words = f"question {number} " * 400
    return [
        MessageEntry(build_sized_message(Message.from_text("user", words))),
        RequestEntry(f"p{number}", 2 * number + 1, model=model, window=200_000, api="anthropic-messages"),
        MessageEntry(build_sized_message(Message.from_text("assistant", f"answer {number}"))),
        AnswerEntry(f"p{number}", Usage(8_000 * (number + 1), 50, cache_read=cache_read)),
    ]


class LogWriter:
    """Writes entries after the leaf of one session, ten seconds apart."""

    def __init__(self, store, key: str) -> None:
        self.store, self.key, self.count = store, key, 0
        self.leaf: str | None = None
        store.create_session(key)

    def append(self, *bodies: EntryBody, parent: str | None = None) -> None:
        for body in bodies:
            entry = Entry(f"{self.key}-{self.count}", parent or self.leaf, body, time_ms=BASE + 10_000 * self.count)
            self.store.append_entries(self.key, [entry])
            self.leaf, self.count, parent = entry.id, self.count + 1, None


class CountingStore:
    """A real store that also counts the entries that were read from it."""

    def __init__(self, store) -> None:
        self._store = store
        self.entries_read = 0

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def read_entries(self, key: str, kind: str | None = None, *, after: int = 0):
        entries = self._store.read_entries(key, kind, after=after)
        self.entries_read += len(entries)
        return entries

    def read_path(self, key: str, leaf: str | None = None):
        entries = self._store.read_path(key, leaf)
        self.entries_read += len(entries)
        return entries


COMPACTION = CompactionEntry(2, Message.from_text("user", "before"), 3, tokens_before=900, tokens_after=500)
STEPS = st.lists(st.sampled_from(["turn", "warm turn", "other model", "compact", "fork"]), min_size=1, max_size=8)


@given(STEPS, st.sets(st.integers(0, 8)))
def test_follower_agrees_with_reports_that_read_the_whole_log(steps, looks):
    """However often it looks while the log grows, the figures are those of stats and of the cache report."""
    store = MemoryStore()
    configuration = load_configuration()
    writer = LogWriter(store, "grows")
    follower = StoreFollower(configuration)
    turns = 0
    for number, step in enumerate(steps):
        if step == "compact":
            writer.append(CompactionEntry(0, Message.from_text("user", f"summary {number}"), 3))
        elif step == "fork":
            writer.append(*build_turn(0), parent=store.read_entries("grows")[0].id if writer.count else None)
        else:
            read = 7_000 * turns if step == "warm turn" else 0
            model = "claude-haiku-4-5" if step == "other model" else MODEL
            writer.append(*build_turn(turns, cache_read=read, model=model))
            turns += 1
        if number in looks:
            follower.read_changes(store)
    follower.read_changes(store)
    (shown,) = follower.sessions
    entries = store.read_entries("grows")
    account, _ = compute_savings_and_state("grows", entries, store.get_session("grows").leaf_id, configuration.catalog)
    misses = find_session_misses(entries, configuration.catalog).values()
    causes = [miss.cause for miss in misses if miss.cause != UNREPORTED]
    assert shown.requests == account.requests
    assert shown.compactions == account.compactions
    assert (shown.dollars or 0.0) == pytest.approx(account.dollars)
    assert (shown.cache_share or 0.0) == pytest.approx(account.cache_hit)
    assert shown.miss_cause == (causes[-1] if causes else "")


def test_follower_reads_only_what_is_new():
    """A look costs the entries that came since the last one: none if nothing changed, whatever the log's length."""
    plain = MemoryStore()
    store = CountingStore(plain)
    writer = LogWriter(plain, "long")
    for number in range(100):
        writer.append(*build_turn(number))
    follower = StoreFollower(load_configuration())
    assert len(follower.read_changes(store)) == 1
    assert store.entries_read == 400
    assert follower.read_changes(store) == ()
    assert store.entries_read == 400
    writer.append(*build_turn(100))
    (shown,) = follower.read_changes(store)
    assert (store.entries_read, shown.requests) == (404, 101)


def test_follower_sees_all_of_two_concurrent_writers(tmp_path):
    """While two threads write two sessions through stores of their own, every look succeeds, figures never go back, and
    the last look has everything."""
    path = tmp_path / "holdfast.db"
    open_store(path).close()
    turns = 25

    def write(key: str) -> None:
        with open_store(path) as own_store:
            writer = LogWriter(own_store, key)
            for number in range(turns):
                writer.append(*build_turn(number))

    threads = [Thread(target=write, args=(key,)) for key in ("first", "second")]
    for thread in threads:
        thread.start()
    follower = StoreFollower(load_configuration())
    seen: dict[str, int] = {}
    with open_store(path, readonly=True) as store:
        while any(thread.is_alive() for thread in threads):
            for shown in follower.read_changes(store):
                assert not shown.problem
                assert shown.requests >= seen.get(shown.session, 0)
                seen[shown.session] = shown.requests
        for thread in threads:
            thread.join()
        follower.read_changes(store)
    assert {shown.session: shown.requests for shown in follower.sessions} == {"first": turns, "second": turns}


def test_follower_forgets_removed_sessions_and_begins_a_new_one_anew():
    """A session that was removed is gone from the view; one made again under its id has only its own figures."""
    store = MemoryStore()
    LogWriter(store, "again").append(*build_turn(0), *build_turn(1))
    follower = StoreFollower(load_configuration())
    follower.read_changes(store)
    store.remove_session("again")
    assert follower.read_changes(store) == ()
    assert follower.sessions == ()
    LogWriter(store, "again").append(*build_turn(0))
    (shown,) = follower.read_changes(store)
    assert shown.requests == 1


def test_follower_sorts_by_newest_request_and_follows_only_so_many():
    """The session with the newest request stands first."""
    store = MemoryStore()
    LogWriter(store, "older").append(*build_turn(0))
    LogWriter(store, "newer").append(*build_turn(0), *build_turn(1))
    follower = StoreFollower(load_configuration())
    follower.read_changes(store)
    assert [shown.session for shown in follower.sessions] == ["newer", "older"]
    few = StoreFollower(load_configuration(), session_count=1)
    few.read_changes(store)
    assert len(few.sessions) == 1


def test_follower_reads_the_path_of_a_branch_that_begins_far_back():
    """A branch from the beginning of a long log, whose states are no longer kept, has the size that context gives."""
    plain = MemoryStore()
    store = CountingStore(plain)
    writer = LogWriter(plain, "long")
    for number in range(KEPT_STATES // 4 + 10):
        writer.append(*build_turn(number))
    follower = StoreFollower(load_configuration())
    follower.read_changes(store)
    entries_read = store.entries_read
    first_turn = plain.read_entries("long")[3].id
    writer.append(*build_turn(1), parent=first_turn)
    plain.set_leaf("long", writer.leaf)
    (shown,) = follower.read_changes(store)
    assert store.entries_read == entries_read + 4 + 4, "the path of the fork, and the new entries"
    info = plain.get_session("long")
    assert shown.tokens == measure_session_request(info, plain.open_state("long")).tokens
    assert shown.requests == KEPT_STATES // 4 + 11


def make_edit(rule: str) -> Edit:
    return Edit(Span(0, 1), (), rule, "too long", 100)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (COMPACTION, "compacted ~900 → ~500"),
        (RevokeEntry("d1"), "undid d1"),
        (CompactionEntry(2, trigger="overflow"), "compacted (overflow)"),
        (DecisionEntry((make_edit("prune"), make_edit("spill"), make_edit("prune"))), "prune 2, spill 1: ~300 less"),
        (FailureEntry("overflow"), ""),
    ],
)
def test_describe_decision_uses_words_and_numbers(body, words):
    """A compaction names its sizes, an undo its decision; other entries are no decisions."""
    assert describe_decision(body) == words
