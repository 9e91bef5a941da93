"""Build the refusal of a request that breaks a rule, in the wording and form of the provider.

Known wordings are in ``rule_wordings``; for other rules the refusal has the path and the message of our own finding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from holdfast.providers.rules.rule import Finding
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.checks.rule_wordings import ANTHROPIC_ERROR_CODES, OPENAI_ERROR_CODES, RULE_WORDINGS
from holdfast.testing.provider.parse_request import make_unreadable_json_refusal

_PATH_STEP = re.compile(r"\[(\d+)\]|\.([^.\[\]]+)")

_USUAL_WORDINGS = {
    "anthropic": ("invalid_request_error", "{path}: {words}"),
    "openai-chat": ("invalid_value", "Invalid value for '{path}': {words}."),
    "openai-responses": ("invalid_value", "Invalid value for '{path}': {words}."),
    "gemini": ("INVALID_ARGUMENT", "Invalid value at '{path}': {words}"),
}
"""Code and text of refusals for rules without a wording of their own."""


def make_rule_refusal(api: str, findings: Sequence[Finding], body: Any) -> RefusalReply | None:
    """Build the refusal of a request with these findings, or return None without an error among them.

    Providers report one error. It is the first, but errors with a code of their own are checked before all others.
    """
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return None
    error = errors[0]
    for finding in errors:
        if finding.rule in ANTHROPIC_ERROR_CODES:
            error = finding
            break
    if error.rule == "json":
        return make_unreadable_json_refusal(api, error.message.partition("; ")[0])
    place = parse_json_place(error.path, body)
    build_wording = _SPECIAL_WORDINGS.get(error.rule)
    special_wording = build_wording(place, errors) if build_wording is not None else None
    if special_wording is not None:
        code, text = special_wording
    else:
        code, usual_template = _USUAL_WORDINGS[api]
        template = RULE_WORDINGS.get(error.rule, usual_template)
        text = template.format(**_make_wording_fields(api, place, error))
    details: dict[str, str | int] = {}
    if error.rule in ANTHROPIC_ERROR_CODES:
        details["error_code"] = ANTHROPIC_ERROR_CODES[error.rule]
    if api.startswith("openai"):
        details["param"] = _get_param(api, place)
    return RefusalReply(400, OPENAI_ERROR_CODES.get(error.rule, code), text, details=details)


def _get_param(api: str, place: JsonPlace) -> str:
    return place.format_path(api) or {"openai-chat": "messages"}.get(api, "input")


def _make_wording_fields(api: str, place: JsonPlace, finding: Finding) -> dict[str, Any]:
    """Return the fields that a wording may use."""
    value = place.get_value()
    # The finding points at a block or item, or at a field of one.
    owner = value if isinstance(value, dict) else place.get_value(1)
    if not isinstance(owner, dict):
        owner = {}
    call = owner.get("functionCall", owner.get("function_call"))
    parts = place.get_value(1)
    position = 1
    if isinstance(parts, list) and owner in parts:
        position = parts.index(owner) + 1
    return {
        "path": place.format_path(api),
        "value": value,
        "at": place.message_index,
        "block": JsonPlace(place.body, place.steps[:4]).format_path(api),
        "words": finding.message.partition("; ")[0],
        "id": owner.get("id"),
        "call": str(owner.get("type")).removesuffix("_output").replace("_", " "),
        "name": call.get("name") if isinstance(call, dict) else "",
        "position": position,
    }


# -- wordings that depend on the value ---------------------------------------------------------------------------------

_CodeAndText = tuple[str, str] | None
"""Code and text of a refusal, or None for the usual wording of the rule."""
_INVALID_REQUEST = "invalid_request_error"


def _word_missing_results(json_place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    # Anthropic lists all ids of the message in one error, where the validator has a finding for each.
    ids = []
    for error in errors:
        if error.rule == "anthropic.pair":
            error_place = parse_json_place(error.path, json_place.body)
            if error_place.message_index == json_place.message_index:
                ids.append(str(error_place.get_value()))
    return _word_calls_without_results(json_place.message_index, ids)


def _word_results_behind_text(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    return _word_calls_without_results(place.message_index - 1, [str(place.get_field("tool_use_id"))])


def _word_calls_without_results(message: int, ids: Sequence[str]) -> _CodeAndText:
    problem = f"messages.{message}: `tool_use` ids were found without `tool_result` blocks immediately after:"
    rule = "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    return _INVALID_REQUEST, f"{problem} {', '.join(ids)}. {rule}"


def _word_block_role(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    kind = place.get_field("type")
    role = "user" if kind == "tool_result" else "assistant"
    return _INVALID_REQUEST, f"messages.{place.message_index}: `{kind}` blocks can only be in `{role}` messages"


def _word_server_pair(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    value = place.get_value()
    block = value if isinstance(value, dict) else place.get_value(1)
    if not isinstance(block, dict) or block.get("name") is None:
        return None
    name = block["name"]
    text = f"`{name}` tool use with id `{block.get('id')}` was found without a corresponding `{name}_tool_result` block"
    return _INVALID_REQUEST, text


def _word_cache_count(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    if place.steps == ("cache_control",):
        return _INVALID_REQUEST, "no cache_control slot left for automatic caching"
    count = errors[0].message.partition(" ")[0]
    return _INVALID_REQUEST, f"A maximum of 4 blocks with cache_control may be provided. Found {count}."


def _word_chat_pair(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    calls = place.get_value()
    messages = place.body["messages"]
    ids = [str(call.get("id")) for call in calls if isinstance(call, dict)]
    for message in messages[place.message_index + 1 :]:
        if not isinstance(message, dict) or message.get("role") != "tool":
            break
        ids = [id_ for id_ in ids if id_ != message.get("tool_call_id")]
    problem = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
    )
    return "", f"{problem} The following tool_call_ids did not have response messages: {', '.join(ids)}"


def _word_wrong_type(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    """Word OpenAI's errors about a value of the wrong type or length."""
    del errors
    value = place.get_value()
    path = place.format_path("openai")
    field = place.steps[-1] if place.steps else ""
    if value == [] and field in ("content", "tool_calls"):
        problem = "empty array. Expected an array with minimum length 1, but got an empty array instead."
        return "empty_array", f"Invalid '{path}': {problem}"
    if value is None and field == "content":
        return "invalid_type", "Invalid value for 'content': expected a string, got null."
    if isinstance(value, dict) and field == "arguments":
        return "invalid_type", f"Invalid type for '{path}': expected a string, but got an object instead."
    return None


