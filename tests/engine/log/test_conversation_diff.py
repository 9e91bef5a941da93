"""What a conversation repeats is found again without looking at what was compared before."""

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
from holdfast.messages.parts import Text
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


def slots(said, mark=""):
    """Return the slots of words in bytes that ``mark`` makes their own."""
    return [
        replace(
            build_sized_message(Message.from_text(role, text)), api="anthropic", raw=Raw(f'"{text}{mark}"'.encode())
        )
        for role, text in said
    ]


@given(words, words, words, st.integers(0, 8), st.integers(0, 8))
def test_twins_change_nothing_that_is_found(said, known_behind, said_behind, edited, cut):
    """What was compared once and stands on both sides is taken as it was; whatever changed is compared again.

    So it is where a message came in two pieces: all of it stands, or what stood one by one.
    """
    cut = min(cut, len(said))
    pieces = [(role, text) for role, word in said[cut : cut + 1] for text in (word, "+")]
    mine = slots([*said[:cut], *((role, f"{word}+") for role, word in said[cut : cut + 1]), *said[cut + 1 :]], "1")
    theirs = slots([*said[:cut], *pieces, *said[cut + 1 :]], "2")
    first, following = match_known_prefix(mine, theirs, Settings()), ConversationMatcher()
    assume((first.client_count, len(first.messages)) == (len(theirs), len(mine)))
    following.remember_match(PersistentSequence(mine), tuple(theirs), first)
    known, new = mine + slots(known_behind), theirs + slots(said_behind)
    if edited < len(theirs):
        new[edited] = slots([("user", "z")])[0]
    found = following.match_prefix(PersistentSequence(known), tuple(new), Settings())
    fresh = match_known_prefix(known, new, Settings())
    assert (len(found.messages), found.client_count, found.one_to_one_count) == (
        len(fresh.messages),
        fresh.client_count,
        fresh.one_to_one_count,
    )
    assert found.unchanged_count == (min(first.one_to_one_count, edited) if edited < len(theirs) else len(mine))
    assert all(slot is own for slot, own in zip(found.messages[: found.unchanged_count], known, strict=False))


@given(words, words, st.integers(0, 8), st.integers(0, 8))
def test_what_stands_is_not_looked_at_again(before, behind, start, same):
    """Slots that are known to be the branch's own may be left out of what it is said again in."""
    known = slots([*before, *behind], "1")
    branch = ConversationState.from_entries(Entry(f"e{at}", None, MessageEntry(slot)) for at, slot in enumerate(known))
    same = min(same, len(known))
    told = [*known[:same], *slots([*before, *behind], "2")[same : len(known) - 1]]
    start = min(start, same, len(told))
    assert replace_raw_bytes(branch, told, start) == replace_raw_bytes(branch, told)
    assert [slot.raw for slot in replace_raw_bytes(branch, told, start).history.sized_messages] == [
        slot.raw for slot in [*told, *known[len(told) :]]
    ]


def test_a_conversation_is_held_in_its_clients_own_objects():
    """After a restart, after a fork and behind each answer: comparing the two again looks into nothing.

    Nothing else changes by it: neither the branch as a value, nor what is ready to go out again.
    """
    said = slots([("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")])
    goal = get_target("anthropic", "claude-sonnet-4-5")
    with MemoryStore() as store:
        journal = Journal.open(store, "k")
        journal.follow_conversation(said)
        prepared = journal.prepare_request(goal)
        for count in (5, 3, 5):
            for opened in (Journal.open(store, "k"), journal):
                again = [replace(slot) for slot in said[:count]]
                opened.follow_conversation(again)
                assert all(map(is_, opened.state.history.sized_messages, again))
                assert all(own is slot.message for own, slot in zip(opened.state.history.messages, again, strict=True))
                assert replace(
                    opened.state, view=replace(opened.state.view, normalized_prefix=None)
                ) == ConversationState.from_entries(store.read_path("k", opened.leaf))
        ready, again = Journal.open(store, "k"), [replace(slot) for slot in said]
        ready.follow_conversation(said)
        first = ready.prepare_request(goal)
        ready.follow_conversation(again)
        assert ready.prepare_request(goal) is first
        assert [slot.raw for slot in first.messages] == [slot.raw for slot in prepared.messages]


def test_a_conversation_is_compared_once_and_never_taken_for_another():
    """The same one, by the same settings, with the same log is not compared again; any other is."""
    said = slots([("user", "a"), ("assistant", "b"), ("user", "c")])
    with MemoryStore() as store:
        journal = Journal.open(store, "k")
        assert journal.match_conversation(tuple(said)).client_count == 0
        journal.follow_conversation(said)
        whole = tuple(said)
        found = journal.match_conversation(whole)
        assert found.client_count == 3
        assert journal.match_conversation(whole) is found
        journal.follow_conversation(said)
        said.append(slots([("assistant", "d")])[0])
        assert journal.match_conversation(said).client_count == 3
        assert len(journal.follow_conversation(said)) == 1
        assert journal.match_conversation(said).client_count == 4
        journal.policy = journal.policy.with_settings(results={"append_chars": 100})
        assert journal.match_conversation(whole) == found
        assert journal.match_conversation(whole) is not found


def test_the_bytes_of_the_client_count_also_where_it_parts_from_the_log():
    """What is kept of a past that was edited is shown in the bytes that came last, not in those that are stored."""
    said = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")]
    with MemoryStore() as store:
        journal = Journal.open(store, "k")
        journal.follow_conversation(slots(said, "1"))
        second = slots(said, "2")
        journal.follow_conversation(second)
        edited = [*second[:2], *slots([("user", "z")])]
        journal.follow_conversation(edited)
        assert [slot.raw for slot in journal.state.history.sized_messages] == [slot.raw for slot in edited]


