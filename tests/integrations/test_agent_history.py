"""``AgentHistory``: what every adapter of a framework relies on."""

from __future__ import annotations

import itertools
import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast import Message, Text, ToolCall, ToolResult, get_target
from holdfast.errors import StoreLocked, WindowTooSmall
from holdfast.events import CompactionEnded
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.integrations.common.options import AgentHistories
from holdfast.messages.parts import Opaque, Thinking
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.providers.errors.report import ErrorReport
from holdfast.state.entries import AnswerEntry, Entry, MessageEntry, NoteEntry, Usage
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store

RULE = "Never restart the server."


def make_target(window=30_000):
    """Return the target of a model with a small window."""
    return get_target("openai-chat", "gpt-4.1", window=window)


def make_messages(steps, lines=120):
    """Return a conversation with a call and its result in each step."""
    messages = [Message.from_text("user", f"Find out why it is slow. {RULE}")]
    for step in range(steps):
        text = "\n".join(f"step {step:03}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))
        messages.append(
            Message("assistant", (Text("I look."), ToolCall(f"c{step}", "read", f'{{"path": "/log/{step}"}}')))
        )
        messages.append(Message("tool", (ToolResult(f"c{step}", "read", (Text(text),)),)))
    return [GivenMessage(message) for message in messages]


def check_shown(shown_messages):
    """Check that each result stands right after its call."""
    open_calls = []
    for shown in shown_messages:
        assert [result.call_id for result in shown.message.results] == open_calls
        open_calls = [call.id for call in shown.message.calls]


@given(steps=st.integers(1, 40), stride=st.integers(1, 5), restarts=st.booleans())
def test_what_was_shown_is_shown_again_until_a_compaction(steps, stride, restarts):
    """Each call shows what the one before it showed, and the new messages after that, unless it compacted; also with a
    new history on the same store for each call.
    """
    store, events = MemoryStore(), []
    history = AgentHistory(store, "one", listener=events.append)
    before = []
    for count in range(stride, steps + 1, stride):
        if restarts:
            history = AgentHistory(store, "one", listener=events.append)
        compactions = sum(isinstance(event, CompactionEnded) for event in events)
        shown_messages = history.plan(make_messages(count), make_target(), setup_tokens=2_000)
        check_shown(shown_messages)
        texts = [shown.message for shown in shown_messages]
        is_compacted = sum(isinstance(event, CompactionEnded) for event in events) > compactions
        assert is_compacted or texts[: len(before)] == before
        assert RULE in repr(texts)
        report = history.report()
        assert report.tokens <= report.window == 30_000
        before = texts


def test_own_messages_are_named_and_new_ones_are_not():
    """A kept message comes back with its place, an extract without one."""
    messages = make_messages(40)
    shown_messages = AgentHistory(MemoryStore(), "one").plan(messages, make_target())
    first, *rest = shown_messages
    assert first.index is None
    assert is_extract(first.message.text)
    assert [shown.index for shown in rest] == list(range(len(messages) - len(rest), len(messages)))
    for shown in rest:
        assert shown.message is messages[shown.index].message


def test_refused_request_becomes_smaller_until_nothing_is_left_to_try():
    """Each refusal for the length gives a smaller request; another error, and the last refusal, give none."""
    history = AgentHistory(MemoryStore(), "one")
    messages, target = make_messages(40), make_target(1_000_000)
    shown_messages = history.plan(messages, target)
    assert history.plan_smaller(ErrorReport(message="the key is wrong"), messages) is None
    sizes = [sum(len(repr(shown.message)) for shown in shown_messages)]
    for _ in range(20):
        report = ErrorReport(message="prompt is too long: 60000 tokens > 20000 maximum")
        shown_messages = history.plan_smaller(report, messages)
        if shown_messages is None:
            break
        check_shown(shown_messages)
        assert RULE in repr(shown_messages)
        sizes.append(sum(len(repr(shown.message)) for shown in shown_messages))
    assert shown_messages is None
    assert len(sizes) > 1
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    # What was learned holds for the next request.
    later = history.plan(messages, target)
    assert sum(len(repr(shown.message)) for shown in later) <= sizes[1]


def test_refused_request_is_named_where_one_conversation_runs_twice():
    """A request that was refused after another run planned its own is made smaller itself, not the other's."""
    history = AgentHistory(MemoryStore(), "one")
    first, second = make_messages(40), make_messages(20)
    second[4] = GivenMessage(Message("tool", (ToolResult("c1", "read", (Text("another log"),)),)))
    target = make_target(1_000_000)
    history.plan(first, target)
    history.plan(second, target)
    report = ErrorReport(message="prompt is too long: 60000 tokens > 20000 maximum")
    shown_messages = history.plan_smaller(report, first)
    check_shown(shown_messages)
    assert len(shown_messages) < len(first)
    assert shown_messages[-1].index == len(first) - 1


@pytest.mark.parametrize("report_text", ["prompt is too long: 60000 tokens > 20000 maximum", "prompt is too long"])
def test_two_runs_of_one_conversation_are_both_made_smaller(report_text):
    """Two requests of one conversation were on their way and both are refused: each gets less than it had sent."""
    history = AgentHistory(MemoryStore(), "one")
    first, second = make_messages(40), make_messages(40)
    second[-1] = GivenMessage(Message("tool", (ToolResult("c39", "read", (Text("another log"),)),)))
    target = make_target(1_000_000)
    sent = {}
    for name, messages in (("first", first), ("second", second)):
        sent[name] = count_shown_characters(history.plan(messages, target))
    for name, messages in (("first", first), ("second", second)):
        shown_messages = history.plan_smaller(ErrorReport(message=report_text), messages)
        check_shown(shown_messages)
        assert shown_messages[-1].index == len(messages) - 1
        assert count_shown_characters(shown_messages) < sent[name] / 2


@pytest.mark.parametrize("report_text", ["prompt is too long: 60000 tokens > 20000 maximum", "prompt is too long"])
def test_two_runs_that_are_always_refused_come_to_an_end(report_text):
    """Two runs of one conversation take turns, and their provider refuses whatever they send: both give up."""
    history = AgentHistory(MemoryStore(), "one")
    first, second = make_messages(40), make_messages(40)
    second[-1] = GivenMessage(Message("tool", (ToolResult("c39", "read", (Text("another log"),)),)))
    running = [first, second]
    for messages in running:
        history.plan(messages, make_target(1_000_000))
    for _ in range(50):
        running = [
            messages
            for messages in running
            if history.plan_smaller(ErrorReport(message=report_text), messages=messages) is not None
        ]
    assert running == []


def test_output_that_counts_into_the_window_is_kept_free_from_then_on():
    """After a refusal of the prompt together with the output asked for, that whole output stays free in each request;
    other models, and requests that ask for no certain output, are planned as before.
    """
    history = AgentHistory(MemoryStore(), "one")
    target = get_target("anthropic", "claude-haiku-4-5", window=24_000, asked_output=16_000)
    other_targets = (
        get_target("anthropic", "claude-haiku-4-5", window=24_000),
        get_target("anthropic", "claude-opus-5", window=24_000, asked_output=16_000),
    )
    messages = make_messages(4)
    history.plan(messages, target)
    usable_before = history.report().usable_tokens
    text = "input length and `max_tokens` exceed context limit: 9000 + 16000 > 24000, decrease input length"
    assert history.plan_smaller(ErrorReport(400, message=text, body={"error": {"message": text}}), messages) is not None
    history.plan(messages, target)
    assert history.report().usable_tokens <= 8_000 < usable_before
    for other_target in other_targets:
        history.plan(messages, other_target)
        assert history.report().usable_tokens > 8_000


def count_shown_characters(shown_messages):
    """Return the characters of what is shown."""
    return sum(len(str(shown.message)) for shown in shown_messages)


def test_usage_that_comes_without_the_answer():
    """What an answer took may be told apart from the messages: it counts for the answer to the newest request."""
    history = AgentHistory(MemoryStore(), "one")
    messages = make_messages(3)
    history.plan(messages[:-2], make_target())
    history.note_answer_usage(Usage(9_000, 20))
    history.plan(messages, make_target())
    assert history.report().tokens > 9_000


def test_messages_with_parts_of_an_unknown_kind():
    """Such parts keep their JSON; they need no hash, and the messages go on as the same objects."""
    messages = [
        GivenMessage(Message.from_text("user", "What is the weather?")),
        GivenMessage(Message("assistant", (Opaque("weather", Raw(b'{"sky":"grey"}')), Text("Grey.")))),
        GivenMessage(Message.from_text("user", "Are you sure?")),
    ]
    history = AgentHistory(MemoryStore(), "one")
    history.plan(messages[:1], make_target())
    shown_messages = history.plan(messages, make_target())
    assert [shown.message for shown in shown_messages] == [given_message.message for given_message in messages]


def test_usage_of_answers_is_recorded():
    """What an answer took is known to the next report."""
    history = AgentHistory(MemoryStore(), "one")
    messages = make_messages(3)
    history.plan(messages[:-2], make_target())
    messages[-2] = GivenMessage(messages[-2].message, Usage(9_000, 20))
    history.plan(messages, make_target())
    assert history.report().tokens > 9_000


def test_recall_reads_back_what_an_extract_left_out():
    """The tool finds words that are no longer shown; wrong arguments are explained to the model."""
    history = AgentHistory(MemoryStore(), "one")
    history.plan(make_messages(40), make_target())
    found = history.answer_recall({"search": "step 003, line 77"})
    handle = re.search(r'recall\(id="([0-9a-f]+)"', found)[1]
    assert "step 003, line 77: 327 ms" in history.answer_recall({"id": handle, "search": "line 77:"})
    assert "no text of this session" in history.answer_recall({"id": "abcdefabcdef"})


def test_pages_of_recall_are_small_enough_not_to_be_spilled_again():
    """In a small window a page is smaller: given back to the model, it is shown whole."""
    history = AgentHistory(MemoryStore(), "one")
    text = "".join(f"line {line}: {line * 7919 % 1009} ms\n" for line in range(20_000))
    messages = [
        GivenMessage(Message.from_text("user", "Read it.")),
        GivenMessage(Message("assistant", (ToolCall("c0", "read", "{}"),))),
        GivenMessage(Message("tool", (ToolResult("c0", "read", (Text(text),)),))),
    ]
    preview = history.plan(messages, make_target(20_000))[-1].message.results[0].content[0].text
    handle = re.search(r'recall\(id="([0-9a-f]+)"', preview)[1]
    page = history.answer_recall({"id": handle})
    messages.append(GivenMessage(Message("assistant", (ToolCall("c1", "recall", f'{{"id": "{handle}"}}'),))))
    messages.append(GivenMessage(Message("tool", (ToolResult("c1", "recall", (Text(page),)),))))
    shown = history.plan(messages, make_target(20_000))
    assert shown[-1].message.results[0].content == (Text(page),)


def test_a_window_that_nothing_fits_into_is_an_error():
    """The error is raised before anything is sent."""
    with pytest.raises(WindowTooSmall):
        AgentHistory(MemoryStore(), "one").plan(make_messages(2), make_target(100))


def test_several_threads_may_ask():
    """Frameworks run tools and agents in threads; the calls of one conversation wait for each other."""
    history = AgentHistory(MemoryStore(), "one")
    messages = make_messages(10)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: history.plan(messages, make_target()), range(12)))
    assert all(result == results[0] for result in results)


