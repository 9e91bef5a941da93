"""Unsealing: what a provider sealed in answers of this conversation and takes no more is left out, for good.

Thinking goes whole; words and calls that carry a signature stay without it. Of what a provider compacted the readable
twin is shown; what a client had compacted has none here, so a line says that there was something. What the next answers
hold is sealed anew and stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolResult
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, build_sized_message
from holdfast.normalize.parts import can_send_signature, strip_part_signature
from holdfast.normalize.signatures import DUMMY_SIGNATURE
from holdfast.planning.builder import PlanBuilder
from holdfast.providers.registry import API_SPECS
from holdfast.state.conversation_state import ConversationState
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry
from holdfast.state.target import Target
from holdfast.state.view import decode_native_summary, get_next_shown_index

DROP_SIGNATURES_RULE = "unseal"
"""Rule of the edits, and trigger of the compaction, that leave out what is sealed."""
_DROP_SIGNATURES_REASON = "the provider takes no more what it had sealed here: another key or organisation asks now"
LOST_HISTORY_TEXT = (
    "[What was said and done up to here, beside the messages above, was summarised in a form that cannot be read any "
    "more. Look again at what you need, and ask for what is missing.]"
)
"""What is shown in place of one."""
_REASONING_DETAILS_KIND = "message.reasoning_details"
"""The part in which servers of Chat Completions send thinking that somebody else sealed."""


def drop_signed_parts(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft without what is sealed in all that is shown; the draft itself where nothing is."""
    without = builder.add_edits(tuple(_build_signature_edits(builder.state, builder.target.dialect)))
    twin = _build_readable_compaction(builder.state, builder.target)
    return without if twin is None else without.add_compaction(twin)


def is_signature_drop(record: DecisionEntry | CompactionEntry) -> bool:
    """Whether ``record`` leaves out what is sealed, and does nothing else."""
    if isinstance(record, CompactionEntry):
        return record.trigger == DROP_SIGNATURES_RULE
    return all(edit.rule == DROP_SIGNATURES_RULE for edit in record.edits)


def _build_signature_edits(state: ConversationState, dialect: Dialect) -> Iterator[Edit]:
    """Yield an edit for each sealed part of an answer that is shown as it was said."""
    index = state.view.first_kept
    while index < len(state.history.sized_messages):
        edited_places = {edit.span.part for edit in state.view.edits.get(index, ())}
        message = state.history.messages[index]
        if message.role == "assistant" and None not in edited_places:
            for place, part in enumerate(message.parts):
                if place not in edited_places and _is_signed_part(part, dialect):
                    replacement = _strip_signed_part(part, dialect)
                    saves = _count_part_tokens(part) - sum(map(_count_part_tokens, replacement))
                    yield Edit(
                        Span(index, index + 1, place), replacement, DROP_SIGNATURES_RULE, _DROP_SIGNATURES_REASON, saves
                    )
        index = get_next_shown_index(state, index)


def _is_signed_part(part: Part, dialect: Dialect) -> bool:
    """Whether ``part`` would be sent with something in it that only its maker can check."""
    if isinstance(part, Opaque) and (part.kind == _REASONING_DETAILS_KIND or _is_compacted_history(part, dialect)):
        return True
    if (
        isinstance(part, Media | ToolResult)
        or part.signature is None
        or not isinstance(part, _get_signed_part_types(dialect))
    ):
        return False
    return part.signature.data not in {"", DUMMY_SIGNATURE} and can_send_signature(part.signature, dialect)


def _is_compacted_history(part: Part, dialect: Dialect) -> bool:
    """Whether ``part`` is a past that its provider compacted for the client; Anthropic's can be read."""
    spec = API_SPECS.get(dialect.api)
    return spec is not None and isinstance(part, Opaque) and part.kind in spec.sealed_history_kinds


def _get_signed_part_types(dialect: Dialect) -> tuple[type, ...]:
    """Return the kinds of parts that the API signs; none for an API that is not known."""
    spec = API_SPECS.get(dialect.api)
    return () if spec is None else spec.signed_part_types


def _strip_signed_part(part: Part, dialect: Dialect) -> tuple[Part, ...]:
    """Return what is left of a sealed part: what it says, in bytes of our own, or nothing."""
    if _is_compacted_history(part, dialect):
        return (Text(LOST_HISTORY_TEXT),)
    bare = None if isinstance(part, Thinking) else strip_part_signature(part)
    return () if bare is None else (bare,)


def _count_part_tokens(part: Part) -> int:
    return build_sized_message(Message("assistant", (part,))).tokens - MESSAGE_OVERHEAD


def _build_readable_compaction(state: ConversationState, target: Target) -> CompactionEntry | None:
    """Return the compaction in force with its readable twin alone; nothing where only that is shown, or none is there.

    Its edits are in force already.
    """
    compaction = state.view.compaction
    native = None if compaction is None else decode_native_summary(compaction)
    if compaction is None or native is None or compaction.summary is None or not compaction.summary.parts:
        return None
    if native.api != target.api or native.model not in {"", target.model}:
        return None
    return replace(
        compaction,
        head_tokens=build_sized_message(compaction.summary).tokens,
        edits=(),
        trigger=DROP_SIGNATURES_RULE,
        native=None,
        author="",
    )
