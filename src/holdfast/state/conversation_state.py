"""What is known of a conversation at one leaf of its log, as a value in five groups.

``holdfast.state.fold`` makes it of the entries of the log; nothing else does.
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
from holdfast.state.sequence import PersistentSequence


class MessageHistory(Struct, frozen=True):
    """The messages of a conversation from the root of its log, in columns that older states share."""

    sized_messages: PersistentSequence[SizedMessage] = field(default_factory=PersistentSequence)
    """Every message from the root, oldest first."""
    messages: PersistentSequence[Message] = field(default_factory=PersistentSequence)
    """The messages of the slots, to be compared with a caller's list."""
    cumulative_tokens: PersistentSequence[int] = field(default_factory=PersistentSequence)
    """``sums[i]`` is the size of slots 0 to i as they were said."""
    projection_digests: PersistentSequence[bytes] = field(default_factory=PersistentSequence)
    """``marks[i]`` is the digest of the projection up to and with slot i; nothing for one that gave way."""
    digests_before: PersistentSequence[bytes] = field(default_factory=PersistentSequence)
    """``born[i]`` is the digest of the projection before slot i at the time it was appended; of an answer, of what its
    request showed, or nothing where that stands no more."""
    first_index_by_call_id: dict[str, int] = field(default_factory=dict)
    """The slot that first used a call id; shared with the branches grown from here, so a larger index means never."""
    open_call_ids: tuple[str, ...] = ()
    """Ids of calls of the newest assistant message that have no result yet."""
    failed_answer_indexes: tuple[int, ...] = ()
    """Slots of answers that failed or were interrupted: calls of theirs without a result never ran."""
    queued_messages: tuple[tuple[str, bytes], ...] = ()
    """The ids of the notes that hold messages which wait to be said, and what they hold; oldest first."""


class ViewState(Struct, frozen=True):
    """What a request shows of the history: what is hidden, replaced or protected, and how large the rest is."""

    pinned_count: int = 0
    """System messages at the very start; they are always sent."""
    first_kept: int = 0
    """First slot that is shown; the ones before it gave way to ``compaction``."""
    compaction: CompactionEntry | None = None
    edits: EditMap = field(default_factory=EditMap)
    """Recorded edits in force, by the slot they start at."""
    active_decisions: tuple[tuple[str, DecisionEntry | CompactionEntry], ...] = ()
    """Decisions and compactions in force with the ids of their entries, oldest first."""
    protected_parts: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    """Parts that an undo brought back, by their slot; nothing is all of it. Only what must fit may take them again."""
    turn_limit_start: int = 0
    """First slot that a limit of turns counts: an undo of what it hid brings back those before."""
    shown_tokens: int = 0
    """Size of the projection, as the model that was asked last is shown it."""
    native_tokens: int = 0
    """Size of what stands for the head in it, where a provider compacted: its own items, or their readable twin."""
    media_indexes: tuple[int, ...] = ()
    """The kept slots that show images or documents."""
    media_count: int = 0
    """Images and documents that are shown."""
    media_bytes: int = 0
    normalized_prefix: NormalizedPrefix | None = None
    """What hygiene found so far; a memory of the planner's, it changes no result."""


class LastRequest(Struct, frozen=True):
    """The newest request: where it went, and how much of the history it covered."""

    seen_count: int = 0
    """How many slots the newest request covered: what lies before was seen by the model as it is shown."""
    unchanged_until: int = 0
    """First of them that is shown otherwise since; ``seen_count`` where none is."""
    previous_coverage: tuple[int, int] = (0, 0)
    """``seen_count`` and ``unchanged_until`` as the newest request found them."""
    tokens: int = 0
    """``shown_tokens`` at the newest request."""
    prefix_digest: str = ""
    model: str = ""
    api: str = ""
    """The API that the newest request went to, as far as the log says so."""
    configured_window: int = 0
    """Window of the newest request as it was configured; 0 = not known."""


