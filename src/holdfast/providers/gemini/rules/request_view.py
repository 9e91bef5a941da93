"""A generateContent request as its rules read it: contents and parts, names in either spelling."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

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
"""The fields of a part that say something; a part has one of them."""
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
"""The other fields of a part, in the types of the official SDK 3.4."""
_MODEL_VERSION = re.compile(r"gemini-(\d{1,2})(?:\.(\d{1,2}))?(?!\d)")
"""``gemini-2.5-pro``, ``models/gemini-3.1-pro-preview``, ``google/gemini-3-flash``"""


def _map_spellings(names: tuple[str, ...]) -> dict[str, str]:
    snake = {re.sub("([A-Z])", r"_\1", name).lower(): name for name in names}
    return snake | {name: name for name in names}


_PAYLOAD_SPELLINGS = _map_spellings(PAYLOAD_FIELDS)
PART_FIELD_SPELLINGS = _map_spellings((*PAYLOAD_FIELDS, *_METADATA_FIELDS))
"""What a field of a part is called, by either spelling; the API takes both."""


class PartView(Struct, gc=False):
    """A part where it stands, with its one field that says something."""

    kind: str
    """The field in camel case; empty for a part that says nothing or two things."""
    value: Any
    part: Mapping[str, Any]
    content_index: int
    part_index: int
    spelling: str
    """The field as it is spelled."""

    @property
    def part_path(self) -> str:
        """The JSON path of the part."""
        return f"$.contents[{self.content_index}].parts[{self.part_index}]"

    @property
    def payload_path(self) -> str:
        """The JSON path of what the part says."""
        return f"{self.part_path}.{self.spelling}"

    @property
    def signature(self) -> object:
        """The thought signature, nothing when there is none."""
        return self.part.get("thoughtSignature", self.part.get("thought_signature"))

    def get_name(self) -> object:
        """Return the name of a call or a response."""
        return self.value.get("name") if isinstance(self.value, dict) else None

    def get_id(self) -> str:
        """Return the id of a call or a response, empty when it has none."""
        id_ = self.value.get("id") if isinstance(self.value, dict) else None
        return id_ if isinstance(id_, str) else ""


class ContentView(Struct):
    """A content that is an object."""

    role: str
    """``user`` where it is left out."""
    value: Mapping[str, Any]
    content_index: int
    calls: list[PartView]
    responses: list[PartView]


class GeminiView(RequestView):
    """A generateContent request; contents and parts that are no objects are left out of the views."""

    contents: list[Any]
    content_views: list[ContentView]
    parts: list[PartView]

    def iter_parts(self, *kinds: str) -> Iterator[PartView]:
        """Yield the parts that say one of these, in order."""
        for piece in self.parts:
            if piece.kind in kinds:
                yield piece

    def get_field(self, name: str) -> tuple[str, Any]:
        """Return how a field of the body is spelled and what it holds."""
        return get_spelled_field(self.body, name)


def get_spelled_field(value: object, name: str) -> tuple[str, Any]:
    """Return how field ``name`` of ``value`` is spelled, in camel case or with underscores, and what it holds."""
    snake = re.sub("([A-Z])", r"_\1", name).lower()
    if not isinstance(value, dict):
        return name, None
    return (snake, value[snake]) if snake in value and name not in value else (name, value.get(name))


def build_gemini_view(envelope: RequestView) -> GeminiView:
    """Return a body as rules read it, each part looked at once."""
    request = GeminiView(
        envelope.body, envelope.body_bytes, envelope.betas, envelope.model, envelope.get_list("contents"), [], []
    )
    for at, value in enumerate(request.contents):
        if isinstance(value, dict):
            _add_content_to_view(request, value, at)
    return request


def _add_content_to_view(request: GeminiView, value: Mapping[str, Any], content_index: int) -> None:
    role = value.get("role")
    turn = ContentView(role if isinstance(role, str) and role else "user", value, content_index, [], [])
    request.content_views.append(turn)
    parts = value.get("parts")
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, dict):
            piece = _build_part_view(part, content_index, index)
            request.parts.append(piece)
            if piece.kind == "functionCall":
                turn.calls.append(piece)
            elif piece.kind == "functionResponse":
                turn.responses.append(piece)


def _build_part_view(part: Mapping[str, Any], content_index: int, index: int) -> PartView:
    data_keys = [key for key in part if key in _PAYLOAD_SPELLINGS and part[key] is not None]
    if len(data_keys) != 1:
        return PartView("", None, part, content_index, index, "")
    return PartView(_PAYLOAD_SPELLINGS[data_keys[0]], part[data_keys[0]], part, content_index, index, data_keys[0])


def parse_gemini_version(model: str) -> tuple[int, int]:
    """Return major and minor version of a Gemini model, 0.0 for a name that does not say."""
    match = _MODEL_VERSION.search(model.lower())
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)
