"""Rules of generateContent about contents and parts."""

from __future__ import annotations

from holdfast.providers.gemini.rules.view import DATA, PART_FIELDS, Gemini, spelled
from holdfast.providers.rules.rule import GOOGLE, KNOWN, MET, Broken, Rule, quoted, type_name

_CONTENT_FIELDS = frozenset({"role", "parts"})


def _contents(request: Gemini) -> Broken:
    """There is at least one content, in a list."""
    listed = request.body.get("contents")
    if not isinstance(listed, list) or not listed:
        yield "$.contents", f"contents is {type_name(listed)} with nothing in it; send at least one content"


def _content_shape(request: Gemini) -> Broken:
    """A content is an object with a list of parts, each an object."""
    for at, value in enumerate(request.contents):
        path = f"$.contents[{at}]"
        parts = value.get("parts") if isinstance(value, dict) else None
        if not isinstance(value, dict):
            yield path, f"the content is {type_name(value)}; send an object with role and parts"
        elif not isinstance(parts, list) or not parts:
            yield f"{path}.parts", f"parts is {type_name(parts)} with nothing in it; send a part or drop the content"
        else:
            for index, part in enumerate(parts):
                if not isinstance(part, dict):
                    yield f"{path}.parts[{index}]", f"the part is {type_name(part)}; send an object"


def _roles(request: Gemini) -> Broken:
    """A role is user or model; left out it is user."""
    for turn in request.turns:
        role = turn.value.get("role")
        if role is not None and role not in ("user", "model", ""):
            yield f"$.contents[{turn.at}].role", f"role {quoted(role)} is neither user nor model; use one of them"


def _fields(request: Gemini) -> Broken:
    """Contents and parts have only fields that the API knows."""
    for turn in request.turns:
        for key in turn.value:
            if key not in _CONTENT_FIELDS:
                yield f"$.contents[{turn.at}].{key}", f"field {key!r} is not known on a content; take it out"
    for piece in request.pieces:
        for key in piece.part:
            if key not in PART_FIELDS:
                yield f"{piece.place}.{key}", f"field {key!r} is not known on a part; take it out"


def _one_data(request: Gemini) -> Broken:
    """A part says exactly one thing."""
    for piece in request.pieces:
        if not piece.kind:
            said = [key for key in piece.part if PART_FIELDS.get(key) in DATA and piece.part[key] is not None]
            found = " and ".join(said) or "nothing"
            yield piece.place, f"the part says {found}; send one of {', '.join(DATA)}"


def _text(request: Gemini) -> Broken:
    """A text is a string that is not empty, unless it carries a signature."""
    for piece in request.kinds("text"):
        if not isinstance(piece.value, str):
            yield piece.path, f"text is {type_name(piece.value)}; send a string"
        elif not piece.value and piece.signature is None:
            yield piece.path, "the text is empty; drop the part"


def _media(request: Gemini) -> Broken:
    """Inline data have a type and bytes, file data an address."""
    for piece in request.kinds("inlineData", "fileData"):
        for name in ("mimeType", "data") if piece.kind == "inlineData" else ("fileUri",):
            key, value = spelled(piece.value, name)
            if not isinstance(value, str) or not value:
                yield f"{piece.path}.{key}", f"{piece.key} without {key}; send it or drop the part"


def _last_user(request: Gemini) -> Broken:
    """The last content is the user's or a function response."""
    if request.turns and request.turns[-1].role == "model":
        path = f"$.contents[{request.turns[-1].at}].role"
        yield path, "the last content is the model's; end with a user turn or a function response"


RULES: tuple[Rule, ...] = (
    Rule("gemini.contents", _contents, "documented", GOOGLE),
    Rule("gemini.content-shape", _content_shape, "documented", GOOGLE),
    Rule("gemini.roles", _roles, "documented", GOOGLE),
    Rule("gemini.fields", _fields, "documented", GOOGLE),
    Rule("gemini.one-data", _one_data, "documented", GOOGLE),
    Rule("gemini.text-nonempty", _text, "recalled", KNOWN),
    Rule("gemini.media", _media, "documented", GOOGLE),
    Rule("gemini.last-user", _last_user, "observed", MET),
)
"""The rules about contents and parts."""
