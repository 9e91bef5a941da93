"""Rules that are relaxed for servers that Holdfast does not know but their clients do."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.state.dialect import NO_LIMIT, Dialect


def relax_turn_order(dialect: Dialect) -> Dialect:
    """Return ``dialect`` with turns in any order and without limits on images and bytes."""
    return replace(
        dialect,
        merges_same_role=False,
        must_end_with_user=False,
        # A summary and the user's message after it are two user messages in a row, written by Holdfast and not by the
        # client. Chat templates of many open models refuse that order, so these two are merged.
        merges_summary=True,
        max_images=NO_LIMIT,
        max_bytes=NO_LIMIT,
    )


def lift_known_limits(dialect: Dialect) -> Dialect:
    """Return ``dialect`` with client content kept as written and without limits on media.

    The client knows its server. Rewriting its messages by rules of another server would only do damage.
    """
    return replace(
        dialect,
        keeps_client_content=True,
        media_types=(),
        max_image_pixels=NO_LIMIT,
    )
