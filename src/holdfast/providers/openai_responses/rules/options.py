"""Rules of the Responses API about what stands beside the input."""

from __future__ import annotations

from holdfast.providers.openai_responses.rules.view import Responses
from holdfast.providers.rules.options import foreign, is_count, is_name, out_of_range
from holdfast.providers.rules.rule import KNOWN, OPENAI, Broken, Rule, quoted, type_name

_FOREIGN = ("messages", "contents", "max_tokens", "max_completion_tokens", "stop", "stop_sequences", "system",
            "systemInstruction", "generationConfig", "response_format", "reasoning_effort", "n")  # fmt: skip
"""Top-level fields of other APIs, which a converter may have left behind."""
_LEAST_OUTPUT = 16
_LEAST_THRESHOLD = 1000
_MAX_CACHE_KEY = 64
_RANGES = {"temperature": (0, 2), "top_p": (0, 1), "top_logprobs": (0, 20)}
_CHOICES = ("none", "auto", "required")
_BRINGS = frozenset({"additional_tools", "tool_search_output", "item_reference"})
_HIDES = frozenset({"namespace", "tool_search", "mcp"})
"""Items that bring tools, and tools that hold others."""
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
"""Metadata: pairs, characters of a key, of a value."""


def _foreign(request: Responses) -> Broken:
    """The body has no fields of other APIs."""
    return foreign(request, _FOREIGN)


def _history(request: Responses) -> Broken:
    """previous_response_id and conversation exclude each other."""
    if request.body.get("previous_response_id") is not None and request.body.get("conversation") is not None:
        yield "$.previous_response_id", "previous_response_id beside conversation; send one of them"


def _compaction(request: Responses) -> Broken:
    """context_management is a list of compactions with a threshold of at least 1,000 tokens."""
    value = request.body.get("context_management")
    if value is not None and not isinstance(value, list):
        yield "$.context_management", f"context_management is {type_name(value)}; send a list"
    for index, one in enumerate(request.listed("context_management")):
        path = f"$.context_management[{index}]"
        least = one.get("compact_threshold") if isinstance(one, dict) else None
        if not isinstance(one, dict) or one.get("type") != "compaction":
            yield f"{path}.type", "the only entry is {'type': 'compaction'}; send that"
        elif least is not None and not (is_count(least) and least >= _LEAST_THRESHOLD):
            yield (
                f"{path}.compact_threshold",
                f"a threshold of {quoted(least)} tokens; send a whole number of at least {_LEAST_THRESHOLD:,}",
            )


def _tools(request: Responses) -> Broken:
    """Tools are a list of objects with a type; a function has a name of letters, digits, dashes and underscores."""
    value = request.body.get("tools")
    if value is not None and not isinstance(value, list):
        yield "$.tools", f"tools is {type_name(value)}; send a list of tools"
    for index, tool in enumerate(request.listed("tools")):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            yield f"$.tools[{index}]", f"the tool is {type_name(tool)} without a type; name its type"
        elif tool["type"] in ("function", "custom"):
            name = tool.get("name")
            if not is_name(name):
                said = f"tool name {quoted(name)} does not match ^[a-zA-Z0-9_-]{{1,128}}$"
                yield f"$.tools[{index}].name", f"{said}; rename it"


def _choice(request: Responses) -> Broken:
    """tool_choice is none, auto, required, or names a tool that is offered."""
    choice = request.body.get("tool_choice")
    names = [tool.get("name") for tool in request.tools()]
    hidden = request.by_kind.keys() & _BRINGS or any(str(tool.get("type")) in _HIDES for tool in request.tools())
    if isinstance(choice, str) and choice not in _CHOICES:
        yield "$.tool_choice", f"tool_choice {quoted(choice)} is not one of {_CHOICES}; use one of them"
    elif (
        isinstance(choice, dict) and choice.get("type") == "function" and not hidden and choice.get("name") not in names
    ):
        yield "$.tool_choice.name", f"function {quoted(choice.get('name'))} is not in tools; declare it"


def _limit(request: Responses) -> Broken:
    """max_output_tokens is at least 16."""
    value = request.body.get("max_output_tokens")
    if value is not None and not (is_count(value) and value >= _LEAST_OUTPUT):
        yield "$.max_output_tokens", f"max_output_tokens is {quoted(value)}; send at least {_LEAST_OUTPUT}"


def _sampling(request: Responses) -> Broken:
    """Temperature lies from 0 to 2, top_p from 0 to 1, top_logprobs from 0 to 20."""
    return out_of_range(request, _RANGES)


def _truncation(request: Responses) -> Broken:
    """Truncation is auto or disabled."""
    value = request.body.get("truncation")
    if value not in (None, "auto", "disabled"):
        yield "$.truncation", f"truncation {quoted(value)}; send disabled"


def _cache_key(request: Responses) -> Broken:
    """prompt_cache_key has at most 64 characters."""
    value = request.body.get("prompt_cache_key")
    if isinstance(value, str) and len(value) > _MAX_CACHE_KEY:
        yield "$.prompt_cache_key", f"{len(value)} characters, {_MAX_CACHE_KEY} are allowed; shorten it"


def _metadata(request: Responses) -> Broken:
    """Metadata are at most 16 pairs, keys of up to 64 characters, texts of up to 512."""
    value = request.body.get("metadata")
    if value is None:
        return
    if not isinstance(value, dict) or len(value) > _MAX_PAIRS:
        count = len(value) if isinstance(value, dict) else type_name(value)
        yield "$.metadata", f"metadata is an object of at most {_MAX_PAIRS} pairs, this is {count}; send fewer"
        return
    for key, text in value.items():
        if len(key) > _MAX_KEY or not isinstance(text, str) or len(text) > _MAX_VALUE:
            said = f"a key of {len(key)} characters with {type_name(text)}"
            yield f"$.metadata.{key[:_MAX_KEY]}", f"{said}; send up to {_MAX_KEY} and a text of up to {_MAX_VALUE}"


RULES: tuple[Rule, ...] = (
    Rule("openai-responses.foreign-field", _foreign, "recalled", KNOWN),
    Rule("openai-responses.history", _history, "documented", OPENAI),
    Rule("openai-responses.context-management", _compaction, "documented", OPENAI),
    Rule("openai-responses.tools", _tools, "documented", OPENAI),
    Rule("openai-responses.tool-choice", _choice, "recalled", KNOWN),
    Rule("openai-responses.limit", _limit, "recalled", KNOWN),
    Rule("openai-responses.sampling", _sampling, "documented", OPENAI),
    Rule("openai-responses.truncation", _truncation, "documented", OPENAI),
    Rule("openai-responses.cache-key", _cache_key, "documented", OPENAI),
    Rule("openai-responses.metadata", _metadata, "documented", OPENAI),
)
"""The rules about options."""
