"""Export of a recording, or of the entries of a log, as a tool's session file or as a request body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.formats.atif.document import FORMAT as ATIF
from holdfast.formats.atif.write import write_atif_segments
from holdfast.formats.base import Recording, build_state_at_leaf, get_branch_entries, make_recording
from holdfast.formats.common.lines import decode_raw_fields
from holdfast.formats.common.missing_results import add_missing_results
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
from holdfast.providers.requests.parsed_request import parse_message_list
from holdfast.providers.requests.request_body import build_system_field, encode_sized_messages
from holdfast.state.entries import Entry, NoteEntry, RequestEntry
from holdfast.state.view import apply_normalization, build_projection

RECORDING_TOOLS = frozenset(
    {"atif", "claude-code", "codex", "copilot-cli", "gemini-cli", "goose", "mini-swe-agent", "opencode", "pi"}
    | {"swe-agent"}
)
"""Formats of the tools that record sessions."""
DEFAULT_MAX_TOKENS = 4_096
"""``max_tokens`` of an exported Messages API body whose log names none: the API refuses a body without it.

Chosen by judgement: small enough for the output cap of every Claude model. The export is for inspection and one-off
requests, where a caller who needs a longer answer sets it anyway.
"""


class ExportResult(Struct, frozen=True):
    """An exported log, and a note on everything that its format has no place for."""

    data: bytes
    left_out: tuple[str, ...] = ()


def export_bytes(recording: Recording | Iterable[Entry], format_: str) -> bytes:
    """Return a log in the format ``format_``, without the notes of ``export_with_loss_notes``."""
    if not isinstance(recording, Recording):
        recording = make_recording(recording)
    return export_with_loss_notes(recording, format_).data


def export_with_loss_notes(recording: Recording, format_: str) -> ExportResult:
    """Return a log in the format ``format_``, with a note on everything that has no place in it.

    The name of a tool exports the whole log: entries that came from that tool unchanged, the rest encoded anew, our
    compactions as the tool's own. The name of an API exports the request that the state at the leaf makes. Raises
    ``FormatError`` for any other name.
    """
    if format_ in API_SPECS:
        return export_request(recording, format_)
    if format_ not in SESSION_FORMATS:
        raise FormatError(f"there is no format {format_!r} to write; there are {', '.join(EXPORT_FORMATS)}")
    written = _complete_for_format(recording, format_)
    return ExportResult(SESSION_FORMATS[format_].write(written), describe_losses(recording, format_))


def export_atif_segments(recording: Recording, file_name: str) -> tuple[list[tuple[str, bytes]], tuple[str, ...]]:
    """Return a log in ATIF as files that each end at a compaction, and a note on everything that is left out.

    Each file is its name and content; the first has the name ``file_name``, and the others are named after it.
    """
    files = write_atif_segments(_complete_for_format(recording, ATIF), file_name)
    return files, describe_losses(recording, ATIF)


def _complete_for_format(recording: Recording, format_: str) -> Recording:
    """Return a recording with results for open calls, as the tool that reads it needs them."""
    # A tool knows what to do about calls that it recorded itself; its lines are written as they are.
    # The writer for opencode ends open calls itself, in opencode's words, also in a database.
    if format_ in ("opencode-json", recording.format):
        return recording
    return add_missing_results(recording, includes_recorded=recording.format in RECORDING_TOOLS)


def export_request(recording: Recording, api: str) -> ExportResult:
    """Return the request that the context at the leaf makes, as a body for ``api``, normalized as for sending.

    A session that was imported from a request body of another API is rebuilt for that API and then converted, so that
    the fields beside its messages (tools, sampling) are converted too.
    """
    note = get_request_body_note(recording)
    recorded_api = api if note is None else note.data["api"]
    body, lost_counts = _build_request_body(recording, recorded_api, note)
    loss_notes = format_loss_notes(lost_counts)
    if recorded_api != api:
        converted_body, conversion_notes = convert_request(body, api, recording.model, api=recorded_api)
        return ExportResult(fix_request(converted_body, api).body, (*conversion_notes, *loss_notes))
    if note is None:
        return ExportResult(body, (*describe_missing_setup(recording), *loss_notes))
    return ExportResult(body, loss_notes)


def _build_request_body(recording: Recording, api: str, note: NoteEntry | None) -> tuple[bytes, Counter[str]]:
    """Return the request at the leaf as a body for ``api``, and counts of the parts that the body lacks, by kind.

    ``note`` holds the other fields of the request that the session was imported from, if it was.
    """
    spec = API_SPECS[api]
    state = build_state_at_leaf(recording)
    projection = build_projection(state)
    envelope = _build_envelope(recording, api, note)
    dialect = get_api_dialect(spec.api, _get_envelope_model(recording, envelope))
    normalization, _ = normalize_projection(state, dialect)
    sized_messages = list(apply_normalization(projection, normalization))
    if api == anthropic.API_NAME and not _is_thinking_enabled(envelope):
        sized_messages = _drop_final_thinking(sized_messages)
    # The API counts the breakpoints of system prompt and tools against the same limit as those of messages.
    free_breakpoints = MAX_BREAKPOINTS - len(list_setup_breakpoint_ttls(envelope))
    if spec.system_fields and not any(envelope.get(name) for name in spec.system_fields):
        # The API takes the system prompt in a field beside the messages, and that is empty: move it there.
        system_texts = []
        other_messages = []
        for sized_message in sized_messages:
            if sized_message.message.role == "system":
                system_texts.append(sized_message.message.text)
            else:
                other_messages.append(sized_message)
        sized_messages = other_messages
        envelope |= build_system_field(spec, ["\n\n".join(system_texts)] if system_texts else [])
    if not sized_messages:
        raise FormatError("there is no message at the leaf, so there is no request to write; give a session with words")
    wire_groups = encode_sized_messages(spec, sized_messages)
    if spec.supports_cache_control:
        # A log spans many requests, each with markers of its own; a body with more than the limit is refused.
        wire_groups = keep_newest_breakpoints(wire_groups, free_breakpoints)
    messages: list[Raw] = []
    for group in wire_groups:
        messages.extend(Raw(bytes(wire)) for wire in group)
    # Losses are measured on the finished body, read back as a provider reads it, not predicted by rules of the API.
    reread_messages = parse_message_list(spec, Raw(to_json(messages)))
    counts_before = count_lossy_parts(item.message for item in projection)
    counts_after = count_lossy_parts(item.message for item in reread_messages)
    return to_json(envelope | {spec.messages_field: messages}), counts_before - counts_after


def _build_envelope(recording: Recording, api: str, note: NoteEntry | None) -> dict[str, Any]:
    """Return the fields beside the messages: those of the imported body, else the fewest that the API accepts."""
    if note is not None:
        return dict(decode_raw_fields(note.raw))
    if not API_SPECS[api].has_model_field:
        return {}
    model = recording.model
    if not model:
        model = "unknown"
        for entry in get_branch_entries(recording):
            if isinstance(entry.body, RequestEntry) and entry.body.model:
                model = entry.body.model
    envelope: dict[str, Any] = {"model": model}
    if API_SPECS[api].options.requires_max_tokens:
        envelope["max_tokens"] = DEFAULT_MAX_TOKENS
    return envelope


def _get_envelope_model(recording: Recording, envelope: Mapping[str, Any]) -> str:
    """Return the model that the envelope names, as text or as raw JSON, or the recording's."""
    model = envelope.get("model", recording.model)
    if isinstance(model, str):
        return model
    return bytes(model).decode("utf-8", "replace").strip('"')


