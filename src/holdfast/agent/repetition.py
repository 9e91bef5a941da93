"""A model that goes round in circles: the same call with the same result, again and again."""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from holdfast.messages.message import result_text
from holdfast.messages.parts import ToolCall, ToolResult

LOOKED = 64
"""[H] Newest calls that are compared; a circle of up to eight calls is one too."""
WARNED, STOPPED = 3, 8
"""[H] How often the same is done until the model is told, and until the work stops."""


class Done(Struct, frozen=True):
    """A finished tool call. Arguments and result are compared as they are: a result that changes is progress."""

    tool: str
    arguments: str
    result: str


class Circles:
    """The newest calls of a run."""

    def __init__(self) -> None:
        self._newest: deque[Done] = deque(maxlen=LOOKED)
        self.times = 0
        """How often the newest call was made with this result, among those that are compared."""

    def add(self, call: ToolCall, result: ToolResult) -> str:
        """Take a call and its result; return what the model is told of it, or nothing."""
        done = Done(call.name, call.arguments, result_text(result))
        self._newest.append(done)
        self.times = self._newest.count(done)
        if self.times < WARNED:
            return ""
        return f"\n[call {self.times} of the same with the same result; it will not change: do something else]"

    @property
    def is_one(self) -> bool:
        """Whether the run goes round in circles."""
        return self.times >= STOPPED
