"""The index finds the branch that a request continues: the one that it repeats most of."""

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


def make_sized_messages(*texts):
    """Build messages of ``u``ser, ``a``ssistant, ``t``ool and ``s``ystem from texts that begin with the letter."""
    roles = {"u": "user", "a": "assistant", "t": "tool", "s": "system"}
    return [build_sized_message(Message.from_text(roles[text[0]], text)) for text in texts]


def parse_messages(*messages, api="anthropic"):
    """Parse and measure a body with these messages."""
    field = "contents" if api == "gemini" else "input" if api == "openai-responses" else "messages"
    return measure_parsed_request(parse_request(json.dumps({"model": "m", field: messages}).encode(), api))


def make_user(content):
    """Return a user message."""
    return {"role": "user", "content": content}


def follow(store, *texts, key=KEY):
    """Follow a conversation as the proxy does, and return its leaf."""
    journal = Journal.open(store, key, leaf=SessionIndexes(store).find_leaf(key, make_sized_messages(*texts), SETTINGS))
    journal.follow_conversation(make_sized_messages(*texts))
    return journal.leaf


def find_leaf(store, *texts, key=KEY):
    """Return the leaf that a conversation continues."""
    return SessionIndexes(store).find_leaf(key, make_sized_messages(*texts), SETTINGS)


# -- the key -----------------------------------------------------------------------------------------------------------


def test_make_session_key_depends_on_family_scope_and_first_message():
    """Client family, scope and first message each change the key, and a key without a scope omits it."""
    parsed, other = parse_messages(make_user("Go.")), parse_messages(make_user("Stop."))
    key = make_session_key(ClientIdentity("pi", "0a"), parsed)
    assert key.startswith("pi-0a-")
    assert make_session_key(PI, parsed) == "pi-" + key.removeprefix("pi-0a-")
    assert (
        len(
            {
                make_session_key(identity, request)
                for identity in (PI, ClientIdentity("aider"), ClientIdentity("pi", "1"))
                for request in (parsed, other)
            }
        )
        == 6
    )


def test_make_session_key_depends_on_the_upstream_without_a_scope():
    """What one server taught is not true of another; where the client names its session only that name counts."""
    parsed = parse_messages(make_user("Go."))
    keys = [make_session_key(PI, parsed, base) for base in ("", "http://one", "http://two")]
    assert len({*keys}) == 3
    assert len({make_session_key(ClientIdentity("pi", "0a"), parsed, base) for base in ("", "http://one")}) == 1


def test_make_session_key_of_a_thread_ignores_the_first_message():
    """A thread has one key however it begins, different from other threads and from a scope of the same name."""
    first, second = parse_messages(make_user("Go.")), parse_messages(make_user("Stop."))
    threads = [ClientIdentity("codex", scope, is_thread=True) for scope in ("0a", "0b")]
    keys = [make_session_key(thread, request) for thread in threads for request in (first, second)]
    assert keys == ["codex-0a-thread", "codex-0a-thread", "codex-0b-thread", "codex-0b-thread"]
    assert make_session_key(ClientIdentity("codex", "0a"), first) not in keys


