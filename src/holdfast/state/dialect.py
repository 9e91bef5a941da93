"""The rules of an API as data: hygiene obeys them, the validator proves them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SystemPlace = Literal["first", "turn", "any"]
NO_LIMIT = 1 << 53
"""A limit that nobody knows: nothing reaches it, and JSON holds it."""


class Dialect(Struct, frozen=True, omit_defaults=True):
    """What one API, on one family of models, accepts. An unknown server gets the strictest values (the defaults)."""

    api: str
    model: str = ""
    """The model these rules are for; what another one sealed stays behind."""
    as_written: bool = False
    """A server that its clients know and we do not: what they wrote goes as it came, whatever the rules here say.
    Only what Holdfast itself brought there, and what another model sealed, is made ready for the API."""
    start_user: bool = True
    """The first message after the system prompt must be a user's."""
    end_user: bool = True
    """The last message must not be the assistant's (no prefill)."""
    merge: bool = True
    """Neighbours of one role become one message."""
    merge_summary: bool = False
    """What stands for older turns and a user's message behind it become one, where neighbours else stay as they are."""
    joined: bool = False
    """The API itself reads neighbours of one role as one message."""
    results_adjacent: bool = True
    """The results of an answer's calls stand right behind it; if not, anywhere behind their calls."""
    results_grouped: bool = True
    """Results of one assistant message stand together in the very next message."""
    results_first: bool = True
    """In a message with results and words the results come first."""
    results_answered: bool = False
    """Between results and a user's words the assistant says something."""
    elsewhere: bool = False
    """A part of the history lies with the server: a result may answer a call that is not here."""
    calls_after_user: bool = False
    """An answer with calls stands right behind a user's words or results, never behind another answer."""
    system_place: SystemPlace = "first"
    """Where system messages may stand: before all others, also between a user's and an answer, or anywhere."""
    id_pattern: str = "[A-Za-z0-9_-]"
    """What each character of a call id must match."""
    id_min: int = 1
    id_max: int = 40
    unique_ids: bool = True
    """Call ids are unique over the whole request; if not, in their message."""
    id_unsent: str = ""
    """Pattern of ids that stand for none on the wire: they are unique in their message only."""
    named_results: bool = False
    """A result says the name of its call."""
    name_pattern: str = "[A-Za-z0-9_-]+"
    """What a tool's name must match as a whole."""
    name_max: int = 64
    object_arguments: bool = True
    """A call's arguments are an object, not any JSON or text."""
    empty_text: bool = False
    """Empty text parts are allowed."""
    blank_text: bool = False
    """Text parts of nothing but white space are allowed."""
    empty_results: bool = False
    """A result may hold nothing at all; if not, an empty text stands in it."""
    empty_messages: bool = False
    """A message may hold nothing at all."""
    empty_end: bool = False
    """The last message may be the assistant's and empty."""
    media_in_results: bool = True
    media: tuple[str, ...] = ("image/jpeg", "image/png", "image/gif", "image/webp", "application/pdf", "text/plain")
    """MIME types that may be sent, by users and in results only; empty means any."""
    media_in_system: bool = False
    """A system message may hold media; if not, the user shows them."""
    media_from_model: bool = False
    """The assistant may hold media too."""
    media_in_errors: bool = False
    """A result that is an error may hold media too."""
    refused: tuple[str, ...] = ()
    """Kinds of opaque parts that are never taken: those of other APIs, and malformed ones of this. One that ends in a
    dot stands for all that begin with it."""
    refused_in_results: tuple[str, ...] = ()
    """Kinds of opaque parts that no result may hold, beside those."""
    taken: dict[str, tuple[str, ...]] = {}
    """The only kinds of opaque parts that messages of a role may hold; a role that is not named holds any."""
    alone: tuple[str, ...] = ()
    """Kinds of opaque parts beside which no others may stand in an answer."""
    thinking_alone: bool = False
    """An answer may consist of thinking and nothing else."""
    thinking_by_all: bool = False
    """Others than the assistant may hold thinking too, which nobody reads."""
    reasoning_units: bool = False
    """Thinking and the part behind it are one: without its thinking, that part loses its seal (the item's id)."""
    signed_calls: bool = False
    """The first call of each step of the current turn carries a signature, or the documented dummy."""
    trailing_space: bool = False
    """The last message may be the assistant's and end in white space."""
    max_images: int = NO_LIMIT
    max_bytes: int = NO_LIMIT
    """Bytes of a request body. Of both only a limit that is known counts: a guess would cost an attachment."""
    most_pixels: int = NO_LIMIT
    """Pixels a side that no image may have more of."""
    large_pixels: int = NO_LIMIT
    """Pixels a side over which an image is large,"""
    images_with_large: int = NO_LIMIT
    """and how many images one request may hold if any of them is."""
    markers: int = 0
    """How many explicit cache breakpoints a request may carry."""
    lookback: int = 20
    """Blocks that the provider looks back from a breakpoint for an entry of the cache."""
    binds_thinking: bool = False
    """Thinking is signed over everything before it; after an edit it must go."""
    compacts: bool = False
    """The provider compacts a conversation when it is asked to."""
