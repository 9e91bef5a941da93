"""How a provider refuses a request that breaks a rule of ``lint``: in its own words, in its own shape.

Where the words are known they are used (``wordings``); else the place, and what our own finding says.
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
"""Code and text where a rule has none of its own."""


def make_rule_refusal(api: str, findings: Sequence[Finding], body: Any) -> RefusalReply | None:
    """Return how the provider refuses a request with these findings, nothing when none of them is an error."""
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return None
    first = next((finding for finding in errors if finding.rule in ANTHROPIC_ERROR_CODES), errors[0])
    at = parse_json_place(first.path, body)
    if first.rule == "json":
        return make_unreadable_json_refusal(api, first.message.partition("; ")[0])
    code, usual = _USUAL_WORDINGS[api]
    choose = _SPECIAL_WORDINGS.get(first.rule)
    chosen = choose(at, errors) if choose is not None else None
    template = RULE_WORDINGS.get(first.rule, usual) if chosen is None else ""
    code, text = chosen or (code, template.format(**_make_wording_fields(api, at, first)))
    details: dict[str, str | int] = (
        {"error_code": ANTHROPIC_ERROR_CODES[first.rule]} if first.rule in ANTHROPIC_ERROR_CODES else {}
    )
    if api.startswith("openai"):
        details["param"] = _get_param(api, at)
    return RefusalReply(400, OPENAI_ERROR_CODES.get(first.rule, code), text, details=details)


def _get_param(api: str, place: JsonPlace) -> str:
    return place.format_path(api) or {"openai-chat": "messages"}.get(api, "input")


def _make_wording_fields(api: str, place: JsonPlace, finding: Finding) -> dict[str, Any]:
    """Return what a wording may name."""
    owner = place.get_value() if isinstance(place.get_value(), dict) else place.get_value(1)
    owner = owner if isinstance(owner, dict) else {}
    call = owner.get("functionCall", owner.get("function_call"))
    parts = place.get_value(1)
    return {
        "path": place.format_path(api),
        "value": place.get_value(),
        "at": place.message_index,
        "block": JsonPlace(place.body, place.steps[:4]).format_path(api),
        "words": finding.message.partition("; ")[0],
        "id": owner.get("id"),
        "call": str(owner.get("type")).removesuffix("_output").replace("_", " "),
        "name": call.get("name") if isinstance(call, dict) else "",
        "position": parts.index(owner) + 1 if isinstance(parts, list) and owner in parts else 1,
    }


# -- wordings that depend on what stands there -------------------------------------------------------------------------

_CodeAndText = tuple[str, str] | None
"""Code and text."""
_INVALID_REQUEST = "invalid_request_error"


def _word_missing_results(json_place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    places = [parse_json_place(finding.path, json_place.body) for finding in errors if finding.rule == "anthropic.pair"]
    return _word_calls_without_results(
        json_place.message_index,
        [str(finding.get_value()) for finding in places if finding.message_index == json_place.message_index],
    )


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
    block = place.get_value() if isinstance(place.get_value(), dict) else place.get_value(1)
    name, id_ = (block.get("name"), block.get("id")) if isinstance(block, dict) else (None, None)
    if name is None:
        return None
    return (
        _INVALID_REQUEST,
        f"`{name}` tool use with id `{id_}` was found without a corresponding `{name}_tool_result` block",
    )


def _word_cache_count(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    if place.steps == ("cache_control",):
        return _INVALID_REQUEST, "no cache_control slot left for automatic caching"
    count = errors[0].message.partition(" ")[0]
    return _INVALID_REQUEST, f"A maximum of 4 blocks with cache_control may be provided. Found {count}."


def _word_chat_pair(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    calls, messages = place.get_value(), place.body["messages"]
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
    """Return what OpenAI says of a value of the wrong type, length or size."""
    del errors
    value, path = place.get_value(), place.format_path("openai")
    if value == [] and place.steps[-1:] in (("content",), ("tool_calls",)):
        problem = "empty array. Expected an array with minimum length 1, but got an empty array instead."
        return "empty_array", f"Invalid '{path}': {problem}"
    if value is None and place.steps[-1:] == ("content",):
        return "invalid_type", "Invalid value for 'content': expected a string, got null."
    if isinstance(value, dict) and place.steps[-1:] == ("arguments",):
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
    allowed_types = "'output_text' and 'refusal'" if is_assistant else "'input_text', 'input_image' and 'input_file'"
    value = place.get_field("type") or place.get_value()
    return "invalid_value", f"Invalid value: '{value}'. Supported values are: {allowed_types}."


_ITEM_ID_PREFIXES = {"function_call": "fc", "reasoning": "rs", "message": "msg"}


def _word_id_prefix(place: JsonPlace, errors: Sequence[Finding]) -> _CodeAndText:
    del errors
    prefix = _ITEM_ID_PREFIXES.get(str(place.get_field("type", drop=1)), "msg")
    problem = f"'{place.get_value()}'. Expected an ID that begins with '{prefix}'."
    return "invalid_value", f"Invalid '{place.format_path('openai')}': {problem}"


_SPECIAL_WORDINGS: dict[str, Callable[[JsonPlace, Sequence[Finding]], _CodeAndText]] = {
    "anthropic.pair": _word_missing_results,
    "anthropic.results-first": _word_results_behind_text,
    "anthropic.block-role": _word_block_role,
    "anthropic.server-pair": _word_server_pair,
    "anthropic.cache-count": _word_cache_count,
    "openai-chat.pair": _word_chat_pair,
    "openai-chat.content": _word_wrong_type,
    "openai-chat.tool-calls": _word_wrong_type,
    "openai-chat.call-shape": _word_wrong_type,
    "openai-chat.parts": _word_chat_part,
    "openai-chat.ids": _word_long_string,
    "openai-responses.parts": _word_item_part,
    "openai-responses.call-id": _word_long_string,
    "openai-responses.id-prefix": _word_id_prefix,
}
"""Rules whose words depend on what stands at the place; nothing = the usual words."""


class JsonPlace(Struct, frozen=True):
    """Where a finding points into a body."""

    body: Any
    steps: tuple[str | int, ...]

    def get_value(self, drop: int = 0) -> Any:
        """Return what stands there, or ``drop`` steps above it; nothing when that is not there."""
        current = self.body
        for step in self.steps[: len(self.steps) - drop]:
            try:
                current = current[step]
            except (KeyError, IndexError, TypeError):
                return None
        return current

    def get_field(self, name: str, drop: int = 0) -> Any:
        """Return a field of what stands there, or ``drop`` steps above it."""
        value = self.get_value(drop)
        return value.get(name) if isinstance(value, dict) else None

    @property
    def message_index(self) -> int:
        """Index of the message, item or content it lies in; -1 outside of all."""
        return next((step for step in self.steps if isinstance(step, int)), -1)

    def format_path(self, api: str) -> str:
        """Return the path as ``api`` writes it."""
        if api == "anthropic":
            return ".".join(self._list_typed_steps())
        steps = [_to_snake_case(step) if api == "gemini" and isinstance(step, str) else step for step in self.steps]
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")

    def _list_typed_steps(self) -> list[str]:
        """Return the steps with the type of a block behind its number: ``messages.1.content.0.tool_use.id``."""
        out: list[str] = []
        for at, step in enumerate(self.steps):
            out.append(str(step))
            above = JsonPlace(self.body, self.steps[: at + 1])
            if isinstance(step, int) and "content" in out[-2:] and at + 1 < len(self.steps) and above.get_field("type"):
                out.append(str(above.get_field("type")))
        return out


def parse_json_place(path: str, body: Any) -> JsonPlace:
    """Return the place of a JSON path such as ``$.messages[1].content[0].id``."""
    return JsonPlace(body, tuple([int(number) if number else name for number, name in _PATH_STEP.findall(path)]))


def _to_snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: "_" + match[1].lower(), name)
