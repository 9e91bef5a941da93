"""Matching a client's conversation with the log, and what a new branch copies of earlier decisions."""

from functools import reduce
from operator import is_

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.config import get_target
from holdfast.engine.log.conversation_diff import ConversationMatcher, add_system_messages_to_setup, match_known_prefix
from holdfast.engine.log.fork import collect_decisions_to_copy
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import ProviderSignature, Text, Thinking
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.settings import Settings
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    AnswerEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
)
from holdfast.state.fold.fold_entries import apply_entries, apply_entry
from holdfast.state.fold.rewind import replace_raw_bytes
from holdfast.state.persistent_sequence import PersistentSequence, count_shared_prefix_items
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

words = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.sampled_from("abc")), max_size=8)


def build_sized_messages(words, mark=""):
    """Return sized messages of (role, text) pairs, with raw bytes that end in ``mark``."""
    return [
        replace(
            build_sized_message(Message.from_text(role, text)), api="anthropic", raw=Raw(f'"{text}{mark}"'.encode())
        )
        for role, text in words
    ]


@given(words, words, words, st.integers(0, 8), st.integers(0, 8))
def test_conversation_matcher_finds_what_a_fresh_comparison_finds(shared, known_behind, client_behind, edited, cut):
    """Messages that matched before and are unchanged are not compared again; all others are.

    This includes a message that the client sends back in two pieces.
    """
    cut = min(cut, len(shared))
    pieces = [(role, text) for role, word in shared[cut : cut + 1] for text in (word, "+")]
    logged = build_sized_messages(
        [*shared[:cut], *((role, f"{word}+") for role, word in shared[cut : cut + 1]), *shared[cut + 1 :]], "1"
    )
    sent = build_sized_messages([*shared[:cut], *pieces, *shared[cut + 1 :]], "2")
    first, matcher = match_known_prefix(logged, sent, Settings()), ConversationMatcher()
    assume((first.client_count, len(first.messages)) == (len(sent), len(logged)))
    matcher.remember_match(PersistentSequence(logged), tuple(sent), first)
    known, new = logged + build_sized_messages(known_behind), sent + build_sized_messages(client_behind)
    if edited < len(sent):
        new[edited] = build_sized_messages([("user", "z")])[0]
    found = matcher.match_prefix(PersistentSequence(known), tuple(new), Settings())
    fresh = match_known_prefix(known, new, Settings())
    assert (len(found.messages), found.client_count, found.one_to_one_count) == (
        len(fresh.messages),
        fresh.client_count,
        fresh.one_to_one_count,
    )
    assert found.unchanged_count == (min(first.one_to_one_count, edited) if edited < len(sent) else len(logged))
    assert all(
        slot is logged_message
        for slot, logged_message in zip(found.messages[: found.unchanged_count], known, strict=False)
    )


@given(words, words, st.integers(0, 8), st.integers(0, 8))
def test_replace_raw_bytes_can_skip_the_messages_known_to_be_unchanged(before, behind, start, unchanged_count):
    """Starting behind the messages that are the state's own objects gives the same state as starting at the first."""
    known = build_sized_messages([*before, *behind], "1")
    branch = ConversationState.from_entries(Entry(f"e{at}", None, MessageEntry(slot)) for at, slot in enumerate(known))
    unchanged_count = min(unchanged_count, len(known))
    resent = [
        *known[:unchanged_count],
        *build_sized_messages([*before, *behind], "2")[unchanged_count : len(known) - 1],
    ]
    start = min(start, unchanged_count, len(resent))
    assert replace_raw_bytes(branch, resent, start) == replace_raw_bytes(branch, resent)
    assert [slot.raw for slot in replace_raw_bytes(branch, resent, start).history.sized_messages] == [
        slot.raw for slot in [*resent, *known[len(resent) :]]
    ]


