"""A session: one stored conversation, whose requests always fit the model's window."""

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
from holdfast.engine.run import record as recording
from holdfast.engine.run.drop_signatures import drop_signatures, restore_signatures
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
    """How full the context of a session is. Tokens are estimated, and calibrated by the usage reported so far."""

    session: str
    api: str
    model: str
    tokens: int
    """Size of the next request, as it stands."""
    window: int
    window_source: str
    """Where the window came from; ``learned`` = from an overflow."""
    usable_tokens: int
    """The most tokens that a request may have: the window less the reserve for the answer."""
    setup_tokens: int
    """Size of the system prompt and tools."""
    message_count: int
    """All messages of the conversation, shown or not."""
    compaction_count: int
    """1 if a compaction is in force, else 0."""
    decision_count: int
    """Other decisions that change the next request; those about messages after a compaction no longer count."""
    policy: str

    @property
    def window_share(self) -> float:
        """The share of the window that the next request takes."""
        return self.tokens / self.window


class Session:
    """One branch of one stored session. Its runs go one after the other, in order."""

    def __init__(self, resources: EngineResources, journal: Journal) -> None:
        self._runtime = SessionRuntime(resources, journal)
        self._runtime.emit_repairs()
        self._caller_request: PreparedRequest | None = None
        """The request that ``prepare`` returned and ``record`` has not answered yet."""

    @property
    def key(self) -> str:
        """The session's name in the store."""
        return self.journal.key

    @property
    def resources(self) -> EngineResources:
        """The resources shared with the other sessions of the engine."""
        return self._runtime.resources

    @property
    def journal(self) -> Journal:
        """The session's branch of the log."""
        return self._runtime.journal

    @property
    def compaction_tracker(self) -> CompactionTracker:
        """The tracker of the session's compactions."""
        return self._runtime.compaction_tracker

    @property
    def settings(self) -> Settings:
        """The settings of the session's policy."""
        return self._runtime.settings

    @property
    def api(self) -> str:
        """The API of requests made from messages."""
        return self.get_default_target().api

    def get_default_target(self) -> Target:
        """Return the target of requests made from messages. Raises ``ConfigError`` if the engine has none."""
        return self._runtime.get_default_target()

    def get_default_fields(self) -> Mapping[str, Any]:
        """Return the fields, beside the messages, of requests made from messages."""
        return self._runtime.get_default_fields()

    async def append(self, *messages: str | Message | SizedMessage) -> list[str]:
        """Store messages, which then survive a crash, and return the ids of their entries.

        While an answer is on its way, user messages wait and are appended after it.
        """
        return await self._runtime.append(coerce_messages(messages))

    async def ask(self, *messages: str | Message | SizedMessage, deadline: float | None = None) -> ParsedAnswer:
        """Append ``messages`` (none, to continue after tool results) and return the model's answer, once it is stored.

        ``deadline`` is in seconds. A compaction under way extends it once, by the policy's
        ``summarizer.timeout_seconds``.

        Raises ``DeadlineExceeded`` after the deadline, ``UpstreamError`` if the provider refuses or does not answer,
        ``ContextOverflow`` if even the smallest request is refused as too large, and ``WindowTooSmall`` before any call
        if the window cannot hold the conversation at all.
        """
        raise_if_wrong_type(ConfigError, deadline=(deadline, float | int | None))
        if deadline is not None and isnan(deadline):
            raise ConfigError("deadline is nan; give seconds, or none")
        extra = self.journal.policy.settings.summarizer.timeout_seconds
        seconds = inf if deadline is None else deadline
        # Quiet: without a caller who has seen events, an answer that breaks off can be asked for again.
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
        """Return a run of ``request_input``: nothing, messages to append, or a body with the whole conversation.

        Use it as ``async with`` and iterate it for the API's own events (see ``holdfast.sync`` for programs without an
        event loop).

        ``quiet`` passes on no events, and can therefore retry an answer that broke off. ``stream`` says whether the
        provider is asked for events; by default the body decides, and requests made from messages stream. ``model`` is
        the model of a body that names none (Gemini names it in the URL). ``upstream`` (or an SDK's client) answers in
        place of the engine's. With ``as_it_is`` the body is sent unchanged, and only observed. ``writers`` are asked
        for a summary before the engine's own.
        """
        raise_if_wrong_type(ConfigError, writers=(writers, Sequence))
        raise_if_wrong_type(
            ConfigError, **{f"writers[{at}]": (writer, SummaryWriter) for at, writer in enumerate(writers)}
        )
        request_options = RequestOptions(
            stream,
            model,
            None if upstream is None else wrap_upstream(upstream),
            as_it_is,
            tuple([writer.with_upstream() for writer in writers]),
        )
        return Run(self._runtime, request_input, request_options, quiet=quiet)

    async def prepare(self, request_input: RequestInput = None) -> PreparedRequest:
        """Return the next request, decided and in the log, for the caller to send; pass the answer to ``record``.

        User messages that arrive before that are appended after the answer.
        """
        async with self._runtime.hold_lane():
            parsed_input = parse_request_input(self._runtime, request_input)
            prepared_run = await prepare_run(self._runtime, parsed_input, RequestOptions(stream=False))
            self._caller_request = prepared_run.prepared_request
            return self._caller_request

    def render_body(self, prepared_request: PreparedRequest) -> bytes:
        """Return the body of a request from ``prepare``, with the engine's default fields.

        Raises ``TypeError`` for anything else.
        """
        raise_if_wrong_type(TypeError, prepared_request=(prepared_request, PreparedRequest))
        return render_prepared_request(prepared_request, self.get_default_fields())

    async def record(self, answer: ParsedAnswer | bytes) -> str:
        """Store the answer to the request that ``prepare`` returned, and return the id of the entry that holds it.

        ``answer`` is the body of the provider's answer, or of its refusal, as bytes or parsed. The id is that of the
        answer's message; for an answer without content, that of the entry with its usage; for a refusal, that of the
        entry about it. The next request takes a refusal into account: the limits that an overflow names, and signatures
        that were refused. A refused request may be sent again, and its next answer passed here.

        Raises ``FormatError`` if ``answer`` is of another type, or bytes that are not a JSON object, and
        ``OperationAborted`` if no prepared request waits for an answer.
        """
        prepared_request = self._caller_request
        if isinstance(answer, bytes):
            answer = parse_answer(self.api if prepared_request is None else prepared_request.target.api, answer)
        if not isinstance(answer, ParsedAnswer):
            raise FormatError(f"a {type(answer).__name__} is not an answer; give the bytes of the provider's answer")
        entry_id = await self.resources.run_in_worker(lambda: self._record_caller_answer(answer))
        if prepared_request is None or not can_recover_from_refusals(self.settings):
            return entry_id
        if _is_signature_refusal(answer, prepared_request):
            await self._drop_refused_signatures(prepared_request.target)
        return entry_id

    async def compact(self, instructions: str = "") -> events.CompactionEnded:
        """Compact now, whatever the size, and return the event that describes the outcome.

        ``instructions`` tell a model that writes the summary where to look first. If others extended the session, and
        nothing was appended here since, their messages are compacted too.
        """
        async with self._runtime.hold_lane():
            template = build_template_from_fields(self.get_default_target(), self.get_default_fields())
            with self._runtime.trace_compaction():
                return await compact_now(self._runtime, template, instructions)

    async def undo(self, id: str | None = None) -> str:  # noqa: A002 -- what it is called everywhere
        """Undo the newest decision or compaction in force, or the one whose id begins with ``id``; return its id."""
        async with self._runtime.hold_lane():
            return await self.resources.run_in_worker(lambda: self._undo_decision(id))

    async def branch(self, entry: str) -> Session:
        """Return a fork of this session after ``entry``; this one stays where it is.

        Raises ``UnknownId`` if the session has no such entry.
        """
        journal = await self.resources.run_in_worker(lambda: self.journal.fork_at(_require_id(entry)))
        return Session(self.resources, journal)

    async def recall(self, id: str = "", **where: Any) -> TextPage:  # noqa: A002
        """Return a page of a spilled text, or of an entry's content; see ``holdfast.engine.recall.recall_page``."""
        store, key = self.resources.store, self.key
        return await self.resources.run_in_worker(lambda: recall.recall_page(store, key, _require_id(id), **where))

    @property
    def recall_tool(self) -> dict[str, Any]:
        """The definition of the tool ``recall``, as an element of the ``tools`` of a request to this session's API."""
        return recall.make_recall_tool(self.api)

    async def answer_recall(self, arguments: str | Mapping[str, Any]) -> RecallAnswer:
        """Answer a model's call of ``recall_tool`` with ``arguments`` (JSON text or values).

        Wrong arguments do not raise: the answer explains them to the model, with ``is_error``.
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
        template = build_template_from_fields(self.get_default_target(), self.get_default_fields())
        return build_report(self.journal, template.target)

    async def wait_for_compaction(self) -> None:
        """Wait until no compaction is under way, and no request that is sent again after one.

        If a request was refused for its size and compacted, this waits until its run ends. If a compaction was due
        before its request was first sent, this waits only until the compaction is made; to wait for the answer, wait
        for the run. Raises ``OperationAborted`` after ``close``.
        """
        self.resources.owner.require()
        await self.compaction_tracker.wait()

    def close(self) -> None:
        """Stop a compaction under way; those who wait for one get ``OperationAborted``. Runs may still end."""
        self.resources.owner.require()
        self.compaction_tracker.close()

    async def record_window_too_small(self, error: WindowTooSmall) -> None:
        """Record and announce that nothing could be sent; the same error is recorded once."""
        await self._runtime.record_window_too_small(error)

    def _undo_decision(self, id: str | None) -> str:  # noqa: A002
        """Undo a decision at the session's leaf, if others extended the session; return its id."""
        with self.journal.hold_lease():
            make_session_joiner(self._runtime)()
            return self.journal.undo(id)

    async def _drop_refused_signatures(self, target: Target) -> None:
        """Decide that the next request leaves out signed parts; if that was done before, it did not help: undo it."""
        journal = self.journal
        written_plan = await drop_signatures(self._runtime, target, lambda plan: journal.write_decision(plan, target))
        if not written_plan:
            await restore_signatures(self._runtime)

    def _record_caller_answer(self, answer: ParsedAnswer) -> str:
        """Record the answer to the request that ``prepare`` returned, and return the id that ``record`` returns."""
        prepared_request = self._caller_request
        if prepared_request is None:
            raise OperationAborted(
                "no request waits for an answer: each is answered once; call prepare for the next one"
            )
        entry_id = recording.record_caller_answer(self.journal, prepared_request, answer)
        if answer.error is None:
            self._caller_request = None  # a refused request may be answered again
        self._runtime.end_answering()
        return entry_id


