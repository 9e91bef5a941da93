"""Entries: the nodes of the append-only log."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Raw, Struct

from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.state.edits import Edit


class Said(Struct, frozen=True, gc=False, tag="message"):
    """Somebody said something."""

    slot: Slot
    origin: Raw | None = None
    """What the recording tool kept around the message (its envelope), as JSON, for a faithful export."""


class Frame(Struct, frozen=True, omit_defaults=True, tag="frame"):
    """System prompt, tools and options of the requests from here on, as a digest and a size in tokens."""

    digest: str = ""
    tokens: int = 0
    exact: bool = False
    """Whether ``tokens`` are the model's own (told or measured); if not, they are the estimator's, uncalibrated."""


class Decision(Struct, frozen=True, omit_defaults=True, tag="decision"):
    """Edits that every later request of this branch repeats byte for byte."""

    edits: tuple[Edit, ...]


AUTO = "auto"
"""Trigger of a compaction before its request first went out."""
MANUAL = "manual"
"""Trigger of a compaction that somebody asked for."""
OVERFLOW = "overflow"
"""Trigger of a compaction that a refused request asked for."""
FALLBACK = "fallback"
"""Trigger of a compaction that makes the smallest request there is; it does not count among those between answers."""
HISTORY = "history"
"""Trigger of a compaction that shows the last user turns and no more."""
REPLAY = "replay"
"""Trigger of a compaction after an overflow that says the user's newest message again, without its media."""


class Compaction(Struct, frozen=True, omit_defaults=True, tag="compaction"):
    """The slots before ``keep`` give way to ``summary``, or to nothing; one record, there or not there."""

    keep: int
    """Index of the first slot kept verbatim."""
    summary: Message | None = None
    size: int = 0
    """Estimator tokens of what stands for the head: ``native`` where the provider counted it, else ``summary``."""
    edits: tuple[Edit, ...] = ()
    """Edits on the kept tail that belong to this compaction."""
    before: int = 0
    after: int = 0
    """Estimated tokens of the request before and after."""
    trigger: str = AUTO
    native: Raw | None = None
    """What the provider made, if it compacted: ``{api, model, items}``; ``summary`` is then its readable twin."""
    twin: int = 0
    """Estimator tokens of ``summary`` beside ``native``; 0 where nobody counted them."""
    by: str = ""
    """Who wrote the summary, or compacted: ``model``, ``hook`` or ``native``; nobody did where it is an extract."""


class Request(Struct, frozen=True, omit_defaults=True, tag="request"):
    """A request is about to be sent. What it shows is *seen*; equal basis means the same prefix."""

    basis: str
    slots: int
    """How many slots of the branch it covers."""
    model: str = ""
    window: int = 0
    """Tokens of the window as it was configured, whatever overflows told of it; 0 = not known."""
    api: str = ""
    """The API that it goes to, where the log says so."""


class Usage(Struct, frozen=True, omit_defaults=True):
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
    told: int = 0
    """Tokens of both together as a recording says, where that is not their sum."""
    cache_write_1h: int = 0
    """Tokens of ``cache_write`` that stay there for an hour (Anthropic); the others stay as long as is usual."""

    @property
    def total(self) -> int:
        """Tokens of the window that were in use when the answer ended."""
        return self.told or self.input + self.output


class Answer(Struct, frozen=True, omit_defaults=True, tag="answer"):
    """What the request with ``basis`` cost."""

    basis: str
    usage: Usage = Usage()
    stop: str = ""


class Revoke(Struct, frozen=True, tag="revoke"):
    """Decision or compaction ``id`` no longer counts: undo, without moving the leaf."""

    id: str


class Label(Struct, frozen=True, omit_defaults=True, tag="label"):
    """A name for entry ``target``; an empty name takes it away."""

    target: str
    name: str = ""


UNANSWERED = "unanswered"
"""Kind of a failure of a request, which says nothing of the compaction before it."""
OVERFLOW = "overflow"
"""Kind of a failure that teaches: the newest request was too large, by the numbers beside it."""


PASSING = frozenset({"network", "rate_limit", "overloaded", "server"})
"""Kinds of errors that say nothing about the request: the same bytes may be answered a little later."""


class Failure(Struct, frozen=True, omit_defaults=True, tag="failure"):
    """An attempt that changed nothing: ``kind`` is a closed word, ``reason`` is for people.

    Every kind but ``UNANSWERED`` and ``OVERFLOW`` is that of a compaction, and counts towards the breaker.
    """

    kind: str
    reason: str = ""
    limit: int = 0
    """Tokens that the provider says it takes, where it said so of an overflow."""
    requested: int = 0
    """Tokens of the prompt that it refused, as it counted them."""
    elsewhere: bool = False
    """Whether that was a request of another branch: the limit holds here too, the size says nothing."""
    bytes: int = 0
    """Bytes that a body may have, where the provider named them: then it says nothing of tokens."""


POLICY = "policy"
"""Reason of a note that says by its ``name`` which policy decides from here on."""


FORGOTTEN = "window forgotten"
"""Reason of a note behind which nothing counts that overflows told of the window before it."""
KNOWN = "models known"
"""Reason of a note that says what is known of models from here on, whatever the log before it tells of them."""
QUEUED, DELIVERED = "queued", "delivered"
"""Reasons of notes: a message that waits for an answer on its way, and which of those were said."""
FORM = "form wanted"
"""Reason of a note that says which form the server of a model wants from here on, since it refused what a client wrote:
``mends``, the rules of the API's maker, and ``judges``, those that we know."""
NO_HELP = "sealed content shown again"
"""Reason of a note: a request was refused as before without what its provider had sealed, which is left out no more."""


class Note(Struct, frozen=True, omit_defaults=True, tag="note"):
    """Something kept but not said: a line that did not decode (``raw``), a setting, a remark."""

    reason: str
    raw: bytes = b""
    data: dict[str, Any] = {}


class BranchSummary(Struct, frozen=True, omit_defaults=True, tag="branch_summary"):
    """What happened on another branch, told to this one as user-role data."""

    slot: Slot
    source: str = ""


Body: TypeAlias = (
    Said | Frame | Decision | Compaction | Request | Answer | Revoke | Label | Failure | Note | BranchSummary
)
"""What an entry says; its tag is the entry's kind."""


class Entry(Struct, frozen=True, gc=False):
    """A node of the log. ``seq`` orders entries, ``at`` (ms since 1970, or nothing) is for display."""

    id: str
    parent: str | None
    body: Body
    seq: int = 0
    at: int | None = None