@pytest.mark.parametrize(
    "messages",
    [
        [make_user("Go on.")],
        [make_user([{"type": "text", "text": "Go on."}])],
        [make_user([{"type": "text", "text": "Go "}, {"type": "text", "text": "on."}])],
        [make_user([{"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}}])],
        [make_user("Go on."), {"role": "assistant", "content": "Yes."}],
        [{"role": "system", "content": "Today is Monday."}, make_user("Go on.")],
    ],
)
def test_make_session_key_ignores_the_form_of_the_first_message(messages):
    """Blocks, cache markers, system messages before and messages after the first user text do not change the key."""
    assert make_session_key(PI, parse_messages(*messages)) == make_session_key(PI, parse_messages(make_user("Go on.")))


def test_make_session_key_is_the_same_on_every_api():
    """The same first text gives one key on every API."""
    messages = {
        "openai-chat": make_user("Go."),
        "openai-responses": make_user("Go."),
        "gemini": {"role": "user", "parts": [{"text": "Go."}]},
    }
    assert {make_session_key(PI, parse_messages(message, api=api)) for api, message in messages.items()} == {
        make_session_key(PI, parse_messages(make_user("Go.")))
    }


def test_make_session_key_works_without_a_user_message():
    """A body with only a system message, or with no message at all, has a valid key."""
    system = {"role": "system", "content": "Go."}
    assert make_session_key(PI, parse_messages(system)) not in {
        make_session_key(PI, parse_messages()),
        make_session_key(PI, parse_messages(make_user("Go."))),
    }
    MemoryStore().create_session(make_session_key(PI, parse_messages()))


# -- the branch --------------------------------------------------------------------------------------------------------


def test_find_leaf_is_none_without_a_matching_branch():
    """A missing session, an empty one and one that begins differently have no branch to continue."""
    store = MemoryStore()
    assert find_leaf(store, "u1") is None
    store.create_session(KEY)
    assert find_leaf(store, "u1") is None
    follow(store, "u1", "a1")
    assert find_leaf(store, "u2", "a1") is None
    assert find_leaf(store) is None


def test_find_leaf_continues_one_branch_for_growth_and_retries():
    """A retry and a longer conversation continue one branch, and nothing is stored twice."""
    store = MemoryStore()
    for messages in (["u1"], ["u1"], ["u1", "a1", "u2"], ["u1", "a1", "u2"]):
        leaf = follow(store, *messages)
        assert find_leaf(store, *messages) == leaf
    assert store.read_tips(KEY) == [store.get_entry(KEY, leaf)]
    assert [sized.message.text for sized in store.open_state(KEY, leaf).history.sized_messages] == ["u1", "a1", "u2"]


def test_find_leaf_distinguishes_edited_histories():
    """Each of two histories is found by its own messages; where both match equally the newest is taken."""
    store = MemoryStore()
    first = follow(store, "u1", "a1", "u2", "a2")
    edited = follow(store, "u1", "a1", "u2 edited")
    assert len(store.read_tips(KEY)) == 2
    assert find_leaf(store, "u1", "a1", "u2", "a2", "u3") == first
    assert find_leaf(store, "u1", "a1", "u2 edited", "a9") == edited
    assert find_leaf(store, "u1", "a1", "u2") == first
    assert find_leaf(store, "u1", "a1") == find_leaf(store, "u1", "a1", "u7") == edited, "the newest of equal matches"


def test_find_leaf_counts_repeated_messages():
    """A conversation that repeats a message is found at the right repetition, not at the first or the last."""
    store = MemoryStore()
    messages = ["u go on", "a yes"] * 4
    leaf = follow(store, *messages)
    short = follow(store, *messages[:3], "a no")
    assert find_leaf(store, *messages, "u go on") == leaf
    assert find_leaf(store, *messages[:3], "a no", "u go on") == short
    assert follow(store, *messages, "u go on") != leaf
    assert len(store.read_tips(KEY)) == 2


def test_find_leaf_matches_reformatted_answers():
    """A call with other spaces and an answer in pieces match the recorded answer; other arguments do not."""
    store = MemoryStore()
    first = make_sized_messages("u1")
    journal = Journal.open(store, KEY)
    journal.append(*first)
    journal.record_answer(Message("assistant", (Text("I look."), ToolCall("c", "read", '{"path": 1}'))))
    journal.append(build_sized_message(Message("tool", (ToolResult("c", "read", (Text("one"),)),))))
    follow(store, "u1", "a other")
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
    assert [sized.message for sized in other.state.history.sized_messages] == [sized.message for sized in again]


def test_find_leaf_matches_a_text_cut_at_append():
    """A text that was cut for its entry is found by the whole text, and no other text matches."""
    store, policy = MemoryStore(), Policy().with_settings(results={"append_chars": 2_000})
    messages = make_sized_messages("u" + "x" * 5_000, "a1")
    journal = Journal.open(store, KEY, policy)
    journal.follow_conversation(messages)
    assert (
        SessionIndexes(store).find_leaf(KEY, [*messages, *make_sized_messages("u2")], policy.settings) == journal.leaf
    )
    assert SessionIndexes(store).find_leaf(KEY, make_sized_messages("u" + "y" * 5_000), policy.settings) is None


def test_find_leaf_ignores_labels_and_notes():
    """A label is not a leaf, and a note after a message does not change the match."""
    store = MemoryStore()
    leaf = follow(store, "u1", "a1")
    store.label_entry(KEY, leaf, "here")
    assert find_leaf(store, "u1", "a1") == leaf
    noted = Entry("n", leaf, NoteEntry("n"))
    store.append_entries(KEY, [noted])
    assert find_leaf(store, "u1", "a1", "u2") == "n"


def test_find_leaf_handles_ten_thousand_unanswered_messages():
    """Ten thousand user messages without an answer are found in linear time."""
    store = MemoryStore()
    messages = [f"u{number}" for number in range(10_000)]
    store.create_session(KEY)
    entries = [
        Entry(str(number), str(number - 1) if number else None, MessageEntry(sized))
        for number, sized in enumerate(make_sized_messages(*messages))
    ]
    store.append_entries(KEY, entries)
    assert find_leaf(store, *messages) == "9999"
    assert find_leaf(store, "u0", "u x", *messages[2:]) == "9999"


# -- on any tree -------------------------------------------------------------------------------------------------------

words = st.sampled_from(["s1", "u1", "u2", "a1", "a2", "a", "t1", "t2"])
"""Few texts, so that many repeat; joined pieces of one answer are texts of their own."""
paths = st.lists(
    st.tuples(
        st.integers(0, 30),
        words,
        st.sampled_from([MessageEntry, MessageEntry, MessageEntry, BranchSummaryEntry, NoteEntry]),
    ),
    min_size=1,
    max_size=30,
)


def build_tree(steps):
    """Return a store with a tree in which each step is appended after an earlier one."""
    store, names = MemoryStore(), [None]
    store.create_session(KEY)
    for number, (place, word, kind) in enumerate(steps):
        (sized,) = make_sized_messages(word)
        body = AnswerEntry("b") if kind is NoteEntry else kind(sized)
        store.append_entries(KEY, [Entry(str(number), names[place % len(names)], body)])
        names.append(str(number))
    return store


def join_neighbours(messages, cuts):
    """Join neighbouring messages of one role where ``cuts`` is false."""
    out = []
    for sized, cut in zip(messages, [*cuts, *[True] * len(messages)], strict=False):
        if out and not cut and out[-1].message.role == sized.message.role:
            out[-1] = build_sized_message(Message(sized.message.role, (*out[-1].message.parts, *sized.message.parts)))
        else:
            out.append(sized)
    return out


def join_runs(messages):
    """Return each run of one role as one text; of leading system messages only their number."""
    out = []
    for sized in messages:
        role, text = sized.message.role, "".join(part.text for part in sized.message.parts)
        if role == "system" and all(run == ("system", "") for run in out):
            out.append((role, ""))
        elif out and out[-1][0] == role and out[-1] != ("system", ""):
            out[-1] = (role, out[-1][1] + text)
        else:
            out.append((role, text))
    return out


def find_newest_best(leaves, counts):
    """Return the id of the last leaf with the highest count, if any has one."""
    best = max(counts, default=0)
    return next((leaf.id for leaf, count in reversed([*zip(leaves, counts, strict=True)]) if best == count > 0), None)


def build_tree_and_conversation(steps, pick, more):
    """Return a tree, its leaves, the messages of each branch, and a conversation that extends one branch."""
    store = build_tree(steps)
    leaves = store.read_tips(KEY)
    known = [
        ConversationState.from_entries(store.read_path(KEY, leaf.id)).history.sized_messages.slice() for leaf in leaves
    ]
    return store, leaves, known, [*known[pick % len(known)], *make_sized_messages(*more)]


@given(steps=paths, pick=st.integers(0, 30), more=st.lists(words, max_size=4))
def test_find_leaf_agrees_with_matching_every_branch(steps, pick, more):
    """On any tree the leaf is the one of which most is repeated, as matching each branch by itself shows."""
    store, leaves, known, messages = build_tree_and_conversation(steps, pick, more)
    counts = [match_known_prefix(path, messages, SETTINGS).client_count for path in known]
    assert SessionIndexes(store).find_leaf(KEY, messages, SETTINGS) == find_newest_best(leaves, counts)


@given(
    steps=paths, pick=st.integers(0, 30), more=st.lists(words, max_size=4), cuts=st.lists(st.booleans(), max_size=20)
)
def test_find_leaf_ignores_how_text_is_split_into_messages(steps, pick, more, cuts):
    """The branch is found whose text, joined for each side, the conversation repeats for longest."""
    store, leaves, known, messages = build_tree_and_conversation(steps, pick, more)
    messages = join_neighbours(messages, cuts)
    ends = [[join_runs(path[: at + 1]) for at in range(len(path))] for path in known]
    counts = [
        max((at + 1 for at in range(len(messages)) if join_runs(messages[: at + 1]) in path), default=0)
        for path in ends
    ]
    assert SessionIndexes(store).find_leaf(KEY, messages, SETTINGS) == find_newest_best(leaves, counts)


@given(steps=paths, pick=st.integers(0, 30), more=st.lists(words, max_size=4), read=st.integers(0, 30))
def test_add_appended_keeps_the_index_equal_to_a_fresh_read(steps, pick, more, read):
    """Entries appended since the last look-up, announced or not, are found as if the tree were read anew."""
    store, _, _, messages = build_tree_and_conversation(steps, pick, more)
    other = MemoryStore()
    other.create_session(KEY)
    trees = SessionIndexes(other, 1)
    for number, entry in enumerate(store.read_entries(KEY)):
        other.append_entries(KEY, [entry])
        if number != read:
            trees.add_appended(KEY, [entry])
        if number >= read // 2:
            trees.find_leaf(KEY, messages, SETTINGS)
            trees.find_leaf(KEY, [*messages[: number % 5], *make_sized_messages("u1")], SETTINGS)
    assert trees.find_leaf(KEY, messages, SETTINGS) == SessionIndexes(store).find_leaf(KEY, messages, SETTINGS)


def test_find_leaf_reads_siblings_once():
    """A conversation is found among a thousand siblings without reading any of them again."""
    store, reads = MemoryStore(), []
    every = store.read_entries
    store.read_entries = lambda key, kind=None, *, after=0: reads.append(kind) or every(key, kind, after=after)
    trees = SessionIndexes(store)
    for number in range(1_000):
        messages = make_sized_messages("u1", "a1", f"u item {number}")
        leaf = trees.find_leaf(KEY, messages, SETTINGS)
        journal = Journal.open(store, KEY, leaf=leaf)
        journal.append_listener = trees.add_appended
        journal.follow_conversation(messages)
        assert trees.find_leaf(KEY, [*messages, *make_sized_messages("a9", "u9")], SETTINGS) == journal.leaf
    assert reads.count(None) == 1
    assert trees.find_leaf(KEY, make_sized_messages("u1", "a1", "u item 7", "a9"), SETTINGS) != journal.leaf


def test_find_leaf_reads_only_foreign_entries_since_the_last_look_up():
    """With another process writing in turns each look-up reads what is new, and no entry is read three times."""
    store, reads = MemoryStore(), []
    every = store.read_entries
    store.read_entries = lambda key, kind=None, *, after=0: reads.append(every(key, kind, after=after)) or reads[-1]
    trees, messages = SessionIndexes(store), make_sized_messages("u1")
    journal = Journal.open(store, KEY)
    for number in range(200):
        messages += make_sized_messages(f"a{number}", f"u{number}")
        journal.follow_conversation(messages)
        if number % 2:
            trees.add_appended(KEY, store.read_path(KEY)[-2:])
        else:
            assert trees.find_leaf(KEY, messages, SETTINGS) == journal.leaf
    assert max(map(len, reads)) <= 5
    assert sum(map(len, reads)) <= 2 * store.get_session(KEY).entry_count


class CountedMessage(Struct):
    """A sized message that counts each access to its message."""

    sized: SizedMessage
    counted: list[SizedMessage]

    @property
    def digest(self):
        """Of the sized message."""
        return self.sized.digest

    @property
    def message(self):
        """Of the sized message."""
        self.counted.append(self.sized)
        return self.sized.message


def test_find_leaf_inspects_only_new_messages():
    """Of a conversation looked up before only the new messages are inspected, of another only those after the fork."""
    store = MemoryStore()
    messages = [f"{'ua'[number % 2]}{number}" for number in range(100)]
    follow(store, *messages)
    trees, counted = SessionIndexes(store), []
    for length in range(60, 100):
        trees.find_leaf(
            KEY, [CountedMessage(sized, counted) for sized in make_sized_messages(*messages[:length])], SETTINGS
        )
    assert len(counted) == 99
    assert find_leaf(store, *messages[:50], "u other") == trees.find_leaf(
        KEY, [CountedMessage(sized, counted) for sized in make_sized_messages(*messages[:50], "u other")], SETTINGS
    )
    assert len(counted) == 100


def test_find_leaf_follows_entries_behind_a_label():
    """An imported recording may have a label inside its path; messages after it are found."""
    store = MemoryStore()
    one, two = make_sized_messages("u1", "a1")
    store.import_entries(
        KEY,
        [
            Entry("1", None, MessageEntry(one)),
            Entry("l", "1", LabelEntry("1", "here")),
            Entry("2", "l", MessageEntry(two)),
        ],
    )
    assert find_leaf(store, "u1", "a1", "u2") == "2"


def test_find_leaf_rebuilds_the_index_of_a_recreated_session():
    """A key that was removed and created again has a tree of its own, however many entries it has."""
    store = MemoryStore()
    trees = SessionIndexes(store)
    first = follow(store, "u1", "a1")
    assert trees.find_leaf(KEY, make_sized_messages("u1", "a1"), SETTINGS) == first
    for messages in (["u1", "a1"], ["u2"], ["u1", "a1", "u2", "a2"]):
        store.remove_session(KEY)
        store.create_session(KEY, SessionInfo(KEY, created_at=1))
        again = follow(store, *messages)
        assert again != first
        assert trees.find_leaf(KEY, make_sized_messages(*messages), SETTINGS) == again
