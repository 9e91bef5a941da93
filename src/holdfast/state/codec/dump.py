"""A branch as bytes and back, for a database of somebody's own."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from holdfast.errors import FormatError
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.branch.view import measure_native_summary
from holdfast.state.calibration.calibration import Calibration, LastAnswerUsage, LearnedLimits, MeasuredRequest
from holdfast.state.calibration.model_stats import ModelStats
from holdfast.state.codec.packing import pack_value, unpack_value
from holdfast.state.edit_map import EditMap
from holdfast.state.edits import Edit, NormalizedPrefix
from holdfast.state.entries import CompactionEntry, DecisionEntry, RequestSetup
from holdfast.state.sequence import PersistentSequence


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
    },
):
    """The form in which a branch is written down."""

    sized_messages: tuple[SizedMessage, ...]
    sums: tuple[int, ...]
    marks: tuple[bytes, ...]
    born: tuple[bytes, ...]
    pinned_count: int
    keep: int
    compaction: CompactionEntry | None
    edits: tuple[tuple[int, tuple[Edit, ...]], ...]
    shown_tokens: int
    callers: dict[str, int]
    media: int
    media_bytes: int
    open: tuple[str, ...]
    broken: tuple[int, ...]
    setup: RequestSetup
    setup_changed_at: int
    seen_count: int
    last_request_tokens: int
    basis: str
    model: str
    calibration: Calibration
    quiet: int
    compactions: int
    failures: int
    law: tuple[tuple[str, DecisionEntry | CompactionEntry], ...]
    normalized_prefix: NormalizedPrefix | None
    truncations: int = 0
    measured_request: MeasuredRequest | None = None
    last_answer: LastAnswerUsage | None = None
    standing: int = 0
    previous_coverage: tuple[int, int] = (0, 0)
    protected_parts: dict[int, tuple[int | None, ...]] = {}
    turn_limit_start: int = 0
    policy: str = ""
    learned_limits: LearnedLimits = LearnedLimits()
    window: int = 0
    unwritten: int = 0
    failed_at: int | None = None
    aside: tuple[ModelStats, ...] = ()
    api: str = ""
    waiting: tuple[tuple[str, bytes], ...] = ()


_SEQUENCE_FIELDS = ("slots", "sums", "marks", "born")


def dump_state(branch: Struct) -> bytes:
    """Return a branch as bytes; wire bytes are kept byte for byte."""
    values: dict[str, Any] = {name: getattr(branch, name) for name in _StateDump.__struct_fields__}
    values |= {name: tuple(values[name]) for name in _SEQUENCE_FIELDS}
    callers = values["callers"].copy()  # at once: another thread may go on from here
    values["callers"] = {id_: index for id_, index in callers.items() if index < len(values["slots"])}
    return pack_value(_StateDump(**values | {"edits": tuple(values["edits"].items())}))


def load_state_fields(data: bytes) -> dict[str, Any]:
    """Return the fields of the branch that ``dump_state`` wrote; ``FormatError`` for any other bytes."""
    try:
        state = unpack_value(data, _StateDump)
    except (ValueError, TypeError) as error:
        why = f"these are not the bytes of a branch ({error}); give what Branch.dump wrote, or plan without a branch"
        raise FormatError(why) from error
    values: dict[str, Any] = {name: getattr(state, name) for name in state.__struct_fields__}
    values |= {name: PersistentSequence(values[name]) for name in _SEQUENCE_FIELDS}
    values["edits"] = EditMap(edit for _, edits in state.edits for edit in edits)
    values["native"] = measure_native_summary(state.compaction, state.model, state.api)
    values["messages"] = PersistentSequence(sized_message.message for sized_message in state.sized_messages)
    return values
