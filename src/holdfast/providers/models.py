"""What the models of an API accept, by their names: one small table.

Only rules stand here; windows and prices are in the catalogue. A name that no row fits gets the strictest values.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from holdfast.state.dialect import NO_LIMIT, Dialect


class Traits(Struct, frozen=True):
    """What differs between the Claude models; the defaults are for a name nobody knows."""

    prefill: bool = False
    """The last message may be the assistant's (up to 4.5)."""
    system_inside: bool = False
    """``system`` messages may stand between a user's message and an answer."""
    binds: bool = True
    """Thinking is signed over everything before it ("preserved thinking")."""
    images: int = 600
    """Images in one request: 100 where the window is 200,000 tokens, 600 otherwise; a name nobody knows is not limited
    by a guess."""
    manual: bool | None = None
    """``thinking.type`` may be ``enabled`` with a budget; nothing = not known."""
    adaptive: bool | None = None
    """``thinking.type`` may be ``adaptive``; nothing = not known."""
    disabled: bool | None = None
    """``thinking.type`` may be ``disabled``; nothing = not known."""
    disabled_at_any_effort: bool = True
    """``disabled`` goes with the efforts ``xhigh`` and ``max`` too."""
    compacts: bool = False
    """The server compacts on demand: 4.6 and later, as its page lists them."""


_OLD = Traits(prefill=True, binds=False, images=100, manual=True, adaptive=False, disabled=True)
_LAST_OLD = (4, 5)
"""Up to 4.5: prefill, manual thinking, a window of 200,000 tokens."""

_TABLE: dict[str, Traits] = {
    "opus 4.6": Traits(binds=False, manual=True, adaptive=True, disabled=True, compacts=True),
    "opus 4.7": Traits(binds=False, manual=False, adaptive=True, disabled=True, compacts=True),
    "opus 4.8": Traits(system_inside=True, binds=False, manual=False, adaptive=True, disabled=True, compacts=True),
    "opus 5.0": Traits(
        system_inside=True,
        binds=False,
        manual=False,
        adaptive=True,
        disabled=True,
        disabled_at_any_effort=False,
        compacts=True,
    ),
    "opus 5.5": Traits(system_inside=True, manual=False, adaptive=True, compacts=True),
    "sonnet 4.6": Traits(binds=False, manual=True, adaptive=True, disabled=True, compacts=True),
    "sonnet 5.0": Traits(binds=False, manual=False, adaptive=True, disabled=True, compacts=True),
    "sonnet 5.5": Traits(system_inside=True, manual=False, adaptive=True, compacts=True),
    "haiku 5.5": Traits(system_inside=True, adaptive=True, compacts=True),
    "fable 5.0": Traits(system_inside=True, binds=False, manual=False, adaptive=True, disabled=False, compacts=True),
    "fable 5.1": Traits(system_inside=True, manual=False, adaptive=True, disabled=False, compacts=True),
    "fable 5.2": Traits(system_inside=True, manual=False, adaptive=True, disabled=False),
}
"""Family and version to rules, as documented up to 2026-11; Mythos is Fable under another name.

The page that lists who takes system messages inside is older than 5.5 and Fable 5.2. Claude Code 2.1.332 sends them to
each of these by default, with the effort of the turn and changes of tools, which can stand nowhere else. [M]
"""

