"""What the fold does with each kind of entry."""

from __future__ import annotations

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from holdfast import ConversationState, PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.changed_options import ChangedOption
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    FAILURE_UNANSWERED,
    NOTE_CONTAINER,
    NOTE_OPTIONS,
    NOTE_WINDOW_FORGOTTEN,
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entries, apply_entry
from holdfast.state.view import (
    apply_normalization,
    apply_part_edits,
    build_projection,
    compute_prefix_digest,
    get_valid_measured_request,
    list_projection_origins,
    map_normalized_position,
)


def build_message_entry(role, text):
    return MessageEntry(build_sized_message(Message.from_text(role, text)))


def build_state(*bodies, state=None):
    state = state or ConversationState()
    for number, body in enumerate(bodies):
        state = apply_entry(state, Entry(f"e{number}", None, body))
    return state


def list_shown_texts(state):
    return [sized_message.message.text for sized_message in build_projection(state)]


MESSAGES = (
    build_message_entry("system", "s"),
    build_message_entry("user", "a"),
    build_message_entry("assistant", "b"),
    build_message_entry("user", "c"),
)


def test_apply_entry_limits_coverage_to_the_messages_present():
    """A request that covered more messages than a damaged log still has covers those that are there."""
    state = build_state(*MESSAGES, RequestEntry("b", 9, "m"), AnswerEntry("b", Usage(100, 1)))
    assert (state.last_request.seen_count, state.last_request.unchanged_until) == (4, 4)


@pytest.mark.parametrize(
    "before",
    [
        (),
        MESSAGES[:1],
        MESSAGES,
        (*MESSAGES, CompactionEntry(9)),
        (MESSAGES[0], CompactionEntry(1), CompactionEntry(1)),
    ],
)
def test_apply_entries_equals_apply_entry_in_turn(before):
    """Holds with leading system messages, calls that wait for results, and a compaction that keeps messages not there
    yet.
    """
    call = MessageEntry(build_sized_message(Message("assistant", (ToolCall("c", "f", "{}"), ToolCall("d", "f", "{}")))))
    result = MessageEntry(build_sized_message(Message("tool", (ToolResult("d", "f", (Text("r"),)),))))
    bodies = (
        build_message_entry("system", "t"),
        *MESSAGES,
        call,
        build_message_entry("assistant", "x"),
        call,
        result,
        *([build_message_entry("user", "u")] * 9),
    )
    for count in range(len(bodies)):
        new = [Entry(f"n{number}", None, body) for number, body in enumerate(bodies[:count])]
        assert apply_entries(build_state(*before), new) == build_state(*bodies[:count], state=build_state(*before))


def test_build_projection_shows_pinned_messages_before_the_summary():
    """System messages at the very start stand before every summary."""
    state = build_state(*MESSAGES, CompactionEntry(3, Message.from_text("user", "sum"), 5))
    assert list_shown_texts(state) == ["s", "sum", "c"]
    assert list_projection_origins(state) == [0, -1, 3]
    assert (
        state.view.shown_tokens == state.history.sized_messages[0].tokens + 5 + state.history.sized_messages[3].tokens
    )


def test_apply_entry_lets_a_newer_compaction_replace_an_older_one():
    """Only the newest valid compaction counts; revoking it brings the one before back."""
    state = build_state(
        *MESSAGES,
        CompactionEntry(2, Message.from_text("user", "one"), 5),
        CompactionEntry(3, Message.from_text("user", "two"), 7),
    )
    assert list_shown_texts(state) == ["s", "two", "c"]
    assert list_shown_texts(apply_entry(state, Entry("x", None, RevokeEntry("e5")))) == ["s", "one", "b", "c"]
    both = apply_entry(apply_entry(state, Entry("x", None, RevokeEntry("e5"))), Entry("y", None, RevokeEntry("e4")))
    assert list_shown_texts(both) == ["s", "a", "b", "c"]
    assert apply_entry(state, Entry("x", None, RevokeEntry("nobody"))) == state


