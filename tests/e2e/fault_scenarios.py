"""An engine in trouble: what can go wrong with its provider, and what must be true of it afterwards."""

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
BOUND = compute_max_requests(Numbers())
MOST_SUMMARIES = 12
"""Requests for one summary: three tries of two requests, and some where the head goes in parts."""

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
ANSWERING = STAGES[:6]
INSIDE = ("first", "middle", "end")


def _at(kind: str, *stages: str) -> dict[str, str]:
    return dict.fromkeys(stages, kind)


def _status(kind: str) -> dict[str, str]:
    return _at(kind, "body", "head")


FAULTS: dict[str, dict[str, str]] = {
    "connection refused": _at("refused", "connect"),
    "connection reset": _at("reset", *ANSWERING),
    "TLS or protocol error": _at("tls", "connect") | _at("protocol", "head"),
    "timeout before any byte": _at("stall", "connect", "body", "head"),
    "stall in mid stream": _at("stall", *INSIDE),
    "stream cut": _at("cut", "body", "head") | _at("unfinished", *INSIDE),
    "400 of shape": _status("400"),
    "400 overflow": _status("400-overflow"),
    "400 overflow in foreign words": _status("400-foreign"),
    "401": _status("401"),
    "403": _status("403"),
    "404": _status("404"),
    "408": _status("408"),
    "409": _status("409"),
    "413 in HTML": _status("413-html"),
    "413 without a body": _status("413-empty"),
    "422": _status("422"),
    "429 with retry-after": _status("429"),
    "429 of tokens": _status("429-tokens"),
    "429 overflow": _status("429-overflow"),
    "500": _status("500"),
    "502 in HTML": _status("502-html"),
    "529": _status("529"),
    "error event": _at("error", *INSIDE),
    "empty answer": _at("empty", "head"),
    "unknown stop reason and block": _at("unknown", "head"),
    "garbage in the stream": _at("garbage", "first", "middle") | _at("utf8", "end"),
}
"""27 faults by the stages of an answer at which each can strike, with the provider's name for it."""
LASTING = {"400 of shape", "401", "403", "404", "422"}
"""Faults that the same request would meet again, so that it is not sent; the others may pass, or need a smaller one."""
TRUE_NUMBERS = {"400-overflow": "native", "400-foreign": "llama.cpp", "429-overflow": "openai-tpm"}
"""Overflows that are told with the true size of the request: the provider's window is smaller than it was."""


def struck_at(fault: str, stage: str) -> str:
    """Return the stage of the struck request at which ``fault`` strikes at ``stage``; nothing where it cannot."""
    known = FAULTS[fault]
    if stage in ANSWERING:
        return stage if stage in known else ""
    early = [one for one in ("head", "connect", "body") if one in known]
    late = [one for one in ("middle", "first", "end") if one in known]
    picked = {STAGES[6]: early, STAGES[7]: late, STAGES[8]: early + late}[stage]
    return picked[0] if picked else ""


def why_not(fault: str, stage: str) -> str:
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
        other = "before the first byte it is the timeout" if "middle" in FAULTS[fault] else "behind it, it is the stall"
        return f"the other silence has its own name: {other}"
    return "there is no answer yet that it could strike" if stage not in INSIDE else "the answer has begun"


PAIRS = [(fault, stage) for fault in FAULTS for stage in STAGES]
POSSIBLE = [pair for pair in PAIRS if struck_at(*pair)]


# -- an engine ---------------------------------------------------------------------------------------------------------


def text(seed: int, lines: int) -> str:
    return "\n".join(f"{seed * 31 + at:>6}  value_{seed}_{at} = compute({at * 7 % 97})" for at in range(lines))


def _talk() -> list[Message]:
    """Return a conversation that has enough in it to be compacted: some 12,000 tokens."""
    said = [Message.from_text("user", "Find why the build fails, and mend it.")]
    for number in range(8):
        call = ToolCall(f"call_{number}", "read", f'{{"path":"src/part_{number}.py"}}')
        result = ToolResult(call.id, "read", (Text(text(number, 110)),))
        said += [Message("assistant", (Text(f"Step {number}."), call)), Message("tool", (result,))]
    return [*said, Message.from_text("assistant", "Part 7 looks wrong.")]


TALK = _talk()


SIZE = 9_000
"""Tokens that a provider takes which says it is too much: less than the conversation has."""


