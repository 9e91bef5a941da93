"""A session: one conversation that may be called again and again, and never has to think of the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isnan
from typing import Any

from msgspec import Struct

from holdfast import events
from holdfast.engine import recall
from holdfast.engine.compaction.compact import compact_now, make_session_joiner
from holdfast.engine.compaction.inflight import CompactionTracker
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.engine.log.shortening import ShorteningOutcome, shorten_long_results
from holdfast.engine.recall import RecallAnswer
from holdfast.engine.request_template import (
    RequestInput,
    RequestOptions,
    build_template_from_fields,
    coerce_messages,
    render_prepared_request,
)
from holdfast.engine.run import drop_signatures as unsealing
from holdfast.engine.run import record as recording
from holdfast.engine.run.prepare import parse_request_input, prepare_run
from holdfast.engine.run.run import Run
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.engine.upstream.sdk import wrap_upstream
from holdfast.engine.upstream.upstream import Upstream
from holdfast.errors import ConfigError, FormatError, OperationAborted, UnknownId, WindowTooSmall, raise_if_wrong_type
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.paging import TextPage
from holdfast.planning.budget import compute_budget, compute_effective_target
from holdfast.planning.settings import Settings
from holdfast.providers.answers.answer_stream import parse_answer
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.providers.errors.signature_errors import is_signature_error
from holdfast.recovery.machine import can_recover_from_refusals
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.conversation_state import ConversationState
from holdfast.state.target import Target


class Report(Struct, frozen=True):
    """How full the context of a session is: tokens, estimated and calibrated by what the provider told."""

    session: str
    api: str
    model: str
    tokens: int
    """Of the next request, as it stands."""
    window: int
    window_source: str
    """Where the window came from; ``learned`` = from an overflow."""
    usable_tokens: int
    """What a request may hold: the window less what is kept free for the answer."""
    setup_tokens: int
    """System prompt and tools."""
    message_count: int
    """All that were said, shown or not."""
    compaction_count: int
    """Those that shape the next request: one, or none."""
    decision_count: int
    """Others that shape it: of what gave way to a compaction none counts any more."""
    policy: str

    @property
    def window_share(self) -> float:
        """How much of the window the next request takes."""
        return self.tokens / self.window


class Session:
    """One branch of one stored session and whoever answers it. Its runs go one after the other, in order."""

    def __init__(self, resources: EngineResources, journal: Journal) -> None:
        self._runtime = SessionRuntime(resources, journal)
        self._runtime.emit_repairs()
        self._caller_request: PreparedRequest | None = None
        """The request that the caller sends."""

    @property
    def key(self) -> str:
        """The session's name in the store."""
        return self.journal.key

    @property
    def resources(self) -> EngineResources:
        """What it shares with the other sessions of its engine."""
        return self._runtime.resources

    @property
    def journal(self) -> Journal:
        """Its branch of the log."""
        return self._runtime.journal

    @property
    def compaction_tracker(self) -> CompactionTracker:
        """Its compactions as they come and go."""
        return self._runtime.compaction_tracker

    @property
    def settings(self) -> Settings:
        """The numbers of the policy that decides here."""
        return self._runtime.settings

    @property
    def api(self) -> str:
        """The API of requests that are made of words."""
        return self.get_default_target().api

    def get_default_target(self) -> Target:
        """Return the target of requests that are made of words; ``ConfigError`` where there is none."""
        return self._runtime.get_default_target()

    def get_default_fields(self) -> Mapping[str, Any]:
        """Return the fields beside the messages of requests that are made of words."""
        return self._runtime.get_default_fields()

    async def append(self, *messages: str | Message | SizedMessage) -> list[str]:
        """Store messages; they survive a crash from here on. Returns the ids of their entries.

        While an answer is on its way a user's words wait behind it, and are said once it is there.
        """
        return await self._runtime.append(coerce_messages(messages))

    async def ask(self, *messages: str | Message | SizedMessage, deadline: float | None = None) -> ParsedAnswer:
        """Say something (or nothing, to go on behind tool results) and return the model's answer, which is in the log.

        ``deadline`` is in seconds; a compaction under way extends it once, by ``summarizer.timeout_seconds`` of the
        policy. Raises ``DeadlineExceeded`` then, which tells of a compaction that was under way, ``UpstreamError``
        where the provider refuses or does not answer, ``ContextOverflow`` where nothing that could be left out is left,
        ``WindowTooSmall`` before any call.
        """
        raise_if_wrong_type(ConfigError, deadline=(deadline, float | int | None))
        if deadline is not None and isnan(deadline):
            raise ConfigError("deadline is nan; give seconds, or none")
        extra = self.journal.policy.settings.summarizer.timeout_seconds
        seconds = inf if deadline is None else deadline
        with self.compaction_tracker.limit_run(seconds, extra, lambda: _describe_snapshot(self.journal)):
            async with self.run(messages, quiet=True) as run:
                async for _ in run:
                    pass
        return run.answer

    def run(
        self,
        request_input: RequestInput = None,
        *,
        quiet: bool = False,
        stream: bool | None = None,
        model: str = "",
        upstream: Upstream | None = None,
        as_it_is: bool = False,
        writers: Sequence[SummaryWriter] = (),
    ) -> Run:
        """Return a run of ``request_input``: nothing, words to append, or a provider's body with the whole
        conversation.

        Use it as ``async with`` (``with`` where there is no loop) and iterate it for the API's own events. ``quiet``
        gives out none, and may try again where an answer broke off. ``stream`` says whether the provider is asked for
        events; by default as the body says, and for words it is. ``model`` names the model of a body that does not
        (Gemini says it in the address). ``upstream`` (or an SDK's client) answers in place of the engine's;
        ``as_it_is`` lets the body go out as it came, whatever is due. ``writers`` are asked for a summary before the
        engine's own.
        """
        raise_if_wrong_type(ConfigError, writers=(writers, Sequence))
        raise_if_wrong_type(
            ConfigError, **{f"writers[{at}]": (writer, SummaryWriter) for at, writer in enumerate(writers)}
        )
        asker = upstream if upstream is None else wrap_upstream(upstream)
        way = RequestOptions(stream, model, asker, as_it_is, tuple([writer.with_upstream() for writer in writers]))
        return Run(self._runtime, request_input, way, quiet=quiet)

    async def prepare(self, request_input: RequestInput = None) -> PreparedRequest:
        """Return the next request, decided and in the log, without sending it; answer it with ``record``.

        What the user says before that waits behind the answer.
        """
        async with self._runtime.hold_lane():
            parsed_input = parse_request_input(self._runtime, request_input)
            _, self._caller_request = await prepare_run(self._runtime, parsed_input, RequestOptions(stream=False))
            return self._caller_request

    def render_body(self, prepared_request: PreparedRequest) -> bytes:
        """Return the body of a request that ``prepare`` returned, with the default fields of this session's engine."""
        return render_prepared_request(prepared_request, self.get_default_fields())

    async def record(self, answer: ParsedAnswer | bytes) -> str:
        """Store the answer to the request that ``prepare`` returned; return the id of its message.

        ``answer`` is the body of the provider's answer, or of its refusal. A refusal is written to the log; what an
        overflow teaches counts for the next request, which also leaves out signatures that the provider refused.
        Raises ``FormatError`` for anything else, ``OperationAborted`` if no prepared request waits for an answer.
        """
        if isinstance(answer, bytes):
            answer = parse_answer(self._caller_request.target.api if self._caller_request else self.api, answer)
        if not isinstance(answer, ParsedAnswer):
            raise FormatError(f"a {type(answer).__name__} is no answer; give the bytes of the provider's answer")
        prepared_request = self._caller_request
        id_ = await self.resources.run_in_worker(lambda: self._record_caller_answer(answer))
        if (
            prepared_request is not None
            and can_recover_from_refusals(self.settings)
            and _is_signature_refusal(answer, prepared_request)
        ):
            await self._drop_refused_signatures(prepared_request.target)
        return id_

    async def compact(self, instructions: str = "") -> events.CompactionEnded:
        """Compact now, whatever the size; ``instructions`` say what a model's summary looks at above all.

        Where others went on with the session, and nothing was said here since, it holds for what they said too.
        """
        async with self._runtime.hold_lane():
            request = build_template_from_fields(self.get_default_target(), self.get_default_fields())
            return await compact_now(self._runtime, request, instructions)

    async def undo(self, id: str | None = None) -> str:  # noqa: A002 -- what it is called everywhere
        """Take back the newest decision or compaction in force, or the one called ``id``; return its id."""
        async with self._runtime.hold_lane():
            return await self.resources.run_in_worker(lambda: self._undo_decision(id))

    async def branch(self, entry: str) -> Session:
        """Return a session that goes on behind ``entry``; this one stays where it is. ``UnknownId`` for any other."""
        return Session(
            self.resources, await self.resources.run_in_worker(lambda: self.journal.fork_at(_require_id(entry)))
        )

    async def recall(self, id: str = "", **where: Any) -> TextPage:  # noqa: A002
        """Return a page of a spilled text, or of what an entry says; see ``holdfast.engine.recall``."""
        store, key = self.resources.store, self.key
        return await self.resources.run_in_worker(lambda: recall.recall_page(store, key, _require_id(id), **where))

    @property
    def recall_tool(self) -> dict[str, Any]:
        """The definition of the tool ``recall``, as an element of the ``tools`` of a request to this session's API."""
        return recall.make_recall_tool(self.api)

    async def answer_recall(self, arguments: str | Mapping[str, Any]) -> RecallAnswer:
        """Return what a model's call of ``recall_tool`` with ``arguments`` (JSON text or values) answers.

        Wrong arguments raise nothing: the answer says what is wrong, with ``is_error``.
        """
        store, key = self.resources.store, self.key
        return await self.resources.run_in_worker(lambda: recall.answer_recall(store, key, arguments))

    async def shorten_results(self) -> ShorteningOutcome:
        """Rewrite results over the policy's limit for one result on a new branch, and go on there.

        Only policies with such a limit (``openclaw``) do anything; the outcome says why if nothing was rewritten. The
        old branch stays whole.
        """
        async with self._runtime.hold_lane():
            target = self.get_default_target()
            return await self.resources.run_in_worker(lambda: shorten_long_results(self.journal, target))

    def report(self) -> Report:
        """Return how full the context is."""
        state, settings = self.journal.state, self.settings
        target = compute_effective_target(
            build_template_from_fields(self.get_default_target(), self.get_default_fields()).target, state, settings
        )
        budget = compute_budget(target, settings)
        return Report(
            session=self.key,
            api=target.api,
            model=target.model,
            tokens=estimate_request_tokens(state, target),
            window=budget.window,
            window_source=target.limits.window_source,
            usable_tokens=budget.usable,
            setup_tokens=budget.setup_tokens,
            message_count=len(state.history.sized_messages),
            compaction_count=int(state.view.compaction is not None),
            decision_count=_count_active_decisions(state),
            policy=self.journal.policy.name,
        )

    async def wait_for_compaction(self) -> None:
        """Return when no compaction is under way, and no request that one was made for after a refusal.

        That request is waited for until it is answered or has finally failed, whoever wrote the summary. A compaction
        that ran before its request first went out is over once it is made: who wants the answer waits for the run.
        ``OperationAborted`` after ``close``.
        """
        self.resources.owner.require()
        await self.compaction_tracker.wait()

    def close(self) -> None:
        """Stop a compaction under way and turn away those that wait for it; runs may still end."""
        self.resources.owner.require()
        self.compaction_tracker.close()

    async def record_window_too_small(self, error: WindowTooSmall) -> None:
        """Write down, and tell, why nothing could be sent; the same is said once."""
        await self._runtime.record_window_too_small(error)

    def _undo_decision(self, id: str | None) -> str:  # noqa: A002
        """Take back a decision where the session goes on; return its id."""
        with self.journal.hold_lease():
            make_session_joiner(self._runtime)()
            return self.journal.undo(id)

    async def _drop_refused_signatures(self, target: Target) -> None:
        """Decide that the next request leaves out what is sealed; where none is left, that this was no help."""
        journal = self.journal
        if not await unsealing.drop_signatures(
            self._runtime, target, lambda plan: journal.write_decision(plan, target)
        ):
            await unsealing.restore_signatures(self._runtime)

    def _record_caller_answer(self, answer: ParsedAnswer) -> str:
        """Record what came of the request that was handed out; return the id of the message, or of what it is else."""
        prepared_request = self._caller_request
        if prepared_request is None:
            raise OperationAborted(
                "no request waits for an answer: each is answered once; call prepare for the next one"
            )
        id_ = recording.record_caller_answer(self.journal, prepared_request, answer)
        if answer.error is None:
            self._caller_request = None
        self._runtime.end_answering()
        return id_


