"""Entries: the nodes of the append-only log of a session.

Entries are stored as JSON and are readable for ever. Where ``tag`` or ``rename`` gives a stored name that differs from
the name in the code (``slot``, ``basis``, ``told``), it is the name of the first version: the code got a better one
later, and logs of all versions must stay readable.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Raw, Struct

from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.edits import Edit


class MessageEntry(
    Struct, frozen=True, gc=False, tag="message", rename={"sized_message": "slot", "recording_envelope": "origin"}
):
    """A message of the conversation."""

    sized_message: SizedMessage
    recording_envelope: Raw | None = None
    """What the recording tool stored around the message (its envelope), as JSON, for a faithful export."""


class RequestSetup(Struct, frozen=True, omit_defaults=True, tag="frame", rename={"is_exact": "exact"}):
    """System prompt, tools and options of the requests from here on, as a digest and a size in tokens."""

    digest: str = ""
    tokens: int = 0
    is_exact: bool = False
    """Whether ``tokens`` was counted by the model (told or measured); if not, it is our uncalibrated estimate."""
    field_digests: tuple[tuple[str, str], ...] = ()
    """Names of the fields that ``digest`` covers, and of options that part the provider's cache, each with a short
    digest of its own: they tell which one changed. Logs written before this field existed leave it empty."""

    def has_same_content(self, other: RequestSetup) -> bool:
        """Return whether both have the same system prompt and tools, of the same size, whatever their options."""
        return (self.digest, self.tokens, self.is_exact) == (other.digest, other.tokens, other.is_exact)


class DecisionEntry(Struct, frozen=True, omit_defaults=True, tag="decision"):
    """Edits that every later request of this branch repeats byte for byte."""

    edits: tuple[Edit, ...]


TRIGGER_AUTO = "auto"
"""Trigger of a compaction that was decided before its request was first sent."""
TRIGGER_MANUAL = "manual"
"""Trigger of a compaction that somebody asked for."""
TRIGGER_OVERFLOW = "overflow"
"""Trigger of a compaction that recovery asked for, after a request was refused as too long."""
TRIGGER_FALLBACK = "fallback"
"""Trigger of a compaction for the smallest possible request; it does not count towards the limit between answers."""
TRIGGER_HISTORY = "history"
"""Trigger of a compaction that keeps only the last user turns."""
TRIGGER_REPLAY = "replay"
"""Trigger of a compaction after an overflow that repeats the user's newest message without its media."""


class CompactionEntry(
    Struct,
    frozen=True,
    omit_defaults=True,
    tag="compaction",
    rename={
        "first_kept": "keep",
        "head_tokens": "size",
        "tokens_before": "before",
        "tokens_after": "after",
        "readable_tokens": "twin",
        "author": "by",
        "restated": "again",
    },
):
    """Hides the messages before ``first_kept`` and shows ``summary``, if there is one, in their place.

    It is one entry, so that a compaction is stored whole or not at all.
    """

    first_kept: Annotated[int, Meta(ge=0)]
    """Index of the first message that stays as it was said. Checked where an entry is written and read: with a negative
    one there is no request that could be built."""
    summary: Message | None = None
    head_tokens: int = 0
    """Estimated tokens of what is shown for the head: of ``native`` if the provider counted it, else of ``summary``."""
    edits: tuple[Edit, ...] = ()
    """Edits on the kept tail that belong to this compaction."""
    tokens_before: int = 0
    """Estimated tokens of the request before the compaction."""
    tokens_after: int = 0
    """Estimated tokens of the request after it."""
    trigger: str = TRIGGER_AUTO
    native: Raw | None = None
    """The provider's own compaction, ``{api, model, items}``; ``summary`` is then the readable version of it."""
    readable_tokens: int = 0
    """Estimated tokens of ``summary`` if there is a ``native``; 0 if nobody counted them."""
    author: str = ""
    """Who wrote the summary or compacted: ``model``, ``hook`` or ``native``; empty for an extract."""
    restated: tuple[int, ...] = ()
    """Indexes of hidden messages that are shown after the summary: they set options that are still in force."""


class RequestEntry(
    Struct, frozen=True, omit_defaults=True, tag="request", rename={"prefix_digest": "basis", "message_count": "slots"}
):
    """A request that is about to be sent. What it shows counts as seen by the model."""

    prefix_digest: str
    """Digest of setup and projection; equal digests mean equal prefixes."""
    message_count: int
    """How many messages of the history it covers."""
    model: str = ""
    window: int = 0
    """The configured window in tokens, before anything that overflows taught about it; 0 if not known."""
    api: str = ""
    """The API it goes to, if the log says so."""


class Usage(Struct, frozen=True, omit_defaults=True, rename={"reported_total": "told"}):
    """Tokens as the provider reported them; ``input`` is the whole prompt, cached or not."""

    input: int = 0
    output: int = 0
    """Everything that the model generated, reasoning included."""
    cache_read: int = 0
    """The part of ``input`` that was read from the cache."""
    cache_write: int = 0
    """The part of ``input`` that was written into the cache."""
    reasoning: int = 0
    """The part of ``output`` that was reasoning."""
    reported_total: int = 0
    """Total as a recording states it, if that is not the sum of ``input`` and ``output``."""
    cache_write_1h: int = 0
    """The part of ``cache_write`` that was written for an hour (Anthropic); the rest has the usual lifetime."""

    @property
    def total(self) -> int:
        """Tokens of the window in use when the answer ended."""
        return self.reported_total or self.input + self.output


