"""A generateContent request as its rules read it: contents and parts, names in either spelling."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.rules.envelope import Envelope

DATA = ("text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult",
        "toolCall", "toolResponse")  # fmt: skip
"""The fields of a part that say something; a part has one of them."""
_BESIDE = ("thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata", "audioTranscription",
           "mediaProcessing", "speechMetadata", "documentMetadata", "spreadsheetMetadata", "audioMetadata")  # fmt: skip
"""The other fields of a part, in the types of the official SDK 3.4."""
_VERSION = re.compile(r"gemini-(\d{1,2})(?:\.(\d{1,2}))?(?!\d)")
"""``gemini-2.5-pro``, ``models/gemini-3.1-pro-preview``, ``google/gemini-3-flash``"""


def _spellings(names: tuple[str, ...]) -> dict[str, str]:
    snake = {re.sub("([A-Z])", r"_\1", name).lower(): name for name in names}
    return snake | {name: name for name in names}


_DATA = _spellings(DATA)
PART_FIELDS = _spellings((*DATA, *_BESIDE))
"""What a field of a part is called, by either spelling; the API takes both."""


class Piece(Struct, gc=False):
    """A part where it stands, with its one field that says something."""

    kind: str
    """The field in camel case; empty for a part that says nothing or two things."""
    value: Any
    part: Mapping[str, Any]
    at: int
    index: int
    key: str
    """The field as it is spelled."""

    @property
    def place(self) -> str:
        """The JSON path of the part."""
        return f"$.contents[{self.at}].parts[{self.index}]"

    @property
    def path(self) -> str:
        """The JSON path of what the part says."""
        return f"{self.place}.{self.key}"

    @property
    def signature(self) -> object:
        """The thought signature, nothing when there is none."""
        return self.part.get("thoughtSignature", self.part.get("thought_signature"))

    def name(self) -> object:
        """Return the name of a call or a response."""
        return self.value.get("name") if isinstance(self.value, dict) else None

    def id(self) -> str:
        """Return the id of a call or a response, empty when it has none."""
        id_ = self.value.get("id") if isinstance(self.value, dict) else None
        return id_ if isinstance(id_, str) else ""


class Turn(Struct):
    """A content that is an object."""

    role: str
    """``user`` where it is left out."""
    value: Mapping[str, Any]
    at: int
    calls: list[Piece]
    responses: list[Piece]


class Gemini(Envelope):
    """A generateContent request; contents and parts that are no objects are left out of the views."""

    contents: list[Any]
    turns: list[Turn]
    pieces: list[Piece]

    def kinds(self, *kinds: str) -> Iterator[Piece]:
        """Yield the parts that say one of these, in order."""
        for piece in self.pieces:
            if piece.kind in kinds:
                yield piece

    def field(self, name: str) -> tuple[str, Any]:
        """Return how a field of the body is spelled and what it holds."""
        return spelled(self.body, name)


def spelled(value: object, name: str) -> tuple[str, Any]:
    """Return how field ``name`` of ``value`` is spelled, in camel case or with underscores, and what it holds."""
    snake = re.sub("([A-Z])", r"_\1", name).lower()
    if not isinstance(value, dict):
        return name, None
    return (snake, value[snake]) if snake in value and name not in value else (name, value.get(name))


def view(known: Envelope) -> Gemini:
    """Return a body as rules read it, each part looked at once."""
    request = Gemini(known.body, known.size, known.betas, known.model, known.listed("contents"), [], [])
    for at, value in enumerate(request.contents):
        if isinstance(value, dict):
            _view_content(request, value, at)
    return request


def _view_content(request: Gemini, value: Mapping[str, Any], at: int) -> None:
    role = value.get("role")
    turn = Turn(role if isinstance(role, str) and role else "user", value, at, [], [])
    request.turns.append(turn)
    parts = value.get("parts")
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, dict):
            piece = _piece(part, at, index)
            request.pieces.append(piece)
            if piece.kind == "functionCall":
                turn.calls.append(piece)
            elif piece.kind == "functionResponse":
                turn.responses.append(piece)


def _piece(part: Mapping[str, Any], at: int, index: int) -> Piece:
    said = [key for key in part if key in _DATA and part[key] is not None]
    if len(said) != 1:
        return Piece("", None, part, at, index, "")
    return Piece(_DATA[said[0]], part[said[0]], part, at, index, said[0])


def version(model: str) -> tuple[int, int]:
    """Return major and minor version of a Gemini model, 0.0 for a name that does not say."""
    found = _VERSION.search(model.lower())
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)
