"""Entries: the nodes of the append-only log."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Raw, Struct

from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.edits import Edit


class MessageEntry(
    Struct, frozen=True, gc=False, tag="message", rename={"sized_message": "slot", "recording_envelope": "origin"}
):
    """Somebody said something."""

    sized_message: SizedMessage
    recording_envelope: Raw | None = None
    """What the recording tool kept around the message (its envelope), as JSON, for a faithful export."""


class RequestSetup(Struct, frozen=True, omit_defaults=True, tag="frame", rename={"is_exact": "exact"}):
    """System prompt, tools and options of the requests from here on, as a digest and a size in tokens."""

    digest: str = ""
    tokens: int = 0
    is_exact: bool = False
    """Whether ``tokens`` are the model's own (told or measured); if not, they are the estimator's, uncalibrated."""


class DecisionEntry(Struct, frozen=True, omit_defaults=True, tag="decision"):
    """Edits that every later request of this branch repeats byte for byte."""

    edits: tuple[Edit, ...]


TRIGGER_AUTO = "auto"
"""Trigger of a compaction before its request first went out."""
TRIGGER_MANUAL = "manual"
"""Trigger of a compaction that somebody asked for."""
FAILURE_OVERFLOW = "overflow"
"""Trigger of a compaction that a refused request asked for."""
TRIGGER_FALLBACK = "fallback"
"""Trigger of a compaction that makes the smallest request there is; it does not count among those between answers."""
TRIGGER_HISTORY = "history"
"""Trigger of a compaction that shows the last user turns and no more."""
TRIGGER_REPLAY = "replay"
"""Trigger of a compaction after an overflow that says the user's newest message again, without its media."""


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
    },
):
    """The slots before ``first_kept`` give way to ``summary``, or to nothing; one record, there or not there."""

    first_kept: int
    """Index of the first slot kept verbatim."""
    summary: Message | None = None
    head_tokens: int = 0
    """Estimator tokens of what stands for the head: ``native`` where the provider counted it, else ``summary``."""
    edits: tuple[Edit, ...] = ()
    """Edits on the kept tail that belong to this compaction."""
    tokens_before: int = 0
    tokens_after: int = 0
    """Estimated tokens of the request before and after."""
    trigger: str = TRIGGER_AUTO
    native: Raw | None = None
    """What the provider made, if it compacted: ``{api, model, items}``; ``summary`` is then its readable twin."""
    readable_tokens: int = 0
    """Estimator tokens of ``summary`` beside ``native``; 0 where nobody counted them."""
    author: str = ""
    """Who wrote the summary, or compacted: ``model``, ``hook`` or ``native``; nobody did where it is an extract."""


class RequestEntry(
    Struct, frozen=True, omit_defaults=True, tag="request", rename={"prefix_digest": "basis", "message_count": "slots"}
):
    """A request is about to be sent. What it shows is *seen*; equal basis means the same prefix."""

    prefix_digest: str
    message_count: int
    """How many slots of the branch it covers."""
    model: str = ""
    window: int = 0
    """Tokens of the window as it was configured, whatever overflows told of it; 0 = not known."""
    api: str = ""
    """The API that it goes to, where the log says so."""


class Usage(Struct, frozen=True, omit_defaults=True, rename={"reported_total": "told"}):
    """Tokens as the provider reported them; ``input`` is the whole prompt, cached or not."""

    input: int = 0
    output: int = 0
    """All that the model made, its reasoning too."""
    cache_read: int = 0
    """Tokens of ``input`` that came out of the cache."""
    cache_write: int = 0
    """Tokens of ``input`` that were written into it."""
    reasoning: int = 0
    """Tokens of ``output`` that were reasoning."""
    reported_total: int = 0
    """Tokens of both together as a recording says, where that is not their sum."""
    cache_write_1h: int = 0
    """Tokens of ``cache_write`` that stay there for an hour (Anthropic); the others stay as long as is usual."""

    @property
    def total(self) -> int:
        """Tokens of the window that were in use when the answer ended."""
        return self.reported_total or self.input + self.output


class AnswerEntry(
    Struct, frozen=True, omit_defaults=True, tag="answer", rename={"prefix_digest": "basis", "stop_reason": "stop"}
):
    """What the request with ``prefix_digest`` cost."""

    prefix_digest: str
    usage: Usage = Usage()
    stop_reason: str = ""


class RevokeEntry(Struct, frozen=True, tag="revoke", rename={"revoked_id": "id"}):
    """Decision or compaction ``revoked_id`` no longer counts: undo, without moving the leaf."""

    revoked_id: str


class LabelEntry(Struct, frozen=True, omit_defaults=True, tag="label"):
    """A name for entry ``target``; an empty name takes it away."""

    target: str
    name: str = ""


FAILURE_UNANSWERED = "unanswered"
"""Kind of a failure of a request, which says nothing of the compaction before it."""
FAILURE_OVERFLOW = "overflow"
"""Kind of a failure that teaches: the newest request was too large, by the numbers beside it."""


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
    """An attempt that changed nothing: ``kind`` is a closed word, ``reason`` is for people.

    Every kind but ``FAILURE_UNANSWERED`` and ``FAILURE_OVERFLOW`` is that of a compaction, and counts towards the
    breaker.
    """

    kind: str
    reason: str = ""
    limit_tokens: int = 0
    """Tokens that the provider says it takes, where it said so of an overflow."""
    requested_tokens: int = 0
    """Tokens of the prompt that it refused, as it counted them."""
    is_other_branch: bool = False
    """Whether that was a request of another branch: the limit holds here too, the size says nothing."""
    max_body_bytes: int = 0
    """Bytes that a body may have, where the provider named them: then it says nothing of tokens."""


NOTE_POLICY = "policy"
"""Reason of a note that says by its ``name`` which policy decides from here on."""


NOTE_WINDOW_FORGOTTEN = "window forgotten"
"""Reason of a note behind which nothing counts that overflows told of the window before it."""
NOTE_MODEL_STATS = "models known"
"""Reason of a note that says what is known of models from here on, whatever the log before it tells of them."""
NOTE_QUEUED, NOTE_DELIVERED = "queued", "delivered"
"""Reasons of notes: a message that waits for an answer on its way, and which of those were said."""
NOTE_FORM = "form wanted"
"""Reason of a note that says which form the server of a model wants from here on, since it refused what a client wrote:
``mends``, the rules of the API's maker, and ``judges``, those that we know."""
NOTE_SIGNATURES_RESTORED = "sealed content shown again"
"""Reason of a note: a request was refused as before without what its provider had sealed, which is left out no more."""


class NoteEntry(Struct, frozen=True, omit_defaults=True, tag="note"):
    """Something kept but not said: a line that did not decode (``raw``), a setting, a remark."""

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
    """What happened on another branch, told to this one as user-role data."""

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
"""What an entry says; its tag is the entry's kind."""


class Entry(Struct, frozen=True, gc=False, rename={"time_ms": "at"}):
    """A node of the log. ``seq`` orders entries, ``time_ms`` (ms since 1970, or nothing) is for display."""

    id: str
    parent: str | None
    body: EntryBody
    seq: int = 0
    time_ms: int | None = None
