"""A long conversation, for tests of compaction and truncation."""

from __future__ import annotations

from holdfast.messages.message import Message


def build_long_conversation(notes=40):
    """Return a conversation of ``notes`` turns of about 400 tokens; 40 exceed the trigger of a small window."""
    turns = [(f"Read note {number}.", f"Note {number}: " + "kelp on the rock " * 120) for number in range(notes)]
    return [
        Message.from_text(role, text) for turn in turns for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