def test_a_listener_that_raises_is_dropped(caplog):
    """The agent goes on as if nobody listened, and one line of the log says so."""
    calls = []

    def fail(event):
        calls.append(event)
        raise RuntimeError("no")

    history = AgentHistory(MemoryStore(), "one", listener=fail)
    for count in (40, 80, 120):
        assert is_extract(history.plan(make_messages(count), make_target())[0].message.text)
    assert len(calls) == 1
    assert len(caplog.records) == 1


def test_report_counts_a_compaction_apart_from_other_decisions():
    """As the report of a session does: a compaction alone is no other decision."""
    history = AgentHistory(MemoryStore(), "one")
    history.plan(make_messages(40), make_target())
    assert (history.report().compaction_count, history.report().decision_count) == (1, 0)


class SigningModel:
    """A model that signs its thinking over all that it was shown, and refuses a signature that no longer fits."""

    def __init__(self):
        self.prefixes = {}
        """By the text of a thinking: what stood before it when it was made."""

    def answer(self, step, shown_messages):
        """Check what is shown and return the next answer."""
        self.check(shown_messages)
        thinking = f"thought {step}"
        self.prefixes[thinking] = self.list_prefix(shown_messages, len(shown_messages))
        if step % 5 == 4:
            return Message("assistant", (Thinking(thinking),))
        return Message("assistant", (Thinking(thinking), ToolCall(f"c{step}", "read", f'{{"path": "/log/{step}"}}')))

    def check(self, shown_messages):
        """Fail where thinking is shown after something else than it was made after."""
        for position, shown in enumerate(shown_messages):
            assert shown.message.parts, "no API takes a message without content"
            for part in shown.message.parts:
                if isinstance(part, Thinking):
                    prefix = self.list_prefix(shown_messages, position)
                    assert self.prefixes[part.text] == prefix, f"{part.text} is bound to another conversation"

    def list_prefix(self, shown_messages, position):
        return [shown.message for shown in shown_messages[:position]]

    def list_lost_thinking(self, messages, shown_messages):
        """Return the thinking of shown messages that is not shown, though nothing before it has changed."""
        return [
            part.text
            for position, shown in enumerate(shown_messages)
            if shown.index is not None
            for part in messages[shown.index].message.parts
            if isinstance(part, Thinking)
            and part not in shown.message.parts
            and self.prefixes[part.text] == self.list_prefix(shown_messages, position)
        ]


