"""The state of a conversation at one leaf of its log, as an immutable value in five groups of fields.

Only ``holdfast.state.fold`` makes a new state, by applying entries of the log to an older one. This module holds the
values and imports nothing of the fold, so that everything the fold uses can import the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.calibration.calibration import (
    Calibration,
    LastAnswerUsage,
    LearnedLimits,
    MeasuredRequest,
    ModelStats,
)
from holdfast.state.edit_map import EditMap
from holdfast.state.edits import NormalizedPrefix
from holdfast.state.entries import AnswerEntry, CompactionEntry, DecisionEntry, Entry, RequestSetup, Usage
from holdfast.state.persistent_sequence import PersistentSequence


class MessageHistory(Struct, frozen=True):
    """Every message from the root of the log, with what is known of each.

    The sequences are columns of one table: index i is the same message in each of them. They are persistent, so a newer
    state shares the storage of the older one.
    """

    sized_messages: PersistentSequence[SizedMessage] = field(default_factory=PersistentSequence)
    """The messages with their size, digest and wire bytes, oldest first."""
    messages: PersistentSequence[Message] = field(default_factory=PersistentSequence)
    """The bare messages, to be compared with a caller's list."""
    cumulative_tokens: PersistentSequence[int] = field(default_factory=PersistentSequence)
    """Tokens of messages 0 to i as they were said, before any edit."""
    projection_digests: PersistentSequence[bytes] = field(default_factory=PersistentSequence)
    """Digest of everything a request shows up to and including message i; empty for a message that is hidden."""
    digests_before: PersistentSequence[bytes] = field(default_factory=PersistentSequence)
    """Digest of what was shown before message i when it was appended. For an answer it covers what its request showed,
    and is empty once that has changed. It tells whether a signed answer may be sent with its signature."""
    first_index_by_call_id: dict[str, int] = field(default_factory=dict)
    """Index of the message that first used a tool call id. The dictionary is shared with states that were grown from
    this one: an index at or beyond the end of this history belongs to one of those and does not count."""
    open_call_ids: tuple[str, ...] = ()
    """Ids of tool calls in the newest assistant message that have no result yet."""
    container: str = ""
    """Container that the newest answer named: a request with results for code that waits there names it too."""
    expired_containers: tuple[str, ...] = ()
    """Containers that the provider no longer has: no request names them."""
    failed_answer_indexes: tuple[int, ...] = ()
    """Indexes of answers that failed or were interrupted: their tool calls without a result never ran."""
    queued_messages: tuple[tuple[str, bytes], ...] = ()
    """Messages that arrived during a run and wait for their turn: note id and encoded message, oldest first."""


class RevokedDecision(Struct, frozen=True):
    """A decision that was undone, and may be put in force again."""

    position: int
    """Its index among all decisions of the branch, those in force and those that are not."""
    id: str
    body: DecisionEntry | CompactionEntry


class ViewState(Struct, frozen=True):
    """What the next request shows of the history: which part is hidden, replaced or protected, and its size."""

    pinned_count: int = 0
    """Number of system messages at the very start; they are always sent."""
    first_kept: int = 0
    """Index of the first message that is shown as it was said; ``compaction`` replaces the ones before it."""
    compaction: CompactionEntry | None = None
    edits: EditMap = field(default_factory=EditMap)
    """The recorded edits in force, by the index of the message they start at."""
    active_decisions: tuple[tuple[str, DecisionEntry | CompactionEntry], ...] = ()
    """The decisions and compactions in force with the ids of their entries, oldest first."""
    revoked_decisions: tuple[RevokedDecision, ...] = ()
    """The decisions that were undone and not restored, in the order of their undos."""
    protected_parts: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    """Parts that an undo restored, by message index; ``None`` stands for the whole message. They are reduced again only
    where nothing else fits."""
    turn_limit_start: int = 0
    """Index from which a limit of user turns counts. An undo of that limit moves it, so that the turns stay visible."""
    shown_tokens: int = 0
    """Tokens of what is shown, as the model of the last request is shown it."""
    native_tokens: int = 0
    """Tokens of the provider's own compaction items among them (or of their readable copy); 0 without one."""
    media_indexes: tuple[int, ...] = ()
    """Indexes of the shown messages that contain images or documents."""
    media_count: int = 0
    """Number of images and documents that are shown."""
    media_bytes: int = 0
    """Their bytes together."""
    normalized_prefix: NormalizedPrefix | None = None
    """How far the history is known to be valid for an API. A cache of the planner: it changes no result."""


class LastRequest(Struct, frozen=True):
    """The newest request: where it went, and how much of the history it covered."""

    seen_count: int = 0
    """Number of messages that the newest request covered: the model has seen these as they are shown."""
    unchanged_until: int = 0
    """Index of the first of them that has been edited since; ``seen_count`` if none has."""
    previous_coverage: tuple[int, int] = (0, 0)
    """``seen_count`` and ``unchanged_until`` before the newest request; a retry of it starts from these."""
    tokens: int = 0
    """``view.shown_tokens`` when it was sent."""
    prefix_digest: str = ""
    """Digest of its setup and of everything it showed."""
    model: str = ""
    api: str = ""
    """The API it went to; empty if the log does not say so."""
    configured_window: int = 0
    """The model's window as it was configured, in tokens; 0 if not known."""