def _describe_snapshot(journal: Journal) -> str:
    """Describe what a session goes on with: its newest entry, how many messages there are, and what hides some."""
    state = journal.state
    compaction_note = (
        "no compaction"
        if state.view.compaction is None
        else f"the compaction that shows message {state.view.first_kept} first"
    )
    return f"entry {journal.leaf}, {len(state.history.sized_messages)} messages, {compaction_note} in force"


def _count_active_decisions(state: ConversationState) -> int:
    """Return how many decisions beside the compaction in force change what the next request shows."""
    decisions = [decision for _, decision in state.view.active_decisions if decision != state.view.compaction]
    return sum(any(edit.span.start >= state.view.first_kept for edit in decision.edits) for decision in decisions)


def _is_signature_refusal(answer: ParsedAnswer, prepared_request: PreparedRequest) -> bool:
    """Whether a request of the caller's was refused for what the provider had sealed before."""
    report = answer.to_report(prepared_request.plan.after)
    return isinstance(report, ErrorReport) and is_signature_error(report, classify_error(report).kind)


def _require_id(id: str) -> str:  # noqa: A002
    """Return ``id``, where it is a name at all."""
    if not isinstance(id, str):
        raise UnknownId(f"a {type(id).__name__} names nothing; give the id of an entry, or how it begins, as a text")
    return id
