"""The timeline and the contents of its requests agree with the log, for any log."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_strategies import log_strategy
from msgspec.structs import replace

from holdfast.config import load_shipped_catalog
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.reports.messages.message_events import list_message_events, read_decision_entries
from holdfast.reports.requests.cache_misses import find_session_misses
from holdfast.reports.requests.request_view import SUMMARY_NUMBER, HiddenMessages, ShownMessage, build_request_view
from holdfast.reports.sessions.timeline import build_timeline, load_timeline, read_request_contents
from holdfast.state.cache_misses import UNREPORTED
from holdfast.state.conversation_state import ConversationState
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
    RevokeEntry,
    Usage,
)
from holdfast.state.view import list_projection_origins
from holdfast.store.base import SessionInfo
from holdfast.store.memory import MemoryStore

MODEL = "claude-sonnet-4-6"


def chain_entries(entries):
    """Return ``entries`` with unique ids, each the child of the one before, as a store would hold them."""
    names = {entry.id: f"{index}:{entry.id}" for index, entry in enumerate(entries)}
    out = []
    for index, entry in enumerate(entries):
        body = RevokeEntry(names.get(entry.body.revoked_id, "")) if isinstance(entry.body, RevokeEntry) else entry.body
        out.append(replace(entry, id=f"{index}:{entry.id}", parent=out[-1].id if out else None, body=body))
    return out


def make_store(bodies):
    """Return a store with one session of ``bodies``, and its description."""
    store = MemoryStore()
    store.create_session("one", SessionInfo("one", model=MODEL))
    parent = None
    for index, body in enumerate(bodies):
        entry = Entry(f"entry-{index:03}", parent, body, time_ms=1_000 * index)
        store.append_entries("one", [entry])
        parent = entry.id
    return store, store.get_session("one")


def say(role, text):
    """Return the body of a message."""
    return MessageEntry(build_sized_message(Message(role, (Text(text),))))


def make_session():
    """Return a store with a session of four requests: a refusal, a compaction and its undo, a shortened message."""
    rule = say("user", "Never restart the server.\nFind out why it is slow.")
    return make_store(
        [
            rule,
            RequestEntry("a", 1, MODEL, 20_000),
            AnswerEntry("a", Usage(100, 10, 0, 90)),
            say("assistant", "I look."),
            say("user", "log " * 400),
            RequestEntry("b", 3, MODEL, 20_000),
            FailureEntry("overflow", "prompt is too long"),
            DecisionEntry((Edit(Span(2, 3), (Message("user", (Text("short"),)),), "prune", "it is old", 390),)),
            RequestEntry("c", 3, MODEL, 20_000),
            AnswerEntry("c", Usage(300, 10, 90, 200)),
            say("assistant", "Found."),
            say("user", "Go on."),
            CompactionEntry(3, Message("user", (Text("Summary: Never restart the server."),)), 10, (), 400, 100),
            RequestEntry("d", 5, MODEL, 20_000),
            AnswerEntry("d", Usage(120, 10)),
        ]
    )


@given(log_strategy().map(chain_entries))
def test_every_entry_stands_in_the_timeline_once(entries):
    """Requests, usages and decisions of any log are in its timeline, each once and in order."""
    timeline = build_timeline(entries, SessionInfo("one"), load_shipped_catalog())
    assert [request.request for request in timeline.requests] == [
        entry.id for entry in entries if isinstance(entry.body, RequestEntry)
    ]
    assert [request.number for request in timeline.requests] == list(range(1, len(timeline.requests) + 1))
    marks = [mark for request in timeline.requests for mark in request.marks] + list(timeline.pending_marks)
    marks = [mark for mark in marks if mark.kind != "pause"]
    events = (DecisionEntry, CompactionEntry, FailureEntry, RevokeEntry)
    assert [mark.entry for mark in marks] == [entry.id for entry in entries if isinstance(entry.body, events)]


@given(log_strategy().map(chain_entries))
def test_a_request_shows_or_hides_each_message(entries):
    """The items of a request are exactly what its projection shows, and the messages between as hidden ones."""
    timeline = build_timeline(entries, SessionInfo("one"), load_shipped_catalog())
    at = {entry.id: index for index, entry in enumerate(entries)}
    for request in timeline.requests:
        state = ConversationState.from_entries(entries[: at[request.request] + 1])
        view = build_request_view(state, request)
        shown = [item.number for item in view.items if isinstance(item, ShownMessage)]
        assert sorted(shown) == sorted(list_projection_origins(state))
        hidden = []
        for item in view.items:
            if isinstance(item, HiddenMessages):
                hidden += range(item.first, item.last + 1)
        last = max([number for number in shown if number != SUMMARY_NUMBER], default=-1)
        assert sorted({*shown, *hidden} - {SUMMARY_NUMBER}) == list(range(last + 1))
        assert not set(shown) & set(hidden)


def test_a_timeline_reads_no_message():
    """A log of any size has a timeline at once: no message is read for it."""

    class MessageGuard(MemoryStore):
        def read_entries(self, key, kind=None, *, after=0):
            assert kind not in {None, "message"}
            return super().read_entries(key, kind, after=after)

    store, _ = make_session()
    guarded = MessageGuard()
    guarded.import_entries("one", store.read_path("one"), info=SessionInfo("one", model=MODEL))
    timeline = load_timeline(guarded, guarded.get_session("one"), load_shipped_catalog())
    assert [request.usage.input for request in timeline.requests] == [100, 0, 300, 120]
    assert timeline.message_ids == ("entry-000", "entry-003", "entry-004", "entry-010", "entry-011")


def test_a_timeline_tells_what_happened_before_each_request():
    """Refusals, decisions and compactions stand at the request that they were made for, with its cost and window."""
    store, info = make_session()
    first, refused, shortened, compacted = load_timeline(store, info, load_shipped_catalog()).requests
    assert [mark.kind for mark in shortened.marks] == ["overflow", "decision"]
    assert shortened.marks[1].text == "prune 1"
    assert shortened.marks[1].saves == 390
    assert [mark.kind for mark in compacted.marks] == ["compaction"]
    assert (first.marks, refused.is_answered, refused.dollars) == ((), False, None)
    assert first.window == 20_000
    assert first.dollars > 0


def read_kinds(store, info, requests):
    """Return what each of ``requests`` is made of, by its id."""
    contents = read_request_contents(store, info, requests, load_shipped_catalog())
    return {id_: content.kinds for id_, content in contents.items()}


def test_requests_are_composed_of_what_they_show():
    """The kinds of a request add up to the provider's count, and a compaction puts a summary in the place of users."""
    store, info = make_session()
    requests = load_timeline(store, info, load_shipped_catalog()).requests
    kinds = read_kinds(store, info, requests)
    assert sum(kinds[requests[0].request].values()) == 100
    assert set(kinds[requests[2].request]) == {"user", "assistant"}
    assert "summary" in kinds[requests[3].request]
    assert kinds == {**read_kinds(store, info, requests[:2]), **read_kinds(store, info, requests[2:])}