def _word_long_string(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    value = place.get_value()
    if not isinstance(value, str) or not value:
        return None
    problem = f"Expected a string with maximum length 64, but got a string with length {len(value)} instead."
    return "string_above_max_length", f"Invalid '{place.format_path('openai')}': string too long. {problem}"


_SUPPORTED_PARTS = {"user": "'text', 'image_url', 'input_audio' and 'file'", "assistant": "'text' and 'refusal'"}


def _word_chat_part(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    role = JsonPlace(place.body, place.steps[:2]).get_field("role")
    allowed_types = _SUPPORTED_PARTS.get(str(role), "'text'")
    return "invalid_value", f"Invalid value: '{place.get_value()}'. Supported values are: {allowed_types}."


def _word_item_part(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    is_assistant = JsonPlace(place.body, place.steps[:2]).get_field("role") == "assistant"
    allowed_types = "'input_text', 'input_image' and 'input_file'"
    if is_assistant:
        allowed_types = "'output_text' and 'refusal'"
    value = place.get_field("type") or place.get_value()
    return "invalid_value", f"Invalid value: '{value}'. Supported values are: {allowed_types}."


_ITEM_ID_PREFIXES = {"function_call": "fc", "reasoning": "rs", "message": "msg"}


def _word_id_prefix(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    prefix = _ITEM_ID_PREFIXES.get(str(place.get_field("type", drop=1)), "msg")
    problem = f"'{place.get_value()}'. Expected an ID that begins with '{prefix}'."
    return "invalid_value", f"Invalid '{place.format_path('openai')}': {problem}"


def _word_chat_tools(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    model = place.body.get("model")
    problem = f"Function tools with reasoning_effort are not supported for {model} in /v1/chat/completions."
    if place.steps == ("reasoning_effort",):
        return "", f"{problem} To use function tools, use /v1/responses or set reasoning_effort to 'none'."
    return "", f"{problem} Please use /v1/responses instead."


def _word_effort(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    efforts = errors[0].message.rpartition("; send ")[2].split(" or ")
    supported = ", ".join([f"'{effort}'" for effort in efforts])
    problem = f"Unsupported value: '{place.get_value()}' is not supported with the '{place.body.get('model')}' model."
    return "unsupported_value", f"{problem} Supported values are: {supported}."


def _word_item_field(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    if place.get_value() is not None:
        return None
    return "missing_required_parameter", f"Missing required parameter: '{place.format_path('openai')}'."


def _word_anthropic_schema(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    if place.steps[0] != "tools":
        words = errors[0].message.partition(": ")[2].partition("; ")[0]
        schema_index = place.steps.index("schema")
        return _INVALID_REQUEST, f"{'.'.join(map(str, place.steps[: schema_index + 1]))}: {words}"
    path = f"tools.{place.steps[1]}.custom.input_schema"
    # Only the keywords of variants, directly in the schema, have a text of their own.
    if place.steps[3:] in (("oneOf",), ("allOf",), ("anyOf",)):
        return _INVALID_REQUEST, f"{path}: input_schema does not support oneOf, allOf, or anyOf at the top level"
    problem = "JSON schema is invalid. It must match JSON Schema draft 2020-12"
    link = "https://json-schema.org/draft/2020-12"
    return _INVALID_REQUEST, f"{path}: {problem} ({link}). Learn more about tool use at https://docs.claude.com"


def _word_pdf_pages(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    # Seen with 100; the page on PDFs has the 600 too.
    allowed = errors[0].message.partition("but ")[2].partition(" ")[0]
    path = f"{place.format_path('anthropic')}.pdf.source.base64.data"
    return _INVALID_REQUEST, f"{path}: A maximum of {allowed} PDF pages may be provided."


def _word_openai_schema(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    steps = place.steps
    schema_index = steps.index("parameters") if "parameters" in steps else len(steps)
    name = JsonPlace(place.body, steps[:schema_index]).get_field("name")
    words = errors[0].message.partition(": ")[2].partition("; ")[0]
    context = ", ".join(map(repr, steps[schema_index + 1 :]))
    text = f"Invalid schema for function '{name}': In context=({context}), {words}."
    return "invalid_function_parameters", text


_SPECIAL_WORDINGS: dict[str, Callable[[JsonPlace, Sequence[Finding]], _CodeAndText]] = {
    "anthropic.pair": _word_missing_results,
    "anthropic.results-first": _word_results_behind_text,
    "anthropic.block-role": _word_block_role,
    "anthropic.server-pair": _word_server_pair,
    "anthropic.cache-count": _word_cache_count,
    "anthropic.tool-schema": _word_anthropic_schema,
    "anthropic.pdf-pages": _word_pdf_pages,
    "openai-chat.tool-schema": _word_openai_schema,
    "openai-responses.tool-schema": _word_openai_schema,
    "openai-chat.pair": _word_chat_pair,
    "openai-chat.content": _word_wrong_type,
    "openai-chat.tool-calls": _word_wrong_type,
    "openai-chat.call-shape": _word_wrong_type,
    "openai-chat.parts": _word_chat_part,
    "openai-chat.ids": _word_long_string,
    "openai-chat.model-tools": _word_chat_tools,
    "openai-chat.model-effort": _word_effort,
    "openai-responses.model-effort": _word_effort,
    "openai-responses.item-fields": _word_item_field,
    "openai-responses.parts": _word_item_part,
    "openai-responses.call-id": _word_long_string,
    "openai-responses.id-prefix": _word_id_prefix,
}
"""Rules with a wording that depends on the value at the path."""


class JsonPlace(Struct, frozen=True):
    """A place in a body that a finding points to."""

    body: Any
    steps: tuple[str | int, ...]

    def get_value(self, drop: int = 0) -> Any:
        """Return the value at this place, or ``drop`` steps above it, or None if there is no such value."""
        current = self.body
        for step in self.steps[: len(self.steps) - drop]:
            try:
                current = current[step]
            except (KeyError, IndexError, TypeError):
                return None
        return current

    def get_field(self, name: str, drop: int = 0) -> Any:
        """Return a field of the object at this place, or ``drop`` steps above it, or None."""
        value = self.get_value(drop)
        return value.get(name) if isinstance(value, dict) else None

    @property
    def message_index(self) -> int:
        """Index of the message, item or content that contains the place; -1 if it is outside of all."""
        for step in self.steps:
            if isinstance(step, int):
                return step
        return -1

    def format_path(self, api: str) -> str:
        """Format the path in the notation of ``api``."""
        if api == "anthropic":
            return ".".join(self._list_typed_steps())
        path = ""
        for step in self.steps:
            if isinstance(step, int):
                path += f"[{step}]"
            elif api == "gemini":
                path += f".{_to_snake_case(step)}"  # Gemini's errors name fields as its protocol buffers do
            else:
                path += f".{step}"
        return path.removeprefix(".")

    def _list_typed_steps(self) -> list[str]:
        """List the steps with the type of each block after its index, as in ``messages.1.content.0.tool_use.id``."""
        typed_steps: list[str] = []
        for index, step in enumerate(self.steps):
            typed_steps.append(str(step))
            is_inner_step = index + 1 < len(self.steps)
            if isinstance(step, int) and "content" in typed_steps[-2:] and is_inner_step:
                block_type = JsonPlace(self.body, self.steps[: index + 1]).get_field("type")
                if block_type:
                    typed_steps.append(str(block_type))
        return typed_steps


def parse_json_place(path: str, body: Any) -> JsonPlace:
    """Parse a JSON path such as ``$.messages[1].content[0].id``."""
    steps: list[str | int] = []
    for digits, name in _PATH_STEP.findall(path):
        steps.append(int(digits) if digits else name)
    return JsonPlace(body, tuple(steps))


def _to_snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: "_" + match[1].lower(), name)
