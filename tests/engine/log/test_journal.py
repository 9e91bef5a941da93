"""The journal: what is in the log when a verb returns, and what a new one at the same place makes of it."""

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


def step(number, size=40, calls=1):
    """Return an answer that calls, and the results of its calls."""
    ids = [f"call_{number}_{index}" for index in range(calls)]
    words = " ".join(f"word{number}.{index}" for index in range(size // 8))
    answer = Message("assistant", (Text(f"step {number}"), *(ToolCall(id_, "read", '{"path":"f"}') for id_ in ids)))
    return answer, Message("tool", tuple(ToolResult(id_, "read", (Text(words),)) for id_ in ids))


def sent(prepared):
    """Return the request's bytes."""
    goal = prepared.target
    return build_request_body(goal.api, goal.model, prepared.messages, options=prepared.plan.options)


def run(journal, target, numbers, size=40):
    """Drive the loop for these steps; return the bytes of each request."""
    bodies = []
    for number in numbers:
        prepared = journal.prepare_request(target)
        bodies.append(sent(prepared))
        answer, results = step(number, size)
        journal.record_answer(answer)
        journal.append(results)
    return bodies


def kinds(store, leaf=None):
    """Return what the log says, by kind."""
    return [type(entry.body) for entry in store.read_path(SAMPLE_KEY, leaf)]


def read(id_, text):
    """Return a call and its result."""
    return (
        Message("assistant", (ToolCall(id_, "read", '{"path":"f"}'),)),
        Message("tool", (ToolResult(id_, "read", (Text(text),)),)),
    )


def blobs_of(body):
    """Return the blobs that an entry names."""
    return [
        *[edit.blob_hash for edit in getattr(body, "edits", ()) if edit.blob_hash],
        *getattr(body, "data", {}).get("blobs", ()),
    ]


def agrees(journal):
    """Whether a reload gives the branch that the journal holds, and the log from its root does too."""
    walked = ConversationState.from_entries(journal.store.read_path(SAMPLE_KEY, journal.leaf))
    return is_same_request(journal.state, walked) and is_same_request(
        journal.state, journal.store.open_state(SAMPLE_KEY, journal.leaf)
    )


def test_a_session_that_is_not_there_begins_with_a_note_of_its_policy(store):
    """Who reads a session later knows which policy it began with; opening it again adds nothing."""
    journal = Journal.open(store, SAMPLE_KEY, Policy.preset("pi"))
    assert [entry.body for entry in store.read_path(SAMPLE_KEY)] == [NoteEntry("policy", data={"name": "pi"})]
    assert Journal.open(store, SAMPLE_KEY).leaf == journal.leaf == store.get_session(SAMPLE_KEY).leaf_id
    assert store.get_session(SAMPLE_KEY).entry_count == 1


def test_another_policy_is_named_before_it_decides(store, anthropic):
    """The log says who decides: one note before the first decision of another policy, none where it decides nothing."""
    Journal.open(store, SAMPLE_KEY).append(HELLO)
    journal = Journal.open(store, SAMPLE_KEY, Policy.preset("claude-code"))
    journal.prepare_request(anthropic)
    assert kinds(store) == [NoteEntry, MessageEntry, RequestEntry]
    journal.append(*read("c1", LONG))
    journal.prepare_request(anthropic)
    journal.append(*read("c2", LONG))
    Journal.open(store, SAMPLE_KEY, journal.policy).prepare_request(anthropic)
    named = [entry.body.data["name"] for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, NoteEntry)]
    assert named == ["holdfast", "claude-code"]
    assert kinds(store)[5:7] == [NoteEntry, DecisionEntry]
    again = Journal.open(store, SAMPLE_KEY)
    assert again.state.policy_name == "claude-code"
    assert agrees(again)


def test_a_key_is_never_taken_for_the_beginning_of_another(store):
    """``open`` means the key it is given: a session whose key is longer is another one."""
    Journal.open(store, SAMPLE_KEY + "0").append(HELLO)
    assert len(Journal.open(store, SAMPLE_KEY).state.history.sized_messages) == 0


def test_a_leaf_that_is_not_there_makes_no_session(store):
    """An error leaves nothing behind."""
    with pytest.raises(UnknownId):
        Journal.open(store, SAMPLE_KEY, leaf="nowhere")
    assert store.list_sessions() == []


def test_what_was_appended_is_there_when_append_returns(store, place):
    """nothing-lost: another process sees the entries whose ids were returned."""
    journal = Journal.open(store, SAMPLE_KEY)
    ids = journal.append(HELLO, *read("c1", "text"))
    with SqliteStore(place) as other:
        assert [other.get_entry(SAMPLE_KEY, id_).body.sized_message.message for id_ in ids] == [
            HELLO,
            *read("c1", "text"),
        ]
    assert len(ids) == 3
    assert journal.append() == []


def test_a_slot_keeps_its_bytes(store):
    """pairing-by-occurrence: a message that came over a wire is sent as it came, also after a reload."""
    raw = Raw(b'{"role": "user",  "content":"kelp \\u2028"}')
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(
        SizedMessage(Message.from_text("user", "kelp \u2028"), api="anthropic", raw=raw), *read("c1", "text")
    )
    goal = get_target("anthropic", "claude-opus-5-5")
    again = Journal.open(store, SAMPLE_KEY)
    assert bytes(raw) in sent(journal.prepare_request(goal))
    assert bytes(raw) in sent(again.prepare_request(goal))
    assert journal.state.history.sized_messages[0].tokens > 0


def test_a_request_is_in_the_log_before_it_is_sent(store, anthropic):
    """decision-before-request: what was decided and that a request goes out are in the log when ``prepare`` returns."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *read("c1", LONG))
    prepared = journal.prepare_request(anthropic)
    assert kinds(store)[-2:] == [DecisionEntry, RequestEntry]
    request = store.get_entry(SAMPLE_KEY, prepared.request_id)
    told = (anthropic.model, anthropic.limits.window, anthropic.api)
    assert request.body == RequestEntry(compute_prefix_digest(journal.state), 3, *told)
    assert request.id == journal.leaf
    edit = store.read_path(SAMPLE_KEY)[-2].body.edits[0]
    assert store.blobs.read_text(edit.blob_hash) == LONG
    assert prepared.plan.state is journal.state
    assert agrees(journal)


def test_a_text_is_stored_before_the_log_names_it(store, anthropic, monkeypatch):
    """text-before-entry: when an entry is appended, every text that it names is there already."""
    journal = Journal.open(store, SAMPLE_KEY, Policy().with_settings(results={"append_chars": 100_000}))
    named, append = [], store.append_entries

    def watched(key, new, **more):
        named.extend(hash_ for entry in new for hash_ in blobs_of(entry.body))
        assert all(map(store.blobs.has_blob, named))
        return append(key, new, **more)

    monkeypatch.setattr(store, "append_entries", watched)
    journal.append(HELLO, *read("c1", LONG[:90_000]), *read("c2", LONG))
    journal.prepare_request(anthropic)
    assert len(set(named)) == 2


def test_a_frame_that_changed_is_in_the_log_once(store, anthropic):
    """The log holds the frame, so that a reload gives the same branch; an equal one is not told again."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    framed = replace(anthropic, setup=RequestSetup("tools", 900))
    journal.prepare_request(framed)
    journal.record_answer(Message.from_text("assistant", "Done."))
    journal.append(HELLO)
    journal.prepare_request(framed)
    assert kinds(store).count(RequestSetup) == 1
    assert journal.state.setup == RequestSetup("tools", 900)
    assert agrees(journal)


def test_an_answer_is_recorded_with_what_it_cost(store, anthropic):
    """Usage of the last request calibrates the next; a reload knows it too."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    prepared = journal.prepare_request(replace(anthropic, setup=RequestSetup("f", 50, is_exact=True)))
    id_ = journal.record_answer(Message.from_text("assistant", "Kelp holds."), Usage(70, 9), "end_turn")
    assert isinstance(store.get_entry(SAMPLE_KEY, id_).body, MessageEntry)
    assert store.read_path(SAMPLE_KEY)[-1].body == AnswerEntry(
        prepared.plan.state.last_request.prefix_digest, Usage(70, 9), "end_turn"
    )
    assert get_valid_measured_request(journal.state).reported_tokens == 70
    assert agrees(journal)


def test_an_answer_without_a_word_is_no_message(store, anthropic):
    """What it cost is in the log alone, by that id it is known, and what waited for it is said behind it."""
    journal = Journal.open(store, SAMPLE_KEY, Policy())
    journal.append(Message.from_text("user", "Look around."))
    journal.prepare_request(anthropic)
    journal.queue_messages(Message.from_text("user", "And?"))
    id_ = journal.record_answer(SizedMessage(Message("assistant", ()), api="anthropic"), Usage(7, 1), "end_turn")
    told = store.get_entry(SAMPLE_KEY, id_).body
    assert (told.usage, told.stop_reason) == (Usage(7, 1), "end_turn")
    assert [message.text for message in journal.state.history.messages] == ["Look around.", "And?"]


def test_a_retry_is_the_same_request(store, anthropic):
    """same-after-restart: preparing again with nothing said gives the same bytes and writes nothing, failed attempts
    aside.
    """
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *read("c1", LONG))
    first = journal.prepare_request(anthropic)
    count = store.get_session(SAMPLE_KEY).entry_count
    journal.record_failure("overloaded: 529")
    assert journal.prepare_request(anthropic) is first
    assert store.get_session(SAMPLE_KEY).entry_count == count + 1
    assert agrees(journal)


def test_a_failed_request_says_nothing_of_compaction(store, anthropic):
    """A provider that is down does not open the breaker of compactions."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    journal.prepare_request(anthropic)
    for _ in range(5):
        id_ = journal.record_failure("overloaded: 529")
    assert isinstance(store.get_entry(SAMPLE_KEY, id_).body, FailureEntry)
    assert journal.state.counters.failed_compactions == 0
    assert agrees(journal)


def test_what_changes_makes_a_retry_a_request_of_its_own(store, anthropic):
    """Another model, a forced compaction or a new word is another request; a colder cache is not."""
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


@pytest.mark.parametrize("world", [PlanInputs(), PlanInputs(cache_state="cold", idle_seconds=9_000)])
def test_a_retry_after_a_restart_decides_nothing(store, anthropic, world):
    """same-after-restart: whoever opens the session after a crash sends what was about to be sent, though the cache
    went cold.
    """
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    run(journal, anthropic, range(6), size=3_000)
    first = journal.prepare_request(anthropic)
    assert 16_000 < first.plan.after < 20_000
    again = Journal.open(store, SAMPLE_KEY)
    second = again.prepare_request(anthropic, world)
    assert second.messages == first.messages
    assert store.read_path(SAMPLE_KEY)[-1].body == store.get_entry(SAMPLE_KEY, first.request_id).body
    assert again.state.counters.requests_since_break == journal.state.counters.requests_since_break
    small = replace(anthropic, limits=replace(anthropic.limits, window=16_000))
    assert again.prepare_request(small, world).plan.after < 16_000


@pytest.mark.parametrize("way", ["reload", "fork"])
def test_a_retry_has_the_breakpoints_of_what_it_tries_again(store, anthropic, way):
    """same-after-restart: the body is the same to the last byte: a breakpoint stands where the request before the first
    one ended.
    """
    goal = replace(anthropic, limits=replace(anthropic.limits, window=60_000))
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    for number in range(24):
        first = journal.prepare_request(goal)
        again = Journal.open(store, SAMPLE_KEY) if way == "reload" else journal.fork_at(first.request_id)
        second = again.prepare_request(goal)
        third = (
            Journal.open(store, SAMPLE_KEY) if way == "reload" else again.fork_at(second.request_id)
        ).prepare_request(goal)
        assert sent(third) == sent(second) == sent(first)
        answer, results = step(number, 12_000, calls=2)
        journal = Journal.open(store, SAMPLE_KEY) if way == "reload" else journal
        journal.record_answer(answer)
        journal.append(results)
    assert len(first.plan.options.cache_breakpoints) > 1


@pytest.mark.parametrize("policy", ["holdfast", "append-only"])
def test_a_reload_at_any_point_goes_on_with_the_same_bytes(store, anthropic, policy):
    """same-after-restart: reopened before each request, a session sends the bytes of one that was never closed."""
    goal = replace(anthropic, limits=replace(anthropic.limits, window=60_000))
    journal = Journal.open(MemoryStore(), SAMPLE_KEY, Policy.preset(policy))
    journal.append(HELLO)
    wanted = run(journal, goal, range(40), size=12_000 if policy == "holdfast" else 400)
    Journal.open(store, SAMPLE_KEY, Policy.preset(policy)).append(HELLO)
    found = []
    for number in range(40):
        again = Journal.open(store, SAMPLE_KEY, Policy.preset(policy))
        found += run(again, goal, [number], size=12_000 if policy == "holdfast" else 400)
        assert agrees(again)
    assert found == wanted
    assert (CompactionEntry in kinds(store)) == (policy == "holdfast")


def test_turns_that_gave_way_are_read_again_where_they_are_needed(store, anthropic):
    """same-after-restart: a compaction of a session that was opened behind another one is made over the whole log, like
    any.
    """
    journal = Journal.open(MemoryStore(), SAMPLE_KEY)
    journal.append(HELLO)
    wanted = run(journal, anthropic, range(16), size=3_000)
    Journal.open(store, SAMPLE_KEY).append(HELLO)
    found = [*run(Journal.open(store, SAMPLE_KEY), anthropic, range(8), size=3_000)]
    again = Journal.open(store, SAMPLE_KEY)
    assert isinstance(again.state.history.sized_messages, GappedSequence)
    found += run(again, anthropic, range(8, 16), size=3_000)
    assert kinds(store).count(CompactionEntry) > 1
    assert not isinstance(again.state.history.sized_messages, GappedSequence)
    assert found == wanted


def test_what_is_new_is_all_that_is_read(store, anthropic, monkeypatch):
    """Appending, preparing and recording read nothing of the log."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)

    def never(*_):
        raise AssertionError("the log was read")

    for verb in (
        *("read_path", "read_active_entries", "open_state", "read_entries", "get_entry"),
        *("_read_path_up", "_read_all_entries"),
    ):
        monkeypatch.setattr(store, verb, never)
    run(journal, anthropic, range(12))


# -- what cannot be written --------------------------------------------------------------------------------------------


def test_texts_stay_whole_where_none_can_be_stored(store, anthropic, full):
    """refusal-ends-writing: on a full disk nothing is decided that names a text which is not there; one notice tells
    why.
    """
    goal = replace(anthropic, limits=replace(anthropic.limits, window=200_000))
    journal = Journal.open(store, SAMPLE_KEY, Policy.preset("holdfast").with_settings(results={"spill_chars": 20_000}))
    journal.append(HELLO, *read("c1", LONG))
    full(store)
    prepared = journal.prepare_request(goal)
    assert [notice.rule for notice in prepared.plan.notices] == ["unstored"]
    assert "0 bytes free" in prepared.plan.notices[0].why
    assert prepared.messages[2].message.results[0].content[0].text == LONG
    assert DecisionEntry not in kinds(store)
    assert agrees(journal)


def test_a_log_that_takes_nothing_changes_nothing(store, anthropic, monkeypatch):
    """refusal-ends-writing: an append that failed raises, and the journal is where it was."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    before, leaf = journal.state, journal.leaf

    def refuse(*_args, **_more):
        raise StoreReadOnly("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(store, "append_entries", refuse)
        for verb in (
            lambda: journal.append(HELLO),
            lambda: journal.prepare_request(anthropic),
            lambda: journal.record_failure("x"),
        ):
            with pytest.raises(StoreReadOnly):
                verb()
    assert journal.state is before
    assert journal.leaf == leaf
    journal.prepare_request(anthropic)
    assert agrees(journal)


def test_a_window_that_is_too_small_is_told_before_anything_is_written(store, anthropic):
    """no-room-is-an-error: no entry for a request that cannot be made."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    count = store.get_session(SAMPLE_KEY).entry_count
    with pytest.raises(WindowTooSmall):
        journal.prepare_request(replace(anthropic, limits=replace(anthropic.limits, window=1_000)))
    assert store.get_session(SAMPLE_KEY).entry_count == count


@pytest.mark.usefixtures("impatient")
def test_one_writer_at_a_time(store, place):
    """one-writer: while somebody holds the session's lease, a typed error says so."""
    journal = Journal.open(store, SAMPLE_KEY)
    with SqliteStore(place) as other, other.hold_lease(SAMPLE_KEY), pytest.raises(StoreLocked):
        journal.append(HELLO)
    assert len(journal.append(HELLO)) == 1


def test_who_went_on_elsewhere_is_never_overwritten(store, place):
    """unique-entry-ids: two journals at one leaf become two branches; nothing of either is lost."""
    one = Journal.open(store, SAMPLE_KEY)
    one.append(HELLO)
    with SqliteStore(place) as other:
        two = Journal.open(other, SAMPLE_KEY)
        two.append(Message.from_text("user", "second"))
        one.append(Message.from_text("user", "first"))
        assert other.get_session(SAMPLE_KEY).leaf_id == two.leaf
    assert {entry.id for entry in store.read_tips(SAMPLE_KEY)} == {one.leaf, two.leaf}
    assert agrees(one)


# -- cut at append -----------------------------------------------------------------------------------------------------


def test_a_text_over_the_cap_is_stored_apart_and_named(store):
    """The log names the blob before the message that was cut."""
    journal = Journal.open(store, SAMPLE_KEY, Policy().with_settings(results={"append_chars": 10_000}))
    (id_,) = journal.append(Message.from_text("user", LONG))
    note, said = store.read_path(SAMPLE_KEY)[-2:]
    assert said.id == id_
    assert note.body.reason == "capped"
    assert [store.blobs.read_text(hash_) for hash_ in note.body.data["blobs"]] == [LONG]
    assert len(said.body.sized_message.message.text) <= 10_000
    assert sha256(LONG.encode()).hexdigest()[:12] in said.body.sized_message.message.text
    assert agrees(journal)


def test_a_text_over_the_cap_is_shown_with_its_own_size_and_handle(store, anthropic):
    """What the cap leaves of a result is sent as it is: not spilled again, and stored once."""
    text = LONG * 80
    journal = Journal.open(store, SAMPLE_KEY)
    assert len(text) > journal.policy.settings.results.append_chars
    journal.append(HELLO, *read("c1", text))
    prepared = journal.prepare_request(anthropic)
    (result,) = prepared.messages[-1].message.results
    handle = sha256(text.encode()).hexdigest()[:12]
    assert (
        f'{len(text):,} characters in {text.count(chr(10)) + 1:,} lines; recall(id="{handle}", lines='
        in get_result_text(result)
    )
    assert prepared.plan.record == ()
    assert [hash_[:12] for hash_ in store.blobs.iter_hashes()] == [handle]


def test_a_text_that_cannot_be_stored_apart_stays_whole(store, full):
    """nothing-lost: nothing said is lost, however full the place for blobs is."""
    journal = Journal.open(store, SAMPLE_KEY, Policy().with_settings(results={"append_chars": 10_000}))
    full(store)
    journal.append(Message.from_text("user", LONG))
    assert store.read_path(SAMPLE_KEY)[-1].body.sized_message.message.text == LONG


# -- other branches ----------------------------------------------------------------------------------------------------


def test_undo_brings_back_what_gave_way(store, anthropic):
    """A revoked decision no longer counts, in this journal and in a new one; the log still holds it."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *read("c1", LONG))
    journal.prepare_request(anthropic)
    ((decision, _),) = journal.state.view.active_decisions
    assert journal.undo() == decision
    assert store.read_path(SAMPLE_KEY)[-1].body == RevokeEntry(decision)
    assert build_projection(journal.state)[2].message == read("c1", LONG)[1]
    assert DecisionEntry in kinds(store)
    assert agrees(journal)


def test_undo_takes_the_one_it_is_told(store, anthropic):
    """By any beginning of its id; a name that means none or several is a typed error and changes nothing."""
    journal = Journal.open(store, SAMPLE_KEY)
    with pytest.raises(UnknownId, match="nothing to undo"):
        journal.undo()
    journal.append(HELLO, *read("c1", LONG))
    journal.prepare_request(anthropic)
    journal.append(*read("c2", LONG))
    journal.prepare_request(anthropic)
    (first, _), (second, _) = journal.state.view.active_decisions
    for wrong in ("", "nobody"):
        with pytest.raises(UnknownId):
            journal.undo(wrong)
    assert journal.undo(first[:20]) == first
    assert [id_ for id_, _ in journal.state.view.active_decisions] == [second]
    assert agrees(journal)


def talk(journal, target, numbers):
    """Have turns of some words with the model."""
    for number in numbers:
        journal.append(Message.from_text("user", f"question {number}"))
        journal.prepare_request(target)
        journal.record_answer(Message.from_text("assistant", f"answer {number}"))


def test_an_undone_limit_of_turns_stays_undone(store, anthropic):
    """The turns that came back are shown until there are too many said since; a reload knows."""
    policy = Policy.preset("openclaw").with_settings(history={"max_turns": 2})
    journal = Journal.open(store, SAMPLE_KEY, policy)
    talk(journal, anthropic, range(3))
    assert journal.state.view.first_kept == 2
    journal.undo()
    for number in range(3, 5):
        journal = Journal.open(store, SAMPLE_KEY, policy)
        talk(journal, anthropic, [number])
        assert journal.state.view.first_kept == 0
        assert agrees(journal)
    talk(journal, anthropic, [5])
    assert journal.state.view.first_kept == 8


@pytest.mark.parametrize(
    ("policy", "world"),
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
def test_an_undone_prune_stays_undone(store, policy, world):
    """The next cold cache takes none of it again, of what was said since it does."""
    goal = get_target("anthropic", "claude-opus-5-5", window=100_000)
    journal = Journal.open(store, SAMPLE_KEY, policy)
    for number in range(12):
        journal.append(*([HELLO] if number % 3 == 0 else []))
        run(journal, goal, [number], size=4_000)
    journal.append(HELLO)
    gone = {(edit.span.start, edit.span.part) for edit in journal.prepare_request(goal, world).plan.record}
    assert gone
    journal.undo()
    journal = Journal.open(store, SAMPLE_KEY, policy)
    assert gone.isdisjoint(
        (edit.span.start, edit.span.part) for edit in journal.prepare_request(goal, world).plan.record
    )
    for number in range(12, 24):
        journal.append(*([HELLO] if number % 3 == 0 else []))
        run(journal, goal, [number], size=4_000)
    journal.append(HELLO)
    journal.prepare_request(goal, world)
    later = {
        (edit.span.start, edit.span.part) for _, body in journal.state.view.active_decisions for edit in body.edits
    }
    assert later
    assert later.isdisjoint(gone)
    assert agrees(journal)


def test_undone_media_stay_unless_the_api_refuses_them(store, anthropic):
    """What came back counts on top of the policy's budget, and goes again where the API takes no more."""
    policy = Policy().with_settings(media={"max_count": 4})
    journal = Journal.open(store, SAMPLE_KEY, policy)
    for number in range(5):
        journal.append(Message("user", (Text(f"look {number}"), picture(number))))
        prepared = journal.prepare_request(anthropic)
        journal.record_answer(Message.from_text("assistant", "seen"))
    assert [edit.rule for edit in prepared.plan.record] == ["media"] * 3
    journal.undo()
    journal = Journal.open(store, SAMPLE_KEY, policy)
    journal.append(Message.from_text("user", "and now?"))
    assert pictures(journal.prepare_request(anthropic)) == 5
    journal.record_answer(Message.from_text("assistant", "seen"))
    journal.append(Message.from_text("user", "again"))
    few = replace(anthropic, dialect=replace(anthropic.dialect, max_images=3))
    assert 1 <= pictures(journal.prepare_request(few)) <= 3


def picture(number):
    """Return an image like no other."""
    return Media("image", "image/png", 300, "", "A" * (400 + 4 * number))


def pictures(prepared):
    """Return how many images a request shows."""
    return sum(len(collect_media_in_messages(slot.message)) for slot in prepared.messages)


@pytest.mark.parametrize("compacts", [True, False])
def test_what_was_undone_gives_way_where_the_request_does_not_fit(store, anthropic, compacts):
    """Undoing a spill never makes a request that is too large: the text gives way again, and nothing else does."""
    journal = Journal.open(store, SAMPLE_KEY, Policy().with_settings(compaction={"enabled": compacts}))
    journal.append(HELLO, *read("c1", LONG))
    journal.prepare_request(anthropic)
    journal.undo()
    prepared = journal.prepare_request(anthropic)
    assert [edit.rule for edit in prepared.plan.record] == ["largest"]
    assert prepared.plan.compaction is None
    assert prepared.plan.after < 30_000


def test_an_undone_spill_stays_undone_where_it_fits(store, anthropic):
    """A result that came back whole was seen, and is not fresh any more: it stays."""
    wide = replace(anthropic, limits=replace(anthropic.limits, window=200_000))
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *read("c1", LONG))
    journal.prepare_request(wide)
    journal.undo()
    for world in (PlanInputs(), PlanInputs(cache_state="cold", idle_seconds=90_000)):
        journal = Journal.open(store, SAMPLE_KEY)
        assert journal.prepare_request(wide, world).plan.record == ()
        journal.record_answer(Message.from_text("assistant", "read"))
        journal.append(HELLO)


def test_undo_of_a_compaction_after_a_reload(store, anthropic):
    """The turns that gave way are read from the log again."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    run(journal, anthropic, range(30), size=4_000)
    again = Journal.open(store, SAMPLE_KEY)
    newest = again.state.view.active_decisions[-1][0]
    assert again.undo() == newest
    assert agrees(again)
    assert again.state.view.first_kept < journal.state.view.first_kept


def test_a_fork_goes_on_beside_the_branch_it_left(store, anthropic):
    """What was decided before the fork is in force on both; what comes later is each one's own."""
    journal = Journal.open(store, SAMPLE_KEY)
    *_, last = journal.append(HELLO, *read("c1", LONG))
    journal.prepare_request(anthropic)
    at = journal.leaf
    journal.record_answer(Message.from_text("assistant", "One."))
    fork = journal.fork_at(at[:20])
    fork.record_answer(Message.from_text("assistant", "Two."))
    assert store.get_session(SAMPLE_KEY).leaf_id == journal.leaf
    assert {entry.id for entry in store.read_tips(SAMPLE_KEY)} == {journal.leaf, fork.leaf}
    assert build_projection(fork.state)[:3] == build_projection(journal.state)[:3]
    assert build_projection(fork.state)[3].message.text == "Two."
    early = journal.fork_at(last)
    assert early.state.view.active_decisions == ()
    assert all(map(agrees, (journal, fork, early)))
    with pytest.raises(UnknownId):
        journal.fork_at("nowhere")


def test_a_step_of_the_loop_is_three_appends(store, anthropic, monkeypatch):
    """durable-as-promised: what belongs together is written in one transaction."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO, *read("c1", LONG))
    counts, append = [], store.append_entries
    monkeypatch.setattr(
        store, "append_entries", lambda key, new, **more: counts.append(len(new)) or append(key, new, **more)
    )
    journal.prepare_request(replace(anthropic, setup=RequestSetup("f", 20)))
    journal.record_answer(step(1)[0])
    journal.append(step(1)[1])
    assert counts == [3, 2, 1]


@pytest.mark.parametrize("first", ["decides", "takes back"])
def test_a_plan_counts_only_for_the_branch_it_was_made_for(store, anthropic, first):
    """What somebody else decided or took back since makes it void, also where another verb has noticed that before."""
    one = Journal.open(store, SAMPLE_KEY)
    one.append(HELLO, *read("c1", LONG))
    if first == "takes back":
        one.prepare_request(anthropic)
        one.record_answer(Message.from_text("assistant", "read"))
        one.append(HELLO)
    other = Journal.open(store, SAMPLE_KEY)
    plan = one.plan_next(anthropic)
    if first == "decides":
        other.prepare_request(anthropic)
    else:
        other.undo()
    one.record_failure("a compaction that failed meanwhile", "timed_out")
    assert one.leaf == store.get_session(SAMPLE_KEY).leaf_id
    assert one.commit_plan(plan, anthropic) is None
    one.prepare_request(anthropic)
    assert agrees(one)
    edited = [edit.span for _, decision in one.state.view.active_decisions for edit in decision.edits]
    assert len(edited) == len({*edited}) == 1


def test_words_that_wait_are_not_lost_where_the_log_takes_nothing(store, anthropic, monkeypatch):
    """queued-input-once: where they cannot be said now they still wait, and are said once the store takes them."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    journal.prepare_request(anthropic)
    journal.queue_messages(Message.from_text("user", "Wait."))
    with monkeypatch.context() as full:
        full.setattr(store, "append_entries", refuse)
        with pytest.raises(StoreReadOnly):
            journal.deliver_queued()
    assert len(journal.deliver_queued()) == 1
    assert journal.deliver_queued() == []
    assert journal.state.history.sized_messages[-1].message.text == "Wait."


def refuse(*_args, **_more):
    raise StoreReadOnly("the disk is full")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (({"input_tokens": 900},), "usage is of type dict; give a value of type Usage"),
        ((Usage(input="900"),), "this is not a usage: Expected `int`, got `str`"),
        ((Usage(), None), "stop is of type NoneType; give a value of type str"),
    ],
)
def test_what_is_no_usage_is_not_written(given, told):
    """An answer with it is refused before anything is in the log, and the session goes on."""
    store = MemoryStore()
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(HELLO)
    journal.prepare_request(get_target("anthropic", "claude-opus-5-5"))
    before = kinds(store)
    with pytest.raises(LogConflict, match=told):
        journal.record_answer(Message.from_text("assistant", "Which file?"), *given)
    assert kinds(store) == before
    Journal.open(store, SAMPLE_KEY).prepare_request(get_target("anthropic", "claude-opus-5-5"))


def test_a_request_is_prepared_for_a_target():
    """What is none is named, and nothing is written."""
    journal = Journal.open(MemoryStore(), SAMPLE_KEY)
    with pytest.raises(TypeError, match="target is of type str; give a value of type Target"):
        journal.prepare_request("claude-opus-5-5")