class MeasuredUsage(Struct, frozen=True):
    """What providers reported and refused: a measured request, the calibration, the limits of each model."""

    measured_request: MeasuredRequest | None = None
    """The newest request whose size was told, whatever it shows now; ``valid_measured_request`` where that still
    stands.
    """
    last_answer: LastAnswerUsage | None = None
    """What was in use at the newest good answer; ``valid_last_answer`` where no compaction came later."""
    calibration: Calibration = Calibration()
    learned_limits: LearnedLimits = LearnedLimits()
    """What overflows told of the model that was asked last."""
    other_model_stats: tuple[ModelStats, ...] = ()
    """What was told of the models that were asked before it, in the order in which they were left."""


class Counters(Struct, frozen=True):
    """What happened since the last answer, summary or break of the prefix; limits and the breaker go by these."""

    requests_since_break: int = 0
    """Requests since the prefix last broke; a retry is the same request."""
    compactions_since_answer: int = 0
    """Compactions since the last answer."""
    failed_compactions: int = 0
    """Failed or useless compactions since the last good one."""
    failures_since_summary: int = 0
    """The same since the last one that somebody wrote: an extract in its place ends no row."""
    compaction_failed_at: int | None = None
    """When the newest of them failed, in ms since 1970, where the log says so."""
    truncations_since_answer: int = 0
    """Decisions to cut results under pressure since the last answer."""


class ConversationState(Struct, frozen=True):
    """What is known of a conversation at one leaf. Immutable; sizes are estimator tokens unless said otherwise."""

    history: MessageHistory = field(default_factory=MessageHistory)
    view: ViewState = field(default_factory=ViewState)
    setup: RequestSetup = RequestSetup()
    setup_changed_at: int = 0
    """How many slots there were when another frame last took the place of one; 0 where none did."""
    last_request: LastRequest = field(default_factory=LastRequest)
    usage: MeasuredUsage = field(default_factory=MeasuredUsage)
    counters: Counters = field(default_factory=Counters)
    policy_name: str = ""
    """Who decides, as far as a note says so."""

    @classmethod
    def from_entries(cls, entries: Iterable[Entry]) -> ConversationState:
        """Return the branch of ``entries``, given in order from the root."""
        from holdfast.state.fold.apply import apply_entries

        return apply_entries(cls(), entries)

    def with_reported_usage(self, input_tokens: int, output_tokens: int = 0) -> ConversationState:
        """Return the branch knowing what the request it was planned for really cost, cached tokens included.

        Raises ``TypeError`` for what is no number of tokens.
        """
        for name, token_count in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
            if not isinstance(token_count, int):
                raise TypeError(
                    f"{name} is of type {type(token_count).__name__}; give the number that the provider reported"
                )
        from holdfast.state.fold.apply import apply_entry

        usage = Usage(input_tokens, output_tokens)
        return apply_entry(self, Entry("", None, AnswerEntry(self.last_request.prefix_digest, usage)))

    def dump(self) -> bytes:
        """Return the branch as bytes for a database of your own; wire bytes are kept byte for byte."""
        from holdfast.state.codec.dump import dump_state

        return dump_state(self)

    @classmethod
    def load(cls, data: bytes) -> ConversationState:
        """Return the branch that ``dump`` wrote; raises ``FormatError`` for any other bytes."""
        from holdfast.state.codec.dump import load_state
        from holdfast.state.fold.media import recount_media

        return recount_media(load_state(data))


def is_protected_part(state: ConversationState, slot: int, part: int | None) -> bool:
    """Return whether an undo brought back this part, or all of its slot."""
    parts = state.view.protected_parts.get(slot, ())
    return part in parts or None in parts


_GROUPS = ("history", "view", "last_request", "usage", "counters")


def flatten_state(state: ConversationState) -> dict[str, object]:
    """Return every field of ``state`` by ``group.field``, or by its name where it is in no group.

    For what writes a state down: a checkpoint, a dump.
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
    """Return ``state`` with the fields of ``values``, which are named as ``flatten_state`` names them."""
    changes: dict[str, Any] = {}
    by_group: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        group, _, inner = name.rpartition(".")
        if group:
            by_group.setdefault(group, {})[inner] = value
        else:
            changes[name] = value
    changes |= {group: replace(getattr(state, group), **inner) for group, inner in by_group.items()}
    return replace(state, **changes)
