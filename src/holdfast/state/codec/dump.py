"""Encode a conversation state as bytes and decode it, for callers that keep it in a database of their own."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from holdfast.errors import FormatError
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.calibration.calibration import (
    Calibration,
    LastAnswerUsage,
    LearnedLimits,
    MeasuredRequest,
    ModelStats,
)
from holdfast.state.codec.packing import pack_value, unpack_value
from holdfast.state.conversation_state import (
    ConversationState,
    RevokedDecision,
    flatten_state,
    replace_flat_fields,
)
from holdfast.state.edit_map import EditMap
from holdfast.state.edits import Edit, NormalizedPrefix
from holdfast.state.entries import CompactionEntry, DecisionEntry, RequestSetup
from holdfast.state.persistent_sequence import PersistentSequence
from holdfast.state.view import measure_native_summary


class _StateDump(
    Struct,
    frozen=True,
    rename={
        "sized_messages": "slots",
        "pinned_count": "pinned",
        "shown_tokens": "held",
        "setup": "frame",
        "setup_changed_at": "framed",
        "seen_count": "seen",
        "last_request_tokens": "asked",
        "calibration": "gauge",
        "normalized_prefix": "settled",
        "measured_request": "measured",
        "last_answer": "answered",
        "previous_coverage": "found",
        "protected_parts": "spared",
        "turn_limit_start": "counted",
        "learned_limits": "learned",
        "cumulative_tokens": "sums",
        "projection_digests": "marks",
        "digests_before": "born",
        "first_kept": "keep",
        "first_index_by_call_id": "callers",
        "media_count": "media",
        "open_call_ids": "open",
        "failed_answer_indexes": "broken",
        "last_prefix_digest": "basis",
        "requests_since_break": "quiet",
        "compactions_since_answer": "compactions",
        "failed_compactions": "failures",
        "active_decisions": "law",
        "revoked_decisions": "undone",
        "truncations_since_answer": "truncations",
        "unchanged_until": "standing",
        "policy_name": "policy",
        "configured_window": "window",
        "failures_since_summary": "unwritten",
        "compaction_failed_at": "failed_at",
        "other_model_stats": "aside",
        "queued_messages": "waiting",
    },
):
    """The encoded form of a state: flat, under the names of the first version, so that old dumps stay readable."""

    sized_messages: tuple[SizedMessage, ...]
    cumulative_tokens: tuple[int, ...]
    projection_digests: tuple[bytes, ...]
    digests_before: tuple[bytes, ...]
    pinned_count: int
    first_kept: int
    compaction: CompactionEntry | None
    edits: tuple[tuple[int, tuple[Edit, ...]], ...]
    shown_tokens: int
    first_index_by_call_id: dict[str, int]
    media_count: int
    media_bytes: int
    open_call_ids: tuple[str, ...]
    failed_answer_indexes: tuple[int, ...]
    setup: RequestSetup
    setup_changed_at: int
    seen_count: int
    last_request_tokens: int
    last_prefix_digest: str
    model: str
    calibration: Calibration
    requests_since_break: int
    compactions_since_answer: int
    failed_compactions: int
    active_decisions: tuple[tuple[str, DecisionEntry | CompactionEntry], ...]
    normalized_prefix: NormalizedPrefix | None
    truncations_since_answer: int = 0
    measured_request: MeasuredRequest | None = None
    last_answer: LastAnswerUsage | None = None
    unchanged_until: int = 0
    previous_coverage: tuple[int, int] = (0, 0)
    protected_parts: dict[int, tuple[int | None, ...]] = {}
    turn_limit_start: int = 0
    policy_name: str = ""
    learned_limits: LearnedLimits = LearnedLimits()
    configured_window: int = 0
    failures_since_summary: int = 0
    compaction_failed_at: int | None = None
    other_model_stats: tuple[ModelStats, ...] = ()
    api: str = ""
    queued_messages: tuple[tuple[str, bytes], ...] = ()
    container: str = ""
    expired_containers: tuple[str, ...] = ()
    revoked_decisions: tuple[RevokedDecision, ...] = ()


_GROUP_OF = {inner.rpartition(".")[2]: inner for inner in flatten_state(ConversationState())} | {
    "last_request_tokens": "last_request.tokens",
    "last_prefix_digest": "last_request.prefix_digest",
}
"""``group.field`` of a state (see ``flatten_state``), by the name of a field of the dump."""
_SEQUENCE_FIELDS = ("sized_messages", "cumulative_tokens", "projection_digests", "digests_before")
"""Fields that are a ``PersistentSequence`` in a state and a tuple in the dump."""


def dump_state(state: ConversationState) -> bytes:
    """Encode ``state``; wire bytes are kept byte for byte."""
    flat = flatten_state(state)
    values: dict[str, Any] = {name: flat[_GROUP_OF[name]] for name in _StateDump.__struct_fields__}
    values |= {name: tuple(values[name]) for name in _SEQUENCE_FIELDS}
    # The dictionary is shared with newer states: copied at once, since another thread may add to it, and without what
    # belongs to those.
    all_first_indexes = values["first_index_by_call_id"].copy()
    message_count = len(values["sized_messages"])
    own_first_indexes: dict[str, int] = {}
    for call_id, index in all_first_indexes.items():
        if index < message_count:
            own_first_indexes[call_id] = index
    values["first_index_by_call_id"] = own_first_indexes
    values["edits"] = tuple(values["edits"].items())
    return pack_value(_StateDump(**values))


def load_state(data: bytes) -> ConversationState:
    """Decode a state written by ``dump_state``, or raise ``FormatError``. Its media are not counted yet."""
    try:
        dump = unpack_value(data, _StateDump)
    except (ValueError, TypeError) as error:
        why = f"these are not the bytes of a state ({error}); give what ConversationState.dump wrote, or no state"
        raise FormatError(why) from error
    values: dict[str, Any] = {name: getattr(dump, name) for name in dump.__struct_fields__}
    values |= {name: PersistentSequence(values[name]) for name in _SEQUENCE_FIELDS}
    values["edits"] = EditMap(edit for _, edits in dump.edits for edit in edits)
    # Not in the dump, since both follow from what is.
    values["native_tokens"] = measure_native_summary(dump.compaction, dump.model, dump.api)
    values["messages"] = PersistentSequence(sized_message.message for sized_message in dump.sized_messages)
    flat_values = {_GROUP_OF[name]: value for name, value in values.items()}
    return replace_flat_fields(ConversationState(), flat_values)