def test_a_request_says_what_was_replaced_and_by_which_rule():
    """A shortened message has its size before, its rule and reason; cached ones are told from new ones."""
    store, info = make_session()
    request = load_timeline(store, info, load_shipped_catalog()).requests[2]
    view = build_request_view(store.open_state(info.key, request.request), request)
    assert [item.shown_as for item in view.items] == ["whole", "whole", "reduced"]
    reduced = view.items[2]
    assert reduced.text == "short"
    assert reduced.said_tokens > reduced.tokens
    assert [(edit.rule, edit.why) for edit in reduced.edits] == [("prune", "it is old")]
    assert view.items[0].cache in {"read", "written"}
    assert (view.tokens, view.is_counted) == (300, True)


def test_a_message_has_a_history():
    """Said, first sent, shortened, hidden by each compaction that does so, and undone."""
    store, info = make_session()
    compaction = next(entry for entry in store.read_path("one") if isinstance(entry.body, CompactionEntry))
    second = CompactionEntry(4, Message("user", (Text("Summary."),)), 5, (), 300, 90)
    for body in (second, RevokeEntry(compaction.id)):
        leaf = store.get_session("one").leaf_id
        store.append_entries("one", [Entry(f"later-{type(body).__name__}", leaf, body)])
    info = store.get_session("one")
    timeline = load_timeline(store, info, load_shipped_catalog())
    said = store.get_entry("one", timeline.message_ids[2])
    events = list_message_events(timeline, read_decision_entries(store, "one", timeline), 2, said)
    assert [event.kind for event in events] == ["said", "sent", "reduced", "hidden", "hidden", "undone"]
    assert [event.is_undone for event in events] == [False, False, False, True, False, False]
    assert events[1].request == 2


@pytest.mark.parametrize("undo_first", [False, True])
def test_the_newest_compaction_in_force_decides_about_a_message(undo_first):
    """Undoing an earlier one changes nothing, also if an edit was undone, or the first one undone and restored."""
    store, _ = make_session()
    path = store.read_path("one")
    first = next(entry for entry in path if isinstance(entry.body, CompactionEntry))
    edit = next(entry for entry in path if isinstance(entry.body, DecisionEntry))
    bodies = [RevokeEntry(edit.id), CompactionEntry(4, Message("user", (Text("Summary."),)), 5, (), 300, 90)]
    if undo_first:
        bodies[:0] = [RevokeEntry(first.id), RevokeEntry(first.id, is_restored=True)]
    for number, body in enumerate(bodies):
        store.append_entries("one", [Entry(f"later-{number}", store.get_session("one").leaf_id, body)])
    timeline = load_timeline(store, store.get_session("one"), load_shipped_catalog())
    said = store.get_entry("one", timeline.message_ids[2])
    events = list_message_events(timeline, read_decision_entries(store, "one", timeline), 2, said)
    hidden = [(event.entry, event.is_superseded) for event in events if event.kind == "hidden"]
    assert hidden == [(first.id, True), (f"later-{len(bodies) - 1}", False)]