class Trouble:
    """A provider that is struck by a fault from its request ``first`` on, once or always, behind one upstream.

    Overflows are told with true numbers: what is struck meets a smaller window. ``before``: so does the request before.
    """

    def __init__(self, fault, *, first=1, always=False, before=False, provider=None):
        self.provider = provider or Provider(ProviderSettings(window=WINDOW))
        self.upstream = ProviderUpstream(self.provider, self.strike)
        self.fault, self.first, self.always, self.before = fault, first, always, before
        self.was_small = False

    def strike(self, _sent, number):
        """Return the fault that strikes the request of this number, and set the window that it meets."""
        fault = self.fault if number == self.first or (self.always and number > self.first) else None
        wording = TRUE_NUMBERS.get(fault.kind, "") if fault is not None else ""
        if self.before and number == self.first - 1:
            wording = "native"
        self.was_small |= bool(wording)
        self.provider.settings = ProviderSettings(window=SIZE if wording else WINDOW, overflow=wording or "native")
        return None if wording else fault

    def ends(self):
        """From here on all is well."""
        self.fault, self.before = None, False
        self.provider.settings = ProviderSettings(window=WINDOW)


def shown(session):
    """Return the messages that the next request would show."""
    return [slot.message for slot in build_projection(session.journal.state)]


def said(store):
    """Return all that was ever said, from the log."""
    return [
        entry.body.sized_message.message
        for entry in store.read_path(SAMPLE_KEY)
        if isinstance(entry.body, MessageEntry)
    ]


async def asked(session, *words, stream=False):
    """Return the answer to ``words``, or the error that it ended in. What is streamed is one answer, from its start."""
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
    """Errors are of the kinds there are, and tell somebody what to do."""
    assert isinstance(error, UpstreamError), error
    assert error.kind in VERDICT_KINDS, error.kind
    assert "; " in str(error), error


def judge_peace(engine, session, store):
    """Nobody waits, nothing is held, and who opens the session again sees what this one does."""
    assert engine.resources.lanes.is_idle
    assert engine.resources.permits.is_idle
    assert not session.compaction_tracker.status.is_busy, session.compaction_tracker.status
    assert [slot.message for slot in build_projection(Journal.open(store, SAMPLE_KEY).state)] == shown(session)


def judge_requests(provider):
    """valid-request: what the provider refused by its own judgement, it refused for its size alone."""
    for one in provider.requests:
        if isinstance(one.reply, RefusalReply):
            report = ErrorReport("", one.reply.status, one.reply.code, one.reply.message, one.reply.body)
            assert classify_error(report).is_overflow, one.reply


class Scene:
    """An engine on a store in memory, with a conversation that it did not begin."""

    def __init__(self, api, upstream, *, window=WINDOW, store=None, **means):
        self.store, self.heard = store or MemoryStore(), []
        self.goal = replace(get_target(api, STRICTEST_MODELS[api], window=window), prior_ratio=1.0)
        self.opened = Engine.open(
            self.store,
            upstream=upstream,
            target=self.goal,
            fields=make_request_fields(api),
            listen=self.heard.append,
            **means,
        )

    def decided(self):
        """Return how much was decided so far."""
        return sum(
            isinstance(entry.body, DecisionEntry | CompactionEntry) for entry in self.store.read_entries(SAMPLE_KEY)
        )

    def count(self, kind):
        """Return how many events of a kind were told."""
        return sum(isinstance(event, kind) for event in self.heard)


def judge_counts(store):
    """bounded-attempts: two compactions and one truncation at most, and the fallback, in all the
    tries for one answer.
    """
    bodies = [entry.body for entry in store.read_entries(SAMPLE_KEY)]
    assert sum(isinstance(body, CompactionEntry) and body.trigger != TRIGGER_FALLBACK for body in bodies) <= 2
    cut = [
        body
        for body in bodies
        if isinstance(body, DecisionEntry) and any(one.rule == TRUNCATE_RULE for one in body.edits)
    ]
    assert len(cut) <= 1


def judge_untouched(session, before, *, stream):
    """failed-attempt-changes-nothing: a failed attempt changes nothing; what a client has read of a broken answer is in
    the log, and no more.
    """
    now = shown(session)
    assert now[: len(before)] == before
    assert [one.role for one in now[len(before) :]] in ([], ["assistant"] * stream)


async def judge_goes_on(engine, session, store):
    """nothing-lost: once all is well the next question is answered, and what was asked in trouble was said once."""
    later = await session.ask("And now?")
    assert later.message.text
    assert [one.text for one in said(store)].count("Go on.") == 1
    judge_peace(engine, session, store)
