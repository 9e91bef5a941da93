"""What stands for turns that gave way: an extract, or what somebody wrote with what that leaves out; sources behind it.

The ledger, the user's words and the coverage lines are made over the whole head from the log, whoever wrote the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.token_excerpts import clip_text_with_notice
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.carried_summary import (
    MIN_PREVIOUS_SUMMARY_TOKENS,
    PREVIOUS_SUMMARY_SHARE,
    render_previous_summary,
)
from holdfast.planning.extract.constants import MAX_SCANNED_TOKENS
from holdfast.planning.extract.extract import EXTRACT_OPENING, build_extract, build_supplement
from holdfast.planning.extract.previous_summary import (
    PREVIOUS_SUMMARY_OPENING,
    find_newest_client_summary,
    is_client_summary_part,
    iter_client_summaries,
    unwrap_client_summary,
)
from holdfast.planning.stages.escape_tags import escape_summary_look_alikes
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.entries import CompactionEntry
from holdfast.state.target import SummaryResult
from holdfast.state.view import apply_part_edits, decode_native_summary

SUMMARY_PREFACE = (
    "The conversation before this point was replaced by this summary of it ({messages} messages). Whatever is not here "
    "can be read back with recall."
)
MIN_SUPPLEMENT_TOKENS = 200
"""Estimator tokens under which nothing but the user's newest words is put beside a written summary. [H]"""
_CLIP_LINE_TOKENS = 20
"""Estimator tokens of the line that says what of a text is left out."""
TEXT_WRITERS = frozenset({"model", "hook"})
"""Who writes a text that a later summary brings up to date."""


def build_compaction(
    builder: PlanBuilder, keep: int, max_tokens: float, summary_result: SummaryResult | None = None
) -> CompactionEntry | None:
    """Return the compaction that keeps from slot ``keep`` on, its summary in at most about ``max_tokens`` tokens.

    ``summary_result`` is what somebody made for it; without, it is an extract. Nothing where nothing was really said.
    """
    head = build_head_messages(builder, keep)
    if not any(
        sized_message.message.text.strip() or sized_message.message.calls or sized_message.message.results
        for sized_message in head
    ):
        return None
    files = builder.rules.list_restored_files(builder, head) if builder.restores_files else ()
    sources = list(_get_restored_sources(builder))
    if continue_text := builder.rules.build_continue_text(builder, keep):
        sources.append(continue_text)
    counted_texts = [*files, *sources] if builder.settings.compaction.goal_share else sources
    budget = builder.to_estimator_tokens(max_tokens) - sum(map(estimate_text_tokens, counted_texts))
    texts = [*_build_summary_texts(builder, head, keep, budget, summary_result), *files, *sources]
    summary = Message("user", tuple(map(Text, escape_summary_look_alikes(texts, builder.state))))
    size = build_sized_message(summary).tokens
    compaction = CompactionEntry(keep, summary, size, tokens_before=builder.estimated_tokens)
    if summary_result is None:
        return compaction
    compaction = replace(
        compaction,
        author=summary_result.author,
        native=summary_result.native,
        readable_tokens=0 if summary_result.native is None else size,
    )
    native = decode_native_summary(compaction)
    return (
        replace(compaction, head_tokens=builder.to_estimator_tokens(native.tokens))
        if native is not None and native.tokens > 0
        else compaction
    )


def find_updatable_summary(state: ConversationState) -> str:
    """Return the text that a later summary brings up to date: what somebody wrote for the one in force, or nothing.

    Of an extract it is nothing as long as all that it stands for can be read again, which makes a better summary; what
    is longer than ``MAX_SCANNED_TOKENS`` would be read for ever, and the extract is the text.
    """
    compaction, texts = state.view.compaction, _get_active_summary_texts(state)
    if compaction is None or not texts:
        return ""
    if compaction.author in TEXT_WRITERS:
        return _strip_summary_preface(texts)
    head, text = state.history.sized_messages.slice(state.view.pinned_count, state.view.first_kept), texts[0]
    if (
        not text.startswith(EXTRACT_OPENING)
        or sum(sized_message.tokens for sized_message in head) <= MAX_SCANNED_TOKENS
    ):
        return ""
    behind_preface = text.partition("\n")[2]
    return "\n\n".join([behind_preface, *(text for text in texts if text.startswith(PREVIOUS_SUMMARY_OPENING))])