def build_report(journal: Journal, target: Target) -> Report:
    """Return how full the context of ``journal`` is for requests to ``target``."""
    state, settings = journal.state, journal.policy.settings
    effective_target = compute_effective_target(target, state, settings)
    budget = compute_budget(effective_target, settings)
    return Report(
        session=journal.key,
        api=effective_target.api,
        model=effective_target.model,
        tokens=estimate_request_tokens(state, effective_target),
        window=budget.window,
        window_source=effective_target.limits.window_source,
        usable_tokens=budget.usable,
        setup_tokens=budget.setup_tokens,
        message_count=len(state.history.sized_messages),
        compaction_count=int(state.view.compaction is not None),
        decision_count=_count_active_decisions(state),
        policy=journal.policy.name,
    )


def _describe_snapshot(journal: Journal) -> str:
    """Describe the position of a session: its newest entry, the number of messages, and the compaction in force."""
    state = journal.state
    compaction_note = "no compaction"
    if state.view.compaction is not None:
        compaction_note = f"the compaction that shows message {state.view.first_kept} first"
    return f"entry {journal.leaf}, {len(state.history.sized_messages)} messages, {compaction_note} in force"


def _count_active_decisions(state: ConversationState) -> int:
    """Return how many decisions, other than the compaction in force, change the next request."""
    count = 0
    for _, decision in state.view.active_decisions:
        is_about_shown = any(edit.span.start >= state.view.first_kept for edit in decision.edits)
        if is_about_shown and decision != state.view.compaction:
            count += 1
    return count


def _is_signature_refusal(answer: ParsedAnswer, prepared_request: PreparedRequest) -> bool:
    """Return whether a request was refused for signatures or encrypted content that the provider does not accept."""
    report = answer.to_report(prepared_request.plan.after)
    return isinstance(report, ErrorReport) and is_signature_error(report, classify_error(report).kind)


def _require_id(id: str) -> str:  # noqa: A002
    """Return ``id``. Raises ``UnknownId`` if it is not a string."""
    if not isinstance(id, str):
        raise UnknownId(f"an id cannot be a {type(id).__name__}; give the id of an entry, or its beginning, as a text")
    return id
