"""The rules of an API as data: normalization makes a history follow them, and the lint rules check them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SystemPosition = Literal["first", "turn", "any"]
NO_LIMIT = 1 << 53
"""A limit that is not known. No size reaches it, and it is small enough for a JSON number to hold exactly."""


class ItemForm(Struct, frozen=True, omit_defaults=True):
    """How an item of an answer comes back in a request, where that is not how the answer had it."""

    answer_fields: tuple[str, ...] = ()
    """Fields that only answers have; they are left out, unless they are null."""
    defaults: dict[str, str] = {}
    """Fields that a request must have, with the JSON to put in where one is missing."""
    action_types: tuple[str, ...] = ()
    """The only types that the item's ``action`` may have; an item with another one is left out. Empty means any."""


class Dialect(Struct, frozen=True, omit_defaults=True):
    """What one API accepts, for one family of models. The defaults are the strictest values, for unknown servers."""

    api: str
    model: str = ""
    """The model these rules are for. Content signed by another one is left out."""
    provider: str = ""
    """The provider whose rules these are (``mistral``); empty if it is unknown, or the one that defined the API."""
    max_tokens_field: str = ""
    """Where Holdfast writes the output limit of a request that has none; empty for the API's own field."""
    provider_told_by: Literal["", "model", "guess"] = ""
    """``model`` if only the model's name told the provider, and ``guess`` if the address that requests go to did not
    agree, because it is not known. Of a guess the rules about messages hold, but not those about other fields."""
    keeps_client_content: bool = False
    """Whether content that a client wrote is sent unchanged, whatever the other rules say.

    Set for servers that we do not know but their clients do: "repairing" by guessed rules would break what works. Only
    what Holdfast itself put in, and what another model signed, is normalized.
    """
    must_start_with_user: bool = True
    """The first message after the system prompt must be a user's."""
    must_end_with_user: bool = True
    """The last message must not be the assistant's (no prefilled answer)."""
    prefill_marks: tuple[str, ...] = ()
    """Kinds of opaque parts that mark a last answer as one to go on with; it may stand although the field above is
    set."""
    merges_same_role: bool = True
    """Adjacent messages of the same role are merged into one."""
    merges_system: bool = False
    """Adjacent system messages are merged into one."""
    merges_summary: bool = False
    """A summary and the user message after it are merged, also where other adjacent messages are left alone."""
    server_joins_same_role: bool = False
    """The server itself reads adjacent messages of the same role as one."""
    results_adjacent: bool = True
    """The results of an answer's calls must follow it directly; if not, they may stand anywhere after their calls."""
    results_grouped: bool = True
    """All results of one assistant message must be in the very next message."""
    results_first: bool = True
    """In a message with results and text the results must come first."""
    needs_answer_after_results: bool = False
    """Between results and a user's text there must be an assistant message."""
    has_server_history: bool = False
    """The server keeps a part of the history, so a result may answer a call that is not in the request."""
    calls_follow_user: bool = False
    """An answer with calls must follow a user's text or results directly, never another answer."""
    system_position: SystemPosition = "first"
    """Where system messages may stand: before all others, also between a user's message and an answer, or anywhere."""
    id_character_pattern: str = "[A-Za-z0-9_-]"
    """Regular expression that each character of a call id must match."""
    id_min: int = 1
    id_max: int = 40
    unique_ids: bool = True
    """Call ids must be unique in the whole request; if not, only in their message."""
    unsent_id_pattern: str = ""
    """Regular expression of ids that we made up because the wire has none; they are unique in their message only."""
    results_carry_name: bool = False
    """A result must name the tool of its call."""
    name_pattern: str = "[A-Za-z0-9_-]+"
    """Regular expression that a tool's whole name must match."""
    name_max: int = 64
    refuses_old_calls: bool = False
    """Calls in the old form of Chat Completions (``function_call``, the role ``function``) are known to be refused, so
    they are sent as calls and results of today."""
    arguments_are_objects: bool = True
    """A call's arguments must be a JSON object, not any other JSON or text."""
    allows_empty_text: bool = False
    """Empty text parts are allowed."""
    allows_empty_answers: bool = True
    """An answer may consist of an empty text, where empty texts are allowed at all."""
    allows_blank_text: bool = False
    """Text parts with nothing but white space are allowed."""
    allows_empty_results: bool = False
    """A result may be without any content; if not, an empty text is put in."""
    allows_empty_messages: bool = False
    """A message may be without any content."""
    allows_empty_last_answer: bool = False
    """The last message may be an empty one of the assistant."""
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
    image_types: tuple[str, ...] = ()
    """Types that the bytes of an inline image may have, where ``media_types`` says nothing; empty means any."""
    tells_media_from_bytes: bool = False
    """The server looks at the bytes of media alone, so a wrong declared type does no harm and is left as it is."""
    needs_registered_image_types: bool = True
    """An image's type must have its registered name: ``image/jpg`` is refused where ``image/jpeg`` is taken."""
    takes_url_base64: bool = False
    """Base64 may have the URL-safe alphabet, and no padding."""
    allows_media: bool = True
    """Media may be sent at all; if not, a line stands for each."""
    allows_media_urls: bool = True
    """A medium may be an address in place of its bytes, whatever address it is."""
    media_url_beginnings: tuple[str, ...] = ()
    """How an address may begin where ``allows_media_urls`` is not set (``ms://`` for files kept by Kimi)."""
    allows_media_in_system: bool = False
    """A system message may contain media; if not, they are moved to a user message."""
    allows_media_from_model: bool = False
    """An assistant message may contain media too."""
    allows_media_in_errors: bool = False
    """A result that is an error may contain media too."""
    refused_kinds: tuple[str, ...] = ()
    """Kinds of opaque parts that are always left out: those of other APIs, and malformed ones of this one.

    A kind that ends in a dot stands for all that begin with it.
    """
    item_forms: dict[str, ItemForm] = {}
    """By kind of opaque part (``reasoning`` for thinking): the form in which the part comes back."""
    refused_result_kinds: tuple[str, ...] = ()
    """Further kinds of opaque parts that a result may not contain."""
    allowed_kinds_by_role: dict[str, tuple[str, ...]] = {}
    """By role, the only kinds of opaque parts that its messages may contain; a role that is missing takes any."""
    message_field_kinds: tuple[str, ...] | None = None
    """The only further fields of messages, as kinds of opaque parts (``message.prefix``); None if any are taken."""
    exclusive_kinds: tuple[str, ...] = ()
    """Kinds of opaque parts that may not share an answer with others."""
    allows_thinking_only: bool = False
    """An answer may consist of thinking and nothing else."""
    allows_thinking_in_any_role: bool = False
    """Messages of other roles may contain thinking too; the server ignores it there."""
    reasoning_fields: tuple[str, ...] | None = None
    """Message fields in which the server takes reasoning: what stands in another one is moved to the first of them.

    Without any, reasoning is left out; None means that the field is left as it is.
    """
    reasoning_scope: Literal["", "calls", "all"] = ""
    """Which answers must carry reasoning in that field: those with calls, or all. Where it is lost, a space is sent."""
    allows_empty_reasoning: bool = False
    """An empty text in that field is enough."""
    binds_reasoning_to_next: bool = False
    """Reasoning and the item after it belong together: without the reasoning, the item must lose its id."""
    requires_signed_calls: bool = False
    """The first call of each step of the current turn needs a signature, or the dummy that the provider documents."""
    allows_trailing_space: bool = False
    """The last message may be the assistant's and end in white space."""
    max_images: int = NO_LIMIT
    max_bytes: int = NO_LIMIT
    """Bytes of a request body. Like ``max_images`` only a documented limit counts: a guess would cost an attachment."""
    max_image_pixels: int = NO_LIMIT
    """Width and height that no image may exceed."""
    max_image_bytes: int = NO_LIMIT
    """Characters of base64 that no image may exceed."""
    large_image_pixels: int = NO_LIMIT
    """Width or height over which an image counts as large."""
    max_images_with_large: int = NO_LIMIT
    """How many images a request may have if any of them is large."""
    max_cache_breakpoints: int = 0
    """How many explicit cache breakpoints a request may carry."""
    cache_lookback: int = 20
    """How many content blocks before a breakpoint the provider looks for a cache entry."""
    binds_thinking: bool = False
    """Thinking is signed over everything before it, so it must go once anything before it was edited."""
    has_system_field: bool = False
    """The system prompt has a field of its own in the request instead of a message."""
    clients_drop_thinking: bool = False
    """Clients leave the thinking of earlier turns out of what they send, so its absence is no edit."""
    supports_compaction: bool = False
    """The provider can compact a conversation when it is asked to."""
