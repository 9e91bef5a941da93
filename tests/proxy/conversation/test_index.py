"""Which branch a request continues: the one that says most of the same, and none that only looks like it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from holdfast import Policy
from holdfast.engine.log.conversation_diff import match_known_prefix
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.proxy.conversation.clients import ClientIdentity
from holdfast.proxy.conversation.identity import make_session_key
from holdfast.proxy.conversation.index import SessionIndexes
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, BranchSummaryEntry, Entry, LabelEntry, MessageEntry, NoteEntry
from holdfast.store.base import SessionInfo
from holdfast.store.memory import MemoryStore

KEY = "claude-code-s-1"
SETTINGS = Policy().settings
PI = ClientIdentity("pi")


def slots_of(*said):
    """Return what ``u``ser, ``a``ssistant, ``t``ool and ``s``ystem say, each a letter before the words."""
    roles = {"u": "user", "a": "assistant", "t": "tool", "s": "system"}
    return [build_sized_message(Message.from_text(roles[one[0]], one)) for one in said]


def lens_of(*messages, api="anthropic"):
    """Return a measured body with these messages."""
    field = "contents" if api == "gemini" else "input" if api == "openai-responses" else "messages"
    return measure_parsed_request(parse_request(json.dumps({"model": "m", field: messages}).encode(), api))


def user(content):
    """Return a user's message."""
    return {"role": "user", "content": content}


def grown(store, *said, key=KEY):
    """Follow a conversation as the proxy does, and return where it stands."""
    journal = Journal.open(store, key, leaf=SessionIndexes(store).find_leaf(key, slots_of(*said), SETTINGS))
    journal.follow_conversation(slots_of(*said))
    return journal.leaf


def at(store, *said, key=KEY):
    """Return the leaf that a conversation continues."""
    return SessionIndexes(store).find_leaf(key, slots_of(*said), SETTINGS)


# -- the key -----------------------------------------------------------------------------------------------------------


def test_a_key_is_family_scope_and_root():
    """Each of the three makes another key; without a scope there is none in it."""
    lens, other = lens_of(user("Go.")), lens_of(user("Stop."))
    key = make_session_key(ClientIdentity("pi", "0a"), lens)
    assert key.startswith("pi-0a-")
    assert make_session_key(PI, lens) == "pi-" + key.removeprefix("pi-0a-")
    assert (
        len(
            {
                make_session_key(who, one)
                for who in (PI, ClientIdentity("aider"), ClientIdentity("pi", "1"))
                for one in (lens, other)
            }
        )
        == 6
    )


def test_whom_an_address_names_is_part_of_a_root():
    """What one server taught is not true of another; where a client names its session that name counts alone."""
    lens = lens_of(user("Go."))
    keys = [make_session_key(PI, lens, base) for base in ("", "http://one", "http://two")]
    assert len({*keys}) == 3
    assert len({make_session_key(ClientIdentity("pi", "0a"), lens, base) for base in ("", "http://one")}) == 1


def test_a_thread_is_a_key_of_its_own():
    """However a thread begins it has one key, which no scope of the same name has; another thread has another."""
    one, other = lens_of(user("Go.")), lens_of(user("Stop."))
    threads = [ClientIdentity("codex", scope, is_thread=True) for scope in ("0a", "0b")]
    keys = [make_session_key(who, lens) for who in threads for lens in (one, other)]
    assert keys == ["codex-0a-thread", "codex-0a-thread", "codex-0b-thread", "codex-0b-thread"]
    assert make_session_key(ClientIdentity("codex", "0a"), one) not in keys


