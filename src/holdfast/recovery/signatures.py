"""Drop signed data that the provider no longer accepts from a conversation, for good.

A provider refuses its own signatures when another key or organization sends them. Thinking is removed; texts and calls
stay, without their signature. A compaction by the provider is replaced by its readable summary; a compaction that the
client had the provider make has no summary here, so a line says that something is missing. Later answers carry new
signatures and stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.messages.message import Message, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolResult
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, build_sized_message
from holdfast.messages.strip_foreign import get_opaque_text
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
"""Rule of the edits, and trigger of the compaction, that drop signed data. Logs store this name, so it stays "unseal",
the former word for dropping signatures."""
_DROP_SIGNATURES_REASON = (
    "the provider no longer accepts its signature or encrypted data here, as after a change of key or organization"
)
LOST_HISTORY_TEXT = (
    "[What was said and done up to here, beside the messages above, was summarised in a form that cannot be read any "
    "more. Look again at what you need, and ask for what is missing.]"
)
"""Shown in place of a compaction that the client had the provider make."""
# Anthropic's search results have encrypted content, and citations of them an encrypted index; senpi#150: "Invalid
# encrypted_content in search_result block".
_SEARCH_RESULT_KINDS = frozenset({"web_search_tool_result", "search_result"})
_SERVER_CALL_KIND = "server_tool_use"
# Some Chat Completions servers (OpenRouter) carry another provider's signed thinking in this field of a message.
_REASONING_DETAILS_KIND = "message.reasoning_details"


def drop_signed_parts(builder: PlanBuilder) -> PlanBuilder:
    """Drop the signed data in all shown messages; return the same builder if no message has any."""
    signature_edits = tuple(_build_signature_edits(builder.state, builder.target.dialect))
    changed_builder = builder.add_edits(signature_edits)
    readable_compaction = _build_readable_compaction(builder.state, builder.target)
    if readable_compaction is None:
        return changed_builder
    return changed_builder.add_compaction(readable_compaction)


def is_signature_drop(record: DecisionEntry | CompactionEntry) -> bool:
    """Return whether ``record`` drops signed data and does nothing else."""
    if isinstance(record, CompactionEntry):
        return record.trigger == DROP_SIGNATURES_RULE
    return all(edit.rule == DROP_SIGNATURES_RULE for edit in record.edits)


def _build_signature_edits(state: ConversationState, dialect: Dialect) -> Iterator[Edit]:
    """Yield an edit for each signed part of a shown answer that no earlier edit replaced."""
    index = state.view.first_kept
    while index < len(state.history.sized_messages):
        edited_parts = {edit.span.part for edit in state.view.edits.get(index, ())}
        is_replaced = None in edited_parts  # by an edit of the whole message
        message = state.history.messages[index]
        if message.role == "assistant" and not is_replaced:
            has_sealed_results = any(_is_sealed_result(part) for part in message.parts)
            for part_index, part in enumerate(message.parts):
                # A search without its result would be refused, so the two go together.
                is_search = has_sealed_results and isinstance(part, Opaque) and part.kind == _SERVER_CALL_KIND
                if part_index not in edited_parts and (is_search or _is_signed_part(part, dialect)):
                    yield _build_signature_edit(index, part_index, part, dialect)
        index = get_next_shown_index(state, index)


def _build_signature_edit(index: int, part_index: int, part: Part, dialect: Dialect) -> Edit:
    replacement = _strip_signed_part(part, dialect)
    remaining_tokens = sum(map(_count_part_tokens, replacement))
    saved_tokens = _count_part_tokens(part) - remaining_tokens
    span = Span(index, index + 1, part_index)
    return Edit(span, replacement, DROP_SIGNATURES_RULE, _DROP_SIGNATURES_REASON, saved_tokens)


def _is_signed_part(part: Part, dialect: Dialect) -> bool:
    """Return whether ``part`` would be sent with data that only its provider can verify."""
    is_reasoning_details = isinstance(part, Opaque) and part.kind == _REASONING_DETAILS_KIND
    if _is_sealed_result(part) or _has_sealed_citation(part):
        return True
    if is_reasoning_details or _is_compacted_history(part, dialect):
        return True
    if isinstance(part, Media | ToolResult) or not isinstance(part, _get_signed_part_types(dialect)):
        return False
    if part.signature is None or part.signature.data in {"", DUMMY_SIGNATURE}:
        return False
    # Another model's signature is never sent, so there is nothing to drop.
    return can_send_signature(part.signature, dialect)


def _is_sealed_result(part: Part) -> bool:
    """Return whether ``part`` holds search results with encrypted content."""
    if not isinstance(part, Opaque) or part.raw is None or part.kind not in _SEARCH_RESULT_KINDS:
        return False
    return b'"encrypted_content"' in bytes(part.raw)


def _has_sealed_citation(part: Part) -> bool:
    """Return whether ``part`` is a text that cites search results by an encrypted index."""
    return isinstance(part, Text) and part.raw is not None and b'"encrypted_index"' in bytes(part.raw)


def _is_compacted_history(part: Part, dialect: Dialect) -> bool:
    """Return whether ``part`` holds turns that the provider compacted for the client, unreadable for us."""
    spec = API_SPECS.get(dialect.api)
    return spec is not None and isinstance(part, Opaque) and part.kind in spec.sealed_history_kinds


def _get_signed_part_types(dialect: Dialect) -> tuple[type, ...]:
    """Return the types of parts that the API signs; empty for an unknown API."""
    spec = API_SPECS.get(dialect.api)
    return () if spec is None else spec.signed_part_types


def _strip_signed_part(part: Part, dialect: Dialect) -> tuple[Part, ...]:
    """Return the parts that replace a signed part: its content without signature, a line, or no part."""
    if _is_compacted_history(part, dialect):
        return (Text(LOST_HISTORY_TEXT),)
    if isinstance(part, Thinking):
        return ()
    if isinstance(part, Opaque) and _is_sealed_result(part):
        return (Text(get_opaque_text(part) or format_part_placeholder(part)),)
    unsigned_part = strip_part_signature(part)
    return () if unsigned_part is None else (unsigned_part,)


def _count_part_tokens(part: Part) -> int:
    message = build_sized_message(Message("assistant", (part,)))
    return message.tokens - MESSAGE_OVERHEAD


def _build_readable_compaction(state: ConversationState, target: Target) -> CompactionEntry | None:
    """Return the compaction in force with its readable summary in place of the provider's.

    Return None if the provider's summary is not shown, or no readable one exists.
    """
    compaction = state.view.compaction
    if compaction is None or compaction.summary is None or not compaction.summary.parts:
        return None
    native = decode_native_summary(compaction)
    if native is None or native.api != target.api or native.model not in {"", target.model}:
        return None
    return replace(
        compaction,
        head_tokens=build_sized_message(compaction.summary).tokens,
        edits=(),  # in force already
        trigger=DROP_SIGNATURES_RULE,
        native=None,
        author="",
    )