def test_apply_part_edits_applies_edits_in_order():
    """Part numbers refer to the original message; each edit replaces its own part, and the later of two edits of one
    part wins.
    """
    message = Message("user", (Text("one"), Text("two"), Text("three")))
    sized_message = build_sized_message(message)

    def replace_part(part, *new, saves=1):
        return Edit(Span(0, 1, part), tuple(Text(text) for text in new), "t", "", saves)

    assert apply_part_edits(sized_message, [replace_part(0, "1"), replace_part(2, "3")]).message.text == "1\ntwo\n3"
    assert (
        apply_part_edits(sized_message, [replace_part(1, "2"), replace_part(1, "zwei")]).message.text
        == "one\nzwei\nthree"
    )
    assert (
        apply_part_edits(sized_message, [replace_part(0, "1"), replace_part(2, "3")]).tokens == sized_message.tokens - 2
    )
    assert apply_part_edits(sized_message, [replace_part(0, "1")]).raw is None


def test_build_projection_replaces_whole_messages():
    """An edit without a part replaces its messages, several by one or by none; origins are indexes in the history."""
    whole = Edit(Span(1, 3), (Message.from_text("user", "both"),), "t", "", 0)
    state = build_state(*MESSAGES, DecisionEntry((whole,)))
    assert list_shown_texts(state) == ["s", "both", "c"]
    assert list_projection_origins(state) == [0, 1, 3]
    gone = build_state(*MESSAGES, DecisionEntry((Edit(Span(1, 3), (), "t", "", 0),)))
    assert list_shown_texts(gone) == ["s", "c"]
    assert list_shown_texts(build_state(*MESSAGES, DecisionEntry((whole,)), RevokeEntry("e4"))) == ["s", "a", "b", "c"]


def test_open_call_ids_shrink_as_results_arrive():
    """Calls of the newest answer are open until their results arrive, whatever comes in between."""
    call = MessageEntry(build_sized_message(Message("assistant", (ToolCall("x", "t"), ToolCall("y", "t")))))

    def result(id_):
        return MessageEntry(build_sized_message(Message("tool", (ToolResult(id_, "t"),))))

    state = build_state(build_message_entry("user", "a"), call)
    assert state.history.open_call_ids == ("x", "y")
    assert build_state(result("y"), build_message_entry("user", "hm"), state=state).history.open_call_ids == ("x",)
    assert build_state(result("y"), result("x"), result("z"), state=state).history.open_call_ids == ()
    assert build_state(build_message_entry("assistant", "b"), state=state).history.open_call_ids == ()


def test_container_is_that_of_the_newest_answer():
    """An answer names the container or none; a note says which one holds on a new branch, and which ones are gone."""
    named = build_state(*MESSAGES, AnswerEntry("", container="c1"))
    assert named.history.container == "c1"
    assert build_state(AnswerEntry(""), state=named).history.container == ""
    note = NoteEntry(NOTE_CONTAINER, data={"current": "c2", "expired": ["c1"]})
    noted = build_state(note, state=named)
    assert (noted.history.container, noted.history.expired_containers) == ("c2", ("c1",))
    assert ConversationState.load(noted.dump()).history.expired_containers == ("c1",)
    damaged = build_state(NoteEntry(NOTE_CONTAINER, data={"current": 1, "expired": "c1"}), state=noted)
    assert (damaged.history.container, damaged.history.expired_containers) == ("", ())


def test_changed_options_add_up_and_outlast_a_forgotten_window():
    """Each note adds the options that are new; a damaged one adds none, and the window has nothing to do with them."""
    first, second = ChangedOption("r", "$.a", "left out", 5), ChangedOption("r", "$.b", "left out", 6)
    notes = [NoteEntry(NOTE_OPTIONS, data={"options": to_builtins([option])}) for option in (first, first, second)]
    damaged = NoteEntry(NOTE_OPTIONS, data={"options": [{"rule": 1}]})
    noted = build_state(*MESSAGES, *notes, damaged, NoteEntry(NOTE_WINDOW_FORGOTTEN))
    assert noted.usage.learned_limits.changed_options == (first, second)


