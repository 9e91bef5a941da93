"""A generateContent request in the form that its rules read: contents and parts, with names in either spelling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.gemini.field_spellings import get_spelled_field, to_snake_case
from holdfast.providers.rules.envelope import RequestView

PAYLOAD_FIELDS = (
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
"""The payload fields of a part, of which it has exactly one."""
_METADATA_FIELDS = (
    "thought",
    "thoughtSignature",
    "videoMetadata",
    "mediaResolution",
    "partMetadata",
    "audioTranscription",
    "mediaProcessing",
    "speechMetadata",
    "documentMetadata",
    "spreadsheetMetadata",
    "audioMetadata",
)
"""The other fields of a part in the types of the official SDK 3.4."""


def _map_spellings(names: tuple[str, ...]) -> dict[str, str]:
    snake = {to_snake_case(name): name for name in names}
    return snake | {name: name for name in names}


_PAYLOAD_SPELLINGS = _map_spellings(PAYLOAD_FIELDS)
PART_FIELD_SPELLINGS = _map_spellings((*PAYLOAD_FIELDS, *_METADATA_FIELDS))
"""The camelCase name of each field of a part, by either spelling; the API accepts both."""


class PartView(Struct, gc=False):
    """A part with its position and its one payload field."""

    kind: str
    """The payload field in camelCase; empty for a part with none or two."""
    value: Any
    part: Mapping[str, Any]
    content_index: int
    part_index: int
    spelling: str
    """The payload field as the request spells it."""

    @property
    def part_path(self) -> str:
        """The JSON path of the part."""
        return f"$.contents[{self.content_index}].parts[{self.part_index}]"

    @property
    def payload_path(self) -> str:
        """The JSON path of the payload field."""
        return f"{self.part_path}.{self.spelling}"

    @property
    def signature(self) -> object:
        """The thought signature, or None without one."""
        return self.part.get("thoughtSignature", self.part.get("thought_signature"))

    def get_name(self) -> object:
        """Return the name of a call or response, or None without one."""
        if isinstance(self.value, dict):
            return self.value.get("name")
        return None

    def get_id(self) -> str:
        """Return the id of a call or response; empty without one."""
        id_ = self.value.get("id") if isinstance(self.value, dict) else None
        return id_ if isinstance(id_, str) else ""


class ContentView(Struct):
    """A content that is an object, with its calls and responses."""

    role: str
    """``user`` if the request leaves it out."""
    value: Mapping[str, Any]
    content_index: int
    calls: list[PartView]
    responses: list[PartView]


class GeminiView(RequestView):
    """A generateContent request. Contents and parts that are not objects are missing from the views."""

    contents: list[Any]
    content_views: list[ContentView]
    parts: list[PartView]

    def iter_parts(self, *kinds: str) -> Iterator[PartView]:
        """Yield the parts with one of these payload fields, in order."""
        for piece in self.parts:
            if piece.kind in kinds:
                yield piece

    def get_field(self, name: str) -> tuple[str, Any]:
        """Return the spelling and value of a field of the body."""
        return get_spelled_field(self.body, name)


def build_gemini_view(envelope: RequestView) -> GeminiView:
    """Build the view of a body in one pass over its parts."""
    request = GeminiView(
        envelope.body,
        envelope.body_bytes,
        envelope.betas,
        envelope.model,
        envelope.version,
        envelope.get_list("contents"),
        [],
        [],
    )
    for at, value in enumerate(request.contents):
        if isinstance(value, dict):
            _add_content_to_view(request, value, at)
    return request


def _add_content_to_view(request: GeminiView, value: Mapping[str, Any], content_index: int) -> None:
    role = value.get("role")
    if not isinstance(role, str) or not role:
        role = "user"
    content_view = ContentView(role, value, content_index, [], [])
    request.content_views.append(content_view)
    parts = value.get("parts")
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if not isinstance(part, dict):
            continue
        part_view = _build_part_view(part, content_index, index)
        request.parts.append(part_view)
        if part_view.kind == "functionCall":
            content_view.calls.append(part_view)
        elif part_view.kind == "functionResponse":
            content_view.responses.append(part_view)


def _build_part_view(part: Mapping[str, Any], content_index: int, index: int) -> PartView:
    payload_keys = []
    for key, value in part.items():
        if key in _PAYLOAD_SPELLINGS and value is not None:
            payload_keys.append(key)
    # A part has exactly one payload. Any other number gets an empty kind, which no rule about a payload looks at.
    if len(payload_keys) != 1:
        return PartView("", None, part, content_index, index, "")
    spelling = payload_keys[0]
    return PartView(
        _PAYLOAD_SPELLINGS[spelling],
        part[spelling],
        part,
        content_index,
        index,
        spelling,
    )
