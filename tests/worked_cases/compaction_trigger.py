"""Worked cases about when a policy compacts, answered by plans: at which reported usage the next request is smaller."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast import Message, plan
from holdfast.config import get_target
from holdfast.state.target import ModelLimits

PLACE = get_target("anthropic", "claude-sonnet-4-5")


def place(window, output=None, most_input=None):
    """Return a place with these limits, in tokens."""
    return replace(PLACE, limits=ModelLimits(window, output, max_input=most_input))


def compacts(usage, where, policy, output=0):
    """Return whether a plan compacts after an answer with this usage: input and output in tokens.

    What the user says then is one word, which the tools that estimate it count as one token.
    """
    return _Conversation(where, policy).compacts(usage, output)


def first_compaction(where, policy):
    """Return the smallest usage at which a plan compacts; the window, where none up to it does."""
    conversation, low, high = _Conversation(where, policy), 0, where.limits.window
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if conversation.compacts(middle) else (middle + 1, high)
    return low


class _Conversation:
    """A conversation that fills much of a window, before the answer whose usage counts."""

    def __init__(self, where, policy):
        self._place, self._policy = where, policy
        words = "barnacle kelp " * (where.limits.window // 50)
        said = [
            Message.from_text(role, f"{role} {turn} {words}") for turn in range(4) for role in ("user", "assistant")
        ]
        self._said = [*said[:-1], Message.from_text("assistant", "ok"), Message.from_text("user", "on")]
        self._asked = plan(said[:-1], where, policy.with_settings(compaction={"enabled": False})).state

    def compacts(self, usage, output=0):
        """Return whether the next request compacts after an answer with this usage."""
        answered = self._asked.with_reported_usage(usage, output)
        return plan(self._said, self._place, self._policy, state=answered).compaction is not None
