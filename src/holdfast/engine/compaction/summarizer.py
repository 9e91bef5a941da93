"""Summaries written by a model: asked for, judged, asked for once more with the reasons, then of the next writer.

The head of a conversation goes out as text, in as many parts as the writer's window needs, or, where the provider's
cache is warm, as the last request again with one message behind it. Nothing is written down here.
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
    strip_fence_and_introduction,
)
from holdfast.planning.summary.must_keep import collect_newest_identifiers, find_newest_user_text
from holdfast.planning.summary.prompts import SummaryPromptOptions
from holdfast.planning.summary.rendering import TranscriptStyle, render_transcript
from holdfast.state.plan import SummaryRequest
from holdfast.state.target import SummaryResult

__all__ = ["CachedRequest", "CompactionContext", "SummaryRequestTooLarge", "SummaryWriter", "write_summary"]

NEWEST_MESSAGES = 10
"""Messages that count as the newest, whose identifiers a summary must keep. [O]"""
MAX_CORRECTIONS = 1
"""Requests that give the reasons why the last summary was rejected: what a model ignores once it ignores again. [O]"""
WORDS_PER_TOKEN = 0.5
"""Words for one token, as a writer is told its limit: prose has 0.75, paths and code less, and models overrun. [H]"""
_REFUSAL_SAFETY_SHARE = 0.9
"""Share of what a refusal says would fit that is asked for. [H]"""
_MIN_MERGE_GROUP = 3
"""Summaries of parts that fit into one request to merge them, at the least. [H]"""
_PromptFactory: TypeAlias = Callable[[SummaryPromptOptions], str]
"""The request with one order or another."""


class _SummaryTask(Struct, frozen=True):
    """What is to be summarised, and what is asked of its summary."""

    head: tuple[Message, ...]
    summary_request: SummaryRequest
    order: SummaryPromptOptions
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
    """Return the summary of ``head`` that ``summary_request`` wants, by the first of ``writers`` who makes one that is
    accepted.

    Of ``prompt_options`` the user's own ``focus`` and a hook's ``context`` and ``prompt`` count; ``cached_request`` is
    the request that the provider's cache holds. Raises ``CompactionFailed`` with what became of it:
    ``nothing_to_compact``, ``summary_rejected``, ``provider_error``, ``cancelled``, or ``timed_out`` after
    ``summarizer.timeout_seconds`` for all of it; ``SummaryRequestTooLarge``, which is one, where every writer found the
    request itself too large.
    """
    work = _prepare_task(
        [sized_message.message for sized_message in head], summary_request, context.settings, prompt_options
    )
    errors: list[CompactionFailed] = []
    with move_on_after(context.settings.summarizer.timeout_seconds) as scope:
        for writer in writers:
            try:
                text = await _SummaryJob(writer, work, context).write(cached_request)
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
    head: Sequence[Message], summary_request: SummaryRequest, settings: Settings, prompt_options: SummaryPromptOptions
) -> _SummaryTask:
    if not render_transcript(head).strip():
        raise CompactionFailed("nothing was said that a summary could hold; go on without one", "nothing_to_compact")
    keep = collect_newest_identifiers(head, NEWEST_MESSAGES, settings.summarizer.max_identifiers)
    focus = prompts.clip_focus(prompt_options.focus, settings.summarizer.focus_chars)
    prompt_options = replace(
        prompt_options,
        max_words=int(summary_request.max_tokens * WORDS_PER_TOKEN),
        previous_summary=summary_request.previous_summary,
        identifiers=keep,
        focus=focus,
    )
    min_tokens = min(settings.summarizer.min_tokens, summary_request.max_tokens // 2)
    requirements = SummaryRequirements(
        summary_request.max_tokens,
        min_tokens,
        identifiers=keep,
        newest_request=find_newest_user_text(head),
        previous_summary=summary_request.previous_summary,
    )
    return _SummaryTask(
        tuple(head),
        summary_request,
        prompt_options,
        replace(requirements, headings=()) if prompt_options.custom_prompt else requirements,
    )


def _combine_failures(errors: Sequence[CompactionFailed]) -> CompactionFailed:
    if not errors:
        return CompactionFailed("nobody is there to write a summary; name a model, or go on with an extract")
    text = "; ".join(map(str, errors))
    if all(isinstance(error, SummaryRequestTooLarge) for error in errors):
        return SummaryRequestTooLarge(text)
    return CompactionFailed(text, errors[-1].outcome)


class _SummaryJob:
    """One writer at work on one summary."""

    def __init__(self, writer: SummaryWriter, work: _SummaryTask, terms: CompactionContext) -> None:
        self.writer, self.terms, self.settings = writer, terms, terms.settings
        self.output = writer.get_max_output(work.summary_request.max_tokens)
        self.work, self.room = self._fit_task(work)

    def _fit_task(self, work: _SummaryTask) -> tuple[_SummaryTask, int]:
        """Return the work with an earlier summary that leaves room for more, and the tokens of a part."""
        whole = compute_chunk_budget(self.writer.input_window, self.output, 0, self.writer.token_ratio)
        prompt_options = replace(work.order, previous_summary=clip_text_middle(work.order.previous_summary, whole // 3))
        fixed_tokens = estimate_text_tokens(
            prompts.SUMMARIZER_INSTRUCTIONS + prompts.build_summary_prompt("", prompt_options)
        )
        part_tokens = compute_chunk_budget(self.writer.input_window, self.output, fixed_tokens, self.writer.token_ratio)
        return replace(work, order=prompt_options), part_tokens

    async def write(self, prefix: CachedRequest | None) -> str:
        """Return a summary that was accepted; ``CompactionFailed`` where none was."""
        reasons = await self._summarize_cached_request(prefix) if prefix is not None else ()
        if isinstance(reasons, str):
            return reasons
        try:
            return await self._summarize_text(self.room, reasons)
        except SummaryRequestTooLarge as error:
            return await self._summarize_text(self._shrink_part_size(error), reasons)

    def _shrink_part_size(self, error: SummaryRequestTooLarge) -> int:
        """Return the tokens of a part after one was too large: by what the provider counted, else half."""
        total_tokens = sum(part.tokens for part in self._split_head(self.room))
        self.output = min(self.output, error.limit // 4) if error.limit else self.output
        input_limit = error.limit - self.output
        share = (
            min(1.0, input_limit / error.requested) * _REFUSAL_SAFETY_SHARE if error.limit and error.requested else 0.5
        )
        size = int(min(self.room, total_tokens) * share)
        if size < MIN_CHUNK_TOKENS:
            raise error
        return size

    def _split_head(self, size: int) -> tuple[HistoryChunk, ...]:
        style = TranscriptStyle(self.settings.summarizer.result_chars, self.settings.summarizer.argument_chars)
        return split_into_chunks(self.work.head, size, style)

    # -- one request after the other -----------------------------------------------------------------------------------

    async def _summarize_cached_request(self, prefix: CachedRequest) -> str | tuple[str, ...]:
        """Return the summary that is asked for behind the last request, or why there is none; nothing if not asked."""
        text = prompts.build_inline_summary_prompt(self.work.order)
        upstream_request = (
            prefix.build_followup(self.writer, text) if prefix.message_count >= self.work.summary_request.stop else None
        )
        if upstream_request is None:
            return ()
        try:
            return await self._ask_and_judge(
                upstream_request, self.work.requirements, prefix.tokens + estimate_text_tokens(text)
            )
        except SummaryRequestTooLarge:
            return ()

    async def _summarize_text(self, size: int, reasons: tuple[str, ...]) -> str:
        """Return the summary of the head told as text, part by part if it must be."""
        prompt_options, head_parts = self.work.order, self._split_head(size)
        if len(head_parts) == 1:
            text = head_parts[0].text
            return await self._ask_until_accepted(
                lambda order_with_reasons: prompts.build_summary_prompt(text, order_with_reasons),
                prompt_options,
                self._make_final_requirements(head_parts),
                reasons,
            )
        stage = self._fold_parts if self.settings.summarizer.merge_mode == "fold" else self._merge_part_summaries
        return await stage(head_parts, size, reasons)

    async def _fold_parts(self, head_parts: Sequence[HistoryChunk], size: int, reasons: tuple[str, ...]) -> str:
        """Return the summary that each part brought up to date in turn."""
        cap = self._get_part_cap(size)
        anchor = self.work.order.previous_summary
        for number, part in enumerate(head_parts, 1):
            is_last = number == len(head_parts)
            order = replace(self.work.order if is_last else self._make_part_order(cap), previous_summary=anchor)
            requirements = (
                self._make_final_requirements(head_parts) if is_last else self._make_part_requirements(cap, part.tokens)
            )
            make = _make_part_prompt(part, prompts.format_part_label(number, len(head_parts)))
            anchor = await self._ask_until_accepted(make, order, requirements, reasons if is_last else ())
        return anchor

    async def _merge_part_summaries(
        self, head_parts: Sequence[HistoryChunk], size: int, reasons: tuple[str, ...]
    ) -> str:
        """Return the summary made of summaries of the parts; the earlier one comes in at the end."""
        cap = self._get_part_cap(size)
        prompt_options = self._make_part_order(cap)
        summaries: list[str] = []
        for number, part in enumerate(head_parts, 1):
            part_order = (
                replace(prompt_options, identifiers=self.work.order.identifiers)
                if number == len(head_parts)
                else prompt_options
            )
            make = _make_part_prompt(part, prompts.format_part_label(number, len(head_parts)))
            summaries.append(
                await self._ask_until_accepted(make, part_order, self._make_part_requirements(cap, part.tokens))
            )
        while len(groups := _group_summaries(summaries, size)) > 1:
            rough = self._make_part_requirements(cap, estimate_text_tokens(summaries[0]))
            summaries = [
                await self._ask_until_accepted(_make_merge_prompt(group), prompt_options, rough) for group in groups
            ]
        return await self._ask_until_accepted(
            _make_merge_prompt(summaries), self.work.order, self._make_final_requirements(head_parts), reasons
        )

    async def _ask_until_accepted(
        self,
        make: _PromptFactory,
        prompt_options: SummaryPromptOptions,
        requirements: SummaryRequirements,
        reasons: tuple[str, ...] = (),
    ) -> str:
        """Return the first answer that is accepted; who was refused is told why and asked once more."""
        for _ in range(max(1, MAX_CORRECTIONS + (not reasons))):
            text = make(replace(prompt_options, rejection_reasons=reasons))
            upstream_request = self.writer.build_summary_request(text, self.output)
            result = await self._ask_and_judge(
                upstream_request, requirements, estimate_text_tokens(prompts.SUMMARIZER_INSTRUCTIONS + text)
            )
            if isinstance(result, str):
                return result
            reasons = result
        model = self.writer.target.model
        why = "; ".join(reason.partition("; ")[0] for reason in reasons)  # what is behind it is said to the model
        text = f"{model} wrote no summary that is accepted: {why}; name another model for summaries, or none"
        raise CompactionFailed(text, "summary_rejected")

    async def _ask_and_judge(
        self, upstream_request: UpstreamRequest, requirements: SummaryRequirements, tokens: int
    ) -> str | tuple[str, ...]:
        """Return the summary that the answer to ``upstream_request`` is, or why it is none."""
        answer = await ask_summary_writer(self.writer, upstream_request, self.terms, tokens)
        text = strip_fence_and_introduction(answer.message.text)
        stop = (
            "end"
            if answer.stop_reason == "unknown" and answer.is_complete and not answer.native_stop_reason
            else answer.stop_reason
        )
        calls = tuple([call.name for call in answer.message.calls])
        reasons = find_summary_problems(SummaryAnswer(text, self.writer.count_tokens(text), stop, calls), requirements)
        if reasons:
            self.terms.listener(NoticeGiven(self.terms.session, "summary", f"refused: {'; '.join(reasons)}"))
        return reasons or text

    # -- what is asked of parts ----------------------------------------------------------------------------------------

    def _get_part_cap(self, size: int) -> int:
        """Return the real tokens that the summary of one part may have: several must fit into one request."""
        return min(self.work.summary_request.max_tokens, int(size * self.writer.token_ratio) // _MIN_MERGE_GROUP)

    def _make_part_order(self, cap: int) -> SummaryPromptOptions:
        return replace(self.work.order, max_words=int(cap * WORDS_PER_TOKEN), previous_summary="", identifiers=())

    def _make_part_requirements(self, cap: int, source: int) -> SummaryRequirements:
        """Return what is asked of the summary of one part, which has ``source`` tokens."""
        return SummaryRequirements(cap, self._get_min_tokens(source, cap), self.work.requirements.headings)

    def _make_final_requirements(self, head_parts: Iterable[HistoryChunk]) -> SummaryRequirements:
        source = sum(part.tokens for part in head_parts) + estimate_text_tokens(self.work.order.previous_summary)
        return replace(
            self.work.requirements, min_tokens=self._get_min_tokens(source, self.work.summary_request.max_tokens)
        )

    def _get_min_tokens(self, source: int, cap: int) -> int:
        return min(self.settings.summarizer.min_tokens, int(source * self.writer.token_ratio) // 2, cap // 2)


def _make_part_prompt(part: HistoryChunk, place: str) -> _PromptFactory:
    return lambda prompt_options: prompts.build_summary_prompt(part.text, prompt_options, place)


def _make_merge_prompt(group: Sequence[str]) -> _PromptFactory:
    return lambda prompt_options: prompts.build_merge_prompt(group, prompt_options)


def _group_summaries(summaries: Sequence[str], size: int) -> list[list[str]]:
    """Return neighbouring summaries together, as many as fit into one request; all of them where that is no use."""
    atoms = [
        HistoryChunk(number, number + 1, text, estimate_text_tokens(text)) for number, text in enumerate(summaries)
    ]
    groups = [[part.text for part in group] for group in pack_chunks(atoms, size)]
    return groups if len(groups) < len(summaries) else [list(summaries)]
