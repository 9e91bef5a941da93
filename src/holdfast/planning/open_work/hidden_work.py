"""The open items that a request would no longer tell of, for every stage that hides messages."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Text
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.planning.open_work.find_open_work import list_open_work
from holdfast.planning.open_work.section import (
    compute_section_budget,
    is_open_work_section,
    render_open_work,
    select_hidden_items,
)
from holdfast.planning.open_work.work_events import OpenItem
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry


def list_hidden_work(state: ConversationState, keep: int) -> Sequence[OpenItem]:
    """Return what is open now and told of only before message ``keep``.

    The whole history counts: what ended in the kept tail is not open.
    """
    return select_hidden_items(list_open_work(state.history.messages.slice(0)), keep)


def render_hidden_work(state: ConversationState, keep: int, summary_tokens: float) -> str:
    """Return the section about what is open before ``keep``, beside a summary of ``summary_tokens`` estimator tokens.

    Return an empty string if nothing is.
    """
    return render_open_work(list_hidden_work(state, keep), compute_section_budget(summary_tokens))


def has_open_work_section(compaction: CompactionEntry) -> bool:
    """Return whether the summary of a compaction has the section."""
    return compaction.summary is not None and any(map(is_open_work_part, compaction.summary.parts))


def restate_open_work(state: ConversationState, compaction: CompactionEntry, summary_tokens: float) -> CompactionEntry:
    """Return ``compaction`` with a section about what is open before its tail, in place of an older section.

    It is returned unchanged if nothing is open there and it has no section. The items of a provider's own compaction
    cannot be changed; then only the readable summary has the section.
    """
    section = render_hidden_work(state, compaction.first_kept, summary_tokens)
    old_parts = () if compaction.summary is None else compaction.summary.parts
    parts: list[Part] = [part for part in old_parts if not is_open_work_part(part)]
    if not section and len(parts) == len(old_parts):
        return compaction
    if section:
        parts.append(Text(section))
    if not parts:
        return replace(compaction, summary=None, head_tokens=0)
    summary = Message("user", tuple(parts))
    size = build_sized_message(summary).tokens
    if compaction.native is not None:
        return replace(compaction, summary=summary, readable_tokens=size)
    return replace(compaction, summary=summary, head_tokens=size)


def is_open_work_part(part: Part) -> bool:
    """Return whether a part of a summary is the section about open work."""
    return isinstance(part, Text) and is_open_work_section(part.text)


def estimate_section_tokens(section: str) -> int:
    """Return the estimator tokens of a section; 0 without one."""
    return estimate_text_tokens(section) if section else 0
