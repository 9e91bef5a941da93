"""Tools that are offered in another API's form, read by that API's reader and written by this one's writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Raw

from holdfast.providers.common import request_options as asked
from holdfast.providers.common.foreign.foreign_blocks import offered_by
from holdfast.providers.common.json.lenient_json import items_of
from holdfast.providers.common.json.raw_json import spliced, value, write
from holdfast.providers.fix.work import Mend, Work
from holdfast.providers.recognize import body_fields
from holdfast.providers.registry import FORMS
from holdfast.providers.rules import Finding

_A, _C, _R, _G = "anthropic", "openai-chat", "openai-responses", "gemini"
_FIELD = "tools"
_CHOICE = ("tool_choice", "toolConfig", "tool_config")
"""Fields that say which tools may or must be called."""


def offered(body: bytes, work: Work, _errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with tools in another API's form in that of its own; those that only that API has stay.

    Which of them is to be called is said as this API says it, where the tools are all of one other.
    """
    form, found = work.form, body_fields(body)
    pairs = [(offered_by(value(raw)), raw) for raw in items_of(found.get(_FIELD))]
    foreign = {kind.apis[0] for kind, _ in pairs if kind is not None and form.api not in kind.apis}
    new: list[object] = []
    edits = []
    for kind, run in groupby(pairs, key=lambda pair: pair[0]):
        raws = [raw for _, raw in run]
        made, gone = _anew(raws, kind.apis[0], form.api) if kind and kind.apis[0] in foreign else ([], [])
        if made and kind is not None:
            place = f"$.{_FIELD}[{pairs.index((kind, raws[0]))}]"
            why = [f"{len(raws)} × {kind.told}: written as {form.name} has it", *gone]
            edits += [Mend("foreign-form", one, place) for one in why]
        new += made or raws
    if not edits:
        return body, []
    chosen = _chosen(found, next(iter(foreign)), form.api) if len(foreign) == 1 else {}
    rest = {key: raw for key, raw in found.items() if not chosen or key not in _CHOICE}
    return write({**rest, _FIELD: new, **chosen}) if chosen else spliced(body, found, {_FIELD: write(new)}), edits


def _anew(raws: Sequence[Raw], of: str, to: str) -> tuple[list[object], list[str]]:
    """Return tools of one API as another has them, and a note on each among them that only the one has."""
    asks = asked.read(of, {_FIELD: Raw(write(raws))}, FORMS[of].field)
    notes = [f"the tool {other}: only functions of the client's have a form there" for other in asks.others]
    return list(asked.write(to, asked.Asked(tools=asks.tools))[0].get(_FIELD, ())), notes


def _chosen(found: Mapping[str, Raw], of: str, to: str) -> dict[str, Any]:
    """Return the fields by which ``to`` says which tools are to be called, as a body says it in the form of ``of``.

    Nothing where the body says it as ``to`` does.
    """
    asks = asked.read(of, {key: found[key] for key in _CHOICE if key in found}, FORMS[of].field)
    if not asks.choice or to in _sayers(found):
        return {}
    wish = asked.Asked(tools=(asked.Tool(asks.chosen),), choice=asks.choice, chosen=asks.chosen, parallel=asks.parallel)
    written = asked.write(to, wish)[0]
    return {key: written[key] for key in (*_CHOICE, "parallel_tool_calls") if key in written}


def _sayers(found: Mapping[str, Raw]) -> Sequence[str]:
    """Return the APIs in whose form a body says which tools are to be called."""
    choice = value(found.get("tool_choice", Raw(b"null")))
    if choice is None:
        return (_G,)
    if isinstance(choice, str):
        return (_C, _R)
    type_ = choice.get("type") if isinstance(choice, Mapping) else None
    if type_ in ("auto", "any", "tool", "none"):
        return (_A,)
    return (_C,) if isinstance(type_, str) and isinstance(choice.get(type_), Mapping) else (_R,)
