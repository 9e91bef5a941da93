"""Build the summary that takes the place of older turns.

It is an extract, or a summary that a model or hook wrote with a supplement of what that leaves out; then come texts
that are read again from their source. Extract and supplement are made over the whole head from the log, not from an
earlier summary, so that errors of summaries do not add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Text
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.token_excerpts import clip_text_with_notice
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.carried_summary import (
    MIN_PREVIOUS_SUMMARY_TOKENS,
    PREVIOUS_SUMMARY_SHARE,
    render_previous_summary,
)
from holdfast.planning.extract.constants import MAX_SCANNED_RESULT_TOKENS, MAX_SCANNED_TOKENS
from holdfast.planning.extract.extract import (
    EXTRACT_FRAME_TOKENS,
    build_extension,
    build_extract,
    build_supplement,
)
from holdfast.planning.extract.previous_summary import (
    EXTRACT_OPENING,
    PREVIOUS_SUMMARY_OPENING,
    find_newest_client_summary,
    is_client_summary_part,
    is_extension,
    iter_client_summaries,
    unwrap_client_summary,
)
from holdfast.planning.extract.returned_extract import count_quoted_messages, expand_returned_extracts
from holdfast.planning.open_work.hidden_work import estimate_section_tokens, render_hidden_work
from holdfast.planning.open_work.section import is_open_work_section
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
"""Estimator tokens that must be left beside a written summary for a supplement to be made: less would repeat headings
and quote next to nothing. Without a request in the tail one is made all the same, for the user's newest words. Chosen
by judgement."""
# Estimator tokens of the line that says how much of a text is left out.
_CLIP_LINE_TOKENS = 20
EXTENSION_SHARE, MIN_EXTENSION_SHARE = 0.5, 0.10
"""Share of the room beside an extract that one extension takes at most, and share of the extract's largest size for
which one is made: less would hold next to nothing. Tuned by replay and by ``holdfast demo``, which lost findings of its
agent with .7 and .05."""
TEXT_WRITERS = frozenset({"model", "hook"})
"""Authors of summaries that a later summary updates. A provider's own compaction is sealed data and cannot be
updated."""


def build_compaction(
    builder: PlanBuilder,
    keep: int,
    max_tokens: float,
    summary_result: SummaryResult | None = None,
) -> CompactionEntry | None:
    """Build the compaction that keeps messages from index ``keep`` on, with a summary of about ``max_tokens`` tokens.

    ``summary_result`` is a summary that a model, hook or provider made for it; without one the summary is an extract.
    Return None if the head holds no words, calls or results.
    """
    head_messages = build_head_messages(builder, keep)
    head, quoted_count = expand_returned_extracts(head_messages), count_quoted_messages(head_messages)
    if not any(_has_content(sized_message.message) for sized_message in head):
        return None
    extras = _collect_extras(builder, head, keep, max_tokens)
    texts = _build_summary_texts(
        builder, head, keep, extras.summary_budget, summary_result, extras.open_work, quoted_count
    )
    compaction = _make_compaction(builder, keep, [*texts, *extras.texts])
    if summary_result is None:
        return compaction

    # A provider's native summary is what is sent to that provider; the readable one is kept for a switch of provider.
    compaction = replace(
        compaction,
        author=summary_result.author,
        native=summary_result.native,
        readable_tokens=0 if summary_result.native is None else compaction.head_tokens,
    )
    native = decode_native_summary(compaction)
    if native is None or native.tokens <= 0:
        return compaction
    return replace(compaction, head_tokens=builder.to_estimator_tokens(native.tokens))


def extend_compaction(builder: PlanBuilder, keep: int, max_tokens: float) -> CompactionEntry | None:
    """Build the compaction up to index ``keep`` that leaves the extract in force as it is and adds to it.

    A provider then reads the old extract from its cache, which holds it at the same place. Return None if a new extract
    must be made: there is none in force, the user or a program said something since, the cache is cold, or less than
    ``MIN_EXTENSION_SHARE`` of ``max_tokens`` is left for the new messages.
    """
    state = builder.state
    compaction = state.view.compaction
    if compaction is None or compaction.summary is None or builder.inputs.cache_state == "cold":
        return None
    lasting_parts = compaction.summary.parts[: count_extract_parts(compaction)]
    lasting_texts = [part.text for part in lasting_parts if isinstance(part, Text)]
    new_messages = state.history.messages.slice(state.view.first_kept, keep)
    if not lasting_texts or not all(map(_is_agents_own, new_messages)):
        return None
    estimator_tokens = builder.to_estimator_tokens(max_tokens)
    lasting_tokens = sum(map(estimate_text_tokens, lasting_texts))
    min_room = MIN_EXTENSION_SHARE * estimator_tokens
    # Whatever else the summary has only takes room: where there is too little without it, it need not be collected.
    if estimator_tokens - lasting_tokens < min_room:
        return None
    head = expand_returned_extracts(build_head_messages(builder, keep))
    extras = _collect_extras(builder, head, keep, max_tokens)
    room = extras.summary_budget - lasting_tokens
    if room < min_room:
        return None
    tail = state.history.sized_messages.slice(keep)
    shown_texts = [*lasting_texts, *extras.texts]
    # Only texts of the user are expanded, and none is new, so the new messages are still the last of the head.
    extension = build_extension(head, len(new_messages), tail, int(EXTENSION_SHARE * room), shown_texts)
    return _make_compaction(builder, keep, [*lasting_texts, extension, *extras.texts])


def _is_agents_own(message: Message) -> bool:
    """Return whether a message holds nothing but the agent's work: words of the user may stand beside a result."""
    return message.role in ("assistant", "tool") and not message.is_turn_start


