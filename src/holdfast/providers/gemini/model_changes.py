"""What a Gemini model refuses in the options of a request, and what must change so that it accepts them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.providers.common.option_changes import OptionChange
from holdfast.providers.gemini.field_spellings import get_spelled_field

SERVER_SIDE_TOOLS_RULE = "server-side-tools"
THINKING_LEVEL_RULE = "thinking-level"
IGNORED_OPTIONS_RULE = "ignored-options"
SAMPLING_OPTIONS = ("temperature", "topP", "topK")
_FIRST_WITHOUT_SAMPLING = {"flash-lite": (3, 5), "flash": (3, 6), "pro": (3, 6)}
"""Versions from which on sampling options are ignored: 3.6 Flash and 3.5 Flash-Lite, and what came later (changelog of
2026-07-21, ai.google.dev/gemini-api/docs/changelog)."""
BUILT_IN_TOOLS = ("googleSearch", "urlContext", "codeExecution", "fileSearch", "googleMaps", "googleSearchRetrieval")
"""Tools that Google runs, which need a flag beside functions (cloudwego/eino-ext#761, 2026-04-06). Computer use is
among them there, but is run by the client."""
_FIRST_WITH_BOTH_KINDS = (3, 0)
"""The first version that takes built-in tools beside functions. Older ones refuse the flag: "Tool call context
circulation is not enabled" (pydantic/pydantic-ai#4848, 2026-05-05; ellmer#1055, 2026-07-09)."""
_FIRST_WITH_LEVELS = (3, 0)
"""Before it: "Thinking level is not supported for this model" (microsoft/vscode#334581, 2026-09-04)."""
_FIRST_FLASH_WITHOUT_MINIMAL = (3, 7)
"""From it on: "'minimal' is not a supported thinking level for this model. Allowed values are: medium, low, high."
(fishjar/kiss-translator#1048, 2026-08-21; can1357/oh-my-pi#10543, 2026-09-02; for 3.8 BerriAI/litellm-docs#1505,
2026-09-16). Flash-Lite takes it."""
_MODEL_VERSION = re.compile(r"gemini-(\d{1,2})(?:\.(\d{1,2}))?(?!\d)")
"""Matches ``gemini-2.5-pro``, ``models/gemini-3.1-pro-preview``, ``google/gemini-3-flash``."""


def parse_gemini_version(model: str) -> tuple[int, int]:
    """Return major and minor version of a Gemini model; (0, 0) for a name without a version."""
    match = _MODEL_VERSION.search(model.lower())
    if match is None:
        return 0, 0
    return int(match[1]), int(match[2] or 0)


def is_older_gemini(model: str, version: tuple[int, int]) -> bool:
    """Return whether ``model`` is known to be older than ``version``; False for a name without a version."""
    return (0, 0) < parse_gemini_version(model) < version


def takes_both_kinds_of_tools(model: str) -> bool:
    """Return whether ``model`` takes built-in tools beside functions; an unknown name does."""
    return not is_older_gemini(model, _FIRST_WITH_BOTH_KINDS)


def list_built_in_tools(body: Mapping[str, Any]) -> list[tuple[int, str]]:
    """List the built-in tools of a decoded body: the index in ``tools``, and the field as the request spells it."""
    found = []
    for index, tool in enumerate(_get_list(body, "tools")):
        for name in BUILT_IN_TOOLS:
            spelling, value = get_spelled_field(tool, name)
            if value is not None:
                found.append((index, spelling))
    return found


def has_functions(body: Mapping[str, Any]) -> bool:
    """Return whether a decoded body declares functions."""
    return any(get_spelled_field(tool, "functionDeclarations")[1] for tool in _get_list(body, "tools"))


def _get_list(body: Mapping[str, Any], name: str) -> list[Any]:
    value = body.get(name)
    return value if isinstance(value, list) else []


def find_thinking_level(body: Mapping[str, Any]) -> tuple[tuple[str, str, str], Any]:
    """Return the path and the value of the thinking level in a decoded body."""
    outer, config = get_spelled_field(body, "generationConfig")
    middle, thinking = get_spelled_field(config, "thinkingConfig")
    inner, level = get_spelled_field(thinking, "thinkingLevel")
    return (outer, middle, inner), level


def find_accepted_level(model: str, level: object) -> str | None:
    """Return the level that ``model`` takes in place of ``level``: the same, the nearest one, or None for no level."""
    if not isinstance(level, str):
        return None
    if is_older_gemini(model, _FIRST_WITH_LEVELS):
        return None
    name = model.lower()
    version = parse_gemini_version(model)
    is_minimal, is_medium = level.upper() == "MINIMAL", level.upper() == "MEDIUM"
    is_plain_flash = "flash" in name and "lite" not in name
    if is_minimal and is_plain_flash and version >= _FIRST_FLASH_WITHOUT_MINIMAL:
        return "LOW"
    # Gemini 3 Pro, and only it, has low and high alone: "Thinking level MEDIUM is not supported for this model"
    # (heyhuynhgiabuu/proxypal#170, 2026-02-17; jenslys/opencode-gemini-auth#14, 2025-12-17).
    if is_medium and version == (3, 0) and "pro" in name:
        return "HIGH"
    return level


def find_model_changes(fields: Mapping[str, Any], model: str, _version: str = "") -> tuple[OptionChange, ...]:
    """Find the changes that ``model`` needs in the decoded options of a request."""
    return (
        *_find_tool_flag_change(fields, model),
        *_find_level_change(fields, model),
        *_find_sampling_changes(fields, model),
    )


def ignores_sampling(model: str) -> bool:
    """Return whether ``model`` ignores temperature, topP and topK."""
    name = model.lower()
    family = next((family for family in _FIRST_WITHOUT_SAMPLING if family in name), "")
    return bool(family) and parse_gemini_version(model) >= _FIRST_WITHOUT_SAMPLING[family]


def _find_sampling_changes(fields: Mapping[str, Any], model: str) -> Iterator[OptionChange]:
    outer, config = get_spelled_field(fields, "generationConfig")
    for name in SAMPLING_OPTIONS if ignores_sampling(model) else ():
        key, value = get_spelled_field(config, name)
        if value is not None:
            yield OptionChange(IGNORED_OPTIONS_RULE, f"{outer}.{key}", None, f"{key}: left out, {model} ignores it")


def _find_tool_flag_change(fields: Mapping[str, Any], model: str) -> Iterator[OptionChange]:
    config_field, config = get_spelled_field(fields, "toolConfig")
    flag_field, flag = get_spelled_field(config, "includeServerSideToolInvocations")
    if config is not None and not isinstance(config, dict):
        return
    path = f"{config_field}.{flag_field}"
    if not takes_both_kinds_of_tools(model):
        if flag is not None:
            note = f"{path}: left out, {model} does not know it"
            yield OptionChange(SERVER_SIDE_TOOLS_RULE, path, None, note)
        return
    if flag is not True and has_functions(fields) and list_built_in_tools(fields):
        note = f"{path}: set to true, as built-in tools beside functions need it"
        yield OptionChange(SERVER_SIDE_TOOLS_RULE, path, value=True, note=note)


def _find_level_change(fields: Mapping[str, Any], model: str) -> Iterator[OptionChange]:
    (outer, middle, inner), level = find_thinking_level(fields)
    if level is None:
        return
    new_level = find_accepted_level(model, level)
    if new_level == level:
        return
    config = {key: value for key, value in fields[outer][middle].items() if key != inner}
    if new_level is not None:
        config[inner] = new_level
        note = f"{inner}: {new_level} in place of {level}, which {model} does not take"
    else:
        note = f"{inner}: left out, {model} takes none"
    yield OptionChange(THINKING_LEVEL_RULE, f"{outer}.{middle}", config or None, note)
