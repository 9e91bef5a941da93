"""Faults of a provider at every stage of a request, and what must hold for the engine afterwards."""

from __future__ import annotations

from agent_workday import make_request_fields
from msgspec.structs import replace
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.log.journal import Journal
from holdfast.errors import HoldfastError, UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.settings import Settings as Numbers
from holdfast.providers.answers.answer_stream import AnswerStream
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import VERDICT_KINDS, ErrorReport
from holdfast.recovery.machine import compute_max_requests
from holdfast.state.entries import TRIGGER_FALLBACK, CompactionEntry, DecisionEntry, MessageEntry
from holdfast.state.fold.fold_entries import TRUNCATE_RULE
from holdfast.state.view import build_projection
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.upstream import ProviderUpstream

WINDOW = 32_000
MAX_REQUESTS = compute_max_requests(Numbers())
MAX_SUMMARY_REQUESTS = 12
"""Requests for one summary: three tries of two requests, and more if the head is sent in parts."""

# -- what can happen, and where ----------------------------------------------------------------------------------------

STAGES = (
    "connect",
    "body",
    "head",
    "first",
    "middle",
    "end",
    "summary request",
    "summary stream",
    "between compaction and retry",
)
"""Connecting · the body being sent · before the first byte · the first event · mid stream · after the last token,
before the end event · the same two of a summary · between the commit of a compaction and the request after it."""
ANSWER_STAGES = STAGES[:6]
STREAM_STAGES = ("first", "middle", "end")


def _strike_at(kind: str, *stages: str) -> dict[str, str]:
    return dict.fromkeys(stages, kind)


def _strike_with_status(kind: str) -> dict[str, str]:
    return _strike_at(kind, "body", "head")


FAULTS: dict[str, dict[str, str]] = {
    "connection refused": _strike_at("refused", "connect"),
    "connection reset": _strike_at("reset", *ANSWER_STAGES),
    "TLS or protocol error": _strike_at("tls", "connect") | _strike_at("protocol", "head"),
    "timeout before any byte": _strike_at("stall", "connect", "body", "head"),
    "stall in mid stream": _strike_at("stall", *STREAM_STAGES),
    "stream cut": _strike_at("cut", "body", "head") | _strike_at("unfinished", *STREAM_STAGES),
    "400 of shape": _strike_with_status("400"),
    "400 overflow": _strike_with_status("400-overflow"),
    "400 overflow in foreign words": _strike_with_status("400-foreign"),
    "401": _strike_with_status("401"),
    "403": _strike_with_status("403"),
    "404": _strike_with_status("404"),
    "408": _strike_with_status("408"),
    "409": _strike_with_status("409"),
    "413 in HTML": _strike_with_status("413-html"),
    "413 without a body": _strike_with_status("413-empty"),
    "422": _strike_with_status("422"),
    "429 with retry-after": _strike_with_status("429"),
    "429 of tokens": _strike_with_status("429-tokens"),
    "429 overflow": _strike_with_status("429-overflow"),
    "500": _strike_with_status("500"),
    "502 in HTML": _strike_with_status("502-html"),
    "529": _strike_with_status("529"),
    "error event": _strike_at("error", *STREAM_STAGES),
    "empty answer": _strike_at("empty", "head"),
    "unknown stop reason and block": _strike_at("unknown", "head"),
    "garbage in the stream": _strike_at("garbage", "first", "middle") | _strike_at("utf8", "end"),
}
"""27 faults: the stages of an answer at which each can strike, with the provider's name for it."""
PERSISTENT_FAULTS = {"400 of shape", "401", "403", "404", "422"}
"""Faults that the same request would meet again, so it is not repeated; the others may pass, or need a smaller one."""
TRUE_NUMBERS = {"400-overflow": "native", "400-foreign": "llama.cpp", "429-overflow": "openai-tpm"}
"""Overflows that report the true size of the request: the provider's window is made smaller for them."""


