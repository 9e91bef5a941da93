"""Translate tools that are declared in another API's form: read by that API's reader, written by this one's writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Raw, Struct

from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_items
from holdfast.providers.common.json.raw_json import decode_json_value, encode_json, replace_json_fields
from holdfast.providers.common.portable_options import FunctionTool, PortableOptions
from holdfast.providers.fix.blocks import encode_raw
from holdfast.providers.fix.fix_context import FixContext, RequestFix
from holdfast.providers.foreign.foreign_blocks import BlockOrigin, classify_tool_declaration
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.options import read_request_options, write_request_options
from holdfast.providers.rules.rule import Finding

_TOOLS_FIELD = "tools"
_TOOL_CHOICE_FIELDS = tuple(
    dict.fromkeys(field for spec in API_SPECS.values() for field in spec.options.tool_choice_fields)
)
"""Fields that say which tools may or must be called, of all APIs."""


class _DeclaredTool(Struct, frozen=True):
    index: int
    raw: Raw
    origin: BlockOrigin | None
    """The form the tool is declared in, or None if no API's form is recognized."""


def translate_foreign_tools(
    body: bytes, context: FixContext, _errors: Sequence[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Translate tools in another API's form to that of this one; tools that only the other API has stay as they are.

    The tool choice is translated too, if all foreign tools are of one API, so that it is clear who reads it.
    """
    spec = context.spec
    fields = parse_body_fields(body)
    tools = []
    for index, raw in enumerate(read_json_items(fields.get(_TOOLS_FIELD))):
        tools.append(_DeclaredTool(index, raw, classify_tool_declaration(decode_json_value(raw))))
    foreign_apis = {tool.origin.apis[0] for tool in tools if tool.origin and spec.api not in tool.origin.apis}
    new_tools: list[object] = []
    fixes = []
    # Runs of one form are translated together: Gemini declares many functions in one tool.
    for origin, run in groupby(tools, key=lambda tool: tool.origin):
        run_tools = list(run)
        raws = [tool.raw for tool in run_tools]
        if origin is None or origin.apis[0] not in foreign_apis:
            new_tools += raws
            continue
        translated_tools, losses = _translate_tools(raws, origin.apis[0], spec.api)
        # Built-in tools of another API have no form here.
        if not translated_tools:
            new_tools += raws
            continue
        new_tools += translated_tools
        path = f"$.{_TOOLS_FIELD}[{run_tools[0].index}]"
        reasons = [f"{len(raws)} × {origin.description}: rewritten in the form of {spec.display_name}", *losses]
        fixes += [RequestFix("foreign-form", reason, path) for reason in reasons]
    if not fixes:
        return body, []
    # With tools of several APIs it is not clear in whose form the choice is.
    if len(foreign_apis) == 1:
        choice_fields = _translate_tool_choice(fields, next(iter(foreign_apis)), spec.api)
    else:
        choice_fields = {}
    if not choice_fields:
        return replace_json_fields(body, fields, {_TOOLS_FIELD: encode_json(new_tools)}), fixes
    other_fields = {key: raw for key, raw in fields.items() if key not in _TOOL_CHOICE_FIELDS}
    return encode_json({**other_fields, _TOOLS_FIELD: new_tools, **choice_fields}), fixes


def _translate_tools(raws: Sequence[Raw], source_api: str, target_api: str) -> tuple[list[object], list[str]]:
    """Translate tools of one API to another; return them with a note on each that the other cannot have."""
    source_options = read_request_options(
        source_api, {_TOOLS_FIELD: encode_raw(raws)}, API_SPECS[source_api].messages_field
    )
    losses = []
    for tool_type in source_options.other_tools:
        losses.append(f"the tool {tool_type}: left out, only functions of the client can be converted")
    target_fields = write_request_options(target_api, PortableOptions(tools=source_options.tools))[0]
    return list(target_fields.get(_TOOLS_FIELD, ())), losses


def _translate_tool_choice(fields: Mapping[str, Raw], source_api: str, target_api: str) -> dict[str, Any]:
    """Translate the tool choice in the fields of a body from one API to another.

    The result is empty if the body has no choice in the source's form, or has one in the target's form already.
    """
    choice_fields = {key: fields[key] for key in _TOOL_CHOICE_FIELDS if key in fields}
    source_options = read_request_options(source_api, choice_fields, API_SPECS[source_api].messages_field)
    if not source_options.tool_choice or target_api in _find_tool_choice_apis(fields):
        return {}
    portable_options = PortableOptions(
        tools=(FunctionTool(source_options.chosen_tool),),  # writers leave a choice out where there are no tools
        tool_choice=source_options.tool_choice,
        chosen_tool=source_options.chosen_tool,
        parallel_calls=source_options.parallel_calls,
    )
    target_fields = write_request_options(target_api, portable_options)[0]
    tool_choice: dict[str, Any] = {}
    for key in (*_TOOL_CHOICE_FIELDS, "parallel_tool_calls"):
        if key in target_fields:
            tool_choice[key] = target_fields[key]
    return tool_choice


def _find_tool_choice_apis(fields: Mapping[str, Raw]) -> Sequence[str]:
    """Return the APIs that write ``tool_choice`` in the form of a body; several share simple forms."""
    choice = decode_json_value(fields.get("tool_choice", Raw(b"null")))
    tool_choice_apis: list[str] = []
    for spec in API_SPECS.values():
        if spec.options.is_own_tool_choice(choice):
            tool_choice_apis.append(spec.api)
    return tool_choice_apis
