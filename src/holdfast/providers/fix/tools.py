"""Tools that are offered in another API's form, read by that API's reader and written by this one's writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Raw

from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_items
from holdfast.providers.common.json.raw_json import decode_json_value, encode_json, replace_json_fields
from holdfast.providers.common.portable_options import FunctionTool, PortableOptions
from holdfast.providers.fix.fix_context import FixContext, RequestFix
from holdfast.providers.foreign.foreign_blocks import classify_tool_declaration
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.options import read_request_options, write_request_options
from holdfast.providers.rules.rule import Finding

_TOOLS_FIELD = "tools"
_TOOL_CHOICE_FIELDS = tuple(
    dict.fromkeys(field for spec in API_SPECS.values() for field in spec.options.tool_choice_fields)
)
"""Fields that say which tools may or must be called."""


def translate_foreign_tools(
    body: bytes, work: FixContext, _errors: Sequence[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Return the body with tools in another API's form in that of its own; those that only that API has stay.

    Which of them is to be called is said as this API says it, where the tools are all of one other.
    """
    spec, fields = work.spec, parse_body_fields(body)
    pairs = [
        (classify_tool_declaration(decode_json_value(raw)), raw) for raw in read_json_items(fields.get(_TOOLS_FIELD))
    ]
    foreign = {kind.apis[0] for kind, _ in pairs if kind is not None and spec.api not in kind.apis}
    new: list[object] = []
    edits = []
    for kind, run in groupby(pairs, key=lambda pair: pair[0]):
        raws = [raw for _, raw in run]
        new_tools, losses = (
            _translate_tools(raws, kind.apis[0], spec.api) if kind and kind.apis[0] in foreign else ([], [])
        )
        if new_tools and kind is not None:
            place = f"$.{_TOOLS_FIELD}[{pairs.index((kind, raws[0]))}]"
            why = [f"{len(raws)} × {kind.description}: written as {spec.display_name} has it", *losses]
            edits += [RequestFix("foreign-form", reason, place) for reason in why]
        new += new_tools or raws
    if not edits:
        return body, []
    chosen = _translate_tool_choice(fields, next(iter(foreign)), spec.api) if len(foreign) == 1 else {}
    other_fields = {key: raw for key, raw in fields.items() if not chosen or key not in _TOOL_CHOICE_FIELDS}
    return encode_json({**other_fields, _TOOLS_FIELD: new, **chosen}) if chosen else replace_json_fields(
        body, fields, {_TOOLS_FIELD: encode_json(new)}
    ), edits


def _translate_tools(raws: Sequence[Raw], source_api: str, target_api: str) -> tuple[list[object], list[str]]:
    """Return tools of one API as another has them, and a note on each among them that only the one has."""
    asks = read_request_options(
        source_api, {_TOOLS_FIELD: Raw(encode_json(raws))}, API_SPECS[source_api].messages_field
    )
    notes = [
        f"the tool {tool_type}: only functions of the client's have a form there" for tool_type in asks.other_tools
    ]
    return list(write_request_options(target_api, PortableOptions(tools=asks.tools))[0].get(_TOOLS_FIELD, ())), notes


def _translate_tool_choice(fields: Mapping[str, Raw], source_api: str, target_api: str) -> dict[str, Any]:
    """Return the fields by which ``target_api`` says which tools are to be called, as a body says it in the form of
    ``source_api``.

    Nothing where the body says it as ``target_api`` does.
    """
    asks = read_request_options(
        source_api,
        {key: fields[key] for key in _TOOL_CHOICE_FIELDS if key in fields},
        API_SPECS[source_api].messages_field,
    )
    if not asks.tool_choice or target_api in _find_tool_choice_apis(fields):
        return {}
    portable_options = PortableOptions(
        tools=(FunctionTool(asks.chosen_tool),),
        tool_choice=asks.tool_choice,
        chosen_tool=asks.chosen_tool,
        parallel_calls=asks.parallel_calls,
    )
    new_fields = write_request_options(target_api, portable_options)[0]
    return {key: new_fields[key] for key in (*_TOOL_CHOICE_FIELDS, "parallel_tool_calls") if key in new_fields}


def _find_tool_choice_apis(fields: Mapping[str, Raw]) -> Sequence[str]:
    """Return the APIs in whose form a body says which tools are to be called."""
    choice = decode_json_value(fields.get("tool_choice", Raw(b"null")))
    return [spec.api for spec in API_SPECS.values() if spec.options.is_own_tool_choice(choice)]
