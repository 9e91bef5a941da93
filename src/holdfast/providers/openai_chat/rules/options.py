"""Rules of Chat Completions about what stands beside the messages."""

from __future__ import annotations

from holdfast.providers.common.foreign.foreign_blocks import offered_by
from holdfast.providers.openai_chat.rules.view import Chat
from holdfast.providers.rules.options import foreign, is_count, is_name, out_of_range
from holdfast.providers.rules.rule import KNOWN, OPENAI, Broken, Rule, quoted, type_name

_NAME_MAX = 64
_MAX_TOOLS = 128
_FOREIGN = ("contents", "input", "instructions", "max_output_tokens", "stop_sequences", "system", "systemInstruction",
            "generationConfig", "anthropic_version")  # fmt: skip
"""Top-level fields of other APIs, which a converter may have left behind."""
_RANGES = {"temperature": (0, 2), "top_p": (0, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)}
_MAX_STOPS = 4


def _foreign(request: Chat) -> Broken:
    """The body has no fields of other APIs."""
    return foreign(request, _FOREIGN)


def _tools(request: Chat) -> Broken:
    """There are 1 to 128 tools, each an object of a type."""
    tools = request.body.get("tools")
    if tools is not None and not (isinstance(tools, list) and 1 <= len(tools) <= _MAX_TOOLS):
        count = len(tools) if isinstance(tools, list) else type_name(tools)
        yield "$.tools", f"tools is a list of 1 to {_MAX_TOOLS}, this is {count}; leave the key out or shorten it"
    for index, tool in enumerate(request.listed("tools")):
        if not isinstance(tool, dict):
            yield f"$.tools[{index}]", f"the tool is {type_name(tool)}; send an object with a type"
        elif not isinstance(tool.get("type"), str) and (offered_by(tool) or "name" in tool):
            yield f"$.tools[{index}]", "the tool has no type; send a function under the type 'function'"


def _tool_names(request: Chat) -> Broken:
    """The name of an offered function matches ^[a-zA-Z0-9_-]{1,64}$."""
    for index, tool in enumerate(request.listed("tools")):
        kind = tool.get("type") if isinstance(tool, dict) else None
        said = tool.get(kind) if kind in ("function", "custom") else None
        name = said.get("name") if isinstance(said, dict) else None
        if kind in ("function", "custom") and not is_name(name, _NAME_MAX):
            path = f"$.tools[{index}].{kind}.name"
            yield path, f"tool name {quoted(name)} does not match ^[a-zA-Z0-9_-]{{1,64}}$; rename it"


def _choice(request: Chat) -> Broken:
    """tool_choice and parallel_tool_calls need tools."""
    for key in ("tool_choice", "parallel_tool_calls"):
        value = request.body.get(key)
        if value not in (None, "none") and not request.body.get("tools"):
            yield f"$.{key}", f"{key} without tools; send tools or drop it"


def _limits(request: Chat) -> Broken:
    """A limit of output tokens is at least 1."""
    for key in ("max_tokens", "max_completion_tokens"):
        value = request.body.get(key)
        if value is not None and not (is_count(value) and value >= 1):
            yield f"$.{key}", f"{key} is {quoted(value)}; send a whole number of at least 1"


def _one_limit(request: Chat) -> Broken:
    """There is one limit of output tokens."""
    if request.body.get("max_tokens") is not None and request.body.get("max_completion_tokens") is not None:
        yield "$.max_tokens", "max_tokens beside max_completion_tokens; send the latter only"


def _sampling(request: Chat) -> Broken:
    """Temperature lies from 0 to 2, top_p from 0 to 1, penalties from -2 to 2."""
    return out_of_range(request, _RANGES)


def _stop(request: Chat) -> Broken:
    """There are at most 4 stop sequences."""
    count = len(request.listed("stop"))
    if count > _MAX_STOPS:
        yield "$.stop", f"{count} stop sequences, {_MAX_STOPS} are allowed; send fewer"


def _stream_options(request: Chat) -> Broken:
    """stream_options needs stream."""
    if request.body.get("stream_options") is not None and not request.body.get("stream"):
        yield "$.stream_options", "stream_options without stream; turn streaming on or leave it out"


RULES: tuple[Rule, ...] = (
    Rule("openai-chat.foreign-field", _foreign, "recalled", KNOWN),
    Rule("openai-chat.tools", _tools, "documented", OPENAI),
    Rule("openai-chat.tool-names", _tool_names, "documented", OPENAI),
    Rule("openai-chat.tool-choice", _choice, "recalled", KNOWN),
    Rule("openai-chat.limits", _limits, "documented", OPENAI),
    Rule("openai-chat.one-limit", _one_limit, "recalled", KNOWN),
    Rule("openai-chat.sampling", _sampling, "documented", OPENAI),
    Rule("openai-chat.stop", _stop, "documented", OPENAI),
    Rule("openai-chat.stream-options", _stream_options, "documented", OPENAI),
)
"""The rules about options."""