def find_strike_stage(fault: str, stage: str) -> str:
    """Return the stage of the struck request at which ``fault`` strikes, or an empty text if it cannot."""
    stages = FAULTS[fault]
    if stage in ANSWER_STAGES:
        return stage if stage in stages else ""
    early = [stage_name for stage_name in ("head", "connect", "body") if stage_name in stages]
    late = [stage_name for stage_name in ("middle", "first", "end") if stage_name in stages]
    picked = {STAGES[6]: early, STAGES[7]: late, STAGES[8]: early + late}[stage]
    return picked[0] if picked else ""


def explain_impossible(fault: str, stage: str) -> str:
    """Return why ``fault`` cannot strike at ``stage``."""
    kinds = {*FAULTS[fault].values()}
    if kinds == {"refused"}:
        return "a connection that stands is not refused any more"
    if kinds == {"tls", "protocol"}:
        return "TLS is spoken while connecting and HTTP at the head of the answer, not before or after"
    if any(kind[0].isdigit() for kind in kinds):
        return "nobody is there to tell it" if stage == "connect" else "a status is told before the answer begins"
    if kinds & {"empty", "unknown"}:
        return "it is a whole answer, not a moment of one"
    if kinds == {"stall"}:
        explanation = (
            "before the first byte it is the timeout" if "middle" in FAULTS[fault] else "behind it, it is the stall"
        )
        return f"the other silence has its own name: {explanation}"
    return "there is no answer yet that it could strike" if stage not in STREAM_STAGES else "the answer has begun"


PAIRS = [(fault, stage) for fault in FAULTS for stage in STAGES]
POSSIBLE = [pair for pair in PAIRS if find_strike_stage(*pair)]


# -- an engine ---------------------------------------------------------------------------------------------------------


def text(seed: int, lines: int) -> str:
    return "\n".join(f"{seed * 31 + at:>6}  value_{seed}_{at} = compute({at * 7 % 97})" for at in range(lines))


def _build_conversation() -> list[Message]:
    """Return a conversation that is long enough to be compacted: some 12,000 tokens."""
    messages = [Message.from_text("user", "Find why the build fails, and mend it.")]
    for number in range(8):
        call = ToolCall(f"call_{number}", "read", f'{{"path":"src/part_{number}.py"}}')
        result = ToolResult(call.id, "read", (Text(text(number, 110)),))
        messages += [Message("assistant", (Text(f"Step {number}."), call)), Message("tool", (result,))]
    return [*messages, Message.from_text("assistant", "Part 7 looks wrong.")]


CONVERSATION = _build_conversation()


SMALL_WINDOW = 9_000
"""The window of a provider that reports an overflow: smaller than the conversation."""


class FaultyProvider:
    """A provider whose requests fail from request ``first`` on, once or always, behind one upstream. An overflow
    reports true numbers, so the struck request meets a smaller window; with ``before`` the one before it does too.
    """

    def __init__(self, fault, *, first=1, always=False, before=False, provider=None):
        self.provider = provider or Provider(ProviderSettings(window=WINDOW))
        self.upstream = ProviderUpstream(self.provider, self.strike)
        self.fault, self.first, self.always, self.before = fault, first, always, before
        self.met_small_window = False

    def strike(self, _sent, number):
        """Return the fault that strikes the request of this number, and set the window that it meets."""
        fault = self.fault if number == self.first or (self.always and number > self.first) else None
        wording = TRUE_NUMBERS.get(fault.kind, "") if fault is not None else ""
        if self.before and number == self.first - 1:
            wording = "native"
        self.met_small_window |= bool(wording)
        self.provider.settings = ProviderSettings(
            window=SMALL_WINDOW if wording else WINDOW, overflow=wording or "native"
        )
        return None if wording else fault

    def stop_faults(self):
        """Let all further requests pass."""
        self.fault, self.before = None, False
        self.provider.settings = ProviderSettings(window=WINDOW)


