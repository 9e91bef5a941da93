"""What the models of an API accept, by their names: one small table.

Only rules stand here; windows and prices are in the catalogue. A name that no row fits gets the strictest values.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from holdfast.state.dialect import NO_LIMIT, Dialect


class ClaudeTraits(Struct, frozen=True):
    """What differs between the Claude models; the defaults are for a name nobody knows."""

    allows_prefill: bool = False
    """The last message may be the assistant's (up to 4.5)."""
    allows_inline_system: bool = False
    """``system`` messages may stand between a user's message and an answer."""
    binds_thinking: bool = True
    """Thinking is signed over everything before it ("preserved thinking")."""
    max_images: int = 600
    """Images in one request: 100 where the window is 200,000 tokens, 600 otherwise; a name nobody knows is not limited
    by a guess."""
    manual_thinking: bool | None = None
    """``thinking.type`` may be ``enabled`` with a budget; nothing = not known."""
    adaptive_thinking: bool | None = None
    """``thinking.type`` may be ``adaptive_thinking``; nothing = not known."""
    can_disable_thinking: bool | None = None
    """``thinking.type`` may be ``can_disable_thinking``; nothing = not known."""
    can_disable_at_any_effort: bool = True
    """``can_disable_thinking`` goes with the efforts ``xhigh`` and ``max`` too."""
    compacts_on_demand: bool = False
    """The server compacts on demand: 4.6 and later, as its page lists them."""


_TRAITS_UP_TO_4_5 = ClaudeTraits(
    allows_prefill=True,
    binds_thinking=False,
    max_images=100,
    manual_thinking=True,
    adaptive_thinking=False,
    can_disable_thinking=True,
)
_LAST_OLD_VERSION = (4, 5)
"""Up to 4.5: prefill, manual thinking, a window of 200,000 tokens."""

_CLAUDE_TRAITS: dict[str, ClaudeTraits] = {
    "opus 4.6": ClaudeTraits(
        binds_thinking=False,
        manual_thinking=True,
        adaptive_thinking=True,
        can_disable_thinking=True,
        compacts_on_demand=True,
    ),
    "opus 4.7": ClaudeTraits(
        binds_thinking=False,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=True,
        compacts_on_demand=True,
    ),
    "opus 4.8": ClaudeTraits(
        allows_inline_system=True,
        binds_thinking=False,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=True,
        compacts_on_demand=True,
    ),
    "opus 5.0": ClaudeTraits(
        allows_inline_system=True,
        binds_thinking=False,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=True,
        can_disable_at_any_effort=False,
        compacts_on_demand=True,
    ),
    "opus 5.5": ClaudeTraits(
        allows_inline_system=True, manual_thinking=False, adaptive_thinking=True, compacts_on_demand=True
    ),
    "sonnet 4.6": ClaudeTraits(
        binds_thinking=False,
        manual_thinking=True,
        adaptive_thinking=True,
        can_disable_thinking=True,
        compacts_on_demand=True,
    ),
    "sonnet 5.0": ClaudeTraits(
        binds_thinking=False,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=True,
        compacts_on_demand=True,
    ),
    "sonnet 5.5": ClaudeTraits(
        allows_inline_system=True, manual_thinking=False, adaptive_thinking=True, compacts_on_demand=True
    ),
    "haiku 5.5": ClaudeTraits(allows_inline_system=True, adaptive_thinking=True, compacts_on_demand=True),
    "fable 5.0": ClaudeTraits(
        allows_inline_system=True,
        binds_thinking=False,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=False,
        compacts_on_demand=True,
    ),
    "fable 5.1": ClaudeTraits(
        allows_inline_system=True,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=False,
        compacts_on_demand=True,
    ),
    "fable 5.2": ClaudeTraits(
        allows_inline_system=True, manual_thinking=False, adaptive_thinking=True, can_disable_thinking=False
    ),
}
"""Family and version to rules, as documented up to 2026-11; Mythos is Fable under another name.

The page that lists who takes system messages inside is older than 5.5 and Fable 5.2. Claude Code 2.1.332 sends them to
each of these by default, with the effort of the turn and changes of tools, which can stand nowhere else. [M]
"""

