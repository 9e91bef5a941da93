"""Helpers for worked cases about when a policy compacts: at which reported usage the next plan compacts."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast import Message, plan
from holdfast.config import get_target
from holdfast.state.target import ModelLimits

DEFAULT_TARGET = get_target("anthropic", "claude-sonnet-4-5")


def build_target(window, output=None, max_input=None):
    """Return a target with these limits, in tokens."""
    return replace(DEFAULT_TARGET, limits=ModelLimits(window, output, max_input=max_input))


def is_compacted(usage, target, policy, output=0):
    """Return whether a plan compacts after an answer with this usage, input and output in tokens.

    The user message after it is one word, which the presets' estimators count as one token.
    """
    return _Conversation(target, policy).is_compacted(usage, output)


def find_first_compaction(target, policy):
    """Return the smallest usage at which a plan compacts, or the window if none below it does."""
    conversation, low, high = _Conversation(target, policy), 0, target.limits.window
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if conversation.is_compacted(middle) else (middle + 1, high)
    return low


class _Conversation:
    """A conversation that fills much of a window, before the answer that reports the usage."""

    def __init__(self, target, policy):
        self._target, self._policy = target, policy
        filler = "barnacle kelp " * (target.limits.window // 50)
        messages = [
            Message.from_text(role, f"{role} {turn} {filler}") for turn in range(4) for role in ("user", "assistant")
        ]
        self._messages = [*messages[:-1], Message.from_text("assistant", "ok"), Message.from_text("user", "on")]
        self._state = plan(messages[:-1], target, policy.with_settings(compaction={"enabled": False})).state

    def is_compacted(self, usage, output=0):
        """Return whether the next request compacts after an answer with this usage."""
        state = self._state.with_reported_usage(usage, output)
        return plan(self._messages, self._target, self._policy, state=state).compaction is not None