@given(
    sizes=st.lists(st.integers(1, 200), min_size=20, max_size=40),
    restarts=st.booleans(),
    window=st.integers(28_000, 40_000),
)
def test_bound_thinking_is_shown_exactly_while_what_stands_before_it_is_unchanged(sizes, restarts, window):
    """A model that binds its thinking to everything before it never sees one that it would refuse, whatever was
    compacted or shortened; and sees each that it would take.
    """
    store, model = MemoryStore(), SigningModel()
    target = get_target("anthropic", "claude-opus-5-5", window=window)
    history = AgentHistory(store, "one")
    messages = [GivenMessage(Message.from_text("user", f"Find out why it is slow. {RULE}"))]
    for step, lines in enumerate(sizes):
        if restarts:
            history = AgentHistory(store, "one")
        shown_messages = history.plan(messages, target, setup_tokens=1_000)
        messages.append(GivenMessage(model.answer(step, shown_messages)))
        assert model.list_lost_thinking(messages, shown_messages) == []
        if not messages[-1].message.calls:
            messages.append(GivenMessage(Message.from_text("user", "Go on.")))
            continue
        text = "\n".join(f"step {step}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))
        messages.append(GivenMessage(Message("tool", (ToolResult(f"c{step}", "read", (Text(text),)),))))


@pytest.mark.parametrize(("model_name", "is_shown"), [("claude-opus-5-5", False), ("claude-haiku-4-5", True)])
def test_thinking_after_a_compaction_depends_on_the_model(model_name, is_shown):
    """A model that does not bind its thinking keeps that of the kept messages, newest turn or not."""
    messages = make_messages(40)
    for index in range(1, len(messages), 2):
        message = messages[index].message
        messages[index] = GivenMessage(Message("assistant", (Thinking(f"thought {index}"), *message.parts)))
    target = get_target("anthropic", model_name, window=30_000)
    history = AgentHistory(MemoryStore(), "one")
    history.plan(messages[:3], target)
    shown_messages = history.plan(messages, target)
    assert shown_messages[0].index is None
    kept_answers = [shown for shown in shown_messages if shown.index is not None and shown.message.calls]
    assert kept_answers
    for shown in kept_answers:
        assert (messages[shown.index].message == shown.message) is is_shown


def test_bound_thinking_is_left_out_of_the_request_after_a_refusal():
    """A request that is made smaller has another beginning too: also the newest answer goes without its thinking."""
    messages = make_messages(20)
    answer = messages[-2].message
    messages[-2] = GivenMessage(replace(answer, parts=(Thinking("a thought"), *answer.parts)))
    target = get_target("anthropic", "claude-opus-5-5", window=1_000_000)
    history = AgentHistory(MemoryStore(), "one")
    history.plan(messages[:-2], target)
    assert "a thought" in repr(history.plan(messages, target))
    tokens = history.report().tokens
    report = ErrorReport(message=f"prompt is too long: {tokens} tokens > {tokens * 6 // 10} maximum")
    shown_messages = history.plan_smaller(report, messages)
    check_shown(shown_messages)
    assert shown_messages[-2].message == answer


# -- a history that others change --------------------------------------------------------------------------------------


class EditOfHistory(Struct, frozen=True):
    """What a user's own code does to a history between two calls."""

    kind: Literal["change", "remove", "insert", "cut"]
    place: float
    """Where, as a share of the steps."""

    def apply(self, steps):
        """Return ``steps``, each a list of messages that belong together, as the code leaves them."""
        index = int(self.place * len(steps))
        new_step = [GivenMessage(Message.from_text("user", f"By the way, at {self.place}: go on."))]
        if self.kind == "change":
            return [*steps[:index], new_step, *steps[index + 1 :]]
        if self.kind == "remove":
            return [*steps[:index], *steps[index + 1 :]]
        if self.kind == "insert":
            return [*steps[:index], new_step, *steps[index:]]
        return steps[:index]


EDITS = st.builds(
    EditOfHistory, st.sampled_from(["change", "remove", "insert", "cut"]), st.floats(0, 1, exclude_max=True)
)


def make_steps(first, count):
    """Return steps of a conversation, each a call and its result."""
    messages = make_messages(first + count, lines=40)[1 + 2 * first :]
    return [messages[index : index + 2] for index in range(0, len(messages), 2)]


@given(
    edits=st.lists(st.tuples(st.integers(0, 8), EDITS), min_size=1, max_size=4),
    restarts=st.booleans(),
)
def test_a_history_that_is_edited_between_calls_is_followed(edits, restarts):
    """Whatever was changed, removed, inserted or cut off: what is shown is what the history has now, and it fits; what
    stands before the edit is shown as it was, unless a compaction was due.
    """
    store, events = MemoryStore(), []
    history = AgentHistory(store, "one", listener=events.append)
    prompt, *_ = make_messages(0)
    steps, made_count = [], 0
    for count, edit in edits:
        steps += make_steps(made_count, count)
        made_count += count
        before = [prompt, *itertools.chain(*steps)]
        shown_before = history.plan(before, make_target(26_000), setup_tokens=1_000)
        steps = edit.apply(steps)
        if restarts:
            history = AgentHistory(store, "one", listener=events.append)
        messages = [prompt, *itertools.chain(*steps)]
        known_events = len(events)
        shown_messages = history.plan(messages, make_target(26_000), setup_tokens=1_000)
        check_shown(shown_messages)
        assert history.report().tokens <= 26_000
        assert RULE in repr(shown_messages)
        for shown in shown_messages:
            if shown.index is not None:
                assert get_call_ids(shown.message) == get_call_ids(messages[shown.index].message)
        newest = messages[-1].message
        assert shown_messages[-1].message.role == newest.role
        same_count = count_same_start(before, messages)
        kept = list_shown_until(shown_before, same_count)
        has_new_decision = len(events) > known_events
        if not has_new_decision and any(shown.index is not None for shown in kept):
            assert shown_messages[: len(kept)] == kept


def get_call_ids(message):
    """Return the ids of the calls and results of a message."""
    return [call.id for call in message.calls], [result.call_id for result in message.results]


def list_shown_until(shown_messages, count):
    """Return what was shown before the first message that is not one of the first ``count`` of the history."""
    return list(itertools.takewhile(lambda shown: (shown.index or 0) < count, shown_messages))


def count_same_start(messages, other_messages):
    """Return how many messages two histories have in common at their beginning."""
    pairs = zip(messages, other_messages, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0].message == pair[1].message, pairs))