def test_get_valid_measured_request_requires_an_unchanged_prefix():
    """A reported size is valid if it answers the newest request, until the prefix of that request changes."""
    state_with_setup = build_state(RequestSetup("f", 100), *MESSAGES)
    basis = compute_prefix_digest(state_with_setup)
    asked = build_state(RequestEntry(basis, 4, "m"), state=state_with_setup)
    measured = apply_entry(asked, Entry("a", None, AnswerEntry(basis, Usage(500, 5))))
    assert get_valid_measured_request(measured) is not None
    assert (
        get_valid_measured_request(measured).message_count,
        get_valid_measured_request(measured).reported_tokens,
    ) == (
        4,
        500,
    )
    assert get_valid_measured_request(apply_entry(asked, Entry("a", None, AnswerEntry("other", Usage(500, 5))))) is None
    assert get_valid_measured_request(apply_entry(asked, Entry("a", None, AnswerEntry(basis, Usage(0, 5))))) is None
    assert get_valid_measured_request(apply_entry(measured, Entry("f", None, RequestSetup("g", 200)))) is None
    assert (
        get_valid_measured_request(apply_entry(measured, Entry("f", None, RequestSetup("g", 100, is_exact=True))))
        is None
    )
    assert get_valid_measured_request(apply_entry(measured, Entry("f", None, RequestSetup("g", 102)))) == replace(
        get_valid_measured_request(measured), reported_tokens=502
    )
    assert get_valid_measured_request(apply_entry(measured, Entry("c", None, CompactionEntry(3)))) is None
    early = Edit(Span(1, 2, 0), (Text(""),), "t", "", 1)
    assert get_valid_measured_request(apply_entry(measured, Entry("d", None, DecisionEntry((early,))))) is None
    later = build_state(build_message_entry("assistant", "d"), state=measured)
    late = Edit(Span(4, 5, 0), (Text(""),), "t", "", 1)
    assert get_valid_measured_request(
        apply_entry(later, Entry("d", None, DecisionEntry((late,))))
    ) == get_valid_measured_request(measured)
    assert get_valid_measured_request(build_state(RequestEntry(basis, 4, "other"), state=measured)) is None


def test_requests_since_break_restarts_when_the_seen_prefix_changes():
    """A decision about unseen messages breaks nothing; one about seen messages, a compaction or another setup does."""
    state = build_state(*MESSAGES, RequestEntry("b", 4, "m"), RequestEntry("c", 4, "m"))
    assert state.counters.requests_since_break == 2
    fresh = build_state(
        build_message_entry("assistant", "d"),
        DecisionEntry((Edit(Span(4, 5, 0), (Text(""),), "t", "", 1),)),
        state=state,
    )
    assert fresh.counters.requests_since_break == 2
    assert (
        build_state(
            DecisionEntry((Edit(Span(1, 2, 0), (Text(""),), "t", "", 1),)), state=state
        ).counters.requests_since_break
        == 0
    )
    assert build_state(CompactionEntry(3), state=state).counters.requests_since_break == 0
    assert build_state(RequestSetup("g", 1), state=state).counters.requests_since_break == 0


def test_failed_compactions_restarts_after_a_compaction_with_summary():
    """Failures in a row come from the log; a compaction with a summary ends the row, a cut without one does not."""
    state = build_state(*MESSAGES, FailureEntry("no-gain"), FailureEntry("timed-out"))
    assert state.counters.failed_compactions == 2
    assert (
        build_state(CompactionEntry(3, Message.from_text("user", "s"), 1), state=state).counters.failed_compactions == 0
    )
    assert build_state(CompactionEntry(3), state=state).counters.failed_compactions == 2


