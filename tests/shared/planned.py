"""Worked cases about when a policy compacts, answered by plans: at which reported usage the next request is smaller."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from holdfast import Message, World, plan
from holdfast.config import target
from holdfast.model.target import Limits

PLACE = target("anthropic", "claude-sonnet-4-5")


def place(window, output=None, most_input=None):
    """Return a place with these limits, in tokens."""
    return replace(PLACE, limits=Limits(window, output, max_input=most_input))


def compacts(usage, where, policy, output=0):
    """Return whether a plan compacts after an answer with this usage: input and output in tokens.

    What the user says then is one word, which the tools that estimate it count as one token.
    """
    said, answered = _conversation(where, policy)
    return plan(said, where, policy, branch=answered.reported(usage, output)).compaction is not None


def first_compaction(where, policy):
    """Return the smallest usage at which a plan compacts; the window, where none up to it does."""
    low, high = 0, where.limits.window
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if compacts(middle, where, policy) else (middle + 1, high)
    return low


@cache
def _conversation(where, policy):
    """Return a conversation that fills about half of the window, and its branch up to the last answer."""
    words = where.limits.window // 50
    said = [
        Message.of(role, f"{role} {turn} " + "barnacle kelp " * words)
        for turn in range(4)
        for role in ("user", "assistant")
    ]
    asked = plan(said[:-1], where, policy.with_settings(compact="off"))
    return [*said[:-1], Message.of("assistant", "ok"), Message.of("user", "on")], asked.branch


def keeps_from(messages, where, policy):
    """Return the place of the first message that a compaction by hand keeps, or None where it compacts nothing."""
    made = plan(messages, where, policy, world=World(force=True)).compaction
    return None if made is None else made.keep