@pytest.mark.parametrize("lost_count", [1, 2, 5])
def test_a_checkpointer_that_loses_its_last_write_makes_a_fork(lost_count):
    """The next call has fewer messages than the log: it shows what an earlier call showed, and goes on from there; what
    was lost stays readable in the log.
    """
    store = MemoryStore()
    messages = make_messages(45)
    AgentHistory(store, "one").plan(messages[:-lost_count], make_target())
    history = AgentHistory(store, "one")
    before = history.plan(messages[: -2 * lost_count - 2], make_target())
    history.plan(messages, make_target())
    again = AgentHistory(store, "one")
    shown_messages = again.plan(messages[: -2 * lost_count - 2], make_target())
    check_shown(shown_messages)
    assert shown_messages == before
    other = GivenMessage(Message("assistant", (Text("I do something else."),)))
    goes_on = again.plan([*messages[: -2 * lost_count - 2], other], make_target())
    assert goes_on[: len(before)] == before
    assert goes_on[-1].message == other.message
    assert "step 044, line 5:" in again.answer_recall({"search": "step 044, line 5:"})


def test_a_session_that_was_removed_begins_anew():
    """Somebody clears the store while the agent works: the next request fits the window all the same."""
    store = MemoryStore()
    history = AgentHistory(store, "one")
    for steps in range(1, 41):
        if steps == 25:
            store.remove_session("one")
        shown_messages = history.plan(make_messages(steps), make_target())
        check_shown(shown_messages)
        assert sum(estimate_text_tokens(str(shown.message)) for shown in shown_messages) < 30_000


