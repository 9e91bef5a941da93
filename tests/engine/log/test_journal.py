"""The journal: what is in the log when a method returns, and what a journal opened later reads from it."""

from __future__ import annotations

from hashlib import sha256

import pytest
from msgspec import Raw
from msgspec.structs import replace
from sample_entries import SAMPLE_KEY, is_same_request

from holdfast import PlanInputs, Policy
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.errors import LogConflict, StoreLocked, StoreReadOnly, UnknownId, WindowTooSmall
from holdfast.messages.message import Message, collect_media_in_messages, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.requests.request_body import build_request_body
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    FailureEntry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.view import build_projection, compute_prefix_digest, get_valid_measured_request
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.store.tree.active import GappedSequence

HELLO = Message.from_text("user", "Read the file, then tell me what holds.")
LONG = "\n".join(f"{n}: a line of a file that is long" for n in range(4_000))


def build_step(number, size=40, calls=1):
    """Return an answer with tool calls and a message with their results."""
    ids = [f"call_{number}_{index}" for index in range(calls)]
    words = " ".join(f"word{number}.{index}" for index in range(size // 8))
    answer = Message("assistant", (Text(f"step {number}"), *(ToolCall(id_, "read", '{"path":"f"}') for id_ in ids)))
    return answer, Message("tool", tuple(ToolResult(id_, "read", (Text(words),)) for id_ in ids))


def encode_request(prepared):
    """Return the bytes of a prepared request."""
    target = prepared.target
    return build_request_body(target.api, target.model, prepared.messages, options=prepared.plan.options)


def run_steps(journal, target, numbers, size=40):
    """Run the agent loop for these steps and return the bytes of each request."""
    bodies = []
    for number in numbers:
        prepared = journal.prepare_request(target)
        bodies.append(encode_request(prepared))
        answer, results = build_step(number, size)
        journal.record_answer(answer)
        journal.append(results)
    return bodies


def list_body_types(store, leaf=None):
    """Return the types of the entries on a branch."""
    return [type(entry.body) for entry in store.read_path(SAMPLE_KEY, leaf)]


def build_read_step(id_, text):
    """Return a tool call and its result."""
    return (
        Message("assistant", (ToolCall(id_, "read", '{"path":"f"}'),)),
        Message("tool", (ToolResult(id_, "read", (Text(text),)),)),
    )


def list_blob_hashes(body):
    """Return the hashes of the blobs that an entry names."""
    return [
        *[edit.blob_hash for edit in getattr(body, "edits", ()) if edit.blob_hash],
        *getattr(body, "data", {}).get("blobs", ()),
    ]


def is_same_after_reload(journal):
    """Return whether opening the store and folding the whole log both give the journal's state."""
    folded = ConversationState.from_entries(journal.store.read_path(SAMPLE_KEY, journal.leaf))
    return is_same_request(journal.state, folded) and is_same_request(
        journal.state, journal.store.open_state(SAMPLE_KEY, journal.leaf)
    )


def test_journal_open_records_the_policy_of_a_new_session(store):
    """The first entry names the policy that the session began with; opening it again adds nothing."""
    journal = Journal.open(store, SAMPLE_KEY, Policy.preset("pi"))
    assert [entry.body for entry in store.read_path(SAMPLE_KEY)] == [NoteEntry("policy", data={"name": "pi"})]
    assert Journal.open(store, SAMPLE_KEY).leaf == journal.leaf == store.get_session(SAMPLE_KEY).leaf_id
    assert store.get_session(SAMPLE_KEY).entry_count == 1


def test_journal_records_a_new_policy_before_its_first_decision(store, anthropic):
    """One note precedes the first decision of another policy; a policy that decides nothing is not recorded."""
    Journal.open(store, SAMPLE_KEY).append(HELLO)
    journal = Journal.open(store, SAMPLE_KEY, Policy.preset("claude-code"))
    journal.prepare_request(anthropic)
    assert list_body_types(store) == [NoteEntry, MessageEntry, RequestEntry]
    journal.append(*build_read_step("c1", LONG))
    journal.prepare_request(anthropic)
    journal.append(*build_read_step("c2", LONG))
    Journal.open(store, SAMPLE_KEY, journal.policy).prepare_request(anthropic)
    policy_names = [
        entry.body.data["name"] for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, NoteEntry)
    ]
    assert policy_names == ["holdfast", "claude-code"]
    assert list_body_types(store)[5:7] == [NoteEntry, DecisionEntry]
    reopened = Journal.open(store, SAMPLE_KEY)
    assert reopened.state.policy_name == "claude-code"
    assert is_same_after_reload(reopened)


def test_journal_open_takes_the_key_literally(store):
    """A session whose key begins with the given key is another session."""
    Journal.open(store, SAMPLE_KEY + "0").append(HELLO)
    assert len(Journal.open(store, SAMPLE_KEY).state.history.sized_messages) == 0


def test_journal_open_with_an_unknown_leaf_creates_no_session(store):
    """The store is unchanged after the error."""
    with pytest.raises(UnknownId):
        Journal.open(store, SAMPLE_KEY, leaf="nowhere")
    assert store.list_sessions() == []


def test_journal_append_stores_entries_before_it_returns(store, store_path):
    """nothing-lost: another process sees the entries whose ids were returned."""
    journal = Journal.open(store, SAMPLE_KEY)
    ids = journal.append(HELLO, *build_read_step("c1", "text"))
    with SqliteStore(store_path) as other:
        assert [other.get_entry(SAMPLE_KEY, id_).body.sized_message.message for id_ in ids] == [
            HELLO,
            *build_read_step("c1", "text"),
        ]
    assert len(ids) == 3
    assert journal.append() == []


def test_journal_append_keeps_the_raw_bytes_of_a_message(store):
    """pairing-by-occurrence: a message that came over the wire is sent with the same bytes, also after a reload."""
    raw = Raw(b'{"role": "user",  "content":"kelp \\u2028"}')
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(
        SizedMessage(Message.from_text("user", "kelp \u2028"), api="anthropic", raw=raw), *build_read_step("c1", "text")
    )
    target = get_target("anthropic", "claude-opus-5-5")
    reopened = Journal.open(store, SAMPLE_KEY)
    assert bytes(raw) in encode_request(journal.prepare_request(target))
    assert bytes(raw) in encode_request(reopened.prepare_request(target))
    assert journal.state.history.sized_messages[0].tokens > 0


def test_prepare_request_records_decision_and_request_before_it_returns(store, anthropic):
    """decision-before-request: when ``prepare_request`` returns, its decision and its request are in the log."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *build_read_step("c1", LONG))
    prepared = journal.prepare_request(anthropic)
    assert list_body_types(store)[-2:] == [DecisionEntry, RequestEntry]
    request = store.get_entry(SAMPLE_KEY, prepared.request_id)
    target_fields = (anthropic.model, anthropic.limits.window, anthropic.api)
    assert request.body == RequestEntry(compute_prefix_digest(journal.state), 3, *target_fields)
    assert request.id == journal.leaf
    edit = store.read_path(SAMPLE_KEY)[-2].body.edits[0]
    assert store.blobs.read_text(edit.blob_hash) == LONG
    assert prepared.plan.state is journal.state
    assert is_same_after_reload(journal)


def test_journal_stores_a_blob_before_the_entry_that_names_it(store, anthropic, monkeypatch):
    """text-before-entry: when an entry is appended, every blob that it names is stored already."""
    journal = Journal.open(store, SAMPLE_KEY, Policy().with_settings(results={"append_chars": 100_000}))
    blob_hashes, append = [], store.append_entries

    def check_and_append(key, new, **options):
        blob_hashes.extend(hash_ for entry in new for hash_ in list_blob_hashes(entry.body))
        assert all(map(store.blobs.has_blob, blob_hashes))
        return append(key, new, **options)

    monkeypatch.setattr(store, "append_entries", check_and_append)
    journal.append(HELLO, *build_read_step("c1", LONG[:90_000]), *build_read_step("c2", LONG))
    journal.prepare_request(anthropic)
    assert len(set(blob_hashes)) == 2


def test_prepare_request_records_a_changed_setup_once(store, anthropic):
    """The log holds the request setup, so a reload gives the same state; an equal setup is not recorded again."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    target = replace(anthropic, setup=RequestSetup("tools", 900))
    journal.prepare_request(target)
    journal.record_answer(Message.from_text("assistant", "Done."))
    journal.append(HELLO)
    journal.prepare_request(target)
    assert list_body_types(store).count(RequestSetup) == 1
    assert journal.state.setup == RequestSetup("tools", 900)
    assert is_same_after_reload(journal)


def test_record_answer_stores_the_usage_with_the_answer(store, anthropic):
    """The usage of the last request calibrates the next one, also after a reload."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    prepared = journal.prepare_request(replace(anthropic, setup=RequestSetup("f", 50, is_exact=True)))
    id_ = journal.record_answer(Message.from_text("assistant", "Kelp holds."), Usage(70, 9), "end_turn")
    assert isinstance(store.get_entry(SAMPLE_KEY, id_).body, MessageEntry)
    assert store.read_path(SAMPLE_KEY)[-1].body == AnswerEntry(
        prepared.plan.state.last_request.prefix_digest, Usage(70, 9), "end_turn"
    )
    assert get_valid_measured_request(journal.state).reported_tokens == 70
    assert is_same_after_reload(journal)


def test_record_answer_of_an_empty_answer_adds_no_message(store, anthropic):
    """Only the answer's usage is recorded, its id is returned, and queued messages are delivered behind it."""
    journal = Journal.open(store, SAMPLE_KEY, Policy())
    journal.append(Message.from_text("user", "Look around."))
    journal.prepare_request(anthropic)
    journal.queue_messages(Message.from_text("user", "And?"))
    id_ = journal.record_answer(SizedMessage(Message("assistant", ()), api="anthropic"), Usage(7, 1), "end_turn")
    body = store.get_entry(SAMPLE_KEY, id_).body
    assert (body.usage, body.stop_reason) == (Usage(7, 1), "end_turn")
    assert [message.text for message in journal.state.history.messages] == ["Look around.", "And?"]


def test_prepare_request_returns_the_same_request_for_a_retry(store, anthropic):
    """same-after-restart: preparing again without new messages gives the same bytes and writes nothing but failures."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *build_read_step("c1", LONG))
    first = journal.prepare_request(anthropic)
    count = store.get_session(SAMPLE_KEY).entry_count
    journal.record_failure("overloaded: 529")
    assert journal.prepare_request(anthropic) is first
    assert store.get_session(SAMPLE_KEY).entry_count == count + 1
    assert is_same_after_reload(journal)


def test_record_failure_of_a_request_does_not_count_as_a_failed_compaction(store, anthropic):
    """A provider that is down does not open the breaker of compactions."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    journal.prepare_request(anthropic)
    for _ in range(5):
        id_ = journal.record_failure("overloaded: 529")
    assert isinstance(store.get_entry(SAMPLE_KEY, id_).body, FailureEntry)
    assert journal.state.counters.failed_compactions == 0
    assert is_same_after_reload(journal)


def test_prepare_request_makes_a_new_request_when_its_inputs_change(store, anthropic):
    """Another model, a forced compaction or a new message makes a new request; a colder cache does not."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    first = journal.prepare_request(anthropic)
    assert journal.prepare_request(anthropic, PlanInputs(cache_state="cold")) is first
    forced = journal.prepare_request(anthropic, PlanInputs(force_compaction=True))
    other = journal.prepare_request(replace(anthropic, model="claude-opus-5"))
    journal.append(Message.from_text("user", "And?"))
    assert (
        len({first.request_id, forced.request_id, other.request_id, journal.prepare_request(anthropic).request_id}) == 4
    )


@pytest.mark.parametrize("inputs", [PlanInputs(), PlanInputs(cache_state="cold", idle_seconds=9_000)])
def test_prepare_request_after_a_restart_repeats_the_pending_request(store, anthropic, inputs):
    """same-after-restart: a session reopened after a crash sends the pending request, also with a cold cache."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    run_steps(journal, anthropic, range(6), size=3_000)
    first = journal.prepare_request(anthropic)
    assert 16_000 < first.plan.after < 20_000
    reopened = Journal.open(store, SAMPLE_KEY)
    second = reopened.prepare_request(anthropic, inputs)
    assert second.messages == first.messages
    assert store.read_path(SAMPLE_KEY)[-1].body == store.get_entry(SAMPLE_KEY, first.request_id).body
    assert reopened.state.counters.requests_since_break == journal.state.counters.requests_since_break
    small_target = replace(anthropic, limits=replace(anthropic.limits, window=16_000))
    assert reopened.prepare_request(small_target, inputs).plan.after < 16_000


@pytest.mark.parametrize("way", ["reload", "fork"])
def test_prepare_request_repeats_the_cache_breakpoints_of_a_retry(store, anthropic, way):
    """same-after-restart: a retry has the same bytes, with a breakpoint where the previous request ended."""
    target = replace(anthropic, limits=replace(anthropic.limits, window=60_000))
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    for number in range(24):
        first = journal.prepare_request(target)
        again = Journal.open(store, SAMPLE_KEY) if way == "reload" else journal.fork_at(first.request_id)
        second = again.prepare_request(target)
        third = (
            Journal.open(store, SAMPLE_KEY) if way == "reload" else again.fork_at(second.request_id)
        ).prepare_request(target)
        assert encode_request(third) == encode_request(second) == encode_request(first)
        answer, results = build_step(number, 12_000, calls=2)
        journal = Journal.open(store, SAMPLE_KEY) if way == "reload" else journal
        journal.record_answer(answer)
        journal.append(results)
    assert len(first.plan.options.cache_breakpoints) > 1


@pytest.mark.parametrize("policy", ["holdfast", "append-only"])
def test_journal_reopened_before_each_request_sends_the_same_bytes(store, anthropic, policy):
    """same-after-restart: a session reopened before each request sends the bytes of one that stayed open."""
    target = replace(anthropic, limits=replace(anthropic.limits, window=60_000))
    journal = Journal.open(MemoryStore(), SAMPLE_KEY, Policy.preset(policy))
    journal.append(HELLO)
    expected = run_steps(journal, target, range(40), size=12_000 if policy == "holdfast" else 400)
    Journal.open(store, SAMPLE_KEY, Policy.preset(policy)).append(HELLO)
    found = []
    for number in range(40):
        reopened = Journal.open(store, SAMPLE_KEY, Policy.preset(policy))
        found += run_steps(reopened, target, [number], size=12_000 if policy == "holdfast" else 400)
        assert is_same_after_reload(reopened)
    assert found == expected
    assert (CompactionEntry in list_body_types(store)) == (policy == "holdfast")


def test_journal_reads_hidden_messages_for_the_next_compaction(store, anthropic):
    """same-after-restart: a session opened behind a compaction makes the next one over the whole log."""
    journal = Journal.open(MemoryStore(), SAMPLE_KEY)
    journal.append(HELLO)
    expected = run_steps(journal, anthropic, range(16), size=3_000)
    Journal.open(store, SAMPLE_KEY).append(HELLO)
    found = [*run_steps(Journal.open(store, SAMPLE_KEY), anthropic, range(8), size=3_000)]
    reopened = Journal.open(store, SAMPLE_KEY)
    assert isinstance(reopened.state.history.sized_messages, GappedSequence)
    found += run_steps(reopened, anthropic, range(8, 16), size=3_000)
    assert list_body_types(store).count(CompactionEntry) > 1
    assert not isinstance(reopened.state.history.sized_messages, GappedSequence)
    assert found == expected


def test_journal_reads_nothing_while_the_loop_runs(store, anthropic, monkeypatch):
    """Appending, preparing and recording read nothing from the log."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)

    def fail_on_read(*_):
        raise AssertionError("the log was read")

    for method in (
        *("read_path", "read_active_entries", "open_state", "read_entries", "get_entry"),
        *("_read_path_up", "_read_all_entries"),
    ):
        monkeypatch.setattr(store, method, fail_on_read)
    run_steps(journal, anthropic, range(12))


# -- failed writes -----------------------------------------------------------------------------------------------------


def test_prepare_request_spills_nothing_when_blobs_cannot_be_stored(store, anthropic, fill_disk):
    """refusal-ends-writing: on a full disk no decision names a missing blob, and one notice says why."""
    target = replace(anthropic, limits=replace(anthropic.limits, window=200_000))
    journal = Journal.open(store, SAMPLE_KEY, Policy.preset("holdfast").with_settings(results={"spill_chars": 20_000}))
    journal.append(HELLO, *build_read_step("c1", LONG))
    fill_disk(store)
    prepared = journal.prepare_request(target)
    assert [notice.rule for notice in prepared.plan.notices] == ["unstored"]
    assert "0 bytes free" in prepared.plan.notices[0].why
    assert prepared.messages[2].message.results[0].content[0].text == LONG
    assert DecisionEntry not in list_body_types(store)
    assert is_same_after_reload(journal)


def test_journal_is_unchanged_after_a_failed_append(store, anthropic, monkeypatch):
    """refusal-ends-writing: a write that failed raises, and state and leaf stay as they were."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    before, leaf = journal.state, journal.leaf

    def refuse(*_args, **_more):
        raise StoreReadOnly("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(store, "append_entries", refuse)
        for write in (
            lambda: journal.append(HELLO),
            lambda: journal.prepare_request(anthropic),
            lambda: journal.record_failure("x"),
        ):
            with pytest.raises(StoreReadOnly):
                write()
    assert journal.state is before
    assert journal.leaf == leaf
    journal.prepare_request(anthropic)
    assert is_same_after_reload(journal)


def test_prepare_request_raises_window_too_small_before_writing(store, anthropic):
    """no-room-is-an-error: a request that cannot be built adds no entry."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    count = store.get_session(SAMPLE_KEY).entry_count
    with pytest.raises(WindowTooSmall):
        journal.prepare_request(replace(anthropic, limits=replace(anthropic.limits, window=1_000)))
    assert store.get_session(SAMPLE_KEY).entry_count == count


@pytest.mark.usefixtures("short_lease_wait")
def test_journal_append_raises_store_locked_while_the_lease_is_held(store, store_path):
    """one-writer: while another writer holds the session's lease, a typed error is raised."""
    journal = Journal.open(store, SAMPLE_KEY)
    with SqliteStore(store_path) as other, other.hold_lease(SAMPLE_KEY), pytest.raises(StoreLocked):
        journal.append(HELLO)
    assert len(journal.append(HELLO)) == 1


def test_journals_appending_at_one_leaf_make_two_branches(store, store_path):
    """unique-entry-ids: two journals at one leaf become two branches, and both keep their messages."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    with SqliteStore(store_path) as other_store:
        other_journal = Journal.open(other_store, SAMPLE_KEY)
        other_journal.append(Message.from_text("user", "second"))
        journal.append(Message.from_text("user", "first"))
        assert other_store.get_session(SAMPLE_KEY).leaf_id == other_journal.leaf
    assert {entry.id for entry in store.read_tips(SAMPLE_KEY)} == {journal.leaf, other_journal.leaf}
    assert is_same_after_reload(journal)


# -- cut at append -----------------------------------------------------------------------------------------------------


def test_journal_append_stores_a_text_over_the_cap_as_a_blob(store):
    """The note that names the blob precedes the cut message."""
    journal = Journal.open(store, SAMPLE_KEY, Policy().with_settings(results={"append_chars": 10_000}))
    (id_,) = journal.append(Message.from_text("user", LONG))
    note, entry = store.read_path(SAMPLE_KEY)[-2:]
    assert entry.id == id_
    assert note.body.reason == "capped"
    assert [store.blobs.read_text(hash_) for hash_ in note.body.data["blobs"]] == [LONG]
    assert len(entry.body.sized_message.message.text) <= 10_000
    assert sha256(LONG.encode()).hexdigest()[:12] in entry.body.sized_message.message.text
    assert is_same_after_reload(journal)


def test_prepare_request_does_not_spill_a_capped_text_again(store, anthropic):
    """The capped text, with its original size and id, is sent as it is and stored once."""
    text = LONG * 80
    journal = Journal.open(store, SAMPLE_KEY)
    assert len(text) > journal.policy.settings.results.append_chars
    journal.append(HELLO, *build_read_step("c1", text))
    prepared = journal.prepare_request(anthropic)
    (result,) = prepared.messages[-1].message.results
    handle = sha256(text.encode()).hexdigest()[:12]
    assert (
        f'{len(text):,} characters in {text.count(chr(10)) + 1:,} lines; recall(id="{handle}", lines='
        in get_result_text(result)
    )
    assert prepared.plan.record == ()
    assert [hash_[:12] for hash_ in store.blobs.iter_hashes()] == [handle]


def test_journal_append_keeps_a_text_whole_when_its_blob_cannot_be_stored(store, fill_disk):
    """nothing-lost: with a full blob store the message is stored with its whole text."""
    journal = Journal.open(store, SAMPLE_KEY, Policy().with_settings(results={"append_chars": 10_000}))
    fill_disk(store)
    journal.append(Message.from_text("user", LONG))
    assert store.read_path(SAMPLE_KEY)[-1].body.sized_message.message.text == LONG


# -- other branches ----------------------------------------------------------------------------------------------------


def test_undo_revokes_a_decision(store, anthropic):
    """A revoked decision no longer applies, also after a reload, while the log still holds it."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *build_read_step("c1", LONG))
    journal.prepare_request(anthropic)
    ((decision, _),) = journal.state.view.active_decisions
    assert journal.undo() == decision
    assert store.read_path(SAMPLE_KEY)[-1].body == RevokeEntry(decision)
    assert build_projection(journal.state)[2].message == build_read_step("c1", LONG)[1]
    assert DecisionEntry in list_body_types(store)
    assert is_same_after_reload(journal)


def test_undo_takes_an_id_or_a_unique_prefix_of_it(store, anthropic):
    """An unknown or ambiguous id is a typed error that changes nothing."""
    journal = Journal.open(store, SAMPLE_KEY)
    with pytest.raises(UnknownId, match="nothing to undo"):
        journal.undo()
    journal.append(HELLO, *build_read_step("c1", LONG))
    journal.prepare_request(anthropic)
    journal.append(*build_read_step("c2", LONG))
    journal.prepare_request(anthropic)
    (first, _), (second, _) = journal.state.view.active_decisions
    for wrong_id in ("", "nobody"):
        with pytest.raises(UnknownId):
            journal.undo(wrong_id)
    assert journal.undo(first[:20]) == first
    assert [id_ for id_, _ in journal.state.view.active_decisions] == [second]
    assert is_same_after_reload(journal)


def add_turns(journal, target, numbers):
    """Add short turns, each with its request and answer."""
    for number in numbers:
        journal.append(Message.from_text("user", f"question {number}"))
        journal.prepare_request(target)
        journal.record_answer(Message.from_text("assistant", f"answer {number}"))


def test_undo_of_a_turn_limit_lasts_until_enough_new_turns(store, anthropic):
    """The restored turns stay until the turns since the undo exceed the limit, also after a reload."""
    policy = Policy.preset("openclaw").with_settings(history={"max_turns": 2})
    journal = Journal.open(store, SAMPLE_KEY, policy)
    add_turns(journal, anthropic, range(3))
    assert journal.state.view.first_kept == 2
    journal.undo()
    for number in range(3, 5):
        journal = Journal.open(store, SAMPLE_KEY, policy)
        add_turns(journal, anthropic, [number])
        assert journal.state.view.first_kept == 0
        assert is_same_after_reload(journal)
    add_turns(journal, anthropic, [5])
    assert journal.state.view.first_kept == 8


@pytest.mark.parametrize(
    ("policy", "inputs"),
    [
        (Policy().with_settings(prune={"keep_tokens": 2_000, "min_tokens": 500}), PlanInputs(cache_state="cold")),
        (
            Policy.preset("openclaw").with_settings(
                preset={"prune_trim_share": 0.1, "prune_clear_share": 0.1, "prune_clear_min_chars": 1}
            ),
            PlanInputs(cache_state="cold", idle_seconds=900),
        ),
        (
            Policy.preset("claude-code").with_settings(prune={"tools": ()}),
            PlanInputs(cache_state="cold", idle_seconds=9_000),
        ),
        (
            Policy.preset("opencode").with_settings(
                preset={"prune": True, "prune_keep_tokens": 2_000, "prune_min_tokens": 500}
            ),
            PlanInputs(),
        ),
    ],
    ids=["holdfast", "openclaw", "claude-code", "opencode"],
)
def test_undo_of_a_prune_protects_the_restored_results(store, policy, inputs):
    """The next cold cache prunes none of the restored results, but results that came later."""
    target = get_target("anthropic", "claude-opus-5-5", window=100_000)
    journal = Journal.open(store, SAMPLE_KEY, policy)
    for number in range(12):
        journal.append(*([HELLO] if number % 3 == 0 else []))
        run_steps(journal, target, [number], size=4_000)
    journal.append(HELLO)
    undone_parts = {(edit.span.start, edit.span.part) for edit in journal.prepare_request(target, inputs).plan.record}
    assert undone_parts
    journal.undo()
    journal = Journal.open(store, SAMPLE_KEY, policy)
    assert undone_parts.isdisjoint(
        (edit.span.start, edit.span.part) for edit in journal.prepare_request(target, inputs).plan.record
    )
    for number in range(12, 24):
        journal.append(*([HELLO] if number % 3 == 0 else []))
        run_steps(journal, target, [number], size=4_000)
    journal.append(HELLO)
    journal.prepare_request(target, inputs)
    pruned_parts = {
        (edit.span.start, edit.span.part) for _, body in journal.state.view.active_decisions for edit in body.edits
    }
    assert pruned_parts
    assert pruned_parts.isdisjoint(undone_parts)
    assert is_same_after_reload(journal)


def test_undo_of_dropped_media_yields_only_to_the_limit_of_the_api(store, anthropic):
    """Restored images count on top of the policy's budget, and are dropped again where the API accepts fewer."""
    policy = Policy().with_settings(media={"max_count": 4})
    journal = Journal.open(store, SAMPLE_KEY, policy)
    for number in range(5):
        journal.append(Message("user", (Text(f"look {number}"), build_image(number))))
        prepared = journal.prepare_request(anthropic)
        journal.record_answer(Message.from_text("assistant", "seen"))
    assert [edit.rule for edit in prepared.plan.record] == ["media"] * 3
    journal.undo()
    journal = Journal.open(store, SAMPLE_KEY, policy)
    journal.append(Message.from_text("user", "and now?"))
    assert count_images(journal.prepare_request(anthropic)) == 5
    journal.record_answer(Message.from_text("assistant", "seen"))
    journal.append(Message.from_text("user", "again"))
    target_with_three_images = replace(anthropic, dialect=replace(anthropic.dialect, max_images=3))
    assert 1 <= count_images(journal.prepare_request(target_with_three_images)) <= 3


def build_image(number):
    """Return an image that differs from those of other numbers."""
    return Media("image", "image/png", 300, "", "A" * (400 + 4 * number))


def count_images(prepared):
    """Return the number of images in a request."""
    return sum(len(collect_media_in_messages(slot.message)) for slot in prepared.messages)


@pytest.mark.parametrize("compacts", [True, False])
def test_undo_of_a_spill_yields_when_the_request_does_not_fit(store, anthropic, compacts):
    """Undoing a spill never makes a request too large: that text alone is reduced again."""
    journal = Journal.open(store, SAMPLE_KEY, Policy().with_settings(compaction={"enabled": compacts}))
    journal.append(HELLO, *build_read_step("c1", LONG))
    journal.prepare_request(anthropic)
    journal.undo()
    prepared = journal.prepare_request(anthropic)
    assert [edit.rule for edit in prepared.plan.record] == ["largest"]
    assert prepared.plan.compaction is None
    assert prepared.plan.after < 30_000


def test_undo_of_a_spill_lasts_while_the_request_fits(store, anthropic):
    """A restored result was seen before, so it is not spilled again as a fresh one."""
    wide_target = replace(anthropic, limits=replace(anthropic.limits, window=200_000))
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *build_read_step("c1", LONG))
    journal.prepare_request(wide_target)
    journal.undo()
    for inputs in (PlanInputs(), PlanInputs(cache_state="cold", idle_seconds=90_000)):
        journal = Journal.open(store, SAMPLE_KEY)
        assert journal.prepare_request(wide_target, inputs).plan.record == ()
        journal.record_answer(Message.from_text("assistant", "read"))
        journal.append(HELLO)


def test_undo_of_a_compaction_reads_the_hidden_turns_after_a_reload(store, anthropic):
    """The turns that the compaction hides are read from the log again."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    run_steps(journal, anthropic, range(30), size=4_000)
    reopened = Journal.open(store, SAMPLE_KEY)
    newest = reopened.state.view.active_decisions[-1][0]
    assert reopened.undo() == newest
    assert is_same_after_reload(reopened)
    assert reopened.state.view.first_kept < journal.state.view.first_kept


def test_fork_at_shares_earlier_decisions_and_continues_separately(store, anthropic):
    """Decisions before the fork point apply to both branches; later entries belong to one branch only."""
    journal = Journal.open(store, SAMPLE_KEY)
    *_, last = journal.append(HELLO, *build_read_step("c1", LONG))
    journal.prepare_request(anthropic)
    fork_point = journal.leaf
    journal.record_answer(Message.from_text("assistant", "One."))
    fork = journal.fork_at(fork_point[:20])
    fork.record_answer(Message.from_text("assistant", "Two."))
    assert store.get_session(SAMPLE_KEY).leaf_id == journal.leaf
    assert {entry.id for entry in store.read_tips(SAMPLE_KEY)} == {journal.leaf, fork.leaf}
    assert build_projection(fork.state)[:3] == build_projection(journal.state)[:3]
    assert build_projection(fork.state)[3].message.text == "Two."
    early = journal.fork_at(last)
    assert early.state.view.active_decisions == ()
    assert all(map(is_same_after_reload, (journal, fork, early)))
    with pytest.raises(UnknownId):
        journal.fork_at("nowhere")


def test_journal_writes_a_step_of_the_loop_in_three_appends(store, anthropic, monkeypatch):
    """durable-as-promised: entries that belong together are written in one transaction."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *build_read_step("c1", LONG))
    counts, append = [], store.append_entries
    monkeypatch.setattr(
        store, "append_entries", lambda key, new, **more: counts.append(len(new)) or append(key, new, **more)
    )
    journal.prepare_request(replace(anthropic, setup=RequestSetup("f", 20)))
    journal.record_answer(build_step(1)[0])
    journal.append(build_step(1)[1])
    assert counts == [3, 2, 1]


@pytest.mark.parametrize("first", ["decides", "takes back"])
def test_commit_plan_refuses_a_plan_for_an_older_branch(store, anthropic, first):
    """A decision or an undo by another journal voids the plan, even when another call has noticed the change before."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *build_read_step("c1", LONG))
    if first == "takes back":
        journal.prepare_request(anthropic)
        journal.record_answer(Message.from_text("assistant", "read"))
        journal.append(HELLO)
    other = Journal.open(store, SAMPLE_KEY)
    plan = journal.plan_next(anthropic)
    if first == "decides":
        other.prepare_request(anthropic)
    else:
        other.undo()
    journal.record_failure("a compaction that failed meanwhile", "timed_out")
    assert journal.leaf == store.get_session(SAMPLE_KEY).leaf_id
    assert journal.commit_plan(plan, anthropic) is None
    journal.prepare_request(anthropic)
    assert is_same_after_reload(journal)
    edited_spans = [edit.span for _, decision in journal.state.view.active_decisions for edit in decision.edits]
    assert len(edited_spans) == len({*edited_spans}) == 1


def test_deliver_queued_keeps_messages_that_could_not_be_written(store, anthropic, monkeypatch):
    """queued-input-once: messages that cannot be delivered stay queued and are delivered once when the store works."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    journal.prepare_request(anthropic)
    journal.queue_messages(Message.from_text("user", "Wait."))
    with monkeypatch.context() as patched:
        patched.setattr(store, "append_entries", refuse)
        with pytest.raises(StoreReadOnly):
            journal.deliver_queued()
    assert len(journal.deliver_queued()) == 1
    assert journal.deliver_queued() == []
    assert journal.state.history.sized_messages[-1].message.text == "Wait."


def refuse(*_args, **_more):
    raise StoreReadOnly("the disk is full")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"input_tokens": 900},), "usage is of type dict; give a value of type Usage"),
        ((Usage(input="900"),), "this is not a usage: Expected `int`, got `str`"),
        ((Usage(), None), "stop is of type NoneType; give a value of type str"),
    ],
)
def test_record_answer_rejects_an_invalid_usage_or_stop_reason(arguments, message):
    """The answer is refused before anything is written, and the session goes on."""
    store = MemoryStore()
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    journal.prepare_request(get_target("anthropic", "claude-opus-5-5"))
    before = list_body_types(store)
    with pytest.raises(LogConflict, match=message):
        journal.record_answer(Message.from_text("assistant", "Which file?"), *arguments)
    assert list_body_types(store) == before
    Journal.open(store, SAMPLE_KEY).prepare_request(get_target("anthropic", "claude-opus-5-5"))


def test_prepare_request_rejects_a_target_of_another_type():
    """The error names the argument and its type."""
    journal = Journal.open(MemoryStore(), SAMPLE_KEY)
    with pytest.raises(TypeError, match="target is of type str; give a value of type Target"):
        journal.prepare_request("claude-opus-5-5")
