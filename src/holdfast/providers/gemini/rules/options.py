"""Rules of generateContent about what stands beside the contents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.providers.gemini.rules.view import Gemini, spelled, version
from holdfast.providers.rules.options import foreign, is_count, is_gemini_name, outside
from holdfast.providers.rules.rule import GOOGLE, KNOWN, MET, Broken, Rule, quoted, type_name

_FOREIGN = ("messages", "input", "system", "instructions", "max_tokens", "max_completion_tokens", "max_output_tokens",
            "temperature", "top_p", "top_k", "stream", "tool_choice", "stop", "stop_sequences", "thinking")  # fmt: skip
"""Top-level fields of other APIs, which a converter may have left behind."""
_NO_TOOLS = ("type", "name", "function", "parameters", "input_schema")
"""Fields of tools of other APIs."""
_MAX_OUTPUT = 65_536
_MAX_STOPS = 5
_RANGES = {"temperature": (0, 2), "topP": (0, 1), "candidateCount": (1, 8)}
_MODES = (None, "MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")


def _foreign(request: Gemini) -> Broken:
    """The body has no fields of other APIs."""
    return foreign(request, _FOREIGN)


def _system(request: Gemini) -> Broken:
    """The system instruction is a content of texts."""
    key, value = request.field("systemInstruction")
    if value is None:
        return
    parts = value.get("parts") if isinstance(value, dict) else None
    if not isinstance(parts, list) or not parts:
        yield f"$.{key}", f"{key} is {type_name(value)} without parts; send {{'parts': [{{'text': …}}]}}"
        return
    for index, part in enumerate(parts):
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            yield f"$.{key}.parts[{index}]", "a part of the system instruction is no text; send text"


# -- tools -------------------------------------------------------------------------------------------------------------


def _declared(request: Gemini) -> Iterator[tuple[str, Any]]:
    """Yield where each function is declared, and the declaration."""
    for index, tool in enumerate(request.listed("tools")):
        key, value = spelled(tool, "functionDeclarations")
        for place, declaration in enumerate(value if isinstance(value, list) else ()):
            yield f"$.tools[{index}].{key}[{place}]", declaration


def _tools(request: Gemini) -> Broken:
    """Tools are a list of objects with fields of this API; a declared function has a name that a function may have."""
    value = request.body.get("tools")
    if value is not None and not (isinstance(value, list) and all(isinstance(tool, dict) for tool in value)):
        yield "$.tools", f"tools is {type_name(value)}; send a list of objects"
    for index, tool in enumerate(request.listed("tools")):
        odd = [key for key in _NO_TOOLS if isinstance(tool, dict) and key in tool]
        if odd:
            yield (
                f"$.tools[{index}]",
                f"fields {odd} are not known on a tool; declare functions in functionDeclarations",
            )
    for path, declaration in _declared(request):
        name = declaration.get("name") if isinstance(declaration, dict) else None
        if not is_gemini_name(name):
            yield f"{path}.name", f"name {quoted(name)} is none a function may have; rename it"


def _tool_names(request: Gemini) -> Broken:
    """Names of declared functions are unique."""
    seen: set[str] = set()
    for path, declaration in _declared(request):
        name = str(declaration.get("name")) if isinstance(declaration, dict) else ""
        if name in seen:
            yield f"{path}.name", f"function {quoted(name)} is declared twice; keep one"
        seen.add(name)


def _calling(request: Gemini) -> Broken:
    """The mode of calling is AUTO, ANY, NONE or VALIDATED, and the functions allowed are declared."""
    outer, config = request.field("toolConfig")
    inner, calling = spelled(config, "functionCallingConfig")
    path = f"$.{outer}.{inner}"
    mode = calling.get("mode") if isinstance(calling, dict) else None
    if mode not in _MODES:
        yield f"{path}.mode", f"mode {quoted(mode)}; use AUTO, ANY, NONE or VALIDATED"
    key, allowed = spelled(calling, "allowedFunctionNames")
    names = {str(one.get("name")) for _, one in _declared(request) if isinstance(one, dict)}
    for index, name in enumerate(allowed if isinstance(allowed, list) else ()):
        if str(name) not in names:
            yield f"{path}.{key}[{index}]", f"function {quoted(name)} is not declared; declare it or take it out"


def _cached(request: Gemini) -> Broken:
    """A cached content goes without system instruction, tools and tool config, which it holds itself."""
    if request.field("cachedContent")[1] is None:
        return
    for name in ("systemInstruction", "tools", "toolConfig"):
        key, value = request.field(name)
        if value:
            yield f"$.{key}", f"{key} beside a cached content; put it into the cached content"


# -- generation --------------------------------------------------------------------------------------------------------


def _option(request: Gemini, name: str) -> tuple[str, Any]:
    """Return where an option of generation stands, and its value."""
    outer, config = request.field("generationConfig")
    key, value = spelled(config, name)
    return f"$.{outer}.{key}", value


def _limit(request: Gemini) -> Broken:
    """A limit of output tokens is at least 1, at most 65,536 on models that are known."""
    path, value = _option(request, "maxOutputTokens")
    most = _MAX_OUTPUT if version(request.model) >= (2, 5) else None
    if value is not None and not (is_count(value) and value >= 1):
        yield path, f"a limit of {quoted(value)} tokens; send a whole number of at least 1"
    elif value is not None and most is not None and value > most:
        yield path, f"a limit of {value:,} tokens, {most:,} are allowed; lower it"


def _sampling(request: Gemini) -> Broken:
    """Temperature lies from 0 to 2, topP from 0 to 1, candidateCount from 1 to 8."""
    for name, within in _RANGES.items():
        path, value = _option(request, name)
        yield from outside(path, name, value, within)


def _stops(request: Gemini) -> Broken:
    """There are at most 5 stop sequences."""
    path, value = _option(request, "stopSequences")
    if isinstance(value, list) and len(value) > _MAX_STOPS:
        yield path, f"{len(value)} stop sequences, {_MAX_STOPS} are allowed; send fewer"


def _thinking(request: Gemini) -> Broken:
    """A thinking budget and a thinking level exclude each other."""
    path, config = _option(request, "thinkingConfig")
    if spelled(config, "thinkingBudget")[1] is not None and spelled(config, "thinkingLevel")[1] is not None:
        yield path, "thinkingBudget beside thinkingLevel; send one of them"


RULES: tuple[Rule, ...] = (
    Rule("gemini.foreign-field", _foreign, "documented", GOOGLE),
    Rule("gemini.system-instruction", _system, "documented", GOOGLE),
    Rule("gemini.tools", _tools, "documented", GOOGLE),
    Rule("gemini.tool-names", _tool_names, "recalled", KNOWN),
    Rule("gemini.tool-config", _calling, "documented", GOOGLE),
    Rule("gemini.cached-content", _cached, "recalled", KNOWN),
    Rule("gemini.limit", _limit, "observed", MET, "the upper limit: Gemini 2.5 and later"),
    Rule("gemini.sampling", _sampling, "documented", GOOGLE),
    Rule("gemini.stop-sequences", _stops, "documented", GOOGLE),
    Rule("gemini.thinking", _thinking, "recalled", KNOWN),
)
"""The rules about options."""