def test_a_file_that_was_taken_away_is_opened_anew(tmp_path):
    """A store given by its path is made again if its file was deleted while the agent works."""
    histories = AgentHistories(tmp_path / "s.db")
    for steps in range(1, 41):
        if steps == 25:
            for path in tmp_path.glob("s.db*"):
                path.unlink() if path.is_file() else None
        check_shown(histories.open("one").plan(make_messages(steps), make_target()))
    assert (tmp_path / "s.db").is_file()
    histories._get_store().close()


class FailingStore(MemoryStore):
    """A store that takes no entries while ``append_error`` is set, and cannot be read while ``read_error`` is."""

    append_error: Exception | None = None
    read_error: Exception | None = None

    def append_entries(self, key, entries, **more):
        """Append or raise."""
        if self.append_error is not None:
            raise self.append_error
        return super().append_entries(key, entries, **more)

    def import_entries(self, key, entries, **more):
        """Import or raise."""
        if self.append_error is not None:
            raise self.append_error
        return super().import_entries(key, entries, **more)

    def read_path(self, key, leaf=None):
        """Read or raise."""
        if self.read_error is not None:
            raise self.read_error
        return super().read_path(key, leaf)


def count_shown_tokens(shown_messages):
    """Return the estimated tokens of what is shown."""
    return sum(estimate_text_tokens(str(shown.message)) for shown in shown_messages)


