"""Rules of generateContent by Gemini model."""

from __future__ import annotations

import re

from msgspec.structs import replace

from holdfast.providers.gemini.messages import API_NAME
from holdfast.state.dialect import Dialect

_GEMINI_OPAQUE_FIELDS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Payload fields that Holdfast keeps uninterpreted; parts with others are refused."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "image/gif")
"""Images that Gemini takes: the first five as its error lists them (gemini-ai#3, 2023-12). GIF is on some pages and not
on others; BMP is on none of the older ones and was refused (gemini-cli#14838, 2025-12), as was TIFF (js-genai#862)."""
_GEMINI_DIALECT = Dialect(
    API_NAME,
    must_start_with_user=False,
    has_system_field=True,
    merges_same_role=False,
    results_first=False,
    # "function call turn comes immediately after a user turn or after a function response turn", its error says.
    calls_follow_user=True,
    allows_empty_results=True,
    allows_blank_text=True,
    id_character_pattern=r"[\s\S]",
    id_max=1_000,
    unsent_id_pattern=r"[\s\S]*#\d+",  # ids that the decoder generated
    results_carry_name=True,
    name_pattern=r"[A-Za-z_][A-Za-z0-9_.:-]*",
    name_max=128,
    media_types=(),
    image_types=IMAGE_TYPES,
    takes_url_base64=True,
    allows_media_from_model=True,
    allows_media_in_errors=True,
    allowed_kinds_by_role=dict.fromkeys(("user", "assistant", "tool"), _GEMINI_OPAQUE_FIELDS),
    allows_thinking_only=True,
    allows_thinking_in_any_role=True,
    requires_signed_calls=True,
    max_images=3_000,
    max_bytes=20_971_520,
)
"""Ids are optional, and no limit of them is documented. Names follow the reference of ``FunctionDeclaration``, the
3,000 images the vision guide, the bytes its error message."""

_GEMINI_MODEL_NAME = re.compile(r"gemini-(\d{1,2})(?!\d)")
_UNSIGNED_GEMINI_NAME = re.compile(r"gemini-(?:pro|flash|ultra)$|gemini-pro-vision|gemma|-image")
"""First-generation names, models without function calls, and image models, for which signatures are not checked."""


def has_thought_signatures(model: str) -> bool:
    """Return whether ``model`` demands its signatures back: Gemini 3 and later, and every unknown Gemini."""
    name = model.lower()
    if _UNSIGNED_GEMINI_NAME.search(name):
        return False
    match = _GEMINI_MODEL_NAME.search(name)
    return match is None or int(match[1]) >= 3


def build_dialect(model: str, _provider: str = "") -> Dialect:
    """Return the rules of generateContent for ``model``; an unknown name gets the strictest."""
    return replace(_GEMINI_DIALECT, model=model, requires_signed_calls=has_thought_signatures(model))


def relax_dialect(dialect: Dialect) -> Dialect:
    """Relax the rules for content that a client wrote: it may have kinds of parts that are newer than this table."""
    return replace(dialect, refused_kinds=tuple(kind for kind in dialect.refused_kinds if kind != "unknown"))
