"""The history repaired by hygiene, as far as the body can be read."""

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
from holdfast.providers.requests.request_body import parse_request, render_request
from holdfast.providers.rules.rule import Finding
from holdfast.state.edits import Edit
from holdfast.state.view import apply_normalization

_STORED_HISTORY_FIELDS = ("previous_response_id", "conversation", "thread", "cachedContent", "cached_content")
"""Fields that name a part of the history which lies with the server."""


def normalize_body_history(body: bytes, work: FixContext, _errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Return the body with its history repaired; as it is when it cannot be read."""
    fields, dialect = parse_body_fields(body), work.dialect
    if any(bytes(fields.get(key, b"null")) != b"null" for key in _STORED_HISTORY_FIELDS):
        dialect = replace(dialect, has_server_history=True)
    try:
        parsed_request = parse_request(body, work.spec.api)
        edits = normalize_history(
            [sized_message.message for sized_message in parsed_request.messages], dialect, has_system_field=False
        )
        new = (
            render_request(parsed_request, apply_normalization(list(parsed_request.messages), edits)) if edits else body
        )
    except FormatError:
        return body, []
    placed_parts = {
        _get_part_identity(part)
        for edit in edits
        for message in edit.replacement
        if isinstance(message, Message)
        for part in message.parts
    }
    reported_edits = [edit for edit in edits if not _is_move_source(edit, parsed_request.messages, placed_parts)]
    return new, [
        RequestFix(edit.rule, edit.why, f"$.{work.spec.messages_field}[{edit.span.start}]") for edit in reported_edits
    ]


def _is_move_source(edit: Edit, sized_messages: Sequence[SizedMessage], placed_parts: AbstractSet[int]) -> bool:
    """Return whether an edit only leaves out what others ``placed_parts`` in another place, which they tell."""
    if edit.replacement:
        return False
    parts = [
        part
        for sized_message in sized_messages[edit.span.start : edit.span.stop]
        for part in sized_message.message.parts
    ]
    return bool(parts) and all(_get_part_identity(part) in placed_parts for part in parts)


def _get_part_identity(part: Part) -> int:
    """Return what tells a part from others, whatever id it goes out under."""
    return id(part.content if isinstance(part, ToolResult) else part)