def test_follow_conversation_keeps_the_message_objects_of_the_client():
    """After a restart, a fork and each answer the state holds the client's objects: comparing again is by identity.

    Neither the state as a value nor a prepared request changes by it.
    """
    conversation = build_sized_messages(
        [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")]
    )
    target = get_target("anthropic", "claude-sonnet-4-5")
    with MemoryStore() as store:
        journal = Journal.open(store, "k")
        journal.follow_conversation(conversation)
        prepared = journal.prepare_request(target)
        for count in (5, 3, 5):
            for opened_journal in (Journal.open(store, "k"), journal):
                repeated = [replace(slot) for slot in conversation[:count]]
                opened_journal.follow_conversation(repeated)
                assert all(map(is_, opened_journal.state.history.sized_messages, repeated))
                assert all(
                    message is slot.message
                    for message, slot in zip(opened_journal.state.history.messages, repeated, strict=True)
                )
                assert replace(
                    opened_journal.state, view=replace(opened_journal.state.view, normalized_prefix=None)
                ) == ConversationState.from_entries(store.read_path("k", opened_journal.leaf))
        ready, repeated = Journal.open(store, "k"), [replace(slot) for slot in conversation]
        ready.follow_conversation(conversation)
        first = ready.prepare_request(target)
        ready.follow_conversation(repeated)
        assert ready.prepare_request(target) is first
        assert [slot.raw for slot in first.messages] == [slot.raw for slot in prepared.messages]


def test_match_conversation_caches_only_the_same_conversation():
    """The cached match is returned for the same conversation, settings and log, and for nothing else."""
    conversation = build_sized_messages([("user", "a"), ("assistant", "b"), ("user", "c")])
    with MemoryStore() as store:
        journal = Journal.open(store, "k")
        assert journal.match_conversation(tuple(conversation)).client_count == 0
        journal.follow_conversation(conversation)
        first_conversation = tuple(conversation)
        match = journal.match_conversation(first_conversation)
        assert match.client_count == 3
        assert journal.match_conversation(first_conversation) is match
        journal.follow_conversation(conversation)
        conversation.append(build_sized_messages([("assistant", "d")])[0])
        assert journal.match_conversation(conversation).client_count == 3
        assert len(journal.follow_conversation(conversation)) == 1
        assert journal.match_conversation(conversation).client_count == 4
        journal.policy = journal.policy.with_settings(results={"append_chars": 100})
        assert journal.match_conversation(first_conversation) == match
        assert journal.match_conversation(first_conversation) is not match


def test_follow_conversation_uses_the_newest_client_bytes_on_a_new_branch():
    """The messages kept of an edited history have the bytes that the client sent last, not the stored ones."""
    conversation = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")]
    with MemoryStore() as store:
        journal = Journal.open(store, "k")
        journal.follow_conversation(build_sized_messages(conversation, "1"))
        second = build_sized_messages(conversation, "2")
        journal.follow_conversation(second)
        edited = [*second[:2], *build_sized_messages([("user", "z")])]
        journal.follow_conversation(edited)
        assert [slot.raw for slot in journal.state.history.sized_messages] == [slot.raw for slot in edited]


@given(words, words)
def test_apply_entries_equals_applying_entries_one_by_one(before, after):
    """A state is the same whether its messages were applied at once or one by one."""
    old, new = (
        [Entry(f"{name}{at}", None, MessageEntry(slot)) for at, slot in enumerate(build_sized_messages(pairs))]
        for name, pairs in (("a", before), ("b", after))
    )
    branch = apply_entries(ConversationState(), old)
    assert apply_entries(branch, new) == reduce(apply_entry, [*old, *new], ConversationState())


def test_persistent_sequence_add_copies_when_an_older_version_grows():
    """Items are added in place behind the newest version and in a copy behind an older one."""
    first = PersistentSequence([1]).add("two", "three")
    original = first.slice()
    second, third = first.add("four", "five"), first.add("four", "six")
    assert [list(sequence) for sequence in (first, second, third)] == [
        original,
        [*original, "four", "five"],
        [*original, "four", "six"],
    ]
    assert list(first.replace_from(1, ["else"])) == [1, "else"]
    assert list(first) == original


def test_count_shared_prefix_items_ends_at_other_bytes():
    """An equal item with other raw bytes ends the shared prefix."""
    first, second = build_sized_messages([("user", "a"), ("user", "b")])
    assert count_shared_prefix_items([first, second], (first, replace(second))) == 2
    assert count_shared_prefix_items([first, second], [first, replace(second, raw=Raw(b"{ }"))]) == 1
    assert count_shared_prefix_items([first], [first, second]) == 1
    assert count_shared_prefix_items([first, second], [second, first]) == 0
    assert count_shared_prefix_items([], [first]) == 0


def test_journal_hold_lease_takes_one_lease_for_all_writes_inside(tmp_path):
    """After the block every journal can write again."""

    class LeaseCountingStore(SqliteStore):
        lease_count = 0

        def hold_lease(self, key):
            self.lease_count += 1
            return super().hold_lease(key)

    with LeaseCountingStore(tmp_path / "holdfast.db") as store:
        journal, other = Journal.open(store, "k"), Journal.open(store, "k")
        count_before = store.lease_count
        with journal.hold_lease():
            journal.append(Message.from_text("user", "one"))
            journal.append(Message.from_text("assistant", "two"))
        assert store.lease_count == count_before + 1
        other.append(Message.from_text("user", "beside"))
        with journal.hold_lease():
            journal.append(Message.from_text("user", "three"))
        texts = [
            entry.body.sized_message.message.text
            for entry in store.read_path("k")
            if isinstance(entry.body, MessageEntry)
        ]
        assert texts == ["one", "two", "three"]
        assert [message.text for message in journal.state.history.messages] == ["one", "two", "three"]


# -- system messages at the start --------------------------------------------------------------------------------------

SETUP = RequestSetup("tools", 100)


@given(words, words, words)
def test_match_known_prefix_matches_opening_system_messages_by_position(before, now, behind):
    """System messages at the start match whatever they say: the match has the client's text and the log's sizes."""
    before, now = ([("system", text) for _, text in pairs] for pairs in (before, now))
    known, sent = (
        build_sized_messages([*before, ("user", "x"), *behind]),
        build_sized_messages([*now, ("user", "x"), *behind], "2"),
    )
    same = match_known_prefix(known, sent, Settings())
    both = min(len(before), len(now))
    assert same.client_count >= both
    if len(before) == len(now):
        assert same.client_count == len(sent)
    assert [(message.raw, message.message) for message in same.messages[:both]] == [
        (message.raw, message.message) for message in sent[:both]
    ]
    assert [(message.tokens, message.digest) for message in same.messages] == [
        (message.tokens, message.digest) for message in known[: same.client_count]
    ]
    again = add_system_messages_to_setup(SETUP, same.messages, sent)
    assert again == add_system_messages_to_setup(SETUP, known, sent)
    assert (again == SETUP) == ([text for _, text in before[:both]] == [text for _, text in now[:both]])


def test_add_system_messages_to_setup_adds_only_the_growth():
    """A longer system message adds the difference to the setup's tokens; a shorter one subtracts nothing."""
    short, long = build_sized_messages([("system", "Tide.")]), build_sized_messages([("system", "Tide. " * 300)])
    grew, shrank = add_system_messages_to_setup(SETUP, short, long), add_system_messages_to_setup(SETUP, long, short)
    assert (grew.tokens, shrank.tokens) == (100 + long[0].tokens - short[0].tokens, 100)
    assert len({grew.digest, shrank.digest, SETUP.digest}) == 3


# -- decisions copied to a branch --------------------------------------------------------------------------------------


def build_path(*bodies):
    """Return a chain of entries with these bodies."""
    return [Entry(str(index), str(index - 1) if index else None, body) for index, body in enumerate(bodies)]


def list_bodies(entries):
    return [entry.body for entry in entries]


def test_collect_decisions_to_copy_copies_a_request_once_per_fork_point():
    """Branch after branch from one point, the request entry is copied to the first branch only."""
    first_bodies = [MessageEntry(slot) for slot in build_sized_messages([("user", "a"), ("assistant", "b")])]
    later_bodies = [
        MessageEntry(build_sized_messages([("user", "c")])[0]),
        RequestEntry("x", 3, "m", 9),
        FailureEntry(FAILURE_OVERFLOW, "too long", 5_000, 6_000),
    ]
    copied_bodies = []
    for _ in range(5):
        path = build_path(*first_bodies, *copied_bodies, *later_bodies)
        copied_bodies += list_bodies(
            collect_decisions_to_copy(ConversationState.from_entries(path), path, len(path) - 3, 2)
        )
    assert copied_bodies == [RequestEntry("", 2, "m", 9)]


def test_collect_decisions_to_copy_repeats_a_request_behind_a_decision():
    """A request after a decision is copied too, because it showed something else than the one before."""
    messages = [MessageEntry(slot) for slot in build_sized_messages([("user", "a"), ("assistant", "b"), ("user", "c")])]
    request, cut = RequestEntry("x", 3, "m"), DecisionEntry((Edit(Span(0, 1, 0), (Text("-"),), "r", "w", 1),))
    path = build_path(*messages, request, AnswerEntry("x"), cut, request, request)
    assert list_bodies(collect_decisions_to_copy(ConversationState.from_entries(path), path, 2, 2)) == [
        RequestEntry("", 2, "m"),
        cut,
        RequestEntry("", 2, "m"),
    ]


def test_messages_without_bytes_count_as_they_are_given_now():
    """An agent framework gives values and no bytes. If it gives reasoning without its id, that id is not shown again;
    the places of parts stay, since decisions name them, so left out reasoning is kept.
    """

    def build_answer(*parts):
        return build_sized_message(Message("assistant", (*parts, Text("done"))))

    signature = ProviderSignature("openai-responses", "", "rs_1")
    logged = build_answer(Thinking("why", signature))
    without_id, without_reasoning = build_answer(Thinking("why")), build_answer()
    assert match_known_prefix([logged], [without_id], Settings()).messages[0].message == without_id.message
    assert match_known_prefix([logged], [without_reasoning], Settings()).messages == [logged]