def count_extract_parts(compaction: CompactionEntry) -> int:
    """Return how many parts of a summary are an extract with its extensions; 0 if it is no extract of ours.

    The next compaction may leave them as they are. The parts after them are made anew each time.
    """
    parts = () if compaction.summary is None else compaction.summary.parts
    if compaction.native is not None or not parts or not _get_text(parts[0]).startswith(EXTRACT_OPENING):
        return 0
    count = 1
    while count < len(parts) and _continues_extract(_get_text(parts[count])):
        count += 1
    return count


def _get_text(part: Part) -> str:
    return part.text if isinstance(part, Text) else ""


def _continues_extract(text: str) -> bool:
    """Return whether a text after an extract belongs to it: an earlier summary that it carries on, or an extension."""
    return text.startswith(PREVIOUS_SUMMARY_OPENING) or is_extension(text)


class _SummaryExtras(NamedTuple):
    """What a summary has beside the text about its messages."""

    open_work: str
    texts: list[str]
    """All of it in order: what is still open, restored files, and texts that are read again from their source."""
    summary_budget: int
    """Estimator tokens that are left for the summary itself."""


def _collect_extras(builder: PlanBuilder, head: Sequence[SizedMessage], keep: int, max_tokens: float) -> _SummaryExtras:
    files: tuple[str, ...] = ()
    if builder.restores_files:
        files = builder.rules.list_restored_files(builder, head)
    sources = list(_get_restored_sources(builder))
    if continue_text := builder.rules.build_continue_text(builder, keep):
        sources.append(continue_text)
    # With a goal for the compacted request, restored files are paid from the summary's budget so that the goal is met.
    # Policies without a goal (those of other tools) add their files on top.
    counted_texts = [*files, *sources] if builder.settings.compaction.goal_share else sources
    budget = builder.to_estimator_tokens(max_tokens) - sum(map(estimate_text_tokens, counted_texts))
    # What is still open is paid before the summary: nobody else tells of it, and it must not be started twice or
    # forgotten.
    open_work = render_hidden_work(builder.state, keep, budget)
    if open_work:
        budget = max(0, budget - estimate_section_tokens(open_work))
    texts = [*filter(None, [open_work]), *files, *sources]
    return _SummaryExtras(open_work, texts, budget)


def _make_compaction(builder: PlanBuilder, keep: int, texts: Sequence[str]) -> CompactionEntry:
    """Return the compaction that shows ``texts`` in place of the messages before ``keep``."""
    summary = Message("user", tuple(map(Text, escape_summary_look_alikes(texts, builder.state))))
    size = build_sized_message(summary).tokens
    return CompactionEntry(keep, summary, size, tokens_before=builder.estimated_tokens)