@pytest.mark.parametrize(
    "said",
    [
        [user("Go on.")],
        [user([{"type": "text", "text": "Go on."}])],
        [user([{"type": "text", "text": "Go "}, {"type": "text", "text": "on."}])],
        [user([{"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}}])],
        [user("Go on."), {"role": "assistant", "content": "Yes."}],
        [{"role": "system", "content": "Today is Monday."}, user("Go on.")],
    ],
)
def test_the_same_words_are_the_same_root(said):
    """How the words stand, a cache marker on them, and what stands before and behind them make no other key."""
    assert make_session_key(PI, lens_of(*said)) == make_session_key(PI, lens_of(user("Go on.")))


def test_every_api_has_the_same_root():
    """The same first words have one key on every API."""
    said = {
        "openai-chat": user("Go."),
        "openai-responses": user("Go."),
        "gemini": {"role": "user", "parts": [{"text": "Go."}]},
    }
    assert {make_session_key(PI, lens_of(one, api=api)) for api, one in said.items()} == {
        make_session_key(PI, lens_of(user("Go.")))
    }


def test_there_is_always_a_key():
    """A body with no words but a system's, or with no message at all, has one too."""
    system = {"role": "system", "content": "Go."}
    assert make_session_key(PI, lens_of(system)) not in {
        make_session_key(PI, lens_of()),
        make_session_key(PI, lens_of(user("Go."))),
    }
    MemoryStore().create_session(make_session_key(PI, lens_of()))


# -- the branch --------------------------------------------------------------------------------------------------------


def test_nothing_is_found_where_nothing_is():
    """No session, an empty one, and one that begins otherwise have no branch to continue."""
    store = MemoryStore()
    assert at(store, "u1") is None
    store.create_session(KEY)
    assert at(store, "u1") is None
    grown(store, "u1", "a1")
    assert at(store, "u2", "a1") is None
    assert at(store) is None


def test_growth_and_retries_go_on_where_they_stood():
    """The same again, and the same with more behind it, continue one branch: nothing is said twice."""
    store = MemoryStore()
    for said in (["u1"], ["u1"], ["u1", "a1", "u2"], ["u1", "a1", "u2"]):
        leaf = grown(store, *said)
        assert at(store, *said) == leaf
    assert store.read_tips(KEY) == [store.get_entry(KEY, leaf)]
    assert [slot.message.text for slot in store.open_state(KEY, leaf).history.sized_messages] == ["u1", "a1", "u2"]


def test_an_edited_past_is_a_branch():
    """Each of two pasts is found again by its own words, and neither by those of the other."""
    store = MemoryStore()
    one = grown(store, "u1", "a1", "u2", "a2")
    other = grown(store, "u1", "a1", "u2 edited")
    assert len(store.read_tips(KEY)) == 2
    assert at(store, "u1", "a1", "u2", "a2", "u3") == one
    assert at(store, "u1", "a1", "u2 edited", "a9") == other
    assert at(store, "u1", "a1", "u2") == one
    assert at(store, "u1", "a1") == at(store, "u1", "a1", "u7") == other, "the newest of equals"


def test_equal_words_are_counted():
    """Who says the same again and again stands where as much was said, not where it was said first or last."""
    store = MemoryStore()
    said = ["u go on", "a yes"] * 4
    leaf = grown(store, *said)
    short = grown(store, *said[:3], "a no")
    assert at(store, *said, "u go on") == leaf
    assert at(store, *said[:3], "a no", "u go on") == short
    assert grown(store, *said, "u go on") != leaf
    assert len(store.read_tips(KEY)) == 2


def test_an_answer_comes_back_in_other_bytes():
    """Calls with other spaces, and an answer in pieces, are the answers that were given, on the right branch."""
    store = MemoryStore()
    first = slots_of("u1")
    journal = Journal.open(store, KEY)
    journal.append(*first)
    journal.record_answer(Message("assistant", (Text("I look."), ToolCall("c", "read", '{"path": 1}'))))
    journal.append(build_sized_message(Message("tool", (ToolResult("c", "read", (Text("one"),)),))))
    grown(store, "u1", "a other")
    again = [
        *first,
        build_sized_message(Message("assistant", (Text("I "), Text("look.")))),
        build_sized_message(Message("assistant", (ToolCall("c", "read", '{"path":1}'),))),
        build_sized_message(Message("tool", (ToolResult("c", "read", (Text("one"),)),))),
    ]
    assert SessionIndexes(store).find_leaf(KEY, again, SETTINGS) == journal.leaf
    assert SessionIndexes(store).find_leaf(KEY, again[:3], SETTINGS) == journal.leaf
    again[2] = build_sized_message(Message("assistant", (ToolCall("c", "read", '{"path":2}'),)))
    other = Journal.open(store, KEY, leaf=SessionIndexes(store).find_leaf(KEY, again, SETTINGS))
    other.follow_conversation(again)
    assert [one.message for one in other.state.history.sized_messages] == [one.message for one in again]


def test_a_text_that_was_cut_is_its_own():
    """What was too long for an entry is found again by the whole text."""
    store, policy = MemoryStore(), Policy().with_settings(results={"append_chars": 2_000})
    said = slots_of("u" + "x" * 5_000, "a1")
    journal = Journal.open(store, KEY, policy)
    journal.follow_conversation(said)
    assert SessionIndexes(store).find_leaf(KEY, [*said, *slots_of("u2")], policy.settings) == journal.leaf
    assert SessionIndexes(store).find_leaf(KEY, slots_of("u" + "y" * 5_000), policy.settings) is None


def test_labels_are_no_leaves():
    """A name beside the tree, and what is noted behind a message, change nothing of what is found."""
    store = MemoryStore()
    leaf = grown(store, "u1", "a1")
    store.label_entry(KEY, leaf, "here")
    assert at(store, "u1", "a1") == leaf
    noted = Entry("n", leaf, NoteEntry("n"))
    store.append_entries(KEY, [noted])
    assert at(store, "u1", "a1", "u2") == "n"


def test_a_long_run_costs_what_it_is_long():
    """Ten thousand messages of one side, none answered, are no trouble."""
    store = MemoryStore()
    said = [f"u{number}" for number in range(10_000)]
    store.create_session(KEY)
    told = [
        Entry(str(number), str(number - 1) if number else None, MessageEntry(slot))
        for number, slot in enumerate(slots_of(*said))
    ]
    store.append_entries(KEY, told)
    assert at(store, *said) == "9999"
    assert at(store, "u0", "u x", *said[2:]) == "9999"


# -- the law -----------------------------------------------------------------------------------------------------------

words = st.sampled_from(["s1", "u1", "u2", "a1", "a2", "a", "t1", "t2"])
"""Few words, so that much is said again; the pieces of one answer together are others."""
paths = st.lists(
    st.tuples(
        st.integers(0, 30),
        words,
        st.sampled_from([MessageEntry, MessageEntry, MessageEntry, BranchSummaryEntry, NoteEntry]),
    ),
    min_size=1,
    max_size=30,
)


def tree(steps):
    """Return a store with a tree: each step is said behind an earlier one."""
    store, names = MemoryStore(), [None]
    store.create_session(KEY)
    for number, (place, word, kind) in enumerate(steps):
        (slot,) = slots_of(word)
        body = AnswerEntry("b") if kind is NoteEntry else kind(slot)
        store.append_entries(KEY, [Entry(str(number), names[place % len(names)], body)])
        names.append(str(number))
    return store


def joined(said, cuts):
    """Return a conversation with some neighbours of one side as one message."""
    out = []
    for slot, cut in zip(said, [*cuts, *[True] * len(said)], strict=False):
        if out and not cut and out[-1].message.role == slot.message.role:
            out[-1] = build_sized_message(Message(slot.message.role, (*out[-1].message.parts, *slot.message.parts)))
        else:
            out.append(slot)
    return out


def runs(said):
    """Return what is said without a break as one text each; of system messages at the front only how many there are."""
    out = []
    for slot in said:
        role, text = slot.message.role, "".join(part.text for part in slot.message.parts)
        if role == "system" and all(one == ("system", "") for one in out):
            out.append((role, ""))
        elif out and out[-1][0] == role and out[-1] != ("system", ""):
            out[-1] = (role, out[-1][1] + text)
        else:
            out.append((role, text))
    return out


def newest_of_most(leaves, counts):
    """Return the id of the last leaf with the highest count, if any has one."""
    best = max(counts, default=0)
    return next((leaf.id for leaf, count in reversed([*zip(leaves, counts, strict=True)]) if best == count > 0), None)


def some(steps, pick, more):
    """Return a tree, its leaves, what is said on the way to each, and a conversation that goes on behind one."""
    store = tree(steps)
    leaves = store.read_tips(KEY)
    known = [
        ConversationState.from_entries(store.read_path(KEY, leaf.id)).history.sized_messages.slice() for leaf in leaves
    ]
    return store, leaves, known, [*known[pick % len(known)], *slots_of(*more)]


@given(steps=paths, pick=st.integers(0, 30), more=st.lists(words, max_size=4))
def test_it_is_what_a_look_at_every_branch_finds(steps, pick, more):
    """On any tree that branch is found of which most is repeated, as following each leaf by itself tells."""
    store, leaves, known, said = some(steps, pick, more)
    counts = [match_known_prefix(path, said, SETTINGS).client_count for path in known]
    assert SessionIndexes(store).find_leaf(KEY, said, SETTINGS) == newest_of_most(leaves, counts)


@given(
    steps=paths, pick=st.integers(0, 30), more=st.lists(words, max_size=4), cuts=st.lists(st.booleans(), max_size=20)
)
def test_how_words_are_cut_up_is_all_the_same(steps, pick, more, cuts):
    """That branch is found whose words, as one text for each side, the conversation begins with for longest."""
    store, leaves, known, said = some(steps, pick, more)
    said = joined(said, cuts)
    ends = [[runs(path[: at + 1]) for at in range(len(path))] for path in known]
    counts = [max((at + 1 for at in range(len(said)) if runs(said[: at + 1]) in path), default=0) for path in ends]
    assert SessionIndexes(store).find_leaf(KEY, said, SETTINGS) == newest_of_most(leaves, counts)


@given(steps=paths, pick=st.integers(0, 30), more=st.lists(words, max_size=4), read=st.integers(0, 30))
def test_a_tree_that_is_followed_is_the_one_that_is_read(steps, pick, more, read):
    """What was appended since a tree was looked at, told of or not, is found as if it were read anew."""
    store, _, _, said = some(steps, pick, more)
    other = MemoryStore()
    other.create_session(KEY)
    trees = SessionIndexes(other, 1)
    for number, entry in enumerate(store.read_entries(KEY)):
        other.append_entries(KEY, [entry])
        if number != read:
            trees.add_appended(KEY, [entry])
        if number >= read // 2:
            trees.find_leaf(KEY, said, SETTINGS)
            trees.find_leaf(KEY, [*said[: number % 5], *slots_of("u1")], SETTINGS)
    assert trees.find_leaf(KEY, said, SETTINGS) == SessionIndexes(store).find_leaf(KEY, said, SETTINGS)


def test_many_conversations_that_begin_alike_cost_what_is_new_of_each():
    """A conversation is found among a thousand siblings without reading any of them again."""
    store, reads = MemoryStore(), []
    every = store.read_entries
    store.read_entries = lambda key, kind=None, *, after=0: reads.append(kind) or every(key, kind, after=after)
    trees = SessionIndexes(store)
    for number in range(1_000):
        said = slots_of("u1", "a1", f"u item {number}")
        leaf = trees.find_leaf(KEY, said, SETTINGS)
        journal = Journal.open(store, KEY, leaf=leaf)
        journal.append_listener = trees.add_appended
        journal.follow_conversation(said)
        assert trees.find_leaf(KEY, [*said, *slots_of("a9", "u9")], SETTINGS) == journal.leaf
    assert reads.count(None) == 1
    assert trees.find_leaf(KEY, slots_of("u1", "a1", "u item 7", "a9"), SETTINGS) != journal.leaf


def test_behind_what_somebody_else_appended_only_that_is_read():
    """By turns with another process each look-up reads what is new since the one before, and no entry three times."""
    store, reads = MemoryStore(), []
    every = store.read_entries
    store.read_entries = lambda key, kind=None, *, after=0: reads.append(every(key, kind, after=after)) or reads[-1]
    trees, said = SessionIndexes(store), slots_of("u1")
    journal = Journal.open(store, KEY)
    for number in range(200):
        said += slots_of(f"a{number}", f"u{number}")
        journal.follow_conversation(said)
        if number % 2:
            trees.add_appended(KEY, store.read_path(KEY)[-2:])
        else:
            assert trees.find_leaf(KEY, said, SETTINGS) == journal.leaf
    assert max(map(len, reads)) <= 5
    assert sum(map(len, reads)) <= 2 * store.get_session(KEY).entry_count


class Looked(Struct):
    """A slot whose message is counted when it is looked at."""

    slot: SizedMessage
    counted: list[SizedMessage]

    @property
    def digest(self):
        """The slot's."""
        return self.slot.digest

    @property
    def message(self):
        """The slot's."""
        self.counted.append(self.slot)
        return self.slot.message


def test_a_conversation_that_grew_is_looked_up_by_what_is_new():
    """Of one that was looked up before only the new messages are looked at, and of another those where it parts."""
    store = MemoryStore()
    said = [f"{'ua'[number % 2]}{number}" for number in range(100)]
    grown(store, *said)
    trees, counted = SessionIndexes(store), []
    for length in range(60, 100):
        trees.find_leaf(KEY, [Looked(slot, counted) for slot in slots_of(*said[:length])], SETTINGS)
    assert len(counted) == 99
    assert at(store, *said[:50], "u other") == trees.find_leaf(
        KEY, [Looked(slot, counted) for slot in slots_of(*said[:50], "u other")], SETTINGS
    )
    assert len(counted) == 100


def test_what_hangs_behind_a_label_is_followed():
    """A recording may name an entry on its way: what was said behind that is found."""
    store = MemoryStore()
    one, two = slots_of("u1", "a1")
    store.import_entries(
        KEY,
        [
            Entry("1", None, MessageEntry(one)),
            Entry("l", "1", LabelEntry("1", "here")),
            Entry("2", "l", MessageEntry(two)),
        ],
    )
    assert at(store, "u1", "a1", "u2") == "2"


def test_a_session_that_was_begun_anew_is_another():
    """A key that was removed and taken again has a tree of its own, however many entries it has."""
    store = MemoryStore()
    trees = SessionIndexes(store)
    first = grown(store, "u1", "a1")
    assert trees.find_leaf(KEY, slots_of("u1", "a1"), SETTINGS) == first
    for said in (["u1", "a1"], ["u2"], ["u1", "a1", "u2", "a2"]):
        store.remove_session(KEY)
        store.create_session(KEY, SessionInfo(KEY, created_at=1))
        again = grown(store, *said)
        assert again != first
        assert trees.find_leaf(KEY, slots_of(*said), SETTINGS) == again
