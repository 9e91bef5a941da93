"""What a conversation repeats is found again without looking at what was compared before."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.model.branch import Branch, extend, extended
from holdfast.model.entries import Entry, Said
from holdfast.model.messages import Message
from holdfast.model.sequence import Seq, common
from holdfast.policy.settings import Settings
from holdfast.runtime.following import Twins, repeated
from holdfast.runtime.journal import Journal
from holdfast.store.sqlite import SqliteStore
from holdfast.view.tokens import measure

words = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.sampled_from("abc")), max_size=8)


def slots(said, mark=""):
    """Return the slots of words in bytes that ``mark`` makes their own."""
    return [
        replace(measure(Message.of(role, text)), api="anthropic", raw=Raw(f'"{text}{mark}"'.encode()))
        for role, text in said
    ]


@given(words, words, words, st.integers(0, 8))
def test_twins_change_nothing_that_is_found(said, known_behind, said_behind, edited):
    """What was compared once and stands on both sides is taken as it was; whatever changed is compared again."""
    mine, theirs = slots(said, "1"), slots(said, "2")
    first = repeated(mine, theirs, Settings())
    twins = Twins(mine[: first.single], theirs[: first.single])
    known, new = mine + slots(known_behind), theirs + slots(said_behind)
    if edited < len(theirs):
        new[edited] = slots([("user", "z")])[0]
    found = repeated(known, new, Settings(), twins)
    fresh = repeated(known, new, Settings())
    assert twins.stand(known, new) == min(first.single, edited)
    assert (len(found.slots), found.count, found.single) == (len(fresh.slots), fresh.count, fresh.single)


@given(words, words)
def test_messages_that_come_together_are_said_one_by_one(before, after):
    """A branch is the same whether its messages were taken at once or in turn."""
    old, new = (
        [Entry(f"{name}{at}", None, Said(slot)) for at, slot in enumerate(slots(said))]
        for name, said in (("a", before), ("b", after))
    )
    branch = extended(Branch(), old)
    assert extended(branch, new) == reduce(extend, [*old, *new], Branch())


def test_a_sequence_that_grew_twice_is_two():
    """Several items at once go behind the newest version in place, and behind an older one in a copy."""
    first = Seq([1]).add("two", "three")
    beside = first.slice()
    second, third = first.add("four", "five"), first.add("four", "six")
    assert [list(one) for one in (first, second, third)] == [
        beside,
        [*beside, "four", "five"],
        [*beside, "four", "six"],
    ]
    assert list(first.changed(1, ["else"])) == [1, "else"]
    assert list(first) == beside


def test_what_both_begin_with_is_the_same_objects():
    """Equal values are not the same: they may have come in other bytes."""
    one, two = slots([("user", "a"), ("user", "b")])
    assert common([one, two], [one, replace(two)]) == 1
    assert common([one], [one, two]) == 1
    assert common([], [one]) == 0


def test_one_lease_is_held_for_all_that_is_done_together(tmp_path):
    """Verbs inside share the lease; behind the block everybody may write again."""

    class Leased(SqliteStore):
        leases = 0

        def writing(self, key):
            self.leases += 1
            return super().writing(key)

    with Leased(tmp_path / "holdfast.db") as store:
        journal, other = Journal.open(store, "k"), Journal.open(store, "k")
        before = store.leases
        with journal.together():
            journal.append(Message.of("user", "one"))
            journal.append(Message.of("assistant", "two"))
        assert store.leases == before + 1
        other.append(Message.of("user", "beside"))
        with journal.together():
            journal.append(Message.of("user", "three"))
        texts = [entry.body.slot.message.text for entry in store.path("k") if isinstance(entry.body, Said)]
        assert texts == ["one", "two", "three"]
        assert [message.text for message in journal.branch.messages] == ["one", "two", "three"]