def _is_thinking_enabled(envelope: Mapping[str, Any]) -> bool:
    """Return whether a Messages API body turns thinking on."""
    if "thinking" not in envelope:
        return False
    thinking = decode_raw_fields(envelope["thinking"])
    return bytes(thinking.get("type", Raw(b'"disabled"'))) != b'"disabled"'


def _drop_final_thinking(sized_messages: Sequence[SizedMessage]) -> list[SizedMessage]:
    """Return the messages of a request without thinking in a final answer, which the API refuses while it is off."""
    kept = list(sized_messages)
    if kept:
        kept[-1] = _without_thinking(kept[-1])
    return [item for item in kept if item.message.parts]


def _without_thinking(sized_message: SizedMessage) -> SizedMessage:
    """Return an answer without its thinking parts; any other message is returned as it is."""
    message = sized_message.message
    parts = tuple([part for part in message.parts if not isinstance(part, Thinking)])
    if message.role != "assistant" or len(parts) == len(message.parts):
        return sized_message
    base_raw = sized_message.raw or sized_message.base_raw
    return replace(sized_message, message=Message("assistant", parts), raw=None, base_raw=base_raw)


EXPORT_FORMATS = (*SESSION_FORMATS, *API_NAMES)
"""Every name that a log can be exported under."""