def choose_carried_summary(state: ConversationState, keep: int) -> str:
    """Return the summary of what came before that an extract of all before slot ``keep`` carries on, or nothing.

    It is the newest: one that the client sent since the last compaction, else the one in force if somebody wrote it;
    under an extract of ours the newest that gave way to it, else the one that it carries on.
    """
    texts = _get_active_summary_texts(state)
    newest = find_newest_client_summary(state.history.messages.slice(state.view.pinned_count, keep))
    if not texts or texts[0].startswith(EXTRACT_OPENING):
        return newest or next(iter_client_summaries(texts), "")
    is_covered = newest == find_newest_client_summary(
        state.history.messages.slice(state.view.pinned_count, state.view.first_kept)
    )
    return _strip_summary_preface(texts) if is_covered else newest


def _strip_summary_preface(texts: Sequence[str]) -> str:
    """Return what somebody wrote for a summary with these texts: behind our preface, as a client wraps it, or alone."""
    if texts[0].startswith(SUMMARY_PREFACE.partition("{")[0]):
        return texts[1] if len(texts) > 1 else ""
    return next(iter_client_summaries(texts), "\n\n".join(texts))


def _get_active_summary_texts(state: ConversationState) -> list[str]:
    """Return the texts of the summary in force."""
    compaction = state.view.compaction
    parts = compaction.summary.parts if compaction is not None and compaction.summary is not None else ()
    return [part.text for part in parts if isinstance(part, Text)]


def build_head_messages(builder: PlanBuilder, keep: int) -> list[SizedMessage]:
    """Return the whole head from the log, with long words of the user as they were shown: spilled, not whole.

    An earlier summary is what it says, and whole.
    """
    state = builder.state
    return [
        _build_head_message(sized_message, state.view.edits.get(index, ()))
        for index, sized_message in enumerate(
            state.history.sized_messages.slice(state.view.pinned_count, keep), state.view.pinned_count
        )
    ]


def _build_head_message(sized_message: SizedMessage, edits: Sequence[Edit]) -> SizedMessage:
    message = sized_message.message
    if not message.is_turn_start:
        return sized_message
    visible_edits = [
        edit for edit in edits if edit.span.part is None or not is_client_summary_part(message.parts[edit.span.part])
    ]
    sized_message = apply_part_edits(sized_message, visible_edits) if visible_edits else sized_message
    unwrapped_message = unwrap_client_summary(sized_message.message)
    return (
        sized_message
        if unwrapped_message is sized_message.message
        else replace(sized_message, message=unwrapped_message)
    )


def _build_summary_texts(
    builder: PlanBuilder, head: Sequence[SizedMessage], keep: int, budget: int, summary_result: SummaryResult | None
) -> Iterator[str]:
    """Yield the texts of the summary: an extract, or a preface, what was written, and what that leaves out."""
    tail, settings = builder.state.history.sized_messages.slice(keep), builder.settings
    if summary_result is None or not summary_result.text.strip():
        before = render_previous_summary(
            choose_carried_summary(builder.state, keep),
            min(budget, max(MIN_PREVIOUS_SUMMARY_TOKENS, int(budget * PREVIOUS_SUMMARY_SHARE))),
        )
        yield build_extract(head, tail, budget - estimate_text_tokens(before), settings, before)
        yield from [before] if before else []
        return
    yield SUMMARY_PREFACE.format(messages=len(head))
    yield summary_result.text.strip()
    remaining = budget - estimate_text_tokens(summary_result.text)
    if remaining < MIN_SUPPLEMENT_TOKENS and any(sized_message.message.is_turn_start for sized_message in tail):
        return
    beside = build_supplement(head, tail, summary_result.text, max(0, remaining), settings)
    if beside:
        yield beside


def _get_restored_sources(builder: PlanBuilder) -> Iterator[str]:
    """Yield the texts from their source, as far as their budgets go: of each, and of all together."""
    settings = builder.settings.restore
    remaining = builder.to_estimator_tokens(
        min(settings.total_tokens, builder.compute_compaction_share(settings.max_share))
    )
    for text in builder.inputs.restored_texts:
        max_tokens = min(builder.to_estimator_tokens(settings.source_tokens), remaining)
        size = estimate_text_tokens(text)
        excerpt = text if size <= max_tokens else clip_text_with_notice(text, max_tokens - _CLIP_LINE_TOKENS, "this")
        remaining -= estimate_text_tokens(excerpt)
        if remaining < 0:
            return
        yield excerpt
