"""Summaries written by a model: ask for one, judge it, ask once more with the reasons, then ask the next writer.

The head of the conversation is sent as text, in as many parts as the writer's window needs. If the provider's cache is
warm, the last request is sent again instead, with one message after it. Nothing is written to the log here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from anyio import move_on_after
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.compaction.summary_writer import (
    CachedRequest,
    CompactionContext,
    SummaryRequestTooLarge,
    SummaryWriter,
    ask_summary_writer,
)
from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.errors import CompactionFailed
from holdfast.events import NoticeGiven
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.settings import Settings
from holdfast.planning.summary import prompts
from holdfast.planning.summary.chunks import (
    MIN_CHUNK_TOKENS,
    HistoryChunk,
    clip_text_middle,
    compute_chunk_budget,
    pack_chunks,
    split_into_chunks,
)
from holdfast.planning.summary.judge import (
    SummaryAnswer,
    SummaryRequirements,
    find_summary_problems,
    strip_summary_wrapping,
)
from holdfast.planning.summary.must_keep import collect_newest_identifiers, find_newest_user_text
from holdfast.planning.summary.prompts import SummaryPromptOptions
from holdfast.planning.summary.rendering import TranscriptStyle, render_transcript
from holdfast.state.plan import SummaryRequest
from holdfast.state.target import SummaryResult

__all__ = ["CachedRequest", "CompactionContext", "SummaryRequestTooLarge", "SummaryWriter", "write_summary"]

# From OpenClaw. The work in hand is in the newest messages; requiring the identifiers of more would reject summaries
# for leaving out what is done with.
NEWEST_MESSAGES = 10
"""How many of the newest messages a summary must keep the identifiers of."""
# From OpenClaw. Each correction costs a whole request, and a model that ignores the reasons once ignores them again.
MAX_CORRECTIONS = 1
"""Requests that repeat the last one with the reasons why its summary was rejected."""
# Prose has about 0.75 words a token, paths and code fewer, and models overrun a limit. A summary over its limit is
# rejected, one below it only wastes room, so the figure is low. Chosen by judgement.
WORDS_PER_TOKEN = 0.5
"""Words for one token, for the limit in words that a writer is told."""
# The provider's two numbers describe a request, not its text alone, and the next one is divided elsewhere.
_REFUSAL_SAFETY_SHARE = 0.9
"""Share of the size that a refusal says would fit, that is then asked for. Chosen by judgement."""
# With fewer, each round of merging would hardly reduce their number. Chosen by judgement.
_MIN_MERGE_GROUP = 3
"""How many summaries of parts must fit into one request that merges them."""
_MAX_PREVIOUS_SUMMARY_DIVISOR = 3
"""The previous summary may take one part in so many of a request; the rest is for what it is to be updated with."""
_PromptFactory: TypeAlias = Callable[[SummaryPromptOptions], str]
"""Builds a prompt with the given options."""


class _SummaryTask(Struct, frozen=True):
    """The messages to summarize, and the requirements for the summary."""

    head: tuple[Message, ...]
    summary_request: SummaryRequest
    prompt_options: SummaryPromptOptions
    requirements: SummaryRequirements


async def write_summary(
    head: Sequence[SizedMessage],
    summary_request: SummaryRequest,
    writers: Sequence[SummaryWriter],
    context: CompactionContext = CompactionContext(),
    prompt_options: SummaryPromptOptions = SummaryPromptOptions(),
    *,
    cached_request: CachedRequest | None = None,
) -> SummaryResult:
    """Return the summary of ``head`` from the first of ``writers`` that writes an acceptable one.

    Of ``prompt_options`` the user's ``focus`` and a hook's ``added_context`` and ``custom_prompt`` count.
    ``cached_request`` is the request that the provider's cache holds, if any.

    Raises ``CompactionFailed`` with the outcome ``nothing_to_compact``, ``summary_rejected``, ``provider_error``,
    ``cancelled``, or ``timed_out`` after ``summarizer.timeout_seconds`` for all writers together. It is a
    ``SummaryRequestTooLarge`` if the request was too large for every writer.
    """
    messages = [sized_message.message for sized_message in head]
    task = _prepare_task(messages, summary_request, context.settings, prompt_options)
    errors: list[CompactionFailed] = []
    with move_on_after(context.settings.summarizer.timeout_seconds) as scope:
        for writer in writers:
            try:
                text = await _SummaryJob(writer, task, context).write(cached_request)
            except CompactionFailed as error:
                if error.outcome in {"cancelled", "timed_out"}:
                    raise
                errors.append(error)
                context.listener(NoticeGiven(context.session, "summary", str(error)))
            else:
                return SummaryResult(summary_request.stop, text)
    if scope.cancelled_caught:
        seconds = context.settings.summarizer.timeout_seconds
        late = f"no summary came in {seconds:g} s; raise summarizer.timeout_seconds or name a faster model"
        raise CompactionFailed(late, "timed_out")
    raise _combine_failures(errors)


def _prepare_task(
    head: Sequence[Message],
    summary_request: SummaryRequest,
    settings: Settings,
    prompt_options: SummaryPromptOptions,
) -> _SummaryTask:
    if not render_transcript(head).strip():
        raise CompactionFailed(
            "the messages have no text to summarize; continue without a summary", "nothing_to_compact"
        )
    identifiers = collect_newest_identifiers(head, NEWEST_MESSAGES, settings.summarizer.max_identifiers)
    task_options = replace(
        prompt_options,
        max_words=int(summary_request.max_tokens * WORDS_PER_TOKEN),
        previous_summary=summary_request.previous_summary,
        identifiers=identifiers,
        focus=prompts.clip_focus(prompt_options.focus, settings.summarizer.focus_chars),
    )
    requirements = SummaryRequirements(
        summary_request.max_tokens,
        min(settings.summarizer.min_tokens, summary_request.max_tokens // 2),
        identifiers=identifiers,
        newest_request=find_newest_user_text(head),
        previous_summary=summary_request.previous_summary,
    )
    if prompt_options.custom_prompt:
        requirements = replace(requirements, headings=())  # a hook's prompt need not ask for our headings
    return _SummaryTask(tuple(head), summary_request, task_options, requirements)


def _combine_failures(errors: Sequence[CompactionFailed]) -> CompactionFailed:
    """Build one error from those of all writers; the outcome is that of the last one."""
    if not errors:
        return CompactionFailed("no summary model is configured; name one, or continue with an extract")
    text = "; ".join(map(str, errors))
    if all(isinstance(error, SummaryRequestTooLarge) for error in errors):
        return SummaryRequestTooLarge(text)
    return CompactionFailed(text, errors[-1].outcome)


class _SummaryJob:
    """One writer's work on one summary."""

    def __init__(
        self,
        writer: SummaryWriter,
        task: _SummaryTask,
        context: CompactionContext,
    ) -> None:
        self.writer = writer
        self.context = context
        self.settings = context.settings.summarizer
        self.max_output = writer.get_max_output(task.summary_request.max_tokens)
        self.task = self._clip_previous_summary(task)
        self.part_tokens = self._compute_part_tokens()
        """Estimated tokens of the conversation that fit into one request."""

    def _clip_previous_summary(self, task: _SummaryTask) -> _SummaryTask:
        """Return ``task`` with a previous summary that leaves most of a request to the conversation."""
        total_tokens = compute_chunk_budget(self.writer.input_window, self.max_output, 0, self.writer.token_ratio)
        max_tokens = total_tokens // _MAX_PREVIOUS_SUMMARY_DIVISOR
        previous_summary = clip_text_middle(task.prompt_options.previous_summary, max_tokens)
        return replace(task, prompt_options=replace(task.prompt_options, previous_summary=previous_summary))

    def _compute_part_tokens(self) -> int:
        prompt = prompts.build_summary_prompt("", self.task.prompt_options)
        fixed_tokens = estimate_text_tokens(prompts.SUMMARIZER_INSTRUCTIONS + prompt)
        return compute_chunk_budget(self.writer.input_window, self.max_output, fixed_tokens, self.writer.token_ratio)

    async def write(self, cached_request: CachedRequest | None) -> str:
        """Return an accepted summary. Raises ``CompactionFailed`` if none was accepted."""
        reasons: tuple[str, ...] = ()
        if cached_request is not None:
            result = await self._summarize_cached_request(cached_request)
            if isinstance(result, str):
                return result
            reasons = result
        try:
            return await self._summarize_text(self.part_tokens, reasons)
        except SummaryRequestTooLarge as error:
            # Tried once only: if the writer refuses the smaller parts too, ``write_summary`` asks the next writer.
            return await self._summarize_text(self._shrink_part_size(error), reasons)

    def _shrink_part_size(self, error: SummaryRequestTooLarge) -> int:
        """Return a smaller size for parts, in estimated tokens: by the provider's numbers, or else half.

        Raises ``error`` again if such parts would be too small to summarize.
        """
        total_tokens = sum(part.tokens for part in self._split_head(self.part_tokens))
        share = 0.5
        if error.limit:
            # The limit is smaller than the window that the output limit was chosen for.
            self.max_output = min(self.max_output, error.limit // 4)
        if error.limit and error.requested:
            input_limit = error.limit - self.max_output
            share = min(1.0, input_limit / error.requested) * _REFUSAL_SAFETY_SHARE
        size = int(min(self.part_tokens, total_tokens) * share)
        if size < MIN_CHUNK_TOKENS:
            raise error
        return size

    def _split_head(self, size: int) -> tuple[HistoryChunk, ...]:
        style = TranscriptStyle(self.settings.result_chars, self.settings.argument_chars)
        return split_into_chunks(self.task.head, size, style)

    # -- one request after the other -----------------------------------------------------------------------------------

    async def _summarize_cached_request(self, cached_request: CachedRequest) -> str | tuple[str, ...]:
        """Ask for the summary after the cached request; return it, or the reasons why it was rejected.

        The reasons are empty if that request does not cover the head, cannot be extended, or is too large.
        """
        if cached_request.message_count < self.task.summary_request.stop:
            return ()
        text = prompts.build_inline_summary_prompt(self.task.prompt_options)
        upstream_request = cached_request.build_followup(self.writer, text)
        if upstream_request is None:
            return ()
        tokens = cached_request.tokens + estimate_text_tokens(text)
        try:
            return await self._ask_and_judge(upstream_request, self.task.requirements, tokens)
        except SummaryRequestTooLarge:
            return ()

    async def _summarize_text(self, size: int, reasons: tuple[str, ...]) -> str:
        """Summarize the head sent as text, in parts of ``size`` tokens; ``reasons`` are those of a rejected summary."""
        parts = self._split_head(size)
        if len(parts) > 1:
            if self.settings.merge_mode == "fold":
                return await self._fold_parts(parts, size, reasons)
            return await self._merge_part_summaries(parts, size, reasons)
        text = parts[0].text
        return await self._ask_until_accepted(
            lambda prompt_options: prompts.build_summary_prompt(text, prompt_options),
            self.task.prompt_options,
            self._make_final_requirements(parts),
            reasons,
        )

    async def _fold_parts(
        self,
        parts: Sequence[HistoryChunk],
        size: int,
        reasons: tuple[str, ...],
    ) -> str:
        """Summarize the parts one after the other, each request updating the summary of those before it."""
        max_tokens = self._get_max_part_tokens(size)
        summary = self.task.prompt_options.previous_summary
        for number, part in enumerate(parts, 1):
            is_last = number == len(parts)
            if is_last:
                prompt_options = self.task.prompt_options
                requirements = self._make_final_requirements(parts)
            else:
                prompt_options = self._make_part_options(max_tokens)
                requirements = self._make_part_requirements(max_tokens, part.tokens)
            summary = await self._ask_until_accepted(
                _make_part_prompt(part, prompts.format_part_label(number, len(parts))),
                replace(prompt_options, previous_summary=summary),
                requirements,
                reasons if is_last else (),
            )
        return summary

    async def _merge_part_summaries(
        self,
        parts: Sequence[HistoryChunk],
        size: int,
        reasons: tuple[str, ...],
    ) -> str:
        """Summarize each part by itself, then merge the summaries; the previous summary joins in the last request."""
        max_tokens = self._get_max_part_tokens(size)
        prompt_options = self._make_part_options(max_tokens)
        summaries: list[str] = []
        for number, part in enumerate(parts, 1):
            part_options = prompt_options
            if number == len(parts):  # the identifiers to keep are those of the newest messages
                part_options = replace(prompt_options, identifiers=self.task.prompt_options.identifiers)
            make_prompt = _make_part_prompt(part, prompts.format_part_label(number, len(parts)))
            requirements = self._make_part_requirements(max_tokens, part.tokens)
            summaries.append(await self._ask_until_accepted(make_prompt, part_options, requirements))
        groups = _group_summaries(summaries, size)
        while len(groups) > 1:
            requirements = self._make_part_requirements(max_tokens, estimate_text_tokens(summaries[0]))
            summaries = []
            for group in groups:
                summaries.append(
                    await self._ask_until_accepted(_make_merge_prompt(group), prompt_options, requirements)
                )
            groups = _group_summaries(summaries, size)
        return await self._ask_until_accepted(
            _make_merge_prompt(summaries),
            self.task.prompt_options,
            self._make_final_requirements(parts),
            reasons,
        )

    async def _ask_until_accepted(
        self,
        make_prompt: _PromptFactory,
        prompt_options: SummaryPromptOptions,
        requirements: SummaryRequirements,
        reasons: tuple[str, ...] = (),
    ) -> str:
        """Return the first accepted summary; a rejected one is asked for again with the reasons.

        ``reasons`` are those of a summary that was rejected before, which counts as the first try.
        """
        max_requests = MAX_CORRECTIONS if reasons else MAX_CORRECTIONS + 1
        for _ in range(max(1, max_requests)):
            text = make_prompt(replace(prompt_options, rejection_reasons=reasons))
            upstream_request = self.writer.build_summary_request(text, self.max_output)
            tokens = estimate_text_tokens(prompts.SUMMARIZER_INSTRUCTIONS + text)
            result = await self._ask_and_judge(upstream_request, requirements, tokens)
            if isinstance(result, str):
                return result
            reasons = result
        # The part of a reason after "; " is an instruction to the model.
        summary_problems = "; ".join(reason.partition("; ")[0] for reason in reasons)
        raise CompactionFailed(
            f"{self.writer.target.model} wrote no acceptable summary: {summary_problems}; "
            "use another summary model, or none for an extract",
            "summary_rejected",
        )

    async def _ask_and_judge(
        self,
        upstream_request: UpstreamRequest,
        requirements: SummaryRequirements,
        tokens: int,
    ) -> str | tuple[str, ...]:
        """Send ``upstream_request``, of about ``tokens`` tokens; return the summary, or why it was rejected."""
        answer = await ask_summary_writer(self.writer, upstream_request, self.context, tokens)
        text = strip_summary_wrapping(answer.message.text)
        stop_reason = answer.stop_reason
        # Some compatible servers send a whole answer without any finish reason.
        if stop_reason == "unknown" and answer.is_complete and not answer.native_stop_reason:
            stop_reason = "end"
        call_names = tuple([call.name for call in answer.message.calls])
        summary_answer = SummaryAnswer(text, self.writer.count_tokens(text), stop_reason, call_names)
        reasons = find_summary_problems(summary_answer, requirements)
        if reasons:
            self.context.listener(
                NoticeGiven(self.context.session, "summary", f"summary rejected: {'; '.join(reasons)}")
            )
        return reasons or text

    # -- requirements for the summaries of parts -----------------------------------------------------------------------

    def _get_max_part_tokens(self, size: int) -> int:
        """Return the real tokens that the summary of one part may have, so that several fit into one request."""
        real_tokens = int(size * self.writer.token_ratio)
        return min(self.task.summary_request.max_tokens, real_tokens // _MIN_MERGE_GROUP)

    def _make_part_options(self, max_tokens: int) -> SummaryPromptOptions:
        max_words = int(max_tokens * WORDS_PER_TOKEN)
        return replace(
            self.task.prompt_options,
            max_words=max_words,
            previous_summary="",
            identifiers=(),
        )

    def _make_part_requirements(self, max_tokens: int, source_tokens: int) -> SummaryRequirements:
        """Return the requirements for the summary of one part, which has ``source_tokens`` estimated tokens."""
        min_tokens = self._get_min_tokens(source_tokens, max_tokens)
        return SummaryRequirements(max_tokens, min_tokens, self.task.requirements.headings)

    def _make_final_requirements(self, parts: Iterable[HistoryChunk]) -> SummaryRequirements:
        source_tokens = sum(part.tokens for part in parts)
        source_tokens += estimate_text_tokens(self.task.prompt_options.previous_summary)
        min_tokens = self._get_min_tokens(source_tokens, self.task.summary_request.max_tokens)
        return replace(self.task.requirements, min_tokens=min_tokens)

    def _get_min_tokens(self, source_tokens: int, max_tokens: int) -> int:
        """Return the shortest acceptable summary in real tokens; a short source may have a short one."""
        half_of_source = int(source_tokens * self.writer.token_ratio) // 2
        return min(self.settings.min_tokens, half_of_source, max_tokens // 2)


def _make_part_prompt(part: HistoryChunk, label: str) -> _PromptFactory:
    return lambda prompt_options: prompts.build_summary_prompt(part.text, prompt_options, label)


def _make_merge_prompt(group: Sequence[str]) -> _PromptFactory:
    return lambda prompt_options: prompts.build_merge_prompt(group, prompt_options)


def _group_summaries(summaries: Sequence[str], size: int) -> list[list[str]]:
    """Group adjacent summaries, as many as fit into ``size`` tokens; return one group if that does not reduce them."""
    chunks = []
    for number, text in enumerate(summaries):
        chunks.append(HistoryChunk(number, number + 1, text, estimate_text_tokens(text)))
    groups = []
    for group in pack_chunks(chunks, size):
        groups.append([chunk.text for chunk in group])
    return groups if len(groups) < len(summaries) else [list(summaries)]
