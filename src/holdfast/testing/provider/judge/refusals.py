"""How a provider refuses a request that breaks a rule of ``lint``: in its own words, in its own shape.

Where the words are known they are used (``wordings``); else the place, and what our own finding says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from holdfast.providers.rules import Finding
from holdfast.testing.provider.calls import Refusal
from holdfast.testing.provider.judge.wordings import CODES, DETAILS, WORDS
from holdfast.testing.provider.reading import unreadable

_STEP = re.compile(r"\[(\d+)\]|\.([^.\[\]]+)")

_USUAL = {
    "anthropic": ("invalid_request_error", "{path}: {words}"),
    "openai-chat": ("invalid_value", "Invalid value for '{path}': {words}."),
    "openai-responses": ("invalid_value", "Invalid value for '{path}': {words}."),
    "gemini": ("INVALID_ARGUMENT", "Invalid value at '{path}': {words}"),
}
"""Code and text where a rule has none of its own."""


def refuse(api: str, findings: Sequence[Finding], body: Any) -> Refusal | None:
    """Return how the provider refuses a request with these findings, nothing when none of them is an error."""
    errors = [one for one in findings if one.level == "error"]
    if not errors:
        return None
    first = next((one for one in errors if one.rule in DETAILS), errors[0])
    at = place(first.path, body)
    if first.rule == "json":
        return unreadable(api, first.message.partition("; ")[0])
    code, usual = _USUAL[api]
    choose = _CHOSEN.get(first.rule)
    chosen = choose(at, errors) if choose is not None else None
    said = WORDS.get(first.rule, usual) if chosen is None else ""
    code, text = chosen or (code, said.format(**_context(api, at, first)))
    details: dict[str, str | int] = {"error_code": DETAILS[first.rule]} if first.rule in DETAILS else {}
    if api.startswith("openai"):
        details["param"] = _param(api, at)
    return Refusal(400, CODES.get(first.rule, code), text, details=details)


def _param(api: str, at: Place) -> str:
    return at.named(api) or {"openai-chat": "messages"}.get(api, "input")


def _context(api: str, at: Place, found: Finding) -> dict[str, Any]:
    """Return what a wording may name."""
    owner = at.value() if isinstance(at.value(), dict) else at.value(1)
    owner = owner if isinstance(owner, dict) else {}
    call = owner.get("functionCall", owner.get("function_call"))
    parts = at.value(1)
    return {
        "path": at.named(api),
        "value": at.value(),
        "at": at.message,
        "block": Place(at.body, at.steps[:4]).named(api),
        "words": found.message.partition("; ")[0],
        "id": owner.get("id"),
        "call": str(owner.get("type")).removesuffix("_output").replace("_", " "),
        "name": call.get("name") if isinstance(call, dict) else "",
        "position": parts.index(owner) + 1 if isinstance(parts, list) and owner in parts else 1,
    }


# -- wordings that depend on what stands there -------------------------------------------------------------------------

_Said = tuple[str, str] | None
"""Code and text."""
_BAD = "invalid_request_error"


def _unanswered(at: Place, errors: Sequence[Finding]) -> _Said:
    places = [place(one.path, at.body) for one in errors if one.rule == "anthropic.pair"]
    return _without_results(at.message, [str(one.value()) for one in places if one.message == at.message])


def _behind_text(at: Place, errors: Sequence[Finding]) -> _Said:
    del errors
    return _without_results(at.message - 1, [str(at.field("tool_use_id"))])


def _without_results(message: int, ids: Sequence[str]) -> _Said:
    said = f"messages.{message}: `tool_use` ids were found without `tool_result` blocks immediately after:"
    rule = "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    return _BAD, f"{said} {', '.join(ids)}. {rule}"


def _block_role(at: Place, errors: Sequence[Finding]) -> _Said:
    del errors
    kind = at.field("type")
    role = "user" if kind == "tool_result" else "assistant"
    return _BAD, f"messages.{at.message}: `{kind}` blocks can only be in `{role}` messages"


def _server_pair(at: Place, errors: Sequence[Finding]) -> _Said:
    del errors
    block = at.value() if isinstance(at.value(), dict) else at.value(1)
    name, id_ = (block.get("name"), block.get("id")) if isinstance(block, dict) else (None, None)
    if name is None:
        return None
    return _BAD, f"`{name}` tool use with id `{id_}` was found without a corresponding `{name}_tool_result` block"


def _cache_count(at: Place, errors: Sequence[Finding]) -> _Said:
    if at.steps == ("cache_control",):
        return _BAD, "no cache_control slot left for automatic caching"
    found = errors[0].message.partition(" ")[0]
    return _BAD, f"A maximum of 4 blocks with cache_control may be provided. Found {found}."


def _chat_pair(at: Place, errors: Sequence[Finding]) -> _Said:
    del errors
    calls, messages = at.value(), at.body["messages"]
    ids = [str(call.get("id")) for call in calls if isinstance(call, dict)]
    for message in messages[at.message + 1 :]:
        if not isinstance(message, dict) or message.get("role") != "tool":
            break
        ids = [id_ for id_ in ids if id_ != message.get("tool_call_id")]
    said = "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
    return "", f"{said} The following tool_call_ids did not have response messages: {', '.join(ids)}"


def _type(at: Place, errors: Sequence[Finding]) -> _Said:
    """Return what OpenAI says of a value of the wrong type, length or size."""
    del errors
    value, path = at.value(), at.named("openai")
    if value == [] and at.steps[-1:] in (("content",), ("tool_calls",)):
        said = "empty array. Expected an array with minimum length 1, but got an empty array instead."
        return "empty_array", f"Invalid '{path}': {said}"
    if value is None and at.steps[-1:] == ("content",):
        return "invalid_type", "Invalid value for 'content': expected a string, got null."
    if isinstance(value, dict) and at.steps[-1:] == ("arguments",):
        return "invalid_type", f"Invalid type for '{path}': expected a string, but got an object instead."
    return None


def _long(at: Place, errors: Sequence[Finding]) -> _Said:
    del errors
    value = at.value()
    if not isinstance(value, str) or not value:
        return None
    said = f"Expected a string with maximum length 64, but got a string with length {len(value)} instead."
    return "string_above_max_length", f"Invalid '{at.named('openai')}': string too long. {said}"


_SUPPORTED = {"user": "'text', 'image_url', 'input_audio' and 'file'", "assistant": "'text' and 'refusal'"}


def _chat_part(at: Place, errors: Sequence[Finding]) -> _Said:
    del errors
    role = Place(at.body, at.steps[:2]).field("role")
    most = _SUPPORTED.get(str(role), "'text'")
    return "invalid_value", f"Invalid value: '{at.value()}'. Supported values are: {most}."


def _item_part(at: Place, errors: Sequence[Finding]) -> _Said:
    del errors
    said = Place(at.body, at.steps[:2]).field("role") == "assistant"
    most = "'output_text' and 'refusal'" if said else "'input_text', 'input_image' and 'input_file'"
    value = at.field("type") or at.value()
    return "invalid_value", f"Invalid value: '{value}'. Supported values are: {most}."


_PREFIXES = {"function_call": "fc", "reasoning": "rs", "message": "msg"}


def _prefix(at: Place, errors: Sequence[Finding]) -> _Said:
    del errors
    wanted = _PREFIXES.get(str(at.field("type", drop=1)), "msg")
    said = f"'{at.value()}'. Expected an ID that begins with '{wanted}'."
    return "invalid_value", f"Invalid '{at.named('openai')}': {said}"


_CHOSEN: dict[str, Callable[[Place, Sequence[Finding]], _Said]] = {
    "anthropic.pair": _unanswered,
    "anthropic.results-first": _behind_text,
    "anthropic.block-role": _block_role,
    "anthropic.server-pair": _server_pair,
    "anthropic.cache-count": _cache_count,
    "openai-chat.pair": _chat_pair,
    "openai-chat.content": _type,
    "openai-chat.tool-calls": _type,
    "openai-chat.call-shape": _type,
    "openai-chat.parts": _chat_part,
    "openai-chat.ids": _long,
    "openai-responses.parts": _item_part,
    "openai-responses.call-id": _long,
    "openai-responses.id-prefix": _prefix,
}
"""Rules whose words depend on what stands at the place; nothing = the usual words."""


class Place(Struct, frozen=True):
    """Where a finding points into a body."""

    body: Any
    steps: tuple[str | int, ...]

    def value(self, drop: int = 0) -> Any:
        """Return what stands there, or ``drop`` steps above it; nothing when that is not there."""
        found = self.body
        for step in self.steps[: len(self.steps) - drop]:
            try:
                found = found[step]
            except (KeyError, IndexError, TypeError):
                return None
        return found

    def field(self, name: str, drop: int = 0) -> Any:
        """Return a field of what stands there, or ``drop`` steps above it."""
        value = self.value(drop)
        return value.get(name) if isinstance(value, dict) else None

    @property
    def message(self) -> int:
        """Index of the message, item or content it lies in; -1 outside of all."""
        return next((step for step in self.steps if isinstance(step, int)), -1)

    def named(self, api: str) -> str:
        """Return the path as ``api`` writes it."""
        if api == "anthropic":
            return ".".join(self._with_types())
        steps = [_snake(step) if api == "gemini" and isinstance(step, str) else step for step in self.steps]
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")

    def _with_types(self) -> list[str]:
        """Return the steps with the type of a block behind its number: ``messages.1.content.0.tool_use.id``."""
        out: list[str] = []
        for at, step in enumerate(self.steps):
            out.append(str(step))
            above = Place(self.body, self.steps[: at + 1])
            if isinstance(step, int) and "content" in out[-2:] and at + 1 < len(self.steps) and above.field("type"):
                out.append(str(above.field("type")))
        return out


def place(path: str, body: Any) -> Place:
    """Return the place of a JSON path such as ``$.messages[1].content[0].id``."""
    return Place(body, tuple([int(number) if number else name for number, name in _STEP.findall(path)]))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda found: "_" + found[1].lower(), name)