@pytest.mark.parametrize("can_read", [True, False])
@pytest.mark.parametrize("failing_steps", [range(1, 61), range(20, 41)], ids=["from the start", "in between"])
def test_requests_stay_inside_the_window_while_the_store_fails(failing_steps, can_read, caplog):
    """A store that takes nothing costs no decision: requests fit, go on from each other, and one line says it. Once
    the store works again the log has all messages, each once.
    """
    store = FailingStore()
    history = AgentHistory(store, "one")
    before, breaks = [], 0
    for steps in range(1, 61):
        store.append_error = StoreLocked("held") if steps in failing_steps else None
        store.read_error = StoreLocked("held") if steps in failing_steps and not can_read else None
        shown_messages = history.plan(make_messages(steps), make_target())
        check_shown(shown_messages)
        assert count_shown_tokens(shown_messages) < 30_000
        assert RULE in repr(shown_messages)
        assert history.report().tokens <= 30_000
        texts = [shown.message for shown in shown_messages]
        breaks += texts[: len(before)] != before
        before = texts
    # Compactions, and at most one break each when the copy takes over and when the log does again.
    assert breaks <= 14
    assert sum("is not stored" in record.message for record in caplog.records) == 1
    if 60 not in failing_steps:
        path = store.read_path("one")
        logged = [entry.body.sized_message.message for entry in path if isinstance(entry.body, MessageEntry)]
        assert logged == [given.message for given in make_messages(60)]


@pytest.mark.parametrize("can_read", [True, False])
@pytest.mark.parametrize("fails_from", ["the request", "the refusal"])
def test_refused_request_becomes_smaller_while_the_store_fails(fails_from, can_read):
    """A request that the provider refuses is made smaller also if neither can be stored, and the limit is kept as long
    as the store fails.
    """
    store = FailingStore()
    history = AgentHistory(store, "one")
    messages, target = make_messages(40), make_target(1_000_000)
    history.plan(make_messages(39), target)
    for when in ("the request", "the refusal"):
        if when == fails_from:
            store.append_error = StoreLocked("held")
            store.read_error = None if can_read else StoreLocked("held")
        if when == "the request":
            shown_messages = history.plan(messages, target)
    sizes = [count_shown_characters(shown_messages)]
    report = ErrorReport(message="prompt is too long: 60000 tokens > 20000 maximum")
    while (shown_messages := history.plan_smaller(report, messages)) is not None:
        check_shown(shown_messages)
        assert RULE in repr(shown_messages)
        sizes.append(count_shown_characters(shown_messages))
    assert len(sizes) > 1
    assert sizes == sorted(set(sizes), reverse=True)
    assert count_shown_characters(history.plan(messages, target)) <= sizes[1]


