"""Rules of generateContent about calls, responses and thought signatures."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.providers.gemini.rules.view import Gemini, Piece, Turn, version
from holdfast.providers.rules.options import is_gemini_name
from holdfast.providers.rules.rule import GOOGLE, KNOWN, MET, Broken, Rule, quoted, type_name

_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]*|[A-Za-z0-9_-]*)={0,2}\Z")


# -- calls and responses -----------------------------------------------------------------------------------------------


def _neighbours(request: Gemini) -> Iterator[tuple[Turn | None, Turn, Turn | None]]:
    """Yield each content with the one before and the one behind it."""
    turns = request.turns
    yield from zip([None, *turns], turns, [*turns[1:], None], strict=False)


def _call_role(request: Gemini) -> Broken:
    """The model calls, the user responds."""
    for turn in request.turns:
        wrong = turn.responses if turn.role == "model" else turn.calls
        for piece in wrong:
            yield piece.path, f"{piece.key} in a content of role {quoted(turn.role)}; only the other side may say it"


def _call_place(request: Gemini) -> Broken:
    """A call comes right behind a user turn or function responses."""
    for before, turn, _ in _neighbours(request):
        if turn.calls and (before is None or before.role == "model"):
            where = "first" if before is None else f"behind another content of the model, contents[{before.at}]"
            yield turn.calls[0].path, f"the call stands {where}; put it into one content right behind the user's"


def _response_place(request: Gemini) -> Broken:
    """A response comes right behind the content with its call, which may lie in the cache."""
    cached = request.field("cachedContent")[1] is not None
    for before, turn, _ in _neighbours(request):
        if turn.responses and not (cached if before is None else before.calls):
            yield turn.responses[0].path, "the response does not follow a content with calls; drop or move it"


def _count(request: Gemini) -> Broken:
    """The content behind calls has as many responses as there are calls."""
    for _, turn, after in _neighbours(request):
        given = len(after.responses) if after is not None else 0
        if turn.calls and given != len(turn.calls):
            said = f"{len(turn.calls)} calls and {given} responses in the content behind them"
            yield turn.calls[0].path, f"{said}; send one response for each call, all in one content"


def _match(request: Gemini) -> Broken:
    """A response has the id, or else the name, of a call that it answers."""
    for before, turn, _ in _neighbours(request):
        calls = before.calls if before is not None else []
        ids, names = {call.id() for call in calls} - {""}, {str(call.name()) for call in calls}
        open_names = {str(call.name()) for call in calls if not call.id()}
        for piece in turn.responses if calls else ():
            if piece.id() and piece.id() not in ids and str(piece.name()) not in open_names:
                yield f"{piece.path}.id", f"id {quoted(piece.id())} is of no call before it; send the id of the call"
            elif str(piece.name()) not in names:
                yield f"{piece.path}.name", f"name {quoted(piece.name())} is of no call before it; send the call's name"


def _unique_ids(request: Gemini) -> Broken:
    """Ids of calls are unique over the whole request."""
    seen: dict[str, Piece] = {}
    for piece in request.kinds("functionCall"):
        first = seen.setdefault(piece.id(), piece) if piece.id() else piece
        if first is not piece:
            yield f"{piece.path}.id", f"id {piece.id()} was used at {first.path} already; give each call its own"


def _names(request: Gemini) -> Broken:
    """Names of calls and responses begin with a letter or _ and have up to 128 letters, digits and _.:-."""
    for piece in request.kinds("functionCall", "functionResponse"):
        name = piece.name()
        if not is_gemini_name(name):
            yield f"{piece.path}.name", f"name {quoted(name)} is none a function may have; rename it"


def _args(request: Gemini) -> Broken:
    """The arguments of a call are an object."""
    for piece in request.kinds("functionCall"):
        args = piece.value.get("args") if isinstance(piece.value, dict) else None
        if args is not None and not isinstance(args, dict):
            yield f"{piece.path}.args", f"args is {type_name(args)}; send a JSON object"


def _response(request: Gemini) -> Broken:
    """What a function responds is an object."""
    for piece in request.kinds("functionResponse"):
        response = piece.value.get("response") if isinstance(piece.value, dict) else None
        if not isinstance(response, dict):
            path = f"{piece.path}.response"
            yield path, f"response is {type_name(response)}; send an object, as {{'output': …}}"


# -- thought signatures ------------------------------------------------------------------------------------------------


def _current(request: Gemini) -> list[Turn]:
    """Return the contents behind the last one that is the user's own words."""
    out: list[Turn] = []
    for turn in reversed(request.turns):
        if turn.role != "model" and not turn.responses:
            break
        out.append(turn)
    return out[::-1]


def _signed(request: Gemini) -> Broken:
    """The first call of each step of the current turn has its thought signature."""
    if version(request.model) < (3, 0):
        return
    for turn in _current(request):
        first = turn.calls[0] if turn.role == "model" and turn.calls else None
        if first is not None and not first.signature:
            said = f"call {first.name()!r} has no thoughtSignature"
            yield first.place, f"{said}; send the call as it came, or the documented skip_thought_signature_validator"


def _signature_form(request: Gemini) -> Broken:
    """A thought signature is base64."""
    for piece in request.pieces:
        signature = piece.signature
        if signature is not None and not (isinstance(signature, str) and _BASE64.match(signature)):
            path = f"{piece.place}.thoughtSignature"
            yield path, "the signature is no base64; send it as it came or drop it with its part"


RULES: tuple[Rule, ...] = (
    Rule("gemini.call-role", _call_role, "recalled", KNOWN),
    Rule("gemini.call-place", _call_place, "observed", MET),
    Rule("gemini.response-place", _response_place, "observed", MET),
    Rule("gemini.call-count", _count, "observed", MET),
    Rule("gemini.match", _match, "recalled", GOOGLE),
    Rule("gemini.unique-ids", _unique_ids, "observed", MET),
    Rule("gemini.name-pattern", _names, "documented", GOOGLE),
    Rule("gemini.args-object", _args, "documented", GOOGLE),
    Rule("gemini.response-object", _response, "documented", GOOGLE),
    Rule("gemini.signed", _signed, "documented", GOOGLE, "Gemini 3 and later"),
    Rule("gemini.signature-form", _signature_form, "documented", GOOGLE),
)
"""The rules about calls and signatures."""
