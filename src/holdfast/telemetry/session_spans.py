"""The events of a session as spans: those of a request on its span, and a span of its own for each compaction."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, get_current_span, set_span_in_context

from holdfast import events
from holdfast.events import Event
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.stages.cache_breakpoints import CREATION_RULES
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.errors.report import OVERFLOW_KINDS
from holdfast.state.plan import Plan
from holdfast.telemetry import conventions as names
from holdfast.telemetry.content import RecordedContent, describe_input
from holdfast.telemetry.model_call import ModelCall, mark_failed
from holdfast.telemetry.safe_spans import AttributeValue, clean_name, end_span, start_span

if TYPE_CHECKING:
    from holdfast.telemetry.telemetry import Telemetry

_COMPACTION_SPAN = "holdfast.compact"
_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")
_EDIT_COUNTS = {"spill": names.SPILLED, "prune": names.PRUNED}
"""Attributes that count the edits of a rule; those of all other rules are counted together."""

_EVENT_FIELDS: dict[type[Event], dict[str, str]] = {
    events.RequestStarted: {
        names.MESSAGE_COUNT: "message_count",
        names.ESTIMATED_TOKENS: "tokens",
        names.WINDOW_TOKENS: "window",
    },
    events.AnswerRecorded: {names.INPUT_TOKENS: "input_tokens", names.OUTPUT_TOKENS: "output_tokens"},
    events.CacheMissed: {names.CACHE_MISS_CAUSE: "cause", names.CACHE_MISS_TOKENS: "missed_tokens"},
    events.RequestRefused: {names.ERROR_TYPE: "kind"},
    events.RetryScheduled: {names.ERROR_TYPE: "kind", names.RETRY_SECONDS: "seconds"},
    events.ShrinkStarted: {names.OVERFLOW_STEP: "overflow_step"},
    events.CompactionStarted: {names.COMPACTION_TRIGGER: "trigger", names.COMPACTION_AUTHOR: "author"},
    events.CompactionEnded: {
        names.COMPACTION_OUTCOME: "outcome",
        names.COMPACTION_AUTHOR: "author",
        names.TOKENS_BEFORE: "tokens_before",
        names.TOKENS_AFTER: "tokens_after",
    },
    events.EditsDecided: {names.EDIT_RULE: "rule", names.EDIT_COUNT: "edit_count", names.TOKENS_SAVED: "saves"},
    events.NoticeGiven: {names.NOTICE_RULE: "rule"},
    events.HookFailed: {names.HOOK: "hook"},
}
"""The fields of an event that are recorded, by attribute. Each is a number, or a word from a short list.