def _has_content(message: Message) -> bool:
    return bool(message.text.strip() or message.calls or message.results)


def find_updatable_summary(state: ConversationState) -> str:
    """Return the text of the summary in force that a new summary should update, or an empty string.

    A summary that a model or hook wrote is updated. An extract is not, as long as everything that it covers can be read
    again, which makes a better summary. Once that is more than ``MAX_SCANNED_TOKENS``, reading it again at each
    compaction would cost too much, and the text of the extract is updated.
    """
    compaction, texts = state.view.compaction, _get_active_summary_texts(state)
    if compaction is None or not texts:
        return ""
    if compaction.author in TEXT_WRITERS:
        return _strip_summary_preface(texts)
    if not texts[0].startswith(EXTRACT_OPENING):
        return ""
    head = state.history.sized_messages.slice(state.view.pinned_count, state.view.first_kept)
    if sum(sized_message.tokens for sized_message in head) <= MAX_SCANNED_TOKENS:
        return ""
    text_after_preface = texts[0].partition("\n")[2]
    other_texts = []
    for text in texts:
        if _continues_extract(text):
            other_texts.append(text)
    return "\n\n".join([text_after_preface, *other_texts])


def choose_carried_summary(state: ConversationState, keep: int) -> str:
    """Return the summary of earlier turns that an extract of all before index ``keep`` carries on, or an empty string.

    An extract cannot quote turns that only a summary still tells of. The newest such summary is chosen: one that the
    client sent since the last compaction, else the one in force if a model or hook wrote it. If an extract is in
    force, it is the newest one in the whole head, else the one that the extract itself carried on.
    """
    texts = _get_active_summary_texts(state)
    pinned_count = state.view.pinned_count
    newest = find_newest_client_summary(state.history.messages.slice(pinned_count, keep))
    if not texts or texts[0].startswith(EXTRACT_OPENING):
        return newest or next(iter_client_summaries(texts[1:]), "")
    newest_before = find_newest_client_summary(state.history.messages.slice(pinned_count, state.view.first_kept))
    is_covered = newest == newest_before
    return _strip_summary_preface(texts) if is_covered else newest


def _strip_summary_preface(texts: Sequence[str]) -> str:
    """Return the written content of a summary with these texts: without our preface or a client's wrapping."""
    if texts[0].startswith(SUMMARY_PREFACE.partition("{")[0]):
        return texts[1] if len(texts) > 1 else ""
    return next(iter_client_summaries(texts), "\n\n".join(texts))


def _get_active_summary_texts(state: ConversationState) -> list[str]:
    """Return the texts of the summary in force; an empty list if none can be read.

    The section about open work is left out: each summary has a new one, made from the log.
    """
    compaction = state.view.compaction
    if compaction is None or compaction.summary is None:
        return []
    texts = [part.text for part in compaction.summary.parts if isinstance(part, Text)]
    return [text for text in texts if not is_open_work_section(text)]


def build_head_messages(builder: PlanBuilder, keep: int) -> list[SizedMessage]:
    """Return the messages before index ``keep`` from the log, as a summary is made of them.

    Edits of the user's words apply: a text of theirs that was spilled is quoted as the preview that was shown. So do
    those of very large results, beside which nothing else would be searched for lines. Earlier summaries are unwrapped
    and whole. All other messages are as they were logged.
    """
    state = builder.state
    start = state.view.pinned_count
    head = state.history.sized_messages.slice(start, keep)
    head_messages: list[SizedMessage] = []
    for index, sized_message in enumerate(head, start):
        head_messages.append(_build_head_message(sized_message, state.view.edits.get(index, ())))
    return head_messages