def test_failures_since_summary_restarts_after_a_written_summary():
    """An extract made without a model does not end the count; a dump keeps it with the time of the newest failure."""
    summary = Message.from_text("user", "s")
    state = build_state(*MESSAGES)
    for at in (1_000, 2_000):
        state = apply_entry(state, Entry("f", None, FailureEntry("timed_out"), time_ms=at))
    assert (state.counters.failures_since_summary, state.counters.compaction_failed_at) == (2, 2_000)
    extract = build_state(CompactionEntry(3, summary, 1), FailureEntry(FAILURE_UNANSWERED), state=state)
    assert (
        extract.counters.failed_compactions,
        extract.counters.failures_since_summary,
        extract.counters.compaction_failed_at,
    ) == (0, 2, 2_000)
    assert ConversationState.load(extract.dump()) == extract
    for by in ("model", "hook", "native"):
        assert (
            build_state(CompactionEntry(3, summary, 1, author=by), state=extract).counters.failures_since_summary == 0
        )


EDITS = (
    Edit(Span(1, 1), (Message.from_text("user", "in"),)),
    Edit(Span(2, 4), (Message.from_text("user", "one"),)),
    Edit(Span(5, 6), ()),
    Edit(Span(7, 7), (Message.from_text("user", "end"),)),
)


def test_apply_normalization_changes_only_the_given_spans():
    """Insertions, merges and drops change only their span, and every position maps to its message or a neighbour."""
    sized_messages = [build_sized_message(Message.from_text("user", str(number))) for number in range(7)]
    out = [sized_message.message.text for sized_message in apply_normalization(sized_messages, EDITS)]
    assert out == ["0", "in", "1", "one", "4", "6", "end"]
    found = [out[map_normalized_position(position, EDITS)] for position in range(7)]
    assert found == ["0", "1", "one", "one", "4", "4", "6"]


@pytest.mark.parametrize("edits", [(), EDITS[:1], EDITS[1:2], EDITS[2:3], EDITS])
def test_apply_normalization_keeps_the_total_size(edits):
    """A replacement has the size of the messages it replaces together; an insertion has none."""
    sized_messages = [build_sized_message(Message.from_text("user", str(number) * 9)) for number in range(7)]
    kept = [
        sized_message.tokens
        for number, sized_message in enumerate(sized_messages)
        if not (number == 5 and EDITS[2] in edits)
    ]
    assert sum(sized_message.tokens for sized_message in apply_normalization(sized_messages, edits)) == sum(kept)


def test_apply_entry_shares_storage_across_a_thousand_messages():
    """A thousand messages and a request after each share their storage, so that the last state holds one list of
    messages.
    """
    state = ConversationState()
    first = state.history.sized_messages
    for number in range(1_000):
        state = build_state(build_message_entry("user", str(number)), RequestEntry("b", number + 1, "m"), state=state)
    assert state.history.sized_messages.is_storage_of(state.history.sized_messages)
    assert len(first) == 0
    assert state.last_request.seen_count == len(state.history.sized_messages) == 1_000


def test_plan_gives_decisions_distinct_ids_after_an_undo():
    """A decision made after one was undone has an id of its own, so undoing it undoes nothing else."""
    policy = Policy().with_settings(prune={"keep_tokens": 1, "min_tokens": 1}, compaction={"enabled": False})
    where = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    said, state, ids = [], ConversationState(), []
    for number in range(4):
        said += [
            Message.from_text("user", "go"),
            Message("assistant", (ToolCall(f"c{number}", "read"),)),
            Message("tool", (ToolResult(f"c{number}", "read", (Text(f"line {number}\n" * 400),)),)),
            Message.from_text("assistant", "ok"),
        ]
        state = plan(
            [*said, Message.from_text("user", "on")], where, policy, state=state, inputs=PlanInputs("cold")
        ).state
        said.append(Message.from_text("user", "on"))
        said.append(Message.from_text("assistant", "yes"))
        ids = [id_ for id_, _ in state.view.active_decisions]
        if number == 2:
            state = apply_entry(state, Entry("undo", None, RevokeEntry(ids[0])))
    assert len(ids) == 3
    assert len(set(ids)) == len(ids)