tests/telemetry/test_names.py fails if an event is missing here.
"""


class SessionSpans:
    """The spans of one request of a session, or of a compaction that somebody asked for. ``end`` it once."""

    def __init__(
        self, telemetry: Telemetry, context: Context, own_span: Span | None = None, call: ModelCall | None = None
    ) -> None:
        """Compactions are below the span in ``context``, which is ``own_span``, unless that is somebody else's.

        ``call`` is the request to a model that ``own_span`` is about, if it is; it ends with this.
        """
        self._telemetry = telemetry
        self._context = context
        self._own_span = own_span
        self._span: Span = get_current_span(context)
        self.call = call
        self._compaction: Span | None = None
        self._compaction_start = time_ns()
        """When a compaction began whose beginning was not announced: at the end of the one before."""
        self._counts: dict[str, int] = {}
        """Sums that become attributes of the request at its end, by attribute."""
        self._is_streaming = False
        self.recorded_content: RecordedContent | None = None
        """The content of the newest attempt; None if no content is recorded."""
        self.has_answer = False
        """Whether the request was answered."""
        self._is_overflow_avoided = False
        """Whether the provider refused the request as too large, or a compaction came before that could happen."""

    def add_event(self, event: Event) -> None:
        """Put ``event`` on the span that it belongs to."""
        match event:
            case events.CompactionStarted():
                self._start_compaction(event)
                return
            case events.CompactionEnded():
                self._end_compaction(event)
                return
            case events.RequestStarted():
                self._add_to_counts(names.ATTEMPTS, 1)
                self._set(names.MESSAGE_COUNT, event.message_count)
            case events.RequestRefused(kind=kind) if kind in OVERFLOW_KINDS:
                self._is_overflow_avoided = True
                self._set(names.OVERFLOW_REFUSED, value=True)
            case events.EditsDecided():
                self._add_to_counts(_EDIT_COUNTS.get(event.rule, names.OTHER_EDITS), event.edit_count)
                self._add_to_counts(names.TOKENS_SAVED, max(0, event.saves))
                if event.rule not in CREATION_RULES:
                    self._set(names.PREFIX_BROKEN, value=True)
            case events.CacheMissed():
                self._set(names.CACHE_MISS_CAUSE, event.cause)
                self._set(names.CACHE_MISS_TOKENS, event.missed_tokens)
            case events.AnswerRecorded():
                self._count_avoided_overflow()
        name, attributes = describe_event(event)
        self._span.add_event(name, attributes)

    def note_plan(self, plan: Plan) -> None:
        """Note the size of what is sent next, and whether it has a summary in place of older messages."""
        self._set(names.ESTIMATED_TOKENS, plan.after)
        self._set(names.WINDOW_TOKENS, plan.window)
        if plan.state.view.compaction is not None:
            self._set(names.CONVERSATION_COMPACTED, value=True)

    def note_content(
        self, messages: Sequence[SizedMessage], fields: Mapping[str, Any], recorded: RecordedContent | None
    ) -> None:
        """Note the words of what is sent next, without those that spans of earlier requests have (``recorded``).

        ``fields`` are those of the request beside its messages. Nothing is noted unless somebody asked for content.
        """
        if self.call is not None and self.call.records_content:
            attributes, self.recorded_content = describe_input(messages, fields, recorded or RecordedContent())
            self.call.span.set_attributes(attributes)

    def note_streaming(self) -> None:
        """Note that the answer is to come as events."""
        self._is_streaming = True
        self._set(names.REQUEST_STREAM, value=True)

    def note_first_events(self) -> None:
        """Note when the first events of a streamed answer were handed to the caller."""
        if self.call is not None and self._is_streaming:
            self.call.note_first_chunk()

    def note_answer(self, answer: ParsedAnswer) -> None:
        """Note the answer to the request."""
        self.has_answer = True
        if self.call is not None:
            self.call.set_answer(answer)

    def start_call(self, *, api: str, model: str, provider: str, address: str, session: str) -> ModelCall:
        """Start the span of a request for a summary, below the compaction that needs it."""
        parent = self._context
        if self._compaction is not None:
            parent = set_span_in_context(self._compaction, self._context)
        return self._telemetry.start_call(
            api=api, model=model, provider=provider, address=address, session=session, parent=parent
        )

    def end(self) -> None:
        """End the compaction that is still under way, if there is one, and the request to a model."""
        if self._compaction is not None:
            mark_failed(self._compaction, "cancelled")
            end_span(self._compaction)
            self._compaction = None
        for name, count in self._counts.items():
            self._set(name, count)
        if self.call is not None:
            self.call.end()

    def _set(self, name: str, value: AttributeValue) -> None:
        """Set an attribute of our own span; a span of somebody else gets none of ours."""
        if self._own_span is not None:
            self._own_span.set_attribute(name, value)

    def _add_to_counts(self, name: str, count: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + count

    def _count_avoided_overflow(self) -> None:
        if self._is_overflow_avoided:
            self._set(names.OVERFLOW_AVOIDED, value=True)
            self._telemetry.meters.overflows_avoided.add(1)

    def _start_compaction(self, event: events.CompactionStarted) -> None:
        attributes = {names.COMPACTION_TRIGGER: event.trigger, names.COMPACTION_AUTHOR: event.author}
        if self._compaction is not None:
            end_span(self._compaction)
        self._compaction = start_span(self._telemetry.tracer, _COMPACTION_SPAN, self._context, attributes=attributes)

    def _end_compaction(self, event: events.CompactionEnded) -> None:
        # After a summary that failed, an extract is made, which has no beginning of its own.
        compaction = self._compaction or start_span(
            self._telemetry.tracer, _COMPACTION_SPAN, self._context, start_time=self._compaction_start
        )
        self._compaction = None
        self._compaction_start = time_ns()
        compaction.set_attribute(names.CONVERSATION_ID, clean_name(event.session))
        compaction.set_attribute(names.COMPACTION_OUTCOME, event.outcome)
        compaction.set_attribute(names.COMPACTION_AUTHOR, event.author)
        compaction.set_attribute(names.TOKENS_BEFORE, event.tokens_before)
        compaction.set_attribute(names.TOKENS_AFTER, event.tokens_after)
        if event.outcome == "compacted":
            saved_tokens = max(0, event.tokens_before - event.tokens_after)
            compaction.set_attribute(names.TOKENS_SAVED, saved_tokens)
            self._add_to_counts(names.COMPACTIONS, 1)
            self._add_to_counts(names.TOKENS_SAVED, saved_tokens)
            self._set(names.PREFIX_BROKEN, value=True)
            self._is_overflow_avoided = True
        elif event.outcome != "nothing_to_compact":
            mark_failed(compaction, event.outcome)
        end_span(compaction)


def describe_event(event: Event) -> tuple[str, dict[str, AttributeValue]]:
    """Return the name of an event on a span (``holdfast.request_started``), and its attributes.

    Reasons (``why``) are left out: they may quote an error of a provider, and with it a conversation.
    """
    name = f"holdfast.{_WORD_START.sub('_', type(event).__name__).lower()}"
    fields = _EVENT_FIELDS.get(type(event), {})
    return name, {attribute: getattr(event, field) for attribute, field in fields.items()}
