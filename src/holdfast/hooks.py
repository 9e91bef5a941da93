"""Extensions that a program gives to an ``Engine``: hooks, and models that write summaries.

``Engine.open(hooks=Hooks(...), writers=[SummaryWriter(...)])``; ``docs/engine.md`` says when each hook is called.
"""

from holdfast.engine.compaction.summary_writer import SummaryWriter
from holdfast.engine.hooks import (
    AfterCompaction,
    AutoContinue,
    BeforeCompaction,
    BeforeCompactionResult,
    Hooks,
    OnAppend,
    OnOverflow,
    TransformMessages,
)

__all__ = [
    "AfterCompaction",
    "AutoContinue",
    "BeforeCompaction",
    "BeforeCompactionResult",
    "Hooks",
    "OnAppend",
    "OnOverflow",
    "SummaryWriter",
    "TransformMessages",
]
