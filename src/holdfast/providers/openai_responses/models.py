"""Rules of the Responses API, the same for every model."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.providers.common.media_faults import COMMON_IMAGE_TYPES
from holdfast.providers.common.openai.models import is_openai_model
from holdfast.providers.openai_responses.items import API_NAME
from holdfast.state.dialect import Dialect, ItemForm

_ITEM_FORMS = {
    "image_generation_call": ItemForm(
        answer_fields=("action", "background", "output_format", "quality", "revised_prompt", "size"),
    ),
    "reasoning": ItemForm(answer_fields=("status",), defaults={"summary": "[]"}),
    "web_search_call": ItemForm(action_types=("search", "open_page", "find_in_page", "find")),
}
"""What answers have and requests may not; sources at the rules ``output-fields``, ``reasoning-status`` and others."""

_RESPONSES_DIALECT = Dialect(
    API_NAME,
    must_start_with_user=False,
    must_end_with_user=False,
    merges_same_role=False,
    server_joins_same_role=True,
    # Pairing is by ``call_id`` alone: outputs may stand anywhere after their calls.
    results_adjacent=False,
    results_grouped=False,
    arguments_are_objects=False,
    system_position="any",
    id_character_pattern=r"[\s\S]",
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
    allowed_kinds_by_role={"user": ("computer_screenshot",), "system": ("computer_screenshot",)},
    # Reasoning and the item after it are one unit: either without the other is a 400.
    binds_reasoning_to_next=True,
    allows_trailing_space=True,
    image_types=COMMON_IMAGE_TYPES,
    needs_registered_image_types=False,
    item_forms=_ITEM_FORMS,
    max_images=500,
    max_bytes=50_000_000,
)
"""Call ids have 1 to 64 characters; limits on images and bytes are those of the vision guide."""


def build_dialect(model: str, _provider: str = "") -> Dialect:
    """Return the rules of the Responses API for ``model``. Only OpenAI's own models compact on demand."""
    return replace(_RESPONSES_DIALECT, model=model, supports_compaction=is_openai_model(model.lower()))
