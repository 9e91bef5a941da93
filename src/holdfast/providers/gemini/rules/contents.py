"""Rules of generateContent about contents and parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.messages.inline_data import is_unregistered_image_type, normalize_mime_type
from holdfast.providers.common.media_faults import explain_media_fault
from holdfast.providers.gemini.field_spellings import get_spelled_field
from holdfast.providers.gemini.models import IMAGE_TYPES
from holdfast.providers.gemini.rules.request_view import (
    PART_FIELD_SPELLINGS,
    PAYLOAD_FIELDS,
    GeminiView,
)
from holdfast.providers.rules.rule import (
    GEMINI_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
    get_json_type_name,
)

_CONTENT_FIELDS = frozenset({"role", "parts"})


def _check_content_count(request: GeminiView) -> Violations:
    """The field contents is a list of at least one content."""
    contents = request.body.get("contents")
    if not isinstance(contents, list) or not contents:
        yield "$.contents", f"contents is {get_json_type_name(contents)} without contents; send a list of at least one"


def _check_content_shape(request: GeminiView) -> Violations:
    """A content is an object with a list of parts, which are objects."""
    for at, value in enumerate(request.contents):
        path = f"$.contents[{at}]"
        if not isinstance(value, dict):
            yield path, f"the content is {get_json_type_name(value)}; send an object with role and parts"
            continue
        parts = value.get("parts")
        if not isinstance(parts, list) or not parts:
            problem = f"parts is {get_json_type_name(parts)} without parts"
            yield f"{path}.parts", f"{problem}; send at least one part, or drop the content"
            continue
        for index, part in enumerate(parts):
            if not isinstance(part, dict):
                yield f"{path}.parts[{index}]", f"the part is {get_json_type_name(part)}; send an object"


def _check_roles(request: GeminiView) -> Violations:
    """The role of a content is user or model; without a role it is user."""
    for turn in request.content_views:
        role = turn.value.get("role")
        if role is not None and role not in ("user", "model", ""):
            yield (
                f"$.contents[{turn.content_index}].role",
                f"role {format_json_value(role)} is neither user nor model; use one of them",
            )


def _check_known_fields(request: GeminiView) -> Violations:
    """Contents and parts have only fields that the API knows."""
    for turn in request.content_views:
        for key in turn.value:
            if key not in _CONTENT_FIELDS:
                yield f"$.contents[{turn.content_index}].{key}", f"a content has no field {key!r}; remove it"
    for piece in request.parts:
        for key in piece.part:
            if key not in PART_FIELD_SPELLINGS:
                yield f"{piece.part_path}.{key}", f"a part has no field {key!r}; remove it"


def _check_single_payload(request: GeminiView) -> Violations:
    """A part has exactly one payload field, such as text or functionCall."""
    for part_view in request.parts:
        if part_view.kind:
            continue
        payload_keys = []
        for key, value in part_view.part.items():
            if PART_FIELD_SPELLINGS.get(key) in PAYLOAD_FIELDS and value is not None:
                payload_keys.append(key)
        names = " and ".join(payload_keys) or "nothing"
        yield (
            part_view.part_path,
            f"the payload of the part is {names}; send exactly one of {', '.join(PAYLOAD_FIELDS)}",
        )


def _check_empty_text(request: GeminiView) -> Violations:
    """A text is a string, and not empty unless its part has a thought signature."""
    for piece in request.iter_parts("text"):
        if not isinstance(piece.value, str):
            yield piece.payload_path, f"text is {get_json_type_name(piece.value)}; send a string"
        elif not piece.value and piece.signature is None:
            yield piece.payload_path, "the text is empty; drop the part"


def _check_media(request: GeminiView) -> Violations:
    """Inline data have mimeType and data, file data have fileUri."""
    for part_view in request.iter_parts("inlineData", "fileData"):
        required_fields = ("mimeType", "data") if part_view.kind == "inlineData" else ("fileUri",)
        for name in required_fields:
            key, value = get_spelled_field(part_view.value, name)
            if not isinstance(value, str) or not value:
                problem = f"{part_view.spelling} has no {key}; send it, or drop the part"
                yield f"{part_view.payload_path}.{key}", problem


def _check_media_bytes(request: GeminiView) -> Violations:
    """The bytes of inline data are of the declared type, and their base64 is complete."""
    for path, blob in _iter_inline_data(request):
        _, mime = get_spelled_field(blob, "mimeType")
        key, data = get_spelled_field(blob, "data")
        if not isinstance(mime, str) or not mime or not isinstance(data, str) or not data:
            continue
        fault = explain_media_fault(data, mime, IMAGE_TYPES, allows_url_alphabet=True)
        if fault is not None:
            yield f"{path}.{key}", fault
        elif is_unregistered_image_type(mime):
            yield f"{path}.{key}", f"{mime} is not the registered name; declare {normalize_mime_type(mime)}"


def _iter_inline_data(request: GeminiView) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield path and value of all inline data, those in the parts of function responses included."""
    for part_view in request.iter_parts("inlineData"):
        if isinstance(part_view.value, dict):
            yield part_view.payload_path, part_view.value
    for part_view in request.iter_parts("functionResponse"):
        parts = part_view.value.get("parts") if isinstance(part_view.value, dict) else None
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            key, blob = get_spelled_field(part, "inlineData") if isinstance(part, dict) else ("", None)
            if isinstance(blob, dict):
                yield f"{part_view.payload_path}.parts[{index}].{key}", blob


def _check_last_content(request: GeminiView) -> Violations:
    """The last content has the role user."""
    if not request.content_views:
        return
    last = request.content_views[-1]
    if last.role == "model":
        path = f"$.contents[{last.content_index}].role"
        yield path, "the last content has the role model; end with a user turn or a function response"


CONTENT_RULES: tuple[Rule, ...] = (
    Rule("gemini.contents", _check_content_count, "documented", GEMINI_DOCS),
    Rule("gemini.content-shape", _check_content_shape, "documented", GEMINI_DOCS),
    Rule("gemini.roles", _check_roles, "documented", GEMINI_DOCS),
    Rule("gemini.fields", _check_known_fields, "documented", GEMINI_DOCS),
    Rule("gemini.one-data", _check_single_payload, "documented", GEMINI_DOCS),
    Rule("gemini.text-nonempty", _check_empty_text, "recalled", UNVERIFIED_MEMORY),
    Rule("gemini.media", _check_media, "documented", GEMINI_DOCS),
    Rule("gemini.media-bytes", _check_media_bytes, "observed", PUBLIC_ERRORS),
    Rule("gemini.last-user", _check_last_content, "observed", PUBLIC_ERRORS),
)
"""The rules about contents and parts."""
