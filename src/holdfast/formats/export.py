"""A recording, or the entries of a log, in the form of a tool or as a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.formats.base import Recording, build_state_at_leaf, get_branch_entries, make_recording
from holdfast.formats.common.lines import decode_raw_fields
from holdfast.formats.losses import (
    count_lossy_parts,
    describe_losses,
    describe_missing_setup,
    format_loss_notes,
    get_request_body_note,
)
from holdfast.formats.registry import SESSION_FORMATS
from holdfast.messages.message import Message
from holdfast.messages.parts import Thinking
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.projection import normalize_projection
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.anthropic.cache_control import (
    MAX_BREAKPOINTS,
    keep_newest_breakpoints,
    list_setup_breakpoint_ttls,
)
from holdfast.providers.common.json.raw_json import encode_json as to_json
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.registry import API_NAMES, API_SPECS, get_api_dialect
from holdfast.providers.requests.request_body import build_system_field, encode_sized_messages, parse_message_list
from holdfast.state.entries import Entry, NoteEntry, RequestEntry
from holdfast.state.view import apply_normalization, build_projection

DEFAULT_MAX_TOKENS = 4_096
"""The answer's limit in a body for the Messages API, which asks for one, where the log has none."""


class ExportResult(Struct, frozen=True):
    """A log in some form, and a note on each thing that has no place there."""

    data: bytes
    left_out: tuple[str, ...] = ()


def export_bytes(recording: Recording | Iterable[Entry], format_: str) -> bytes:
    """Return a log in the form ``format_``, as ``export_with_loss_notes`` does."""
    return export_with_loss_notes(
        recording if isinstance(recording, Recording) else make_recording(recording), format_
    ).data


def export_with_loss_notes(recording: Recording, format_: str) -> ExportResult:
    """Return a log in the form ``format_``.

    The names of tools give the log: what came from that tool as it came, the rest written anew, our compactions as the
    tool's own. The names of the APIs give the request that the leaf's context makes.
    Raises ``FormatError`` for another name.
    """
    if format_ in API_SPECS:
        return export_request(recording, format_)
    if format_ not in SESSION_FORMATS:
        raise FormatError(f"there is no format {format_!r} to write; there are {', '.join(EXPORT_FORMATS)}")
    return ExportResult(SESSION_FORMATS[format_].write(recording), describe_losses(recording, format_))


def export_request(recording: Recording, api: str) -> ExportResult:
    """Return the request that the context at the leaf makes, as a body that ``api`` takes: repaired as for sending.

    A session that came as a request of another API is that request, converted.
    """
    note = get_request_body_note(recording)
    recorded_api = api if note is None else note.data["api"]
    body, lost_counts = _build_request_body(recording, recorded_api, note)
    if recorded_api != api:
        converted_body, notes = convert_request(body, api, recording.model, api=recorded_api)
        return ExportResult(fix_request(converted_body, api).body, (*notes, *format_loss_notes(lost_counts)))
    return ExportResult(
        body, (*(describe_missing_setup(recording) if note is None else ()), *format_loss_notes(lost_counts))
    )


def _build_request_body(recording: Recording, api: str, note: NoteEntry | None) -> tuple[bytes, Counter[str]]:
    """Return the request as a body of ``api``, and what its messages lack; the newest cache breakpoints stay."""
    spec, state, envelope = API_SPECS[api], build_state_at_leaf(recording), _build_envelope(recording, api, note)
    repairs, _ = normalize_projection(state, get_api_dialect(spec.api, _get_envelope_model(recording, envelope)))
    sized_messages = apply_normalization(build_projection(state), repairs)
    if api == anthropic.API_NAME and not _is_thinking_enabled(envelope):
        sized_messages = [
            *sized_messages[:-1],
            *(_drop_final_thinking(sized_message) for sized_message in sized_messages[-1:]),
        ]
        sized_messages = [sized_message for sized_message in sized_messages if sized_message.message.parts]
    room = MAX_BREAKPOINTS - len(list_setup_breakpoint_ttls(envelope))
    if spec.system_fields and not any(envelope.get(name) for name in spec.system_fields):
        words = [
            sized_message.message.text for sized_message in sized_messages if sized_message.message.role == "system"
        ]
        sized_messages = [sized_message for sized_message in sized_messages if sized_message.message.role != "system"]
        envelope |= build_system_field(spec, ["\n\n".join(words)] if words else [])
    if not sized_messages:
        raise FormatError("there is no message at the leaf, so there is no request to write; give a session with words")
    wire_groups = (
        keep_newest_breakpoints(encode_sized_messages(spec, sized_messages), room)
        if spec.supports_cache_control
        else encode_sized_messages(spec, sized_messages)
    )
    messages = [Raw(bytes(wire)) for group in wire_groups for wire in group]
    projections = build_projection(state), parse_message_list(spec, Raw(to_json(messages)))
    before, after = (
        count_lossy_parts(sized_message.message for sized_message in projection) for projection in projections
    )
    return to_json(envelope | {spec.messages_field: messages}), before - after


def _build_envelope(recording: Recording, api: str, note: NoteEntry | None) -> dict[str, Any]:
    """Return the fields beside the messages: those of the body that was imported, else the least there must be."""
    if note is not None:
        return dict(decode_raw_fields(note.raw))
    if not API_SPECS[api].has_model_field:
        return {}
    models = [
        entry.body.model
        for entry in get_branch_entries(recording)
        if isinstance(entry.body, RequestEntry) and entry.body.model
    ]
    envelope: dict[str, Any] = {"model": recording.model or (models[-1] if models else "unknown")}
    return envelope | ({"max_tokens": DEFAULT_MAX_TOKENS} if API_SPECS[api].options.requires_max_tokens else {})


def _get_envelope_model(recording: Recording, envelope: Mapping[str, Any]) -> str:
    """Return the model that a body names, in whatever form it has the name, or the one that answered."""
    model = envelope.get("model", recording.model)
    return model if isinstance(model, str) else bytes(model).decode("utf-8", "replace").strip('"')


def _is_thinking_enabled(envelope: Mapping[str, Any]) -> bool:
    """Return whether a body for the Messages API turns thinking on."""
    thinking = decode_raw_fields(envelope["thinking"]) if "thinking" in envelope else {}
    return bytes(thinking.get("type", Raw(b'"disabled"'))) != b'"disabled"'


def _drop_final_thinking(message: SizedMessage) -> SizedMessage:
    """Return the last slot of a request as one without thinking, which may not end a request, if it is an answer."""
    parts = tuple([part for part in message.message.parts if not isinstance(part, Thinking)])
    if message.message.role != "assistant" or len(parts) == len(message.message.parts):
        return message
    return replace(message, message=Message("assistant", parts), raw=None, base_raw=message.raw or message.base_raw)


EXPORT_FORMATS = (*SESSION_FORMATS, *API_NAMES)
"""Every form a log can be written in."""
