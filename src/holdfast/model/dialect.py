"""The rules of an API as data: hygiene obeys them, the validator proves them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SystemPlace = Literal["first", "turn", "any"]


class Dialect(Struct, frozen=True, omit_defaults=True):
    """What one API, on one family of models, accepts. An unknown server gets the strictest values (the defaults)."""

    api: str
    model: str = ""
    """The model these rules are for; what another one sealed stays behind."""
    start_user: bool = True
    """The first message after the system prompt must be a user's."""
    end_user: bool = True
    """The last message must not be the assistant's (no prefill)."""
    merge: bool = True
    """Neighbours of one role become one message."""
    results_grouped: bool = True
    """Results of one assistant message stand together in the very next message, before any words."""
    system_place: SystemPlace = "first"
    """Where system messages may stand: before all others, also between a user's and an answer, or anywhere."""
    id_pattern: str = "[A-Za-z0-9_-]"
    id_max: int = 40
    unique_ids: bool = True
    """Call ids are unique over the whole request."""
    name_max: int = 64
    object_arguments: bool = True
    """A call's arguments are an object, not any JSON or text."""
    empty_text: bool = False
    """Empty or blank text parts are allowed."""
    media_in_results: bool = True
    media: tuple[str, ...] = ("image/jpeg", "image/png", "image/gif", "image/webp", "application/pdf", "text/plain")
    """MIME types that may be sent, by users and in results only; empty means any."""
    thinking_alone: bool = False
    """An answer may consist of thinking and nothing else."""
    trailing_space: bool = False
    """The last message may be the assistant's and end in white space."""
    max_images: int = 100
    max_bytes: int = 32_000_000
    """Bytes of a request body."""
    markers: int = 0
    """How many explicit cache breakpoints a request may carry."""
    lookback: int = 20
    """Blocks that the provider looks back from a breakpoint for an entry of the cache."""
    binds_thinking: bool = False
    """Thinking is signed over everything before it; after an edit it must go."""