_FAMILY_FIRST_NAME = re.compile(r"(opus|sonnet|haiku|fable|mythos)-(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
"""``claude-opus-4-5-20251101``, ``claude-opus-4.5``, ``eu.anthropic.claude-sonnet-4-20250514-v1:0``"""
_VERSION_FIRST_NAME = re.compile(r"claude-(?:v?[12](?!\d)|instant|3(?!\d))")
"""``claude-3-5-sonnet-20241022``, ``claude-2.1``"""


def get_claude_traits(model: str) -> ClaudeTraits | None:
    """Return what is known of Claude model ``model``, or nothing when it is none we know."""
    name = model.lower()
    parsed_name = _parse_model_name(name)
    if parsed_name is None:
        return _TRAITS_UP_TO_4_5 if _VERSION_FIRST_NAME.search(name) else None
    family, version = parsed_name
    if version <= _LAST_OLD_VERSION:
        return _TRAITS_UP_TO_4_5
    return _CLAUDE_TRAITS.get(f"{family} {version[0]}.{version[1]}")


def _parse_model_name(name: str) -> tuple[str, tuple[int, int]] | None:
    """Return the family and version that a lower-case name of the new style says, or None for any other name."""
    match = _FAMILY_FIRST_NAME.search(name)
    if match is None:
        return None
    family = "fable" if match[1] == "mythos" else match[1]
    return family, (int(match[2]), int(match[3] or 0))


def _is_later_claude(model: str) -> bool:
    """Return whether ``model`` is a Claude model that is newer than this table."""
    parsed_name = _parse_model_name(model.lower())
    return parsed_name is not None and parsed_name[1] > _LAST_OLD_VERSION and get_claude_traits(model) is None


_BEDROCK_NAME = re.compile(r"(?:^|[./])anthropic\.claude")
"""``eu.anthropic.claude-opus-5-5-v1:0``: Bedrock's names; it has no compaction on demand."""


# -- kinds of parts ----------------------------------------------------------------------------------------------------


_PARSED_KINDS: dict[str, tuple[str, ...]] = {
    "anthropic": ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"),
    "openai-chat": ("text", "image_url", "input_audio", "file", "tool_call", "function"),
    "openai-responses": (
        "message", "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output", "reasoning",
        "input_text", "output_text", "input_image", "input_file",
    ),
    "gemini": ("inlineData", "fileData", "functionCall", "functionResponse"),
}  # fmt: skip
"""Kinds that each API's module makes parts of; one that stayed opaque did not have the shape it should."""
_RECOGNIZABLE_KINDS: dict[str, tuple[str, ...]] = {
    "anthropic": ("thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"),
    "openai-chat": ("image_url", "input_audio", "file", "refusal", "function", "tool_call"),
    "openai-responses": (
        "function_call", "function_call_output", "reasoning", "input_text", "output_text", "input_image", "input_file",
    ),
    "gemini": ("inlineData", "fileData", "functionCall", "functionResponse"),
    "pi": ("toolResult",),
}  # fmt: skip
"""Kinds by which each API's parts are known among those of another, which a converter may have left behind."""


def _list_refused_kinds(api: str) -> tuple[str, ...]:
    """Return the kinds of opaque parts that ``api`` never takes: malformed ones of its own, and those of others."""
    foreign_kinds = (kind for name, kinds in _RECOGNIZABLE_KINDS.items() if name != api for kind in kinds)
    beside = () if api == "openai-chat" else ("message.",)
    return tuple(dict.fromkeys((*_PARSED_KINDS[api], "unknown", *foreign_kinds, *beside)))


# -- Anthropic ---------------------------------------------------------------------------------------------------------


_BLOCKS_NOT_IN_RESULTS = (
    "server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result",
    "advisor_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result", "tool_search_tool_result", "container_upload", "compaction",
    "tool_addition", "tool_removal", "mcp_tool_listing", "fallback",
)  # fmt: skip
"""Known blocks that a tool_result of the Messages API does not take."""


MAX_LARGE_IMAGES, MAX_PIXELS_FEW_IMAGES, MAX_PIXELS_MANY_IMAGES = 20, 8_000, 2_000
"""Up to 20 images may be 8,000 pixels wide or high at the Messages API, more of them 2,000."""


def get_anthropic_dialect(model: str) -> Dialect:
    """Return the rules of the Messages API for ``model``; an unknown name gets the strictest.

    A Claude model that is newer than the table takes system messages inside the conversation, as the newest known do.
    """
    model_traits = get_claude_traits(model) or ClaudeTraits()
    # A model that is newer than the table most likely takes what the newest in it take. Were it held to the strictest
    # rule, each system message that Claude Code writes for it would be rewritten; refused, Claude Code goes without.
    is_system_inside = model_traits.allows_inline_system or _is_later_claude(model)
    return Dialect(
        "anthropic",
        model,
        allows_thinking_only=True,
        must_end_with_user=not model_traits.allows_prefill,
        merges_same_role=get_claude_traits(model) is None,
        server_joins_same_role=True,
        allows_empty_results=True,
        allows_empty_last_answer=model_traits.allows_prefill,
        id_max=1_000,
        name_max=128,
        system_position="turn" if is_system_inside else "first",
        max_images=model_traits.max_images,
        max_image_pixels=MAX_PIXELS_FEW_IMAGES,
        large_image_pixels=MAX_PIXELS_MANY_IMAGES,
        max_images_with_large=MAX_LARGE_IMAGES,
        max_bytes=33_554_432,
        max_cache_breakpoints=4,
        cache_lookback=20,
        binds_thinking=model_traits.binds_thinking,
        supports_compaction=model_traits.compacts_on_demand and not _BEDROCK_NAME.search(model.lower()),
        refused_kinds=_list_refused_kinds("anthropic"),
        refused_result_kinds=_BLOCKS_NOT_IN_RESULTS,
        allowed_kinds_by_role={"system": ("tool_addition", "tool_removal", "options")},
    )


# -- Chat Completions --------------------------------------------------------------------------------------------------


_STRICT_CHAT_DIALECT = Dialect(
    "openai-chat",
    merges_same_role=True,
    results_grouped=False,
    media_types=(),
    allows_media_in_results=False,
    refused_kinds=_list_refused_kinds("openai-chat"),
    allowed_kinds_by_role={"system": (), "assistant": ("refusal",), "tool": ()},
    exclusive_kinds=("refusal",),
)
"""Chat Completions of a server that is not known: templates of open models take the system prompt first, a user's
words next, turns in turn, arguments that are objects, and ids of the oldest length and alphabet."""

OPENAI_CHAT_DIALECT = replace(
    _STRICT_CHAT_DIALECT,
    must_start_with_user=False,
    must_end_with_user=False,
    merges_same_role=False,
    arguments_are_objects=False,
    allows_trailing_space=True,
    system_position="any",
    id_pattern=r"[\s\S]",
    id_max=64,
    unique_ids=False,
    allows_empty_text=True,
    allows_blank_text=True,
    allows_thinking_in_any_role=True,
    max_images=500,
    max_bytes=50_000_000,
)
"""Chat Completions at OpenAI. 64 characters an id are taken now, 40 on older deployments, so new ids are made no longer
than 40; images and bytes as the vision guide has them."""

_MISTRAL_DIALECT = replace(
    _STRICT_CHAT_DIALECT,
    needs_answer_after_results=True,
    id_pattern="[a-zA-Z0-9]",
    id_min=9,
    id_max=9,
    max_images=8,
)
"""Chat Completions at Mistral: a call id has exactly nine letters and digits, no user speaks right behind results
(``Unexpected role 'user' after role 'tool'``), and the assistant is not the last, as its errors say. Images: the vision
guide."""

_OPENAI_MODEL_NAME = re.compile(r"(?:^|[/:.@])(?:gpt-|chatgpt-|codex-|computer-use-|o[1-9](?:-|$))")
"""``gpt-5.5``, ``openai/o4-mini``, ``ft:gpt-4o:acme``; ``gpt-oss`` runs on servers of all kinds."""
_OPEN_WEIGHTS_NAME = re.compile(r"gpt-(?:oss|j|neo)")
_MISTRAL_MODEL_NAME = re.compile(r"(?:open-)?mi[sx]tral|ministral|magistral|codestral|devstral|pixtral|voxtral")


def get_chat_dialect(model: str, provider: str = "") -> Dialect:
    """Return the rules of Chat Completions for ``model`` at ``provider``; an unknown server gets the strictest.

    ``provider`` is ``openai`` or ``mistral`` where the name of the model does not say whose server it is.
    """
    name = model.lower()
    if provider == "mistral" or (not provider and _MISTRAL_MODEL_NAME.search(name)):
        return replace(_MISTRAL_DIALECT, model=model)
    if provider == "openai" or (
        not provider and _OPENAI_MODEL_NAME.search(name) and not _OPEN_WEIGHTS_NAME.search(name)
    ):
        return replace(OPENAI_CHAT_DIALECT, model=model)
    return replace(_STRICT_CHAT_DIALECT, model=model)


def relax_for_unknown_server(dialect: Dialect) -> Dialect:
    """Return the rules for what a client wrote for a server of its own, where ``dialect`` knows nothing of that server.

    The client knows it, so what it wrote stays as it is, and no limit is taken for granted; what stands for older turns
    is joined to the user's words behind it, since many a server's template wants turns in turn. A new Claude is its
    maker's, whose rules hold.
    """
    if dialect.api == "gemini":  # parts of kinds that are newer than we are
        return replace(dialect, refused_kinds=tuple(kind for kind in dialect.refused_kinds if kind != "unknown"))
    if not dialect.merges_same_role:
        return dialect
    is_claude = dialect.api == "anthropic" and "claude" in dialect.model.lower()
    open_ended = replace(
        OPENAI_CHAT_DIALECT
        if dialect.api == OPENAI_CHAT_DIALECT.api
        else replace(dialect, merges_same_role=False, must_end_with_user=False),
        model=dialect.model,
        merges_summary=True,
        max_images=NO_LIMIT,
        max_bytes=NO_LIMIT,
    )
    return (
        open_ended
        if is_claude
        else replace(open_ended, keeps_client_content=True, media_types=(), max_image_pixels=NO_LIMIT)
    )


# -- Responses ---------------------------------------------------------------------------------------------------------


_RESPONSES_DIALECT = Dialect(
    "openai-responses",
    must_start_with_user=False,
    must_end_with_user=False,
    merges_same_role=False,
    server_joins_same_role=True,
    results_adjacent=False,
    results_grouped=False,
    arguments_are_objects=False,
    system_position="any",
    id_pattern=r"[\s\S]",
    id_max=64,
    unique_ids=False,
    name_max=128,
    allows_empty_text=True,
    allows_blank_text=True,
    allows_empty_results=True,
    allows_empty_messages=True,
    media_types=(),
    allows_media_in_errors=True,
    allows_media_in_system=True,
    refused_kinds=(*_list_refused_kinds("openai-responses"), "text", "tool", "content."),
    allowed_kinds_by_role={"user": ("computer_screenshot",), "system": ("computer_screenshot",)},
    binds_reasoning_to_next=True,
    allows_trailing_space=True,
    max_images=500,
    max_bytes=50_000_000,
)
"""The Responses API: call ids of 1 to 64 characters; images and bytes as the vision guide has them."""


def get_responses_dialect(model: str) -> Dialect:
    """Return the rules of the Responses API, the same for every ``model``; OpenAI's own compacts on demand."""
    name = model.lower()
    own = bool(_OPENAI_MODEL_NAME.search(name)) and not _OPEN_WEIGHTS_NAME.search(name)
    return replace(_RESPONSES_DIALECT, model=model, supports_compaction=own)


# -- Gemini ------------------------------------------------------------------------------------------------------------


_GEMINI_OPAQUE_FIELDS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Fields of a part that Holdfast does not interpret; others are refused."""
_GEMINI_DIALECT = Dialect(
    "gemini",
    must_start_with_user=False,
    merges_same_role=False,
    results_first=False,
    calls_follow_user=True,
    allows_empty_results=True,
    allows_blank_text=True,
    id_pattern=r"[\s\S]",
    id_max=1_000,
    unsent_id_pattern=r"[\s\S]*#\d+",
    results_carry_name=True,
    name_pattern=r"[A-Za-z_][A-Za-z0-9_.:-]*",
    name_max=128,
    media_types=(),
    allows_media_from_model=True,
    allows_media_in_errors=True,
    refused_kinds=_list_refused_kinds("gemini"),
    allowed_kinds_by_role=dict.fromkeys(("user", "assistant", "tool"), _GEMINI_OPAQUE_FIELDS),
    allows_thinking_only=True,
    allows_thinking_in_any_role=True,
    requires_signed_calls=True,
    max_images=3_000,
    max_bytes=20_971_520,
)
"""generateContent. Ids are optional there and no limit of them is documented; names as the reference of
``FunctionDeclaration`` has them; 3,000 images as the vision guide has it; bytes as its error tells them."""

_GEMINI_MODEL_NAME = re.compile(r"gemini-(\d{1,2})(?!\d)")
_UNSIGNED_GEMINI_NAME = re.compile(r"gemini-(?:pro|flash|ultra)$|gemini-pro-vision|gemma|-image")
"""First-generation names, models without function calls, and image models, where signatures are not checked."""


def has_thought_signatures(model: str) -> bool:
    """Return whether ``model`` is a Gemini that wants its signatures back: 3 and later, and every unknown one."""
    name = model.lower()
    match = _GEMINI_MODEL_NAME.search(name)
    return not _UNSIGNED_GEMINI_NAME.search(name) and (match is None or int(match[1]) >= 3)


def get_gemini_dialect(model: str) -> Dialect:
    """Return the rules of generateContent for ``model``; an unknown name gets the strictest."""
    return replace(_GEMINI_DIALECT, model=model, requires_signed_calls=has_thought_signatures(model))