CACHE_STEPS = st.lists(
    st.tuples(
        st.sampled_from([10, 400, 4_000]),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from(["", "", "shorten", "compact", "setup", "model"]),
    ),
    min_size=2,
    max_size=8,
)
"""Seconds since the request before, the share of its tokens that is read from the cache, and what changed meanwhile."""


def make_cached_log(steps):
    """Return the entries of a session whose requests read that much from the cache, and write the rest into it."""
    bodies, model, before = [], MODEL, 0
    for number, (seconds, share, change) in enumerate(steps):
        bodies.append((seconds, say("user", f"word {number} " * 3_000)))
        if change == "shorten":
            edit = Edit(Span(number, number + 1), (Message("user", (Text("short"),)),), "prune", "it is old", 9_000)
            bodies.append((0, DecisionEntry((edit,))))
        elif change == "compact":
            bodies.append((0, CompactionEntry(number, Message("user", (Text("What was said before."),)), 10)))
        elif change == "setup":
            bodies.append((0, RequestSetup(f"setup {number}", 100)))
        elif change == "model":
            model = "claude-opus-4-5" if model == MODEL else MODEL
        tokens = 9_000 * (number + 1)
        read = round(share * min(before, tokens))
        before = tokens
        bodies.append((0, RequestEntry(f"digest {number}", number + 1, model, 200_000, "anthropic")))
        bodies.append((1, AnswerEntry(f"digest {number}", Usage(tokens, 10, read, tokens - read))))
    entries, at = [], 0
    for number, (seconds, body) in enumerate(bodies):
        at += 1_000 * seconds
        entries.append(Entry(f"e{number}", f"e{number - 1}" if number else None, body, time_ms=at))
    return entries


@given(CACHE_STEPS)
@example([(10, 1.0, ""), (400, 0.0, "")])
@example([(10, 1.0, ""), (10, 0.0, "compact"), (10, 1.0, "")])
def test_cache_misses_of_a_timeline_are_those_of_the_session(steps):
    """On a log of one branch, wherever its page begins, each miss is the one that the whole session has there."""
    catalog = load_shipped_catalog()
    entries = make_cached_log(steps)
    store = MemoryStore()
    store.import_entries("one", entries, info=SessionInfo("one", model=MODEL))
    info = store.get_session("one")
    requests = load_timeline(store, info, catalog).requests
    expected = find_session_misses(entries, catalog, MODEL)
    assert UNREPORTED not in {miss.cause for miss in expected.values()}
    whole = read_request_contents(store, info, requests, catalog)
    assert {id_: content.cache_miss for id_, content in whole.items() if content.cache_miss is not None} == expected
    for before, request in pairwise(requests):
        contents = read_request_contents(store, info, (request,), catalog, before)
        found = contents[request.request].cache_miss
        known = expected.get(request.request)
        # An older request may have left more in the cache than the one before; a page looks at that one alone.
        if known is None or known.previous_request == before.request:
            assert found == known


def test_a_pause_is_marked_if_the_cache_did_not_outlive_it():
    """Five minutes usually, an hour where the cache was written for an hour; never for a model that used no cache."""
    for usage, seconds, is_marked in (
        (Usage(2_000, 1, 0, 2_000), 299, False),
        (Usage(2_000, 1, 0, 2_000), 301, True),
        (Usage(2_000, 1, 0, 2_000, cache_write_1h=2_000), 301, False),
        (Usage(2_000, 1, 0, 2_000, cache_write_1h=2_000), 3_601, True),
        (Usage(2_000, 1), 3_601, False),
    ):
        sent_at = 4_000 + 1_000 * seconds
        entries = [
            Entry("a", None, RequestEntry("a", 0, MODEL), time_ms=1_000),
            Entry("b", "a", AnswerEntry("a", usage), time_ms=4_000),
            Entry("c", "b", RequestEntry("c", 0, MODEL), time_ms=sent_at),
            Entry("d", "c", AnswerEntry("c", usage), time_ms=sent_at + 500),
        ]
        first, second = build_timeline(entries, SessionInfo("one"), load_shipped_catalog()).requests
        assert (first.pause_seconds, first.answer_seconds) == (None, 3.0)
        assert (second.pause_seconds, second.answer_seconds) == (seconds, 0.5)
        assert [mark.kind for mark in second.marks] == ["pause"] * is_marked


def test_a_timeline_takes_time_in_proportion_to_the_log():
    """The requests of a day with very many compactions are as quick to show as others."""
    bodies = []
    for number in range(25_000):
        bodies += [CompactionEntry(number), RequestEntry("d", number, MODEL), AnswerEntry("d", Usage(2_000, 1))]
    entries = [Entry(str(index), None, body) for index, body in enumerate(bodies)]
    start = time.process_time()
    requests = build_timeline(entries, SessionInfo("one"), load_shipped_catalog()).requests
    assert time.process_time() - start < 4
    assert requests[-1].first_kept == 24_999
