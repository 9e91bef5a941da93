"""A long conversation, for tests of what shortens it."""

from __future__ import annotations

from holdfast.messages.message import Message


def talk(notes=40):
    """Return a conversation of so many turns, each of some 400 tokens: 40 are over the trigger of a small window."""
    turns = [(f"Read note {number}.", f"Note {number}: " + "kelp on the rock " * 120) for number in range(notes)]
    return [
        Message.from_text(role, text) for turn in turns for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
