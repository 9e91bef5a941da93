"""Shortening long results in the log: a copied branch with shorter results, beside the unchanged old one."""

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
TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
LIMITS = POLICY.rules.get_result_limits(200_000)


def build_read_step(number, lines):
    """Return a tool call and its result of ``lines`` lines."""
    text = "\n".join(f"line {line} of file {number}" for line in range(lines))
    call = Message("assistant", (ToolCall(f"c{number}", "read", '{"path":"f"}'),))
    return call, Message("tool", (ToolResult(f"c{number}", "read", (Text(text),)),))


@pytest.fixture
def journal(store):
    """Return the journal of a session with a short result, an oversized one and an answer."""
    new_journal = Journal.open(store, SAMPLE_KEY, POLICY)
    new_journal.append(
        Message.from_text("user", "go"),
        *build_read_step(0, 10),
        *build_read_step(1, 900),
        Message.from_text("assistant", "I see."),
    )
    return new_journal


def list_result_texts(slots):
    """Return the texts of the results in a request."""
    return [get_result_text(result) for slot in slots for result in slot.message.results]


def list_message_entries(store, leaf):
    """Return the entries of a branch that add a message."""
    return [
        entry
        for entry in store.read_path(SAMPLE_KEY, leaf)
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry)
    ]


def test_shorten_long_results_moves_the_journal_to_a_shortened_branch(journal, store):
    """This journal and journals opened later continue on the copied branch, whose results are within their limits."""
    texts_before = list_result_texts(build_projection(journal.state))
    outcome = shorten_long_results(journal, TARGET)
    assert (outcome.leaf, outcome.messages, outcome.why) == (journal.leaf, 1, "")
    texts_after = list_result_texts(journal.prepare_request(TARGET).messages)
    assert texts_after[0] == texts_before[0]
    assert len(texts_after[1]) <= LIMITS.per_result < len(texts_before[1])
    assert texts_before[1].startswith(texts_after[1][:500])
    assert "characters left out" in texts_after[1]
    journal.record_answer(Message.from_text("assistant", "Done."))
    reopened = Journal.open(store, SAMPLE_KEY, POLICY)
    assert reopened.leaf == journal.leaf
    assert is_same_request(reopened.state, journal.state)
    assert is_same_request(reopened.state, ConversationState.from_entries(store.read_path(SAMPLE_KEY)))


def test_shorten_long_results_leaves_the_old_branch_unchanged(journal, store):
    """The copy begins at the parent of the first shortened message; the old branch keeps every text."""
    leaf, before = journal.leaf, store.read_path(SAMPLE_KEY)
    shorten_long_results(journal, TARGET)
    assert store.read_path(SAMPLE_KEY, leaf) == before
    old, new = list_message_entries(store, leaf), list_message_entries(store, journal.leaf)
    assert [entry.id for entry in new[:4]] == [entry.id for entry in old[:4]]
    assert new[4].parent == old[4].parent
    assert not {entry.id for entry in new[4:]} & {entry.id for entry in old}
    assert new[5].body == old[5].body


def test_shorten_long_results_copies_labels(journal, store):
    """A label of a copied message names it on both branches."""
    answer = list_message_entries(store, journal.leaf)[-1].id
    store.label_entry(SAMPLE_KEY, answer, "here")
    shorten_long_results(journal, TARGET)
    copy = list_message_entries(store, journal.leaf)[-1].id
    assert store.read_labels(SAMPLE_KEY) == {answer: "here", copy: "here"}
    assert {entry.body for entry in store.read_entries(SAMPLE_KEY, "label")} == {
        LabelEntry(answer, "here"),
        LabelEntry(copy, "here"),
    }


def test_shorten_long_results_writes_nothing_the_second_time(journal, store):
    """When no result is over its limit nothing is written, and the outcome says why."""
    shorten_long_results(journal, TARGET)
    leaf, count = journal.leaf, store.get_session(SAMPLE_KEY).entry_count
    outcome = shorten_long_results(journal, TARGET)
    assert (outcome.leaf, outcome.messages) == (None, 0)
    assert outcome.why == "no result is over its limit: 6,000 weighted characters"
    assert (journal.leaf, store.get_session(SAMPLE_KEY).entry_count) == (leaf, count)