def _build_head_message(sized_message: SizedMessage, edits: Sequence[Edit]) -> SizedMessage:
    message = sized_message.message
    if not message.is_turn_start:
        is_too_large = sized_message.tokens > MAX_SCANNED_RESULT_TOKENS
        return apply_part_edits(sized_message, list(edits)) if is_too_large and edits else sized_message
    # A client's summary is not cut even if it was spilled: nothing else tells of the turns before it.
    applied_edits = []
    for edit in edits:
        if edit.span.part is None or not is_client_summary_part(message.parts[edit.span.part]):
            applied_edits.append(edit)
    if applied_edits:
        sized_message = apply_part_edits(sized_message, applied_edits)
    unwrapped_message = unwrap_client_summary(sized_message.message)
    if unwrapped_message is sized_message.message:
        return sized_message
    return replace(sized_message, message=unwrapped_message)


def _compute_section_budget(builder: PlanBuilder) -> int | None:
    """Return the estimator tokens of which the sections of an extract get their shares, or None for all of its budget.

    An extract may be most of the request, so that its quoted lines hold what an agent needs again. Filled with the
    words of a chat it would leave so little room that every few messages a new compaction broke the cached prefix
    (22 compactions in place of 4 in one chat of the tests). A compaction that somebody asks for has no such sequel.
    """
    if builder.assumed_full_tokens:
        return None
    return builder.to_estimator_tokens(builder.compute_compaction_share(builder.settings.summary.share))


def _build_summary_texts(
    builder: PlanBuilder,
    head: Sequence[SizedMessage],
    keep: int,
    budget: int,
    summary_result: SummaryResult | None,
    open_work: str,
    quoted_count: int,
) -> Iterator[str]:
    """Yield the texts of the summary beside ``open_work``, the section about what is still open.

    These are an extract and the summary that it carries on, or a preface, the written summary and its supplement. The
    first ``quoted_count`` messages of ``head`` are quotes of an extract that came back.
    """
    tail, settings = builder.state.history.sized_messages.slice(keep), builder.settings
    if summary_result is None or not summary_result.text.strip():
        carried_summary = choose_carried_summary(builder.state, keep)
        # What all newer messages together do not need is left to the summary.
        newer_tokens = sum(sized_message.tokens for sized_message in head) - estimate_text_tokens(carried_summary)
        carried_budget = max(
            MIN_PREVIOUS_SUMMARY_TOKENS,
            int(budget * PREVIOUS_SUMMARY_SHARE),
            budget - newer_tokens - EXTRACT_FRAME_TOKENS,
        )
        carried_text = render_previous_summary(carried_summary, min(budget, carried_budget))
        yield build_extract(
            head,
            tail,
            budget - estimate_text_tokens(carried_text),
            settings,
            f"{carried_text}\n{open_work}" if open_work else carried_text,
            _compute_section_budget(builder),
            quoted_count,
        )
        if carried_text:
            yield carried_text
        return
    yield SUMMARY_PREFACE.format(messages=len(head))
    yield summary_result.text.strip()
    remaining = 0
    if settings.summary.supplement:
        remaining = budget - estimate_text_tokens(summary_result.text)
    has_request_in_tail = any(sized_message.message.is_turn_start for sized_message in tail)
    if remaining < MIN_SUPPLEMENT_TOKENS and has_request_in_tail:
        return
    supplement = build_supplement(
        head,
        tail,
        f"{summary_result.text}\n{open_work}" if open_work else summary_result.text,
        max(0, remaining),
        settings,
        quoted_count,
    )
    if supplement:
        yield supplement


def _get_restored_sources(builder: PlanBuilder) -> Iterator[str]:
    """Yield texts that the caller read from their source again (skills, rules), while their common budget lasts.

    A text over the budget of one source is cut, with a line that says so.
    """
    settings = builder.settings.restore
    remaining = builder.to_estimator_tokens(
        min(settings.total_tokens, builder.compute_compaction_share(settings.max_share))
    )
    for text in builder.inputs.restored_texts:
        max_tokens = min(builder.to_estimator_tokens(settings.source_tokens), remaining)
        excerpt = text
        if estimate_text_tokens(text) > max_tokens:
            excerpt = clip_text_with_notice(text, max_tokens - _CLIP_LINE_TOKENS, "this")
        remaining -= estimate_text_tokens(excerpt)
        if remaining < 0:
            return
        yield excerpt
