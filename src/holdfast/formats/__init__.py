"""Recorded sessions of other tools, read into entries and written back: bytes in, values out, no file opened."""

from __future__ import annotations

from holdfast.formats.apply_decisions import apply_decisions_to_messages
from holdfast.formats.base import (
    RecordedModelCall,
    Recording,
    RecordingProblem,
    build_state_at_leaf,
    get_branch_entries,
    get_full_history_entries,
    list_model_calls,
    make_recording,
)
from holdfast.formats.export import (
    EXPORT_FORMATS,
    ExportResult,
    export_atif_segments,
    export_bytes,
    export_with_loss_notes,
)
from holdfast.formats.losses import describe_losses
from holdfast.formats.recognize import RECORDING_READERS, read_recording, read_recording_lazily
from holdfast.formats.reimport import select_new_entries

__all__ = [
    "EXPORT_FORMATS",
    "RECORDING_READERS",
    "ExportResult",
    "RecordedModelCall",
    "Recording",
    "RecordingProblem",
    "apply_decisions_to_messages",
    "build_state_at_leaf",
    "describe_losses",
    "export_atif_segments",
    "export_bytes",
    "export_with_loss_notes",
    "get_branch_entries",
    "get_full_history_entries",
    "list_model_calls",
    "make_recording",
    "read_recording",
    "read_recording_lazily",
    "select_new_entries",
]
