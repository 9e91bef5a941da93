"""Recorded sessions of other tools to entries and back: lines in, values out, and no file is opened here."""

from __future__ import annotations

from holdfast.formats.again import again
from holdfast.formats.base import Problem, Recording, Step, context, history, path, recording_of, steps
from holdfast.formats.export import WRITERS, write
from holdfast.formats.recognise import READERS, read
from holdfast.formats.reduced import reduced

__all__ = [
    "READERS",
    "WRITERS",
    "Problem",
    "Recording",
    "Step",
    "again",
    "context",
    "history",
    "path",
    "read",
    "recording_of",
    "reduced",
    "steps",
    "write",
]