def list_shown_messages(session):
    """Return the messages that the next request would show."""
    return [sized_message.message for sized_message in build_projection(session.journal.state)]


def list_logged_messages(store):
    """Return all messages of the log."""
    return [
        entry.body.sized_message.message
        for entry in store.read_path(SAMPLE_KEY)
        if isinstance(entry.body, MessageEntry)
    ]


async def ask_session(session, *words, stream=False):
    """Return the answer to ``words``, or the error that it ended in. A stream must build the same answer."""
    try:
        if not stream:
            return await session.ask(*words)
        fold = AnswerStream(session.api)
        async with session.run(words) as run:
            async for event in run:
                fold.add_event(event)
    except HoldfastError as error:
        return error
    assert fold.build_answer().message == run.answer.message
    return run.answer


def judge_error(error):
    """The error has a known kind and says what to do."""
    assert isinstance(error, UpstreamError), error
    assert error.kind in VERDICT_KINDS, error.kind
    assert "; " in str(error), error


def judge_idle(engine, session, store):
    """Nobody waits, no permit is held, and opening the session again shows the same messages."""
    assert engine.resources.lanes.is_idle
    assert engine.resources.permits.is_idle
    assert not session.compaction_tracker.status.is_busy, session.compaction_tracker.status
    assert [
        sized_message.message for sized_message in build_projection(Journal.open(store, SAMPLE_KEY).state)
    ] == list_shown_messages(session)


def judge_requests(provider):
    """valid-request: the provider refused requests by its own rules only for their size."""
    for request in provider.requests:
        if isinstance(request.reply, RefusalReply):
            report = ErrorReport(
                "", request.reply.status, request.reply.code, request.reply.message, request.reply.body
            )
            assert classify_error(report).is_overflow, request.reply


class EngineCase:
    """An engine on a store in memory, with its target and the events it sent."""

    def __init__(self, api, upstream, *, window=WINDOW, store=None, **means):
        self.store, self.events_received = store or MemoryStore(), []
        self.goal = replace(get_target(api, STRICTEST_MODELS[api], window=window), prior_ratio=1.0)
        self.engine_context = Engine.open(
            self.store,
            upstream=upstream,
            target=self.goal,
            fields=make_request_fields(api),
            listen=self.events_received.append,
            **means,
        )

    def count_decisions(self):
        """Return the number of decisions and compactions so far."""
        return sum(
            isinstance(entry.body, DecisionEntry | CompactionEntry) for entry in self.store.read_entries(SAMPLE_KEY)
        )

    def count(self, kind):
        """Return the number of events of a kind."""
        return sum(isinstance(event, kind) for event in self.events_received)


def judge_counts(store):
    """bounded-attempts: all tries for one answer make at most two compactions, one truncation and the fallback."""
    bodies = [entry.body for entry in store.read_entries(SAMPLE_KEY)]
    assert sum(isinstance(body, CompactionEntry) and body.trigger != TRIGGER_FALLBACK for body in bodies) <= 2
    truncations = [
        body
        for body in bodies
        if isinstance(body, DecisionEntry) and any(edit.rule == TRUNCATE_RULE for edit in body.edits)
    ]
    assert len(truncations) <= 1


def judge_unchanged(session, messages_before, *, stream):
    """failed-attempt-changes-nothing: only the part of a broken answer that a client has read is added to the log."""
    messages_now = list_shown_messages(session)
    assert messages_now[: len(messages_before)] == messages_before
    assert [message.role for message in messages_now[len(messages_before) :]] in ([], ["assistant"] * stream)


async def judge_session_continues(engine, session, store):
    """nothing-lost: without faults the next question is answered, and the earlier one is in the log once."""
    answer = await session.ask("And now?")
    assert answer.message.text
    assert [message.text for message in list_logged_messages(store)].count("Go on.") == 1
    judge_idle(engine, session, store)