class AnswerEntry(
    Struct, frozen=True, omit_defaults=True, tag="answer", rename={"prefix_digest": "basis", "stop_reason": "stop"}
):
    """The usage of the answer to the request with ``prefix_digest``, and why it stopped."""

    prefix_digest: str
    usage: Usage = Usage()
    stop_reason: str = ""
    container: str = ""
    """Id of the container that the answer named, in which code of the provider's may wait for results (Anthropic)."""


class RevokeEntry(
    Struct, frozen=True, omit_defaults=True, tag="revoke", rename={"revoked_id": "id", "is_restored": "restored"}
):
    """Undoes the decision or compaction ``revoked_id`` without moving the leaf, or takes that undo back."""

    revoked_id: str
    is_restored: bool = False
    """Whether the decision is in force again from here on, in its old place among the others."""


class LabelEntry(Struct, frozen=True, omit_defaults=True, tag="label"):
    """Gives entry ``target`` a name; an empty name removes it."""

    target: str
    name: str = ""


FAILURE_UNANSWERED = "unanswered"
"""Kind of a failed request; it says nothing about the compaction before it."""
FAILURE_OVERFLOW = "overflow"
"""Kind of a failure from which sizes and limits are learned: the newest request was too large.

Also the trigger of a compaction that such a refusal asked for.
"""


TRANSIENT_ERROR_KINDS = frozenset({"network", "rate_limit", "overloaded", "server"})
"""Kinds of errors that say nothing about the request: the same bytes may be answered a little later."""


class FailureEntry(
    Struct,
    frozen=True,
    omit_defaults=True,
    tag="failure",
    rename={
        "limit_tokens": "limit",
        "requested_tokens": "requested",
        "is_other_branch": "elsewhere",
        "max_body_bytes": "bytes",
    },
):
    """An attempt that changed nothing: ``kind`` is a closed word, ``reason`` is text for people.

    Every kind but ``FAILURE_UNANSWERED`` and ``FAILURE_OVERFLOW`` is a failed compaction and counts towards the circuit
    breaker.
    """

    kind: str
    reason: str = ""
    limit_tokens: int = 0
    """Limit that the error of an overflow named, in tokens; 0 if none."""
    requested_tokens: int = 0
    """Size of the refused prompt as the provider counted it; 0 if it did not say."""
    is_other_branch: bool = False
    """Whether a request of another branch was refused: its limit holds here too, its size says nothing."""
    max_body_bytes: int = 0
    """Limit of the request body that the error named, in bytes; it then says nothing about tokens."""


NOTE_POLICY = "policy"
"""Reason of a note whose ``name`` is the policy that decides from here on."""


NOTE_WINDOW_FORGOTTEN = "window forgotten"
"""Reason of a note that discards what overflows before it taught about the window."""
NOTE_MODEL_STATS = "models known"
"""Reason of a note with statistics of models that hold from here on, in place of all that the log taught before."""
NOTE_QUEUED, NOTE_DELIVERED = "queued", "delivered"
"""Reasons of notes: a message that arrived while an answer was on its way, and the ids of such notes whose messages
have since become part of the conversation."""
NOTE_FORM = "form wanted"
"""Reason of a note about which rules to apply to a client's content from here on, since the server refused it.

Its data: ``mends`` and ``judges`` are ``requires_strict_form`` and ``requires_check`` of `LearnedLimits`.
"""
NOTE_FIELDS = "fields refused"
"""Reason of a note about single fields that the server of the last model refused or missed.

Its data: ``lessons`` is the list of all `FieldLesson` values that hold from here on; the last ``new`` of them are new.
"""
NOTE_OPTIONS = "options changed"
"""Reason of a note about options of a client that were changed because the provider is known to refuse them.

Its data: ``options`` is the list of the `ChangedOption` values that are new.
"""
NOTE_CONTAINER = "container"
"""Reason of a note about containers of the provider's.

Its data: ``current`` is the id of the one that the newest answer named, or empty; ``expired`` are those of the ones
that the provider no longer has, oldest first.
"""
NOTE_SIGNATURES_RESTORED = "sealed content shown again"
"""Reason of a note: a request without signed content was refused just the same, so that content is shown again."""


class NoteEntry(Struct, frozen=True, omit_defaults=True, tag="note"):
    """Something in the log that is not part of the conversation: an undecodable line (``raw``), a setting, a remark."""

    reason: str
    raw: bytes = b""
    data: dict[str, Any] = {}


class BranchSummaryEntry(
    Struct,
    frozen=True,
    omit_defaults=True,
    tag="branch_summary",
    rename={"sized_message": "slot", "source_id": "source"},
):
    """A summary of another branch, shown to this one as a user message."""

    sized_message: SizedMessage
    source_id: str = ""


EntryBody: TypeAlias = (
    MessageEntry
    | RequestSetup
    | DecisionEntry
    | CompactionEntry
    | RequestEntry
    | AnswerEntry
    | RevokeEntry
    | LabelEntry
    | FailureEntry
    | NoteEntry
    | BranchSummaryEntry
)
"""The content of an entry; its tag is the entry's kind."""


class Entry(Struct, frozen=True, gc=False, rename={"time_ms": "at"}):
    """A node of the log. ``seq`` orders entries; ``time_ms`` (ms since 1970, or None) is for display only."""

    id: str
    parent: str | None
    body: EntryBody
    seq: int = 0
    time_ms: int | None = None
