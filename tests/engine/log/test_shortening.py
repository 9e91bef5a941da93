"""Truncation in session: a copied branch that says results shorter, and the old one that stays whole."""

from __future__ import annotations

import pytest
from sample_entries import SAMPLE_KEY, is_same_request

from holdfast import Policy
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.engine.log.shortening import shorten_long_results
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.settings import ChannelLimits, UserLimits
from holdfast.planning.stages.truncate import has_oversized_results
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import BranchSummaryEntry, LabelEntry, MessageEntry
from holdfast.state.view import build_projection
from holdfast.store.memory import MemoryStore

POLICY = Policy.preset("openclaw").with_settings(preset={"truncate_max_chars": 6_000, "truncate_total_factor": 4})
PLACE = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
LIMITS = POLICY.rules.get_result_limits(200_000)


def read(number, lines):
    """Return a call and its result of so many lines."""
    text = "\n".join(f"line {line} of file {number}" for line in range(lines))
    call = Message("assistant", (ToolCall(f"c{number}", "read", '{"path":"f"}'),))
    return call, Message("tool", (ToolResult(f"c{number}", "read", (Text(text),)),))


@pytest.fixture
def journal(store):
    """A session with a short result, an oversized one, and an answer behind them."""
    there = Journal.open(store, SAMPLE_KEY, POLICY)
    there.append(Message.from_text("user", "go"), *read(0, 10), *read(1, 900), Message.from_text("assistant", "I see."))
    return there


def texts(slots):
    """Return the results that a request shows."""
    return [get_result_text(result) for slot in slots for result in slot.message.results]


def said(store, leaf):
    """Return the entries that add a message."""
    return [
        entry
        for entry in store.read_path(SAMPLE_KEY, leaf)
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry)
    ]


def test_the_next_requests_show_the_cut_text(journal, store):
    """The journal goes on at the copied branch, whose results are within their limits; so does who opens it later."""
    whole = texts(build_projection(journal.state))
    done = shorten_long_results(journal, PLACE)
    assert (done.leaf, done.messages, done.why) == (journal.leaf, 1, "")
    short = texts(journal.prepare_request(PLACE).messages)
    assert short[0] == whole[0]
    assert len(short[1]) <= LIMITS.per_result < len(whole[1])
    assert whole[1].startswith(short[1][:500])
    assert "characters left out" in short[1]
    journal.record_answer(Message.from_text("assistant", "Done."))
    again = Journal.open(store, SAMPLE_KEY, POLICY)
    assert again.leaf == journal.leaf
    assert is_same_request(again.state, journal.state)
    assert is_same_request(again.state, ConversationState.from_entries(store.read_path(SAMPLE_KEY)))


def test_the_old_branch_is_unchanged(journal, store):
    """The copy begins at the parent of the first message that is cut; what was said lies whole beside it."""
    leaf, before = journal.leaf, store.read_path(SAMPLE_KEY)
    shorten_long_results(journal, PLACE)
    assert store.read_path(SAMPLE_KEY, leaf) == before
    old, new = said(store, leaf), said(store, journal.leaf)
    assert [entry.id for entry in new[:4]] == [entry.id for entry in old[:4]]
    assert new[4].parent == old[4].parent
    assert not {entry.id for entry in new[4:]} & {entry.id for entry in old}
    assert new[5].body == old[5].body


def test_labels_name_the_copies(journal, store):
    """A label of a message behind the cut names it on both branches."""
    answer = said(store, journal.leaf)[-1].id
    store.label_entry(SAMPLE_KEY, answer, "here")
    shorten_long_results(journal, PLACE)
    copy = said(store, journal.leaf)[-1].id
    assert store.read_labels(SAMPLE_KEY) == {answer: "here", copy: "here"}
    assert {entry.body for entry in store.read_entries(SAMPLE_KEY, "label")} == {
        LabelEntry(answer, "here"),
        LabelEntry(copy, "here"),
    }


