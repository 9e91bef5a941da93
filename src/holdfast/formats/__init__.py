"""Recorded sessions of other tools to entries and back: lines in, values out, and no file is opened here."""

from __future__ import annotations

from holdfast.formats.base import Problem, Recording, Step, context, history, path, recording_of, steps
from holdfast.formats.export import WRITERS, Written, write, written
from holdfast.formats.losses import left_out
from holdfast.formats.recognize import READERS, read, read_lazily
from holdfast.formats.reduced import reduced
from holdfast.formats.reimport import again

__all__ = [
    "READERS",
    "WRITERS",
    "Problem",
    "Recording",
    "Step",
    "Written",
    "again",
    "context",
    "history",
    "left_out",
    "path",
    "read",
    "read_lazily",
    "recording_of",
    "reduced",
    "steps",
    "write",
    "written",
]