def test_shorten_long_results_reads_no_log_when_nothing_is_over_a_limit(journal, store, monkeypatch):
    """The state in memory shows whether a result is over its limit or whether the policy has limits at all."""
    monkeypatch.setattr(store, "read_path", None)
    journal.policy = POLICY.with_settings(preset={"truncate_max_chars": 400_000})
    assert shorten_long_results(journal, TARGET).leaf is None
    journal.policy = Policy()
    assert "sets no limit" in shorten_long_results(journal, TARGET).why
    assert shorten_long_results(Journal.open(MemoryStore(), SAMPLE_KEY, POLICY), TARGET).leaf is None


def test_shorten_long_results_applies_the_limit_of_all_results_together(store):
    """When all results together are too long, the oldest ones are shortened first."""
    journal = Journal.open(
        store, SAMPLE_KEY, POLICY.with_settings(preset={"truncate_total_factor": 2, "truncate_total_share": 0.0})
    )
    journal.append(
        Message.from_text("user", "go"), *(message for number in range(4) for message in build_read_step(number, 180))
    )
    limits = journal.policy.rules.get_result_limits(200_000)
    before = list_result_texts(build_projection(journal.state))
    assert all(len(text) < limits.per_result for text in before)
    assert shorten_long_results(journal, TARGET).messages == 1
    after = list_result_texts(build_projection(journal.state))
    assert not has_oversized_results(journal.state.history.messages, limits)
    assert [new == old for new, old in zip(after, before, strict=True)] == [False, True, True, True]
    assert shorten_long_results(journal, TARGET).leaf is None


def test_shorten_long_results_counts_reduced_results_as_reduced(journal, store):
    """A result that a decision shortened counts with its short text, and stays short when others are shortened."""
    journal.policy = Policy().with_settings(results={"spill_chars": 1_000})
    journal.prepare_request(TARGET)
    texts_before = list_result_texts(build_projection(journal.state))
    assert list(journal.state.view.edits) == [4]
    journal.policy = POLICY
    assert shorten_long_results(journal, TARGET).leaf is None
    journal.append(*build_read_step(2, 900))
    assert shorten_long_results(journal, TARGET).messages == 1
    assert list_result_texts(build_projection(journal.state))[:2] == texts_before
    journal.policy = POLICY.with_settings(preset={"truncate_max_chars": 400, "truncate_total_factor": 9})
    assert shorten_long_results(journal, TARGET).messages == 2
    assert all(len(text) <= 400 for text in list_result_texts(build_projection(journal.state)))


def test_shorten_long_results_ignores_hidden_results(journal, store):
    """A result that a compaction hides is neither shortened nor counted."""
    journal.policy = POLICY.with_settings(history={"max_turns": 1})
    journal.append(Message.from_text("user", "and now?"), *build_read_step(2, 10))
    journal.prepare_request(TARGET)
    assert journal.state.view.first_kept == 6
    reopened = Journal.open(store, SAMPLE_KEY, POLICY)
    assert shorten_long_results(journal, TARGET).leaf is shorten_long_results(reopened, TARGET).leaf is None


def test_journal_applies_the_turn_limit_of_its_session_key(store):
    """The turn limit of the channel or the user that the session key names applies, also on a fork."""
    chat = ChannelLimits(dm_history_limit=3, dms={"77": UserLimits(1)})
    policy = Policy.preset("openclaw").with_settings(history={"channels": {"chat": chat}})
    message_counts = {}
    for key in ("agent:main:chat:direct:77", "chat:direct:5", "cron:daily"):
        journal = Journal.open(store, key, policy)
        for turn in range(5):
            journal.append(Message.from_text("user", f"turn {turn}"), Message.from_text("assistant", "yes"))
        journal.append(Message.from_text("user", "the last"))
        fork = journal.fork_at(journal.leaf)
        message_counts[key] = [len(branch.prepare_request(TARGET).messages) for branch in (journal, fork)]
    assert message_counts == {"agent:main:chat:direct:77": [1, 1], "chat:direct:5": [5, 5], "cron:daily": [11, 11]}
