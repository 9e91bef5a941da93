"""The rules of an API as data: hygiene obeys them, the validator proves them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SystemPosition = Literal["first", "turn", "any"]
NO_LIMIT = 1 << 53
"""A limit that nobody knows: nothing reaches it, and JSON holds it."""


class Dialect(Struct, frozen=True, omit_defaults=True):
    """What one API, on one family of models, accepts. An unknown server gets the strictest values (the defaults)."""

    api: str
    model: str = ""
    """The model these rules are for; what another one sealed stays behind."""
    keeps_client_content: bool = False
    """A server that its clients know and we do not: what they wrote goes as it came, whatever the rules here say.
    Only what Holdfast itself brought there, and what another model sealed, is made ready for the API."""
    must_start_with_user: bool = True
    """The first message after the system prompt must be a user's."""
    must_end_with_user: bool = True
    """The last message must not be the assistant's (no prefill)."""
    merges_same_role: bool = True
    """Neighbours of one role become one message."""
    merges_summary: bool = False
    """What stands for older turns and a user's message behind it become one, where neighbours else stay as they are."""
    server_joins_same_role: bool = False
    """The API itself reads neighbours of one role as one message."""
    results_adjacent: bool = True
    """The results of an answer's calls stand right behind it; if not, anywhere behind their calls."""
    results_grouped: bool = True
    """Results of one assistant message stand together in the very next message."""
    results_first: bool = True
    """In a message with results and words the results come first."""
    needs_answer_after_results: bool = False
    """Between results and a user's words the assistant says something."""
    has_server_history: bool = False
    """A part of the history lies with the server: a result may answer a call that is not here."""
    calls_follow_user: bool = False
    """An answer with calls stands right behind a user's words or results, never behind another answer."""
    system_position: SystemPosition = "first"
    """Where system messages may stand: before all others, also between a user's and an answer, or anywhere."""
    id_pattern: str = "[A-Za-z0-9_-]"
    """What each character of a call id must match."""
    id_min: int = 1
    id_max: int = 40
    unique_ids: bool = True
    """Call ids are unique over the whole request; if not, in their message."""
    unsent_id_pattern: str = ""
    """Pattern of ids that stand for none on the wire: they are unique in their message only."""
    results_carry_name: bool = False
    """A result says the name of its call."""
    name_pattern: str = "[A-Za-z0-9_-]+"
    """What a tool's name must match as a whole."""
    name_max: int = 64
    arguments_are_objects: bool = True
    """A call's arguments are an object, not any JSON or text."""
    allows_empty_text: bool = False
    """Empty text parts are allowed."""
    allows_blank_text: bool = False
    """Text parts of nothing but white space are allowed."""
    allows_empty_results: bool = False
    """A result may hold nothing at all; if not, an empty text stands in it."""
    allows_empty_messages: bool = False
    """A message may hold nothing at all."""
    allows_empty_last_answer: bool = False
    """The last message may be the assistant's and empty."""
    allows_media_in_results: bool = True
    media_types: tuple[str, ...] = (
        "image/jpeg",
        "image/png",
        "image/gif",
        "image/webp",
        "application/pdf",
        "text/plain",
    )
    """MIME types that may be sent, by users and in results only; empty means any."""
    allows_media_in_system: bool = False
    """A system message may hold media; if not, the user shows them."""
    allows_media_from_model: bool = False
    """The assistant may hold media too."""
    allows_media_in_errors: bool = False
    """A result that is an error may hold media too."""
    refused_kinds: tuple[str, ...] = ()
    """Kinds of opaque parts that are never taken: those of other APIs, and malformed ones of this. One that ends in a
    dot stands for all that begin with it."""
    refused_result_kinds: tuple[str, ...] = ()
    """Kinds of opaque parts that no result may hold, beside those."""
    allowed_kinds_by_role: dict[str, tuple[str, ...]] = {}
    """The only kinds of opaque parts that messages of a role may hold; a role that is not named holds any."""
    exclusive_kinds: tuple[str, ...] = ()
    """Kinds of opaque parts beside which no others may stand in an answer."""
    allows_thinking_only: bool = False
    """An answer may consist of thinking and nothing else."""
    allows_thinking_in_any_role: bool = False
    """Others than the assistant may hold thinking too, which nobody reads."""
    binds_reasoning_to_next: bool = False
    """Thinking and the part behind it are one: without its thinking, that part loses its seal (the item's id)."""
    requires_signed_calls: bool = False
    """The first call of each step of the current turn carries a signature, or the documented dummy."""
    allows_trailing_space: bool = False
    """The last message may be the assistant's and end in white space."""
    max_images: int = NO_LIMIT
    max_bytes: int = NO_LIMIT
    """Bytes of a request body. Of both only a limit that is known counts: a guess would cost an attachment."""
    max_image_pixels: int = NO_LIMIT
    """Pixels a side that no image may have more of."""
    large_image_pixels: int = NO_LIMIT
    """Pixels a side over which an image is large,"""
    max_images_with_large: int = NO_LIMIT
    """and how many images one request may hold if any of them is."""
    max_cache_breakpoints: int = 0
    """How many explicit cache breakpoints a request may carry."""
    cache_lookback: int = 20
    """Blocks that the provider looks back from a breakpoint for an entry of the cache."""
    binds_thinking: bool = False
    """Thinking is signed over everything before it; after an edit it must go."""
    has_system_field: bool = False
    """The system prompt has a field of its own and is no message."""
    clients_drop_thinking: bool = False
    """Clients leave the thinking of earlier turns out of the bytes that they send."""
    supports_compaction: bool = False
    """The provider compacts a conversation when it is asked to."""
