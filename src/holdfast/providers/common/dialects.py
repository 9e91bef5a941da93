"""What is loosened in the rules for a server that is not known here, but to its client."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.state.dialect import NO_LIMIT, Dialect


def relax_turn_order(dialect: Dialect) -> Dialect:
    """Return the rules with turns in any order, and without limits on images and bytes.

    What stands for older turns is joined to the user's words behind it, since many a server's template wants turns in
    turn.
    """
    return replace(
        dialect,
        merges_same_role=False,
        must_end_with_user=False,
        merges_summary=True,
        max_images=NO_LIMIT,
        max_bytes=NO_LIMIT,
    )


def lift_known_limits(dialect: Dialect) -> Dialect:
    """Return the rules under which what a client wrote stays as it is: it knows its server, and no limit is taken for
    granted.
    """
    return replace(dialect, keeps_client_content=True, media_types=(), max_image_pixels=NO_LIMIT)