@given(words, words)
def test_messages_that_come_together_are_said_one_by_one(before, after):
    """A branch is the same whether its messages were taken at once or in turn."""
    old, new = (
        [Entry(f"{name}{at}", None, MessageEntry(slot)) for at, slot in enumerate(slots(said))]
        for name, said in (("a", before), ("b", after))
    )
    branch = apply_entries(ConversationState(), old)
    assert apply_entries(branch, new) == reduce(apply_entry, [*old, *new], ConversationState())


def test_a_sequence_that_grew_twice_is_two():
    """Several items at once go behind the newest version in place, and behind an older one in a copy."""
    first = PersistentSequence([1]).add("two", "three")
    beside = first.slice()
    second, third = first.add("four", "five"), first.add("four", "six")
    assert [list(one) for one in (first, second, third)] == [
        beside,
        [*beside, "four", "five"],
        [*beside, "four", "six"],
    ]
    assert list(first.replace_from(1, ["else"])) == [1, "else"]
    assert list(first) == beside


def test_what_both_begin_with_is_the_same_objects():
    """Where all are equal they are the same; what came in other bytes is not, and ends it."""
    one, two = slots([("user", "a"), ("user", "b")])
    assert count_shared_prefix_items([one, two], (one, replace(two))) == 2
    assert count_shared_prefix_items([one, two], [one, replace(two, raw=Raw(b"{ }"))]) == 1
    assert count_shared_prefix_items([one], [one, two]) == 1
    assert count_shared_prefix_items([one, two], [two, one]) == 0
    assert count_shared_prefix_items([], [one]) == 0


def test_one_lease_is_held_for_all_that_is_done_together(tmp_path):
    """Verbs inside share the lease; behind the block everybody may write again."""

    class Leased(SqliteStore):
        leases = 0

        def hold_lease(self, key):
            self.leases += 1
            return super().hold_lease(key)

    with Leased(tmp_path / "holdfast.db") as store:
        journal, other = Journal.open(store, "k"), Journal.open(store, "k")
        before = store.leases
        with journal.hold_lease():
            journal.append(Message.from_text("user", "one"))
            journal.append(Message.from_text("assistant", "two"))
        assert store.leases == before + 1
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


# -- what opens a conversation -----------------------------------------------------------------------------------------

FRAME = RequestSetup("tools", 100)


@given(words, words, words)
def test_what_opens_a_conversation_has_a_place_and_no_past(before, now, behind):
    """System messages that both open with are repeated whatever they say: those that were said now, as the log is."""
    before, now = ([("system", text) for _, text in said] for said in (before, now))
    known, said = slots([*before, ("user", "x"), *behind]), slots([*now, ("user", "x"), *behind], "2")
    same = match_known_prefix(known, said, Settings())
    both = min(len(before), len(now))
    assert same.client_count >= both
    if len(before) == len(now):
        assert same.client_count == len(said)
    assert [(one.raw, one.message) for one in same.messages[:both]] == [(one.raw, one.message) for one in said[:both]]
    assert [(one.tokens, one.digest) for one in same.messages] == [
        (one.tokens, one.digest) for one in known[: same.client_count]
    ]
    again = add_system_messages_to_setup(FRAME, same.messages, said)
    assert again == add_system_messages_to_setup(FRAME, known, said)
    assert (again == FRAME) == ([text for _, text in before[:both]] == [text for _, text in now[:both]])


def test_a_frame_is_as_much_more_as_what_opens_the_conversation_grew():
    """And no less where that shrank: the log holds what it was."""
    short, long = slots([("system", "Tide.")]), slots([("system", "Tide. " * 300)])
    grew, shrank = add_system_messages_to_setup(FRAME, short, long), add_system_messages_to_setup(FRAME, long, short)
    assert (grew.tokens, shrank.tokens) == (100 + long[0].tokens - short[0].tokens, 100)
    assert len({grew.digest, shrank.digest, FRAME.digest}) == 3


# -- what a branch carries along ---------------------------------------------------------------------------------------


def path_of(*bodies):
    """Return entries for ``bodies``, one behind the other."""
    return [Entry(str(at), str(at - 1) if at else None, body) for at, body in enumerate(bodies)]


def bodies(entries):
    return [entry.body for entry in entries]


def test_what_was_carried_to_a_place_is_not_carried_there_again():
    """Branch after branch from one place tells once that a request showed it."""
    begun = [MessageEntry(slot) for slot in slots([("user", "a"), ("assistant", "b")])]
    rest = [
        MessageEntry(slots([("user", "c")])[0]),
        RequestEntry("x", 3, "m", 9),
        FailureEntry(FAILURE_OVERFLOW, "too long", 5_000, 6_000),
    ]
    there = []
    for _ in range(5):
        path = path_of(*begun, *there, *rest)
        there += bodies(collect_decisions_to_copy(ConversationState.from_entries(path), path, len(path) - 3, 2))
    assert there == [RequestEntry("", 2, "m", 9)]


def test_a_request_behind_a_decision_is_told_again():
    """It showed something else than the one before it."""
    said = [MessageEntry(slot) for slot in slots([("user", "a"), ("assistant", "b"), ("user", "c")])]
    asked, cut = RequestEntry("x", 3, "m"), DecisionEntry((Edit(Span(0, 1, 0), (Text("-"),), "r", "w", 1),))
    path = path_of(*said, asked, AnswerEntry("x"), cut, asked, asked)
    assert bodies(collect_decisions_to_copy(ConversationState.from_entries(path), path, 2, 2)) == [
        RequestEntry("", 2, "m"),
        cut,
        RequestEntry("", 2, "m"),
    ]