def test_usage_after_a_request_that_could_not_be_planned_is_not_taken_for_another():
    """The answer to a request that the framework sent by itself says nothing of the newest request of ours."""
    store = FailingStore()
    history = AgentHistory(store, "one")
    history.plan(make_messages(1), make_target())

    def interrupt(*_args, **_more):
        raise KeyboardInterrupt

    store.append_entries = interrupt
    with pytest.raises(KeyboardInterrupt):
        history.plan(make_messages(2), make_target())
    del store.append_entries
    history.note_answer_usage(Usage(90_000, 10))
    history.plan(make_messages(3), make_target())
    assert not [entry for entry in store.read_path("one") if isinstance(entry.body, AnswerEntry)]


def test_a_store_whose_disk_was_full_is_opened_again(tmp_path):
    """A store that refuses every write after the first refusal of the disk is replaced once the disk has room."""
    histories = AgentHistories(tmp_path / "s.db")
    histories.open("one").plan(make_messages(1), make_target())
    store = histories._get_store()
    for steps in range(2, 5):
        if steps == 2:
            store._file._refused = "no space left"
        check_shown(histories.open("one").plan(make_messages(steps), make_target()))
    new_store = histories._get_store()
    assert new_store is not store
    path = new_store.read_path("one")
    assert sum(isinstance(entry.body, MessageEntry) for entry in path) == len(make_messages(4))
    store.close()
    new_store.close()


class BusySession(MemoryStore):
    """A store in which another process always writes a note just before a lease is obtained."""

    leases = 0

    @contextmanager
    def hold_lease(self, key):
        """Write, then hold the lease; fail if there is no end of leases."""
        self.leases += 1
        assert self.leases < 1_000, "leases are taken without an end"
        with super().hold_lease(key):
            if self.list_sessions():
                note = Entry(f"other-{self.leases}", self.get_session(key).leaf_id, NoteEntry("note"))
                self.append_entries(key, [note])
            yield


def test_a_log_that_always_moves_on_is_no_endless_loop():
    """Another process that writes all the time keeps no request from being planned, or made smaller."""
    quiet_store, busy_store = MemoryStore(), BusySession()
    sizes = {}
    for store in (quiet_store, busy_store):
        history, messages = AgentHistory(store, "one"), make_messages(40)
        sizes[store] = [count_shown_characters(history.plan(messages, make_target(1_000_000)))]
        report = ErrorReport(message="prompt is too long: 60000 tokens > 20000 maximum")
        while (shown_messages := history.plan_smaller(report, messages)) is not None:
            sizes[store].append(count_shown_characters(shown_messages))
    assert sizes[busy_store] == sizes[quiet_store]
    assert len(sizes[busy_store]) > 1


def test_a_locked_store_costs_one_full_wait(tmp_path, monkeypatch):
    """Another process holds the file from the 10th to the 15th request: only the first of them waits for long, and the
    16th is recorded with everything before it.
    """
    monkeypatch.setattr("holdfast.store.sql.database.BUSY_WAIT", 0.4)
    monkeypatch.setattr("holdfast.store.sql.database.BRIEF_WAIT", 0.02)
    with open_store(tmp_path / "s.db") as store:
        history = AgentHistory(store, "one")
        seconds = []
        with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
            for steps in range(1, 41):
                messages = make_messages(steps)
                for index in range(1, len(messages), 2):
                    messages[index] = replace(messages[index], usage=Usage(500 * index, 10))
                if steps == 10:
                    other.execute("begin exclusive")
                if steps == 16:
                    other.execute("rollback")
                began = time.monotonic()
                check_shown(history.plan(messages, make_target()))
                if 10 <= steps < 16:
                    seconds.append(time.monotonic() - began)
                    time.sleep(0.45)
        path = store.read_path("one")
    assert seconds[0] >= 0.4
    assert max(seconds[1:]) < 0.4
    logged = [entry.body.sized_message.message for entry in path if isinstance(entry.body, MessageEntry)]
    assert logged == [given.message for given in messages]
