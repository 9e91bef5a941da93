"""Rules of Chat Completions at OpenAI and at an unknown server; those of other providers are in ``dialects``."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.providers.common.dialects import lift_known_limits, relax_turn_order
from holdfast.providers.common.media_faults import COMMON_IMAGE_TYPES
from holdfast.providers.common.openai.models import is_openai_model
from holdfast.providers.openai_chat.messages import API_NAME
from holdfast.state.dialect import Dialect

_STRICT_CHAT_DIALECT = Dialect(
    API_NAME,
    merges_same_role=True,
    results_grouped=False,
    media_types=(),
    allows_media_in_results=False,
    allowed_kinds_by_role={"system": (), "assistant": ("refusal",), "tool": ()},
    exclusive_kinds=("refusal",),
)
"""Rules for an unknown server: the strictest of everything known servers ask for, since open models bring chat
templates of their own. They want the system prompt first, a user message next, alternating turns, arguments that are
objects, and ids of the oldest length and alphabet."""

OPENAI_CHAT_DIALECT = replace(
    _STRICT_CHAT_DIALECT,
    must_start_with_user=False,
    must_end_with_user=False,
    merges_same_role=False,
    arguments_are_objects=False,
    allows_trailing_space=True,
    system_position="any",
    id_character_pattern=r"[\s\S]",
    id_max=64,
    unique_ids=False,  # calls are paired with the tool messages right after them, so ids may return later
    allows_empty_text=True,
    allows_blank_text=True,
    allows_thinking_in_any_role=True,
    image_types=COMMON_IMAGE_TYPES,
    needs_registered_image_types=False,
    max_images=500,
    max_bytes=50_000_000,
)
"""Rules of OpenAI. An id may have 64 characters today, but 40 on older deployments, so new ids are made no longer than
40. Limits on images and bytes are those of the vision guide."""


def build_dialect(model: str, provider: str = "") -> Dialect:
    """Return the rules of Chat Completions for ``model`` at ``provider``; an unknown server gets the strictest.

    ``provider`` is ``openai`` if the model's name does not tell the server.
    """
    if provider == "openai" or (not provider and is_openai_model(model.lower())):
        return replace(OPENAI_CHAT_DIALECT, model=model)
    return replace(_STRICT_CHAT_DIALECT, model=model)


def relax_dialect(dialect: Dialect) -> Dialect:
    """Relax the rules for a message list that a client wrote for a server unknown to Holdfast.

    The dialect of a known server is returned as it is.
    """
    if not dialect.merges_same_role:
        return dialect
    own = replace(
        OPENAI_CHAT_DIALECT,
        model=dialect.model,
        refused_kinds=dialect.refused_kinds,
        refuses_old_calls=dialect.refuses_old_calls,
    )
    return lift_known_limits(relax_turn_order(own))
