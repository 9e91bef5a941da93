"""Holdfast keeps long agent conversations inside the model's context window: valid, cheap, and with nothing lost.

``plan`` and ``apply`` are pure functions over messages; everything else is built on them. Importing this package loads
msgspec and the standard library, no database and no network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.model.branch import Branch
from holdfast.model.messages import Message
from holdfast.model.plan import Plan
from holdfast.model.target import Target, World
from holdfast.policy.pipeline import Policy, Stage
from holdfast.policy.planning import apply, plan

if TYPE_CHECKING:
    from holdfast.store import open_store

__version__ = "0.1.0"
__all__ = [
    "Branch",
    "HoldfastError",
    "Message",
    "Plan",
    "Policy",
    "Stage",
    "Target",
    "World",
    "apply",
    "open_store",
    "plan",
]


def __getattr__(name: str) -> object:
    """Load what needs a database only when it is asked for."""
    if name == "open_store":
        from holdfast.store import open_store

        return open_store
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