_NEW_STYLE = re.compile(r"(opus|sonnet|haiku|fable|mythos)-(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
"""``claude-opus-4-5-20251101``, ``claude-opus-4.5``, ``eu.anthropic.claude-sonnet-4-20250514-v1:0``"""
_OLD_STYLE = re.compile(r"claude-(?:v?[12](?!\d)|instant|3(?!\d))")
"""``claude-3-5-sonnet-20241022``, ``claude-2.1``"""


def traits(model: str) -> Traits | None:
    """Return what is known of Claude model ``model``, or nothing when it is none we know."""
    name = model.lower()
    found = _parse_model_name(name)
    if found is None:
        return _OLD if _OLD_STYLE.search(name) else None
    family, version = found
    if version <= _LAST_OLD:
        return _OLD
    return _TABLE.get(f"{family} {version[0]}.{version[1]}")


def _parse_model_name(name: str) -> tuple[str, tuple[int, int]] | None:
    """Return the family and version that a lower-case name of the new style says, or None for any other name."""
    found = _NEW_STYLE.search(name)
    if found is None:
        return None
    family = "fable" if found[1] == "mythos" else found[1]
    return family, (int(found[2]), int(found[3] or 0))


def _is_later_claude(model: str) -> bool:
    """Return whether ``model`` is a Claude model that is newer than this table."""
    found = _parse_model_name(model.lower())
    return found is not None and found[1] > _LAST_OLD and traits(model) is None


_BEDROCK = re.compile(r"(?:^|[./])anthropic\.claude")
"""``eu.anthropic.claude-opus-5-5-v1:0``: Bedrock's names; it has no compaction on demand."""


# -- kinds of parts ----------------------------------------------------------------------------------------------------


_PARSED: dict[str, tuple[str, ...]] = {
    "anthropic": ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"),
    "openai-chat": ("text", "image_url", "input_audio", "file", "tool_call", "function"),
    "openai-responses": (
        "message", "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output", "reasoning",
        "input_text", "output_text", "input_image", "input_file",
    ),
    "gemini": ("inlineData", "fileData", "functionCall", "functionResponse"),
}  # fmt: skip
"""Kinds that each API's module makes parts of; one that stayed opaque did not have the shape it should."""
_FOREIGN: dict[str, tuple[str, ...]] = {
    "anthropic": ("thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"),
    "openai-chat": ("image_url", "input_audio", "file", "refusal", "function", "tool_call"),
    "openai-responses": (
        "function_call", "function_call_output", "reasoning", "input_text", "output_text", "input_image", "input_file",
    ),
    "gemini": ("inlineData", "fileData", "functionCall", "functionResponse"),
    "pi": ("toolResult",),
}  # fmt: skip
"""Kinds by which each API's parts are known among those of another, which a converter may have left behind."""


def _refused(api: str) -> tuple[str, ...]:
    """Return the kinds of opaque parts that ``api`` never takes: malformed ones of its own, and those of others."""
    others = (kind for name, kinds in _FOREIGN.items() if name != api for kind in kinds)
    beside = () if api == "openai-chat" else ("message.",)
    return tuple(dict.fromkeys((*_PARSED[api], "unknown", *others, *beside)))


# -- Anthropic ---------------------------------------------------------------------------------------------------------


_NOT_IN_RESULTS = (
    "server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result",
    "advisor_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result", "tool_search_tool_result", "container_upload", "compaction",
    "tool_addition", "tool_removal", "mcp_tool_listing", "fallback",
)  # fmt: skip
"""Known blocks that a tool_result of the Messages API does not take."""


FEW_IMAGES, PIXELS, PIXELS_OF_MANY = 20, 8_000, 2_000
"""Up to 20 images may be 8,000 pixels wide or high at the Messages API, more of them 2,000."""


def anthropic_dialect(model: str) -> Dialect:
    """Return the rules of the Messages API for ``model``; an unknown name gets the strictest.

    A Claude model that is newer than the table takes system messages inside the conversation, as the newest known do.
    """
    known = traits(model) or Traits()
    # A model that is newer than the table most likely takes what the newest in it take. Were it held to the strictest
    # rule, each system message that Claude Code writes for it would be rewritten; refused, Claude Code goes without.
    is_system_inside = known.system_inside or _is_later_claude(model)
    return Dialect(
        "anthropic",
        model,
        thinking_alone=True,
        end_user=not known.prefill,
        merge=traits(model) is None,
        joined=True,
        empty_results=True,
        empty_end=known.prefill,
        id_max=1_000,
        name_max=128,
        system_place="turn" if is_system_inside else "first",
        max_images=known.images,
        most_pixels=PIXELS,
        large_pixels=PIXELS_OF_MANY,
        images_with_large=FEW_IMAGES,
        max_bytes=33_554_432,
        markers=4,
        lookback=20,
        binds_thinking=known.binds,
        compacts=known.compacts and not _BEDROCK.search(model.lower()),
        refused=_refused("anthropic"),
        refused_in_results=_NOT_IN_RESULTS,
        taken={"system": ("tool_addition", "tool_removal", "options")},
    )


# -- Chat Completions --------------------------------------------------------------------------------------------------


_STRICT_CHAT = Dialect(
    "openai-chat",
    merge=True,
    results_grouped=False,
    media=(),
    media_in_results=False,
    refused=_refused("openai-chat"),
    taken={"system": (), "assistant": ("refusal",), "tool": ()},
    alone=("refusal",),
)
"""Chat Completions of a server that is not known: templates of open models take the system prompt first, a user's
words next, turns in turn, arguments that are objects, and ids of the oldest length and alphabet."""

CHAT = replace(
    _STRICT_CHAT,
    start_user=False,
    end_user=False,
    merge=False,
    object_arguments=False,
    trailing_space=True,
    system_place="any",
    id_pattern=r"[\s\S]",
    id_max=64,
    unique_ids=False,
    empty_text=True,
    blank_text=True,
    thinking_by_all=True,
    max_images=500,
    max_bytes=50_000_000,
)
"""Chat Completions at OpenAI. 64 characters an id are taken now, 40 on older deployments, so new ids are made no longer
than 40; images and bytes as the vision guide has them."""

_MISTRAL = replace(
    _STRICT_CHAT,
    results_answered=True,
    id_pattern="[a-zA-Z0-9]",
    id_min=9,
    id_max=9,
    max_images=8,
)
"""Chat Completions at Mistral: a call id has exactly nine letters and digits, no user speaks right behind results
(``Unexpected role 'user' after role 'tool'``), and the assistant is not the last, as its errors say. Images: the vision
guide."""

_OPENAI = re.compile(r"(?:^|[/:.@])(?:gpt-|chatgpt-|codex-|computer-use-|o[1-9](?:-|$))")
"""``gpt-5.5``, ``openai/o4-mini``, ``ft:gpt-4o:acme``; ``gpt-oss`` runs on servers of all kinds."""
_OPEN_WEIGHTS = re.compile(r"gpt-(?:oss|j|neo)")
_MISTRAL_NAME = re.compile(r"(?:open-)?mi[sx]tral|ministral|magistral|codestral|devstral|pixtral|voxtral")


def chat_dialect(model: str, provider: str = "") -> Dialect:
    """Return the rules of Chat Completions for ``model`` at ``provider``; an unknown server gets the strictest.

    ``provider`` is ``openai`` or ``mistral`` where the name of the model does not say whose server it is.
    """
    name = model.lower()
    if provider == "mistral" or (not provider and _MISTRAL_NAME.search(name)):
        return replace(_MISTRAL, model=model)
    if provider == "openai" or (not provider and _OPENAI.search(name) and not _OPEN_WEIGHTS.search(name)):
        return replace(CHAT, model=model)
    return replace(_STRICT_CHAT, model=model)


def trusting(dialect: Dialect) -> Dialect:
    """Return the rules for what a client wrote for a server of its own, where ``dialect`` knows nothing of that server.

    The client knows it, so what it wrote stays as it is, and no limit is taken for granted; what stands for older turns
    is joined to the user's words behind it, since many a server's template wants turns in turn. A new Claude is its
    maker's, whose rules hold.
    """
    if dialect.api == "gemini":  # parts of kinds that are newer than we are
        return replace(dialect, refused=tuple(kind for kind in dialect.refused if kind != "unknown"))
    if not dialect.merge:
        return dialect
    theirs = dialect.api == "anthropic" and "claude" in dialect.model.lower()
    open_ended = replace(
        CHAT if dialect.api == CHAT.api else replace(dialect, merge=False, end_user=False),
        model=dialect.model,
        merge_summary=True,
        max_images=NO_LIMIT,
        max_bytes=NO_LIMIT,
    )
    return open_ended if theirs else replace(open_ended, as_written=True, media=(), most_pixels=NO_LIMIT)


# -- Responses ---------------------------------------------------------------------------------------------------------


_RESPONSES = Dialect(
    "openai-responses",
    start_user=False,
    end_user=False,
    merge=False,
    joined=True,
    results_adjacent=False,
    results_grouped=False,
    object_arguments=False,
    system_place="any",
    id_pattern=r"[\s\S]",
    id_max=64,
    unique_ids=False,
    name_max=128,
    empty_text=True,
    blank_text=True,
    empty_results=True,
    empty_messages=True,
    media=(),
    media_in_errors=True,
    media_in_system=True,
    refused=(*_refused("openai-responses"), "text", "tool", "content."),
    taken={"user": ("computer_screenshot",), "system": ("computer_screenshot",)},
    reasoning_units=True,
    trailing_space=True,
    max_images=500,
    max_bytes=50_000_000,
)
"""The Responses API: call ids of 1 to 64 characters; images and bytes as the vision guide has them."""


def responses_dialect(model: str) -> Dialect:
    """Return the rules of the Responses API, the same for every ``model``; OpenAI's own compacts on demand."""
    name = model.lower()
    own = bool(_OPENAI.search(name)) and not _OPEN_WEIGHTS.search(name)
    return replace(_RESPONSES, model=model, compacts=own)


# -- Gemini ------------------------------------------------------------------------------------------------------------


_GEMINI_PARTS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Fields of a part that Holdfast does not interpret; others are refused."""
_GEMINI = Dialect(
    "gemini",
    start_user=False,
    merge=False,
    results_first=False,
    calls_after_user=True,
    empty_results=True,
    blank_text=True,
    id_pattern=r"[\s\S]",
    id_max=1_000,
    id_unsent=r"[\s\S]*#\d+",
    named_results=True,
    name_pattern=r"[A-Za-z_][A-Za-z0-9_.:-]*",
    name_max=128,
    media=(),
    media_from_model=True,
    media_in_errors=True,
    refused=_refused("gemini"),
    taken=dict.fromkeys(("user", "assistant", "tool"), _GEMINI_PARTS),
    thinking_alone=True,
    thinking_by_all=True,
    signed_calls=True,
    max_images=3_000,
    max_bytes=20_971_520,
)
"""generateContent. Ids are optional there and no limit of them is documented; names as the reference of
``FunctionDeclaration`` has them; 3,000 images as the vision guide has it; bytes as its error tells them."""

_GEMINI_NAME = re.compile(r"gemini-(\d{1,2})(?!\d)")
_UNSIGNED = re.compile(r"gemini-(?:pro|flash|ultra)$|gemini-pro-vision|gemma|-image")
"""First-generation names, models without function calls, and image models, where signatures are not checked."""


def signs_calls(model: str) -> bool:
    """Return whether ``model`` is a Gemini that wants its signatures back: 3 and later, and every unknown one."""
    name = model.lower()
    found = _GEMINI_NAME.search(name)
    return not _UNSIGNED.search(name) and (found is None or int(found[1]) >= 3)


def gemini_dialect(model: str) -> Dialect:
    """Return the rules of generateContent for ``model``; an unknown name gets the strictest."""
    return replace(_GEMINI, model=model, signed_calls=signs_calls(model))