def test_twice_is_nothing_more(journal, store):
    """A second time nothing is over its limit: nothing is written, and that is said."""
    shorten_long_results(journal, PLACE)
    leaf, count = journal.leaf, store.get_session(SAMPLE_KEY).entry_count
    done = shorten_long_results(journal, PLACE)
    assert (done.leaf, done.messages) == (None, 0)
    assert done.why == "no result is over its limit: 6,000 weighted characters"
    assert (journal.leaf, store.get_session(SAMPLE_KEY).entry_count) == (leaf, count)


def test_nothing_is_read_where_nothing_is_over(journal, store, monkeypatch):
    """Whether something is over its limit is seen on the branch in memory, also that a policy has no limits."""
    monkeypatch.setattr(store, "read_path", None)
    journal.policy = POLICY.with_settings(preset={"truncate_max_chars": 400_000})
    assert shorten_long_results(journal, PLACE).leaf is None
    journal.policy = Policy()
    assert "sets no limit" in shorten_long_results(journal, PLACE).why
    assert shorten_long_results(Journal.open(MemoryStore(), SAMPLE_KEY, POLICY), PLACE).leaf is None


def test_together_they_have_a_limit_too(store):
    """Results that are each within their limit give, the oldest first, while all together are too much."""
    journal = Journal.open(
        store, SAMPLE_KEY, POLICY.with_settings(preset={"truncate_total_factor": 2, "truncate_total_share": 0.0})
    )
    journal.append(Message.from_text("user", "go"), *(one for number in range(4) for one in read(number, 180)))
    limits = journal.policy.rules.get_result_limits(200_000)
    before = texts(build_projection(journal.state))
    assert all(len(text) < limits.per_result for text in before)
    assert shorten_long_results(journal, PLACE).messages == 1
    after = texts(build_projection(journal.state))
    assert not has_oversized_results(journal.state.history.messages, limits)
    assert [new == old for new, old in zip(after, before, strict=True)] == [False, True, True, True]
    assert shorten_long_results(journal, PLACE).leaf is None


def test_what_is_reduced_already_stays_so(journal, store):
    """What a decision shows shorter counts as that, and is not said long again because something else is cut."""
    journal.policy = Policy().with_settings(results={"spill_chars": 1_000})
    journal.prepare_request(PLACE)
    short = texts(build_projection(journal.state))
    assert list(journal.state.view.edits) == [4]
    journal.policy = POLICY
    assert shorten_long_results(journal, PLACE).leaf is None
    journal.append(*read(2, 900))
    assert shorten_long_results(journal, PLACE).messages == 1
    assert texts(build_projection(journal.state))[:2] == short
    journal.policy = POLICY.with_settings(preset={"truncate_max_chars": 400, "truncate_total_factor": 9})
    assert shorten_long_results(journal, PLACE).messages == 2
    assert all(len(text) <= 400 for text in texts(build_projection(journal.state)))


def test_turns_that_gave_way_are_no_reason(journal, store):
    """A result that a compaction hides is neither cut nor counted."""
    journal.policy = POLICY.with_settings(history={"max_turns": 1})
    journal.append(Message.from_text("user", "and now?"), *read(2, 10))
    journal.prepare_request(PLACE)
    assert journal.state.view.first_kept == 6
    again = Journal.open(store, SAMPLE_KEY, POLICY)
    assert shorten_long_results(journal, PLACE).leaf is shorten_long_results(again, PLACE).leaf is None


def test_a_channel_limits_the_turns_of_its_sessions(store):
    """The policy of a session is the one for its key: its channel's or its user's limit of turns counts."""
    chat = ChannelLimits(dm_history_limit=3, dms={"77": UserLimits(1)})
    policy = Policy.preset("openclaw").with_settings(history={"channels": {"chat": chat}})
    shown = {}
    for key in ("agent:main:chat:direct:77", "chat:direct:5", "cron:daily"):
        journal = Journal.open(store, key, policy)
        for turn in range(5):
            journal.append(Message.from_text("user", f"turn {turn}"), Message.from_text("assistant", "yes"))
        journal.append(Message.from_text("user", "the last"))
        fork = journal.fork_at(journal.leaf)
        shown[key] = [len(one.prepare_request(PLACE).messages) for one in (journal, fork)]
    assert shown == {"agent:main:chat:direct:77": [1, 1], "chat:direct:5": [5, 5], "cron:daily": [11, 11]}