class MeasuredUsage(Struct, frozen=True):
    """What providers reported or refused: the last measured request, the calibration and the learned limits."""

    measured_request: MeasuredRequest | None = None
    """The newest request whose size a provider reported. ``view.get_valid_measured_request`` says whether it still
    counts.
    """
    last_answer: LastAnswerUsage | None = None
    """The usage of the newest good answer. ``view.get_valid_last_answer`` leaves it out after a compaction."""
    calibration: Calibration = Calibration()
    """Reported tokens for each estimated one, for the model of the last request."""
    learned_limits: LearnedLimits = LearnedLimits()
    """What overflow errors taught about the model of the last request."""
    other_model_stats: tuple[ModelStats, ...] = ()
    """The same for models that were used before it, in the order in which they were left."""


class Counters(Struct, frozen=True):
    """How often something happened since the last answer, summary or break of the prefix.

    The limits on compactions and truncations and the circuit breaker go by these.
    """

    requests_since_break: int = 0
    """Requests since the cached prefix last broke; a retry is the same request."""
    compactions_since_answer: int = 0
    """Compactions since the last answer of the model."""
    failed_compactions: int = 0
    """Compactions that failed or gained too little since the last one that put a summary or an extract in place.

    At ``compaction.breaker_failures`` of them automatic compaction pauses altogether.
    """
    failures_since_summary: int = 0
    """The same failures, counted since the last summary by a model, a hook or the provider; an extract does not reset
    this count.

    At ``compaction.breaker_failures`` of them only the requests for summaries pause: compactions then use extracts.
    """
    compaction_failed_at: int | None = None
    """When the newest of these failures happened, in ms since 1970; ``None`` if the log does not say.

    Both pauses allow one new attempt ``compaction.breaker_cooldown_seconds`` after it.
    """
    truncations_since_answer: int = 0
    """Decisions to truncate results under pressure, since the last answer."""


class ConversationState(Struct, frozen=True):
    """What is known of a conversation at one leaf of its log: the fold over its entries.

    Immutable. Sizes are tokens of our own estimator unless a field says otherwise.
    """

    history: MessageHistory = field(default_factory=MessageHistory)
    view: ViewState = field(default_factory=ViewState)
    setup: RequestSetup = RequestSetup()
    setup_changed_at: int = 0
    """Number of messages when the setup last changed; 0 if it never did."""
    last_request: LastRequest = field(default_factory=LastRequest)
    usage: MeasuredUsage = field(default_factory=MeasuredUsage)
    counters: Counters = field(default_factory=Counters)
    policy_name: str = ""
    """Name of the policy that planned last, if a note in the log says so."""

    @classmethod
    def from_entries(cls, entries: Iterable[Entry]) -> ConversationState:
        """Return the state after ``entries``, given in order from the root of the log."""
        # Imported late: everything the fold uses imports this module.
        from holdfast.state.fold.fold_entries import apply_entries

        return apply_entries(cls(), entries)

    def with_reported_usage(self, input_tokens: int, output_tokens: int = 0) -> ConversationState:
        """Return the state after the provider reported the usage of the last planned request.

        ``input_tokens`` includes cached tokens. Raises ``TypeError`` for anything but whole numbers.
        """
        for name, token_count in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
            if not isinstance(token_count, int):
                raise TypeError(
                    f"{name} is of type {type(token_count).__name__}; give the number that the provider reported"
                )
        from holdfast.state.fold.fold_entries import apply_entry

        usage = Usage(input_tokens, output_tokens)
        return apply_entry(self, Entry("", None, AnswerEntry(self.last_request.prefix_digest, usage)))

    def dump(self) -> bytes:
        """Return the state as bytes for a database of your own; wire bytes are kept as they are."""
        from holdfast.state.codec.dump import dump_state

        return dump_state(self)

    @classmethod
    def load(cls, data: bytes) -> ConversationState:
        """Return the state that ``dump`` wrote; raises ``FormatError`` for any other bytes."""
        from holdfast.state.codec.dump import load_state
        from holdfast.state.fold.media import recount_media

        return recount_media(load_state(data))


def is_protected_part(state: ConversationState, message_index: int, part: int | None) -> bool:
    """Return whether an undo restored this part of a message, or the whole message (``part`` None)."""
    parts = state.view.protected_parts.get(message_index, ())
    return part in parts or None in parts


_GROUPS = ("history", "view", "last_request", "usage", "counters")
"""The fields of a state that are structs of fields."""


def flatten_state(state: ConversationState) -> dict[str, object]:
    """Return every field of ``state`` under ``group.field``, or under its name if it is in no group.

    Checkpoints and dumps are written from this.
    """
    flat: dict[str, object] = {}
    for name in state.__struct_fields__:
        value = getattr(state, name)
        if name in _GROUPS:
            flat |= {f"{name}.{inner}": getattr(value, inner) for inner in value.__struct_fields__}
        else:
            flat[name] = value
    return flat


def replace_flat_fields(state: ConversationState, values: Mapping[str, Any]) -> ConversationState:
    """Return ``state`` with the fields in ``values`` replaced; they are named as ``flatten_state`` names them."""
    changes: dict[str, Any] = {}
    # Collected by group first, so that each group is copied once.
    by_group: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        group, _, inner = name.rpartition(".")
        if group:
            by_group.setdefault(group, {})[inner] = value
        else:
            changes[name] = value
    for group, inner_values in by_group.items():
        changes[group] = replace(getattr(state, group), **inner_values)
    return replace(state, **changes)
