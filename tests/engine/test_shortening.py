"""Truncation in session: a copied branch that says results shorter, and the old one that stays whole."""

from __future__ import annotations

import pytest
from samples import KEY, same_request

from holdfast import Policy
from holdfast.config import target
from holdfast.engine.log.journal import Journal
from holdfast.engine.log.shortening import shorten
from holdfast.messages.message import Message, result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.settings import Channel, Person
from holdfast.planning.stages.truncate import bounds, is_oversized
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import project
from holdfast.state.entries import BranchSummary, Label, Said
from holdfast.store.memory import MemoryStore

POLICY = Policy.preset("openclaw").with_settings(truncate_most=6_000, truncate_together=4)
PLACE = target("anthropic", "claude-sonnet-4-5", window=200_000)
LIMITS = bounds(200_000, POLICY.settings)


def read(number, lines):
    """Return a call and its result of so many lines."""
    text = "\n".join(f"line {line} of file {number}" for line in range(lines))
    call = Message("assistant", (ToolCall(f"c{number}", "read", '{"path":"f"}'),))
    return call, Message("tool", (ToolResult(f"c{number}", "read", (Text(text),)),))


@pytest.fixture
def journal(store):
    """A session with a short result, an oversized one, and an answer behind them."""
    there = Journal.open(store, KEY, POLICY)
    there.append(Message.of("user", "go"), *read(0, 10), *read(1, 900), Message.of("assistant", "I see."))
    return there


def texts(slots):
    """Return the results that a request shows."""
    return [result_text(result) for slot in slots for result in slot.message.results]


def said(store, leaf):
    """Return the entries that add a message."""
    return [entry for entry in store.path(KEY, leaf) if isinstance(entry.body, Said | BranchSummary)]


def test_the_next_requests_show_the_cut_text(journal, store):
    """The journal goes on at the copied branch, whose results are within their limits; so does who opens it later."""
    whole = texts(project(journal.branch))
    done = shorten(journal, PLACE)
    assert (done.leaf, done.messages, done.why) == (journal.leaf, 1, "")
    short = texts(journal.prepare(PLACE).slots)
    assert short[0] == whole[0]
    assert len(short[1]) <= LIMITS.each < len(whole[1])
    assert whole[1].startswith(short[1][:500])
    assert "characters left out" in short[1]
    journal.record(Message.of("assistant", "Done."))
    again = Journal.open(store, KEY, POLICY)
    assert again.leaf == journal.leaf
    assert same_request(again.branch, journal.branch)
    assert same_request(again.branch, Branch.build(store.path(KEY)))


def test_the_old_branch_is_unchanged(journal, store):
    """The copy begins at the parent of the first message that is cut; what was said lies whole beside it."""
    leaf, before = journal.leaf, store.path(KEY)
    shorten(journal, PLACE)
    assert store.path(KEY, leaf) == before
    old, new = said(store, leaf), said(store, journal.leaf)
    assert [entry.id for entry in new[:4]] == [entry.id for entry in old[:4]]
    assert new[4].parent == old[4].parent
    assert not {entry.id for entry in new[4:]} & {entry.id for entry in old}
    assert new[5].body == old[5].body


def test_labels_name_the_copies(journal, store):
    """A label of a message behind the cut names it on both branches."""
    answer = said(store, journal.leaf)[-1].id
    store.label(KEY, answer, "here")
    shorten(journal, PLACE)
    copy = said(store, journal.leaf)[-1].id
    assert store.labels(KEY) == {answer: "here", copy: "here"}
    assert {entry.body for entry in store.entries(KEY, "label")} == {Label(answer, "here"), Label(copy, "here")}


def test_twice_is_nothing_more(journal, store):
    """A second time nothing is over its limit: nothing is written, and that is said."""
    shorten(journal, PLACE)
    leaf, count = journal.leaf, store.session(KEY).entries
    done = shorten(journal, PLACE)
    assert (done.leaf, done.messages) == (None, 0)
    assert done.why == "no result is over its limit: 6,000 weighted characters"
    assert (journal.leaf, store.session(KEY).entries) == (leaf, count)


def test_nothing_is_read_where_nothing_is_over(journal, store, monkeypatch):
    """Whether something is over its limit is seen on the branch in memory, also that a policy has no limits."""
    monkeypatch.setattr(store, "path", None)
    journal.policy = POLICY.with_settings(truncate_most=400_000)
    assert shorten(journal, PLACE).leaf is None
    journal.policy = Policy()
    assert "truncate_share is 0" in shorten(journal, PLACE).why
    assert shorten(Journal.open(MemoryStore(), KEY, POLICY), PLACE).leaf is None


def test_together_they_have_a_limit_too(store):
    """Results that are each within their limit give, the oldest first, while all together are too much."""
    journal = Journal.open(store, KEY, POLICY.with_settings(truncate_together=2, truncate_together_share=0.0))
    journal.append(Message.of("user", "go"), *(one for number in range(4) for one in read(number, 180)))
    limits = bounds(200_000, journal.policy.settings)
    before = texts(project(journal.branch))
    assert all(len(text) < limits.each for text in before)
    assert shorten(journal, PLACE).messages == 1
    after = texts(project(journal.branch))
    assert not is_oversized(journal.branch.messages, limits)
    assert [new == old for new, old in zip(after, before, strict=True)] == [False, True, True, True]
    assert shorten(journal, PLACE).leaf is None


def test_what_is_reduced_already_stays_so(journal, store):
    """What a decision shows shorter counts as that, and is not said long again because something else is cut."""
    journal.policy = Policy().with_settings(spill_chars=1_000)
    journal.prepare(PLACE)
    short = texts(project(journal.branch))
    assert list(journal.branch.edits) == [4]
    journal.policy = POLICY
    assert shorten(journal, PLACE).leaf is None
    journal.append(*read(2, 900))
    assert shorten(journal, PLACE).messages == 1
    assert texts(project(journal.branch))[:2] == short
    journal.policy = POLICY.with_settings(truncate_most=400, truncate_together=9)
    assert shorten(journal, PLACE).messages == 2
    assert all(len(text) <= 400 for text in texts(project(journal.branch)))


def test_turns_that_gave_way_are_no_reason(journal, store):
    """A result that a compaction hides is neither cut nor counted."""
    journal.policy = POLICY.with_settings(history_turns=1)
    journal.append(Message.of("user", "and now?"), *read(2, 10))
    journal.prepare(PLACE)
    assert journal.branch.keep == 6
    again = Journal.open(store, KEY, POLICY)
    assert shorten(journal, PLACE).leaf is shorten(again, PLACE).leaf is None


def test_a_channel_limits_the_turns_of_its_sessions(store):
    """The policy of a session is the one for its key: its channel's or its user's limit of turns counts."""
    chat = Channel(dm_history_limit=3, dms={"77": Person(1)})
    policy = Policy.preset("openclaw").with_settings(channels={"chat": chat})
    shown = {}
    for key in ("agent:main:chat:direct:77", "chat:direct:5", "cron:daily"):
        journal = Journal.open(store, key, policy)
        for turn in range(5):
            journal.append(Message.of("user", f"turn {turn}"), Message.of("assistant", "yes"))
        journal.append(Message.of("user", "the last"))
        fork = journal.fork(journal.leaf)
        shown[key] = [len(one.prepare(PLACE).slots) for one in (journal, fork)]
    assert shown == {"agent:main:chat:direct:77": [1, 1], "chat:direct:5": [5, 5], "cron:daily": [11, 11]}
