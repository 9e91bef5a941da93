"""Normalize the history in a request body (pairing, order, ids), as far as the body can be parsed."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Part, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.normalize_history import normalize_history
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.fix.fix_context import FixContext, RequestFix
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import render_request
from holdfast.providers.rules.rule import Finding
from holdfast.state.edits import Edit
from holdfast.state.view import apply_normalization

_STORED_HISTORY_FIELDS = ("previous_response_id", "conversation", "thread", "cachedContent", "cached_content")
"""Fields that refer to history stored on the server, which may hold the calls of results that look like orphans."""


def normalize_body_history(
    body: bytes, context: FixContext, _errors: Sequence[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Normalize the history of ``body``; return the body unchanged if it cannot be parsed."""
    fields = parse_body_fields(body)
    # Items that only answers have in this form are mended later, by rules that tell more of what was wrong.
    dialect = replace(context.dialect, item_forms={})
    if any(bytes(fields.get(key, b"null")) != b"null" for key in _STORED_HISTORY_FIELDS):
        dialect = replace(dialect, has_server_history=True)
    try:
        parsed_request = parse_request(body, context.spec.api)
        messages = [sized_message.message for sized_message in parsed_request.messages]
        edits = normalize_history(messages, dialect, has_system_field=not dialect.has_system_field)
        if not edits:
            return body, []
        new_body = render_request(parsed_request, apply_normalization(list(parsed_request.messages), edits))
    except FormatError:
        return body, []
    placed_parts = _collect_placed_parts(edits)
    fixes = []
    for edit in edits:
        # Moving a result is two edits. The one that places it elsewhere already tells of it.
        if not _is_move_source(edit, parsed_request.messages, placed_parts):
            path = f"$.{context.spec.messages_field}[{edit.span.start}]"
            fixes.append(RequestFix(edit.rule, edit.why, path))
    return new_body, fixes


def _collect_placed_parts(edits: Sequence[Edit]) -> set[int]:
    """Return the identities of all parts that edits put somewhere."""
    placed_parts: set[int] = set()
    for edit in edits:
        for message in edit.replacement:
            if isinstance(message, Message):
                placed_parts.update(map(_get_part_identity, message.parts))
    return placed_parts


def _is_move_source(edit: Edit, sized_messages: Sequence[SizedMessage], placed_parts: AbstractSet[int]) -> bool:
    """Return whether an edit only removes parts that other edits place elsewhere."""
    if edit.replacement:
        return False
    removed_parts: list[Part] = []
    for sized_message in sized_messages[edit.span.start : edit.span.stop]:
        removed_parts += sized_message.message.parts
    if not removed_parts:
        return False
    return all(_get_part_identity(part) in placed_parts for part in removed_parts)


def _get_part_identity(part: Part) -> int:
    """Return a key that stays the same when normalization gives a result another call id."""
    # `id` and not equality: two results with equal words are different parts.
    return id(part.content if isinstance(part, ToolResult) else part)
